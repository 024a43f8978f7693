"""Model files on their bad days: missing, half written, rolled back while several workers reload."""

# ruff: noqa: ASYNC110 - a test waits for other processes, and looks at their files

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.fault._apps import Number, NumberSeen
from tests.fault._weights import plus
from tests.fault.conftest import Stage

from headrace import App, Model, errors
from headrace.settings import Settings

#: Longer than two looks at the file: a change has been seen and taken over.
SEEN_S = 0.8


def adding(stage: Stage, seen: list[float]) -> App:
    """Return an app that asks the model of the stage."""
    app = App("fault", settings=Settings(journal=str(stage.journal), lease_ms=500))

    @app.handler(model=Model.onnx(stage.folder / "plus.onnx", name="plus"))
    async def add(number: Number, model: Any) -> NumberSeen:
        seen.append(float(await model(number.x)) - number.x)
        return NumberSeen(x=number.x, y=number.x + seen[-1], process=0)

    return app


BROKEN: dict[str, bytes | None] = {
    "missing": None,
    "empty": b"",
    "text": b"this is no model",
    "half": b"\x08\x08:G\n\x0e\n\x01X\n\x01c",
    "zeros": bytes(10_000),
}


def put(path: Path, data: bytes | None) -> None:
    """Write the bytes, or remove the file."""
    path.unlink(missing_ok=True)
    if data is not None:
        path.write_bytes(data)


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
async def test_a_model_that_cannot_be_loaded_at_the_start(stage: Stage, data: bytes | None) -> None:
    """The worker says which file and why, and has taken nothing; with a good file all events are handled."""
    path, seen = stage.folder / "plus.onnx", list[float]()
    put(path, data)
    async with adding(stage, seen) as app:
        await app.publish([Number(x=x) for x in range(3)])
        with pytest.raises((errors.ModelMissing, errors.ModelCorrupt, errors.ModelMismatch)) as caught:
            await app.run()
        assert str(path) in str(caught.value)
        assert stage.look.rows("SELECT sum(taken), count(owner) FROM position") in ([(0, 0)], [(None, 0)])
        plus(path, 1.0)
        run = asyncio.create_task(app.run())
        while len(seen) < 3:
            await asyncio.sleep(0.01)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    assert seen == [1.0] * 3
    assert stage.look.idle(3)


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
async def test_a_model_that_cannot_be_loaded_later(
    stage: Stage, data: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The old one keeps serving and the error is told once; the next good file is taken."""
    path, seen = stage.folder / "plus.onnx", list[float]()
    plus(path, 1.0)
    async with adding(stage, seen) as app:
        run = asyncio.create_task(app.run())
        await app.publish(Number(x=1))
        while len(seen) < 1:
            await asyncio.sleep(0.01)
        put(path, data)
        with caplog.at_level(logging.ERROR, "headrace.model"):
            await asyncio.sleep(SEEN_S)
            await asyncio.to_thread(lambda: stage.until(lambda: caplog.records, "the broken file is told"))
        await app.publish(Number(x=2))
        while len(seen) < 2:
            await asyncio.sleep(0.01)
        plus(path, 2.0)
        while stage.look.one("SELECT count(*) FROM version") < 2:
            await asyncio.sleep(0.01)
        await app.publish(Number(x=3))
        while len(seen) < 3:
            await asyncio.sleep(0.01)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    assert seen == [1.0, 1.0, 2.0]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "old one keeps serving" in told[0]
    assert "plus.onnx" in told[0]


# --- roll-back ----------------------------------------------------------------------------------

#: The version that finished an offset: its exception row, else the range that it lies in.
LEDGER = """
SELECT event.seq,
    (SELECT version FROM exception
     WHERE exception.sub = at.sub AND exception.tp = at.tp AND exception.seq = event.seq),
    (SELECT version FROM range WHERE range.sub = at.sub AND range.tp = at.tp AND after < event.seq
     ORDER BY after DESC LIMIT 1),
    (SELECT body FROM event AS child JOIN topic ON topic.id = child.tp >> 10 AND topic.name = 'numbers-seen'
     WHERE child.cid = event.seq)
FROM position AS at JOIN event ON event.tp = at.tp
"""


async def test_a_roll_back_while_three_workers_reload(stage: Stage) -> None:
    """Three workers with files of their own go forth and back at different moments under load.

    Each event is handled by one version; the ledger names exactly one for it; the answer is that version's.
    """
    models = [stage.folder / f"{n}" / "plus.onnx" for n in range(3)]
    for path in models:
        path.parent.mkdir()
        plus(path, 1.0)
    workers = [stage.worker("numbers", model=str(path), concurrency=4, lease_ms=3_000) for path in models]
    stage.until(lambda: stage.look.one("SELECT count(DISTINCT owner) FROM position") == 3, "three share")
    app, count = App("fault", settings=Settings(journal=str(stage.journal))), 0
    async with app:

        async def load(seconds: float) -> None:
            """Publish for a while."""
            nonlocal count
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await app.publish([Number(x=count + n) for n in range(5)])
                count += 5
                await asyncio.sleep(0.01)

        await load(0.3)
        for path in models:  # forth, one after the other
            plus(path, 2.0)
            await load(0.25)
        await load(SEEN_S)
        (old,) = stage.look.rows("SELECT name, epoch FROM model ORDER BY epoch")[:1]
        await app.journal.activate("fault.add", f"{old[0]}@{old[1]}")  # back, with files that are still new
        await load(0.2)
        for path in models[::-1]:
            plus(path, 1.0)
            await load(0.25)
        await load(0.3)
    stage.until_idle(count)
    for worker in workers:
        assert worker.end(signal.SIGTERM) == 0
    versions = dict(
        stage.look.rows("SELECT version.id, epoch FROM version JOIN model ON model.id = version.model")
    )
    assert sorted(versions.values()) == [1, 2]
    rows = stage.look.rows(LEDGER)
    assert len(rows) == count
    for seq, exception, in_range, body in rows:
        said = json.loads(body)
        epoch = versions[exception if exception is not None else in_range]
        assert said["y"] - said["x"] == epoch, seq
        assert exception != in_range  # a row only where it says something else
    assert {json.loads(body)["y"] - json.loads(body)["x"] for *_, body in rows} == {1, 2}
    assert len(stage.calls()) == count  # and no event was handled twice
    children = stage.look.emitted("numbers-seen")
    assert len(children) == len({one["x"] for one in children}) == count


async def test_an_old_file_put_back_is_refused_until_it_is_activated(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Going back is a decision: the old bytes do not serve by themselves, and the log says what to do."""
    path, seen = stage.folder / "plus.onnx", list[float]()
    plus(path, 1.0)
    async with adding(stage, seen) as app:
        run = asyncio.create_task(app.run())

        async def answered(x: int) -> float:
            await app.publish(Number(x=x))
            while len(seen) < x:
                await asyncio.sleep(0.01)
            return seen[-1]

        assert await answered(1) == 1.0
        plus(path, 2.0)
        while stage.look.one("SELECT count(*) FROM version") < 2:
            await asyncio.sleep(0.01)
        assert await answered(2) == 2.0
        with caplog.at_level(logging.WARNING, "headrace.model"):
            plus(path, 1.0)
            await asyncio.sleep(SEEN_S)
            await asyncio.to_thread(lambda: stage.until(lambda: caplog.records, "the refusal is told"))
        assert await answered(3) == 2.0
        assert "headrace model activate" in caplog.text
        await app.journal.activate("fault.add", "plus@1")
        assert await answered(4) == 1.0
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    told = [one for one in caplog.records if one.name == "headrace.model" and "HR-E307" in one.getMessage()]
    assert [one.levelno for one in told] == [logging.WARNING]
