"""Peers of the embedded journal, each in a process of its own, set up as its documentation says.

Both write to SQLite on the same disk, flushed at every commit (their defaults).  A peer that is not installed
(`pip install 'headrace[bench]'`) is left out, and a line on stderr says so.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from _measure import Side, say

PATIENCE_S = 120.0

#: Does some steps and returns how many it did in a second.
Slice = Callable[[int], float]
#: Sets a peer up in a folder and hands its slice on to be served.
Target = Callable[[Path, Callable[[Slice], None]], None]


class Peer:
    """A peer that waits in its process until it is its turn."""

    def __init__(self, pipe: Connection, count: int) -> None:
        self._pipe, self._count = pipe, count

    def ready(self) -> None:
        """Wait until the peer has started."""
        self._answer()

    async def side(self) -> float:
        """Return the steps a second of one slice."""
        self._pipe.send(self._count)
        return self._answer()

    def _answer(self) -> float:
        if not self._pipe.poll(PATIENCE_S):
            raise TimeoutError("a peer does not answer")
        return self._pipe.recv()


@contextmanager
def peers(folder: Path, steps: int) -> Iterator[dict[str, Side]]:
    """Start the peers that are installed; yields a side for each by name."""
    context = multiprocessing.get_context("spawn")
    running = []
    sides: dict[str, Side] = {}
    try:
        for name, (module, target) in PEERS.items():
            if importlib.util.find_spec(module) is None:
                say(f"{name} is not installed (pip install 'headrace[bench]'): its figure is null")
                continue
            mine, theirs = context.Pipe()
            process = context.Process(target=_served, args=(target, folder, theirs), daemon=True)
            process.start()
            theirs.close()
            running.append((process, mine))
            peer = Peer(mine, steps)
            peer.ready()
            sides[name] = peer.side
        yield sides
    finally:
        for process, pipe in running:
            pipe.close()
            process.join(10)
            if process.is_alive():
                process.kill()


def _served(
    target: Callable[[Path, Callable[[Callable[[int], float]], None]], None], folder: Path, pipe: Connection
):
    """In the peer's process: answer counts with steps a second until the pipe is closed."""
    os.dup2(sys.stderr.fileno(), 1)  # what a peer prints is not the result

    def serve(slice_of: Slice) -> None:
        slice_of(4)  # warm
        pipe.send(0.0)
        while True:
            try:
                count = pipe.recv()
            except EOFError:
                return
            pipe.send(slice_of(count))

    target(folder, serve)


def dbos(folder: Path, serve: Callable[[Slice], None]) -> None:
    """Steps of one workflow: each step's result is a row before the next begins."""
    from dbos import DBOS, DBOSConfig

    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": f"sqlite:///{folder / 'dbos.sqlite'}",
        "log_level": "ERROR",
    }
    DBOS(config=config)

    @DBOS.step()
    def route(customer: str, text: str) -> dict[str, str]:
        return {"customer": customer, "intent": "translate", "text": text}

    @DBOS.workflow()
    def many(count: int) -> int:
        for number in range(count):
            route(f"customer-{number % 97}", TEXT)
        return count

    DBOS.launch()

    def slice_of(count: int) -> float:
        begin = time.perf_counter()
        assert many(count) == count
        return count / (time.perf_counter() - begin)

    serve(slice_of)
    DBOS.destroy()


def langgraph(folder: Path, serve: Callable[[Slice], None]) -> None:
    """Two nodes, a checkpoint written before the next step begins; counted in nodes, not in runs."""
    from typing import TypedDict

    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict):
        customer: str
        text: str
        intent: str

    def classify(state: State) -> dict[str, str]:
        return {"intent": "translate" if state["text"] else "none"}

    def route(state: State) -> dict[str, str]:
        return {"intent": state["intent"]}

    builder = StateGraph(State)
    builder.add_node("classify", classify)
    builder.add_node("route", route)
    builder.add_edge(START, "classify")
    builder.add_edge("classify", "route")
    builder.add_edge("route", END)
    database = sqlite3.connect(folder / "langgraph.sqlite", check_same_thread=False)
    graph = builder.compile(checkpointer=SqliteSaver(database))
    threads = iter(range(1_000_000_000))

    def slice_of(count: int) -> float:
        runs = max(1, count // 2)
        begin = time.perf_counter()
        for _ in range(runs):
            number = next(threads)
            graph.invoke(
                {"customer": f"customer-{number % 97}", "text": TEXT, "intent": ""},
                {"configurable": {"thread_id": str(number)}},
                durability="sync",
            )
        return 2 * runs / (time.perf_counter() - begin)

    serve(slice_of)
    database.close()


TEXT = "how would you say fly in italian, please tell me as soon as you can " * 2
#: name -> (module that must be there, what runs it)
PEERS: dict[str, tuple[str, Target]] = {
    "dbos": ("dbos", dbos),
    "langgraph": ("langgraph.checkpoint.sqlite", langgraph),
}
