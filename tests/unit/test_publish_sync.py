"""Publishing from code without an event loop, from beside one, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.terminal import environment

from headrace import App, Event, Options, errors
from headrace.integrations.asgi import Inlet, lifespan
from headrace.journal.reader import Reader
from headrace.runtime import outlet
from headrace.testing import run_until_idle


class Note(Event, topic="sync-notes", key="owner"):
    """What is published."""

    owner: str
    n: int = 0


class Kept(Event, topic="sync-kept", key="owner"):
    """What follows."""

    owner: str


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """An app with a journal of its own."""
    found = App("sync", journal=str(tmp_path / "headrace.db"), events=[Note])
    yield found
    found.close_sync()


def stored(app: App) -> list[Any]:
    """Return the payloads of all events."""
    reader = Reader(app.settings.journal)
    try:
        return [json.loads(one.payload) for one in reader.events()]
    finally:
        reader.close()


def test_a_script_publishes_without_a_loop(app: App) -> None:
    """One event gives one receipt, several give a list; all options hold; errors are those of `publish`."""
    first = app.publish_sync(Note(owner="a"), event_id="n-1")
    again = app.publish_sync(Note(owner="a"), event_id="n-1")
    unit = app.publish_sync([Note(owner="b"), (Note(owner="c"), Options(parents=["n-1"]))])

    assert (first.duplicate, again.duplicate, first.event_id == again.event_id) == (False, True, True)
    assert len(unit) == 2
    with pytest.raises(errors.EventConflict):
        app.publish_sync(Note(owner="other"), event_id="n-1")
    with pytest.raises(errors.EnvelopeInvalid):
        app.publish_sync([Note(owner="a")], event_id="x")  # type: ignore[call-overload]
    assert app.publish_sync([]) == []
    assert [one["owner"] for one in stored(app)] == ["a", "b", "c"]


def test_many_threads_share_one_connection(app: App) -> None:
    """All that they publish is there, once."""

    def work(owner: int) -> None:
        for n in range(20):
            app.publish_sync(Note(owner=f"o{owner}", n=n))

    threads = [threading.Thread(target=work, args=(owner,)) for owner in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    assert len(stored(app)) == 160
    assert sum(one.name == "headrace-publish" for one in threading.enumerate()) == 1


def test_it_may_be_closed_and_used_again(app: App) -> None:
    """Closing ends the thread; harmless without one, and twice."""
    app.close_sync()
    app.publish_sync(Note(owner="a"))
    (thread,) = [one for one in threading.enumerate() if one.name == "headrace-publish"]
    app.close_sync()
    app.close_sync()
    thread.join(10)
    assert not thread.is_alive()
    app.publish_sync(Note(owner="b"))
    assert len(stored(app)) == 2


def test_a_cell_of_a_notebook_publishes(app: App) -> None:
    """There a loop runs in the very thread: `await app.publish` and `publish_sync` work, in any order."""

    async def cells() -> None:
        app.publish_sync(Note(owner="a"))
        await app.publish(Note(owner="b"))
        app.publish_sync(Note(owner="c"))
        await app.close()

    asyncio.run(cells())
    assert [one["owner"] for one in stored(app)] == ["a", "b", "c"]


def test_a_thread_beside_the_loop_uses_its_journal(app: App) -> None:
    """A route that is a plain function, or a plain handler: no second connection is opened."""

    async def main() -> None:
        async with app:
            await asyncio.to_thread(app.publish_sync, Note(owner="a"))

    asyncio.run(main())
    assert app._aside is None
    assert len(stored(app)) == 1


def test_in_memory_there_is_one_connection() -> None:
    """From a plain handler it works, because the loop does it; without the loop it is refused."""
    app = App("sync", journal=":memory:", events=[Note])
    with pytest.raises(errors.JournalLoopBound, match="one connection"):
        app.publish_sync(Note(owner="a"))

    @app.handler
    def keep(note: Note) -> None:
        if note.n == 0:
            app.publish_sync(Note(owner="more", n=1))

    assert len(run_until_idle(app, Note(owner="a")).events) == 2

    @app.handler
    async def late(note: Note) -> None:
        app.publish_sync(Note(owner="more", n=2))

    result = run_until_idle(app, Note(owner="a", n=1))
    assert [
        (code, "JournalLoopBound" in error or "one connection" in error) for _, code, error, _ in result.dead
    ]


def test_a_loop_that_is_blocked_is_told(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for it does not wait for ever."""
    monkeypatch.setattr(outlet, "PUBLISH_S_MAX", 0.05)
    done = threading.Event()

    async def main() -> None:
        async with app:
            found: list[BaseException] = []

            def call() -> None:
                try:
                    app.publish_sync(Note(owner="a"))
                except errors.JournalUnavailable as fault:
                    found.append(fault)
                done.set()

            threading.Thread(target=call).start()
            done.wait(10)  # blocks the loop
            assert "is silent" in str(found[0])

    asyncio.run(main())


def test_a_forked_child_publishes_for_itself(app: App) -> None:
    """It has no thread of its parent's, and opens a connection of its own."""
    script = f"""
import os, sys
from headrace import App, Event
class Note(Event, topic="sync-notes", key="owner"):
    owner: str
app = App("sync", journal={app.settings.journal!r}, events=[Note])
app.publish_sync(Note(owner="parent"))
child = os.fork()
if not child:
    app.publish_sync(Note(owner="child"))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
app.publish_sync(Note(owner="parent"))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, env=environment(), timeout=60)
    assert [one["owner"] for one in stored(app)] == ["parent", "child", "parent"]


# --- over HTTP --------------------------------------------------------------------------------


async def call(
    inlet: Inlet, path: str, body: bytes = b"", *, method: str = "POST", root: str = "", **headers: str
) -> tuple[int, Any]:
    """Send one request, the body in two parts; the status and the document."""
    parts = [body[:5], body[5:]]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "root_path": root, "headers": given}
    await inlet(scope, receive, send)
    start, content = sent
    assert dict(start["headers"])[b"content-length"] == str(len(content["body"])).encode()
    return start["status"], json.loads(content["body"])


def test_events_are_published_over_http(app: App) -> None:
    """201 with the receipt; the idempotency key is the id; the trace is continued; mounted or not."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def main() -> None:
        async with app:
            inlet = Inlet(app)
            first = await call(inlet, "/Note", b'{"owner": "a"}', Idempotency_Key="k-1", traceparent=trace)
            again = await call(
                inlet, "/events/Note", b'{"owner": "a"}', root="/events", idempotency_key="k-1"
            )
            assert first[0] == again[0] == 201
            assert again[1] == {"event_id": first[1]["event_id"], "duplicate": True}
            named = await call(inlet, "/Note", b'{"owner": "a"}', idempotency_key="schl\u00fcssel")
            found = await app.publish(Note(owner="a"), event_id="schl\u00fcssel")
            assert (named[1]["event_id"], found.duplicate) == (str(found.event_id), True)

    asyncio.run(main())
    reader = Reader(app.settings.journal)
    assert "0af7651916cd43dd8448eb211c80319c" in reader.events()[0].envelope.traceparent
    reader.close()


@pytest.mark.parametrize(
    ("path", "body", "more", "status", "code"),
    [
        ("/Nothing", b"{}", {}, 404, "HR-E108"),
        ("/Kept", b"{}", {}, 404, "HR-E108"),
        ("/Note", b"{}", {}, 422, "HR-E103"),
        ("/Note", b'{"owner": "a", "owner": "b"}', {}, 422, "HR-E104"),
        ("/Note", b'{"owner": "' + b"x" * 2_000 + b'"}', {}, 413, "HR-E105"),
        ("/Note", b'{"owner": "a"}', {"content_type": "text/plain"}, 415, "HR-E107"),
        ("/Note", b'{"owner": "b"}', {"idempotency_key": "k"}, 409, "HR-E110"),
        ("/Note", b"", {"method": "GET"}, 405, "HR-E507"),
    ],
)
def test_what_is_refused_has_a_code(
    tmp_path: Path, path: str, body: bytes, more: Any, status: int, code: str
) -> None:
    """Status, code, message and hint; nothing was written."""
    from headrace.settings import Settings

    settings = Settings(journal=str(tmp_path / "headrace.db"), payload_bytes_max=1_000)
    app = App("sync", settings=settings, events=[Note, Kept])

    async def main() -> tuple[int, Any]:
        async with app:
            await app.publish(Note(owner="a"), event_id="k")
            return await call(Inlet(app, types=["Note"]), path, body, **more)

    found, answer = asyncio.run(main())
    assert (found, answer["code"]) == (status, code)
    assert answer.keys() == {"code", "message", "hint"}
    assert len(stored(app)) == 1


def test_a_server_opens_and_closes_the_app(app: App) -> None:
    """Run by itself it heeds the life of the server; one that cannot open says so."""
    events = ["lifespan.startup", "lifespan.shutdown"]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": events.pop(0)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def main() -> None:
        await Inlet(app)({"type": "lifespan"}, receive, send)
        events.append("lifespan.startup")
        await Inlet(App("sync", journal="/nowhere/headrace.db"))({"type": "lifespan"}, receive, send)
        with pytest.raises(RuntimeError, match="no websocket here"):
            await Inlet(app)({"type": "websocket"}, receive, send)

    asyncio.run(main())
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "lifespan.startup.failed"]
    assert os.path.exists(app.settings.journal)  # noqa: PTH110 - a path is text here


def test_handlers_run_beside_a_web_application(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """With ``handlers`` they work while the server does; a worker that cannot start is told, loudly."""
    kept = asyncio.Event()

    @app.handler
    async def keep(note: Note) -> Kept:
        kept.set()
        return Kept(owner=note.owner)

    async def main() -> None:
        async with lifespan(app)(None):
            await app.publish(Note(owner="waits"))
            assert not kept.is_set()
        async with lifespan(app, handlers=True)(None):
            await asyncio.wait_for(kept.wait(), 30)

    asyncio.run(main())
    assert [one.get("owner") for one in stored(app)] == ["waits", "waits"]

    @app.provide
    async def broken() -> int:
        raise OSError("away")

    @app.handler
    async def needs(note: Note, number: int) -> None: ...

    async def again() -> None:
        with pytest.raises(errors.ProviderFailed):
            async with lifespan(app, handlers=True)(None):
                await asyncio.sleep(0.2)

    asyncio.run(again())
    assert "no event is handled in this process any more" in caplog.text


def test_an_app_is_closed_by_the_last_who_has_it_open(app: App) -> None:
    """``async with`` inside of another one, as in a route of a web application, leaves it open."""

    async def main() -> None:
        async with app:
            async with app:
                await app.publish(Note(owner="a"))
            await app.publish(Note(owner="b"))
        with pytest.raises(errors.JournalClosed):
            await app.publish(Note(owner="c"))

    asyncio.run(main())
