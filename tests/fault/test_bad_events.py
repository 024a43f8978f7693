"""Events that nobody should have sent, or that no longer fit: refused with a code, or a dead letter."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any
from uuid import UUID

import pytest
from tests.fault.conftest import Stage

from headrace import App, Event, errors
from headrace.app import World
from headrace.codec.foreign import check_foreign
from headrace.settings import Settings
from headrace.testing import ManualClock, drain

MIB = 1 << 20


class Note(Event, topic="notes", type="fault.note"):
    """The class as it is."""

    text: str


class Other(Event, topic="notes", type="fault.other"):
    """Another type of the same topic."""

    text: str


class Empty(Event, topic="empties", type="fault.empty"):
    """Says only that it happened."""


def app_of(stage: Stage, *events: type[Event]) -> App:
    """Return an app on the journal of the stage, in a world that is moved by hand."""
    app = App("fault", events=events, settings=Settings(journal=str(stage.journal), lease_ms=300))
    app.place_in(World(clock=ManualClock()))
    return app


async def handled(app: App) -> None:
    """Handle everything there is."""
    worker = app.worker()
    await worker.start(keep=False)
    clock = app._world.clock  # type: ignore[union-attr]  # the one of `app_of`
    assert isinstance(clock, ManualClock)
    await drain(worker.servers, clock)
    await worker.finish()


def reading(stage: Stage, seen: list[str], *events: type[Event]) -> App:
    """Return an app that reads notes."""
    app = app_of(stage, *events)

    @app.handler
    async def read(note: Note) -> None:
        seen.append(note.text)

    return app


async def put_raw(app: App, body: bytes, head: bytes | None = None, number: int = 7) -> None:
    """Write a row straight into the store, beside the first event, as another program might."""
    db = app.journal._connection  # type: ignore[attr-defined]  # the file, without going through `publish`
    tp, first = db.row("SELECT tp, head FROM event ORDER BY seq LIMIT 1")
    sql = "INSERT INTO event (tp, eid, cid, depth, head, body, sum) VALUES (?, ?, 0, 0, ?, ?, 0)"
    db.ex(sql, (tp, UUID(int=number).bytes, first if head is None else head, body))


# --- types --------------------------------------------------------------------------------------


async def test_a_type_that_no_class_names_is_a_dead_letter(stage: Stage) -> None:
    """A type unknown to the app dies with that reason and its bytes; the events around it are handled."""
    async with app_of(stage, Note, Other) as app:
        await app.publish([Note(text="a"), Other(text="b"), Note(text="c")])
    seen: list[str] = []
    async with reading(stage, seen) as app:
        await handled(app)
    assert sorted(seen) == ["a", "c"]
    assert stage.look.rows("SELECT reason, code, body, type FROM dead") == [
        ("unknown_type", "HR-E108", b'{"text":"b"}', "fault.other")
    ]
    stage.look.counts()


async def test_another_known_type_of_the_topic_is_passed_over(stage: Stage) -> None:
    """A type that the app knows, but this handler does not consume, is done without being handled."""
    seen: list[str] = []
    async with reading(stage, seen, Other) as app:
        await app.publish([Note(text="a"), Other(text="b")])
        await handled(app)
    assert seen == ["a"]
    assert stage.look.counts() | {"done": 2, "dead": 0} == stage.look.counts()


async def test_a_payload_that_no_longer_fits_its_class_is_a_dead_letter(stage: Stage) -> None:
    """The class changed between publish and handle: each misfit is named with its path, bytes kept."""

    def of(fields: dict[str, Any]) -> Any:
        space = {"__annotations__": fields, "__module__": __name__, "__qualname__": "test.<locals>.Item"}
        made: Any = type(Event)
        return made("Item", (Event,), space, topic="items", type="fault.item")

    old, new = of({"size": int, "names": list[str]}), of({"size": int, "names": list[int], "more": int})
    async with app_of(stage, old) as app:
        await app.publish(old(size=1, names=["1", "x"]))
    app = app_of(stage)

    async def read(item: Any) -> None:
        raise AssertionError("it must not be called")

    read.__annotations__["item"] = new
    app.handler(read)
    async with app:
        await handled(app)
    ((reason, code, error, attempts, body),) = stage.look.rows(
        "SELECT reason, code, error, attempts, body FROM dead"
    )
    assert (reason, code, attempts) == ("invalid", "HR-E103", 1)
    assert "names[1]" in error
    assert "more" in error
    assert json.loads(body) == {"size": 1, "names": ["1", "x"]}


# --- bytes --------------------------------------------------------------------------------------

FOREIGN = {
    "a key twice": b'{"text": "a", "text": "b"}',
    "a key twice, inside": b'{"a": [{"b": 1, "b": 1}]}',
    "NaN": b'{"text": NaN}',
    "Infinity": b'{"text": -Infinity}',
    "beyond any float": b'{"text": 1e999}',
    "65 levels": b'{"text": ' + b"[" * 64 + b"]" * 64 + b"}",
    "a million levels": b"[" * 1_000_000,
    "a lone surrogate": rb'{"text": "\ud800"}',
    "a lone surrogate in a key": rb'{"\udfff": 1}',
    "no UTF-8": b'{"text": "\xff"}',
    "a byte order mark": b'\xef\xbb\xbf{"text": "a"}',
    "two documents": b'{"text": "a"} {"text": "b"}',
    "a tail": b'{"text": "a"}x',
    "nothing": b"",
}


@pytest.mark.parametrize("body", FOREIGN.values(), ids=FOREIGN)
def test_foreign_bytes_that_are_no_plain_json_are_refused(body: bytes) -> None:
    """What another program sends is checked whole before anything is made of it."""
    with pytest.raises(errors.PayloadUndecodable):
        check_foreign("fault.note", body, 2 * MIB)


@pytest.mark.parametrize(
    "body", [b'{"a": "\\ud83d\\ude00"}', b'{"n": 36893488147419103232}', b"[" * 64 + b"]" * 64]
)
def test_foreign_bytes_that_are_plain_json_pass(body: bytes) -> None:
    """A surrogate pair, an integer beyond 64 bits, and 64 levels are JSON like any other."""
    check_foreign("fault.note", body, MIB)


def test_foreign_bytes_on_the_command_line_are_refused(stage: Stage) -> None:
    """`headrace publish` refuses the same, says the code, and writes nothing; good lines are published."""
    (stage.folder / "memos.py").write_text(
        "from headrace import App, Event\n"
        "class Memo(Event, topic='memos'):\n    text: str\n"
        "app = App('memo', events=[Memo])\n",
        "utf-8",
    )
    command = [sys.executable, "-m", "headrace", "publish", "memos:app", "Memo", "-"]
    command += ["--journal", str(stage.journal)]

    def published(line: bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, input=line + b"\n", cwd=stage.folder, capture_output=True, check=False)

    assert published(b'{"text": "good"}').returncode == 0
    for name in ("a key twice", "NaN", "no UTF-8"):
        refused = published(FOREIGN[name])
        assert refused.returncode == 1, (name, refused)
        assert b"HR-E104" in refused.stderr, (name, refused)
    assert stage.look.one("SELECT count(*) FROM event") == 1


def test_foreign_bytes_beyond_the_limit_are_refused_before_they_are_read() -> None:
    """The size comes first: nothing is parsed of what is too large."""
    with pytest.raises(errors.PayloadTooLarge):
        check_foreign("fault.note", b"[" * (MIB + 1), MIB)


STORED = {name: FOREIGN[name] for name in FOREIGN if not name.startswith(("a key twice", "a byte order"))}


@pytest.mark.parametrize("body", STORED.values(), ids=STORED)
async def test_bad_bytes_in_the_store_are_a_dead_letter(stage: Stage, body: bytes) -> None:
    """Bytes that another program wrote into the file never reach a handler, and hold nobody up."""
    seen: list[str] = []
    async with reading(stage, seen) as app:
        await app.publish(Note(text="before"))
        await put_raw(app, body)
        await app.publish(Note(text="behind"))
        await handled(app)
    assert sorted(seen) == ["before", "behind"]
    ((reason, kept),) = stage.look.rows("SELECT reason, body FROM dead")
    assert reason in ("undecodable", "invalid")
    assert kept == body


@pytest.mark.parametrize("head", [b"", b"\x80\x04K\x01.", b"\x90", b"\xc1", b"\x9e" + b"\xc0" * 14])
async def test_an_envelope_that_cannot_be_read_is_a_dead_letter(stage: Stage, head: bytes) -> None:
    """A row whose envelope is no envelope dies with its bytes; the others go on, and readers still read."""
    seen: list[str] = []
    async with reading(stage, seen) as app:
        await app.publish(Note(text="before"))
        await put_raw(app, b'{"text":"x"}', head)
        await app.publish(Note(text="behind"))
        await handled(app)
        reader = app.journal.reader()  # type: ignore[attr-defined]  # of the embedded journal
        assert len(reader.events()) == 3
        reader.close()
    assert sorted(seen) == ["before", "behind"]
    assert stage.look.rows("SELECT reason, code, head FROM dead") == [("undecodable", "HR-E109", head)]


@pytest.mark.parametrize("stamp", [None, b"", b"\x80\x04K\x01.", b"\x90"])
async def test_a_stamp_that_cannot_be_read_is_a_dead_letter(stage: Stage, stamp: bytes | None) -> None:
    """An event whose type cannot be found out dies; it does not take the worker along."""
    import msgspec

    from headrace.codec.head import encode_head

    seen: list[str] = []
    async with reading(stage, seen) as app:
        await app.publish(Note(text="before"))
        db = app.journal._connection  # type: ignore[attr-defined]  # the file, without going through `publish`
        number = 4_711
        if stamp is not None:
            (number,) = db.row("INSERT INTO stamp (value) VALUES (?) RETURNING id", (stamp,))
        head = app.journal.decode_head(db.row("SELECT head FROM event")[0])
        await put_raw(app, b'{"text":"x"}', encode_head(msgspec.structs.replace(head, stamp=number)))
        await app.publish(Note(text="behind"))
        await handled(app)
    assert sorted(seen) == ["before", "behind"]
    assert stage.look.rows("SELECT reason, code FROM dead") == [("undecodable", "HR-E109")]


# --- sizes --------------------------------------------------------------------------------------


async def test_ten_megabytes_are_refused_and_nothing_is_written(stage: Stage) -> None:
    """Alone and in a batch: the code names size and limit, and no event of the unit is there."""
    async with app_of(stage) as app:
        for unit in ([Note(text="x" * 10 * MIB)], [Note(text="a"), Note(text="x" * 10 * MIB)]):
            with pytest.raises(errors.PayloadTooLarge) as caught:
                await app.publish(unit)
            assert (caught.value.code, caught.value.context["limit_bytes"]) == ("HR-E105", MIB)
            assert str(10 * MIB + len('{"text":""}')) in str(caught.value)
            assert "payload_bytes_max" in caught.value.hint
        await app.publish(Note(text="x" * (MIB - len('{"text":""}'))))  # the limit itself
    assert stage.look.one("SELECT count(*) FROM event") == 1


async def test_huge_headers_are_refused_and_nothing_is_written(stage: Stage) -> None:
    """64 KiB of headers, names included, and not one byte more; values are bytes."""
    async with app_of(stage) as app:
        await app.publish(Note(text="fits"), headers={"a": b"x" * 65_535})
        for headers in ({"a": b"x" * 65_536}, {f"h{n}": b"x" * 1_000 for n in range(70)}):
            with pytest.raises(errors.HeadersTooLarge):
                await app.publish(Note(text="b"), headers=headers)
        for wrong in ({"a" * 65_537: b""}, {"a": "text"}, {"\ud800": b""}, {"": b""}):
            with pytest.raises(errors.EnvelopeInvalid):
                await app.publish(Note(text="b"), headers=wrong)  # type: ignore[arg-type]
    assert stage.look.one("SELECT count(*) FROM event") == 1


async def test_an_event_without_fields_is_an_event(stage: Stage) -> None:
    """Empty payloads are published, told apart by their ids, and handled."""
    app, seen = app_of(stage), list[Empty]()

    @app.handler
    async def count(empty: Empty) -> None:
        seen.append(empty)

    async with app:
        receipts = await asyncio.gather(*[app.publish(Empty()) for _ in range(10)])
        assert len({one.event_id for one in receipts}) == 10
        again = await app.publish(Empty(), event_id=receipts[0].event_id)
        assert again.duplicate
        await handled(app)
    assert len(seen) == 10
    assert stage.look.one("SELECT count(DISTINCT body) FROM event") == 1
