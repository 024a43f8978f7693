"""Publishing: durable, whole or not at all, once per id, never before its causes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.journal.lab import OUT, TOPIC, Content, Lab, offsets

from headrace import errors
from headrace.journal import append
from headrace.journal.sqlite import SqliteJournal
from headrace.testing import FailAt

ID, OTHER = bytes(15) + b"\1", bytes(15) + b"\2"


@pytest.mark.needs("several_connections")
async def test_what_is_accepted_is_there_for_others(lab: Lab) -> None:
    """An event whose publish has returned is seen by another connection."""
    await lab.journal()
    other = await lab.another()

    (event,) = await lab.publish("a")

    reader = await lab.member(journal=other)
    assert [row[2] for row in (await reader.taken()).rows] == [event.event_id]


@pytest.mark.needs("knows_parents")
async def test_a_unit_is_written_whole_or_not_at_all(lab: Lab) -> None:
    """One event that is refused takes the others of its unit with it."""
    journal = await lab.journal()
    unit = [await lab.event(Content("a")), await lab.event(Content("b"), parents=[OTHER])]

    with pytest.raises(errors.ParentMissing):
        await journal.publish(unit)

    assert await lab.rows() == []


@pytest.mark.needs("knows_parents")
async def test_a_refused_unit_leaves_its_neighbours_alone(lab: Lab) -> None:
    """Units of one tick share a commit, not a fate."""
    journal = await lab.journal()
    good, bad = await lab.event(Content("a")), await lab.event(Content("b"), parents=[OTHER])
    late = await lab.event(Content("c"), event_id=ID)

    found = await asyncio.gather(
        *(journal.publish([one]) for one in (good, bad, late)), return_exceptions=True
    )

    assert [type(one) for one in found] == [list, errors.ParentMissing, list]
    assert [row[2] for row in await lab.rows()] == [good.event_id, ID]


async def test_same_id_same_content_has_no_effect(lab: Lab) -> None:
    """A second publish of the same content succeeds and says so; time and trace do not count."""
    first = await lab.publish_one(event_id=ID)
    lab.clock.advance(60)
    second = await lab.publish_one(event_id=ID)

    assert (first.duplicate, second.duplicate) == (False, lab.kind.can.tells_copies)
    assert len(await lab.rows()) == 1


@pytest.mark.needs("refuses_conflicts")
@pytest.mark.parametrize(
    "content", [Content("b"), Content(body=b"[]"), Content(type="Other")], ids=["key", "payload", "type"]
)
async def test_same_id_other_content_is_refused(lab: Lab, content: Content) -> None:
    """Another key, payload or type under a known id is a conflict, and nothing is written."""
    await lab.publish_one(event_id=ID)
    before = lab.ledger.dump()

    with pytest.raises(errors.EventConflict):
        await lab.publish_one(content, event_id=ID)

    assert len(await lab.rows()) == 1
    assert lab.ledger.dump()["event"] == before["event"]


async def test_a_copy_may_come_from_another_app(lab: Lab) -> None:
    """The source is no part of the content: the second app gets success, its neighbours their own answer."""
    await lab.publish_one(Content(source="headrace/one"), event_id=ID)
    journal = await lab.another() if lab.kind.can.several_connections else await lab.journal()

    copy = await lab.event(Content(source="headrace/two"), event_id=ID, journal=journal)
    innocent = await lab.event(Content("b"), journal=journal)
    found = await asyncio.gather(journal.publish([copy]), journal.publish([innocent]))

    assert [receipt.duplicate for (receipt,) in found] == [lab.kind.can.tells_copies, False]
    assert len(await lab.rows()) == 2


async def test_ids_are_unique_per_topic(lab: Lab) -> None:
    """One id may stand in two topics, published apart or together."""
    journal = await lab.journal()

    await journal.publish([await lab.event(event_id=ID), await lab.event(event_id=ID, topic=OUT)])
    copies = [await lab.publish_one(event_id=ID, topic=topic) for topic in (TOPIC, OUT)]

    assert [one.duplicate for one in copies] == [lab.kind.can.tells_copies] * 2
    assert [len(await lab.rows(topic)) for topic in (TOPIC, OUT)] == [1, 1]


@pytest.mark.needs("refuses_conflicts")
async def test_copies_within_a_unit(lab: Lab) -> None:
    """Two copies in one unit are one event; with other content the unit is refused."""
    journal = await lab.journal()
    unit = [await lab.event(event_id=ID), await lab.event(event_id=ID)]
    assert len(await journal.publish(unit)) == 2
    assert len(await lab.rows()) == 1

    for content in (Content(body=b"[]"), Content(type="Other"), Content("b")):
        with pytest.raises(errors.EventConflict):
            await journal.publish([await lab.event(event_id=OTHER), await lab.event(content, event_id=OTHER)])
    assert len(await lab.rows()) == 1


@pytest.mark.needs("knows_parents")
async def test_a_parent_must_be_there(lab: Lab) -> None:
    """An event whose parent is unknown is refused; in any topic, before or in the same unit, it will do."""
    with pytest.raises(errors.ParentMissing):
        await lab.publish_one(parents=[ID])

    await lab.publish_one(event_id=ID, topic=OUT)
    await lab.publish_one(parents=[ID])

    (row,) = await lab.rows()
    assert row[4] == 1


@pytest.mark.needs("knows_parents")
async def test_chain_and_depth_follow_the_parents(lab: Lab) -> None:
    """The first parent gives the chain, the deepest one the depth, also inside one unit and out of order."""
    journal = await lab.journal()
    ids = [bytes(15) + bytes([n]) for n in range(1, 6)]
    root, child, grandchild, stranger, joined = [
        await lab.event(Content(str(n)), event_id=one, parents=parents)
        for n, (one, parents) in enumerate(
            [(ids[0], []), (ids[1], [ids[0]]), (ids[2], [ids[1]]), (ids[3], []), (ids[4], [ids[3], ids[2]])]
        )
    ]

    await journal.publish([joined, grandchild, stranger, child, root])

    found = {row[2]: row for row in await lab.rows()}
    assert [found[one][4] for one in ids] == [0, 1, 2, 0, 3]
    chains = [found[one][3] for one in ids]
    assert chains[0] == chains[1] == chains[2] == found[ids[0]][0]
    assert chains[4] == chains[3] == found[ids[3]][0]
    assert all(
        found[parent][0] < found[one.event_id][0]
        for one in (child, grandchild, joined)
        for parent in one.head.parents
    )


@pytest.mark.needs("knows_parents")
async def test_a_copy_keeps_its_own_causes(lab: Lab) -> None:
    """The chain of a child follows what is stored of its parent, not what a later copy of the parent says."""
    journal = await lab.journal()
    root, middle, leaf = (bytes(15) + bytes([n]) for n in (1, 2, 3))
    await lab.publish_one(Content("r"), event_id=root)
    await lab.publish_one(Content("m"), event_id=middle, parents=[root])

    await journal.publish(
        [
            await lab.event(Content("m"), event_id=middle),
            await lab.event(Content("l"), event_id=leaf, parents=[middle]),
        ]
    )

    found = {row[2]: row for row in await lab.rows()}
    assert (found[leaf][3], found[leaf][4]) == (found[root][0], 2)


@pytest.mark.needs("knows_parents")
@pytest.mark.parametrize("length", [1, 2, 3])
async def test_a_cycle_is_refused(lab: Lab, length: int) -> None:
    """Events that are each other's causes, or one that is its own, are refused whole."""
    journal = await lab.journal()
    ids = [bytes(15) + bytes([n]) for n in range(length)]
    unit = [await lab.event(event_id=one, parents=[ids[n - 1]]) for n, one in enumerate(ids)]

    with pytest.raises(errors.ParentCycle):
        await journal.publish(unit)

    assert await lab.rows() == []


async def test_a_key_keeps_its_order_within_a_unit(lab: Lab) -> None:
    """Parents in the unit do not turn round what was in a right order already."""
    journal = await lab.journal()
    parent = await lab.event(Content("p"), event_id=ID)
    unit = [parent, await lab.event(Content(body=b"1"), parents=[ID]), await lab.event(Content(body=b"2"))]

    await journal.publish(unit)

    rows, mine = await lab.rows(), [event.event_id for event in unit[1:]]
    assert [row[2] for row in rows if row[2] in mine] == mine
    assert len(rows) == len(unit)


async def test_a_key_has_one_partition(lab: Lab) -> None:
    """Events of one key lie in one partition, in the order of their publishes."""
    await lab.publish(*"abcabcabc")
    await lab.publish(None, None)

    rows = await lab.rows()
    member = await lab.member()
    places = {key: {row[1] for row in rows if member.key(row) == key} for key in "abc"}
    assert all(len(one) == 1 for one in places.values())
    assert offsets(rows) == sorted(offsets(rows))


@pytest.mark.needs("failpoints")
async def test_a_failed_publish_can_be_repeated(lab: Lab) -> None:
    """After a failure inside of the commit the same unit can be published, and is there once."""
    journal = await lab.journal()
    for point in ("publish.begin", "publish.inserted"):
        event = await lab.event(Content(point))
        lab.faults.now = FailAt(point, errors.DiskFull(path="a test"))
        with pytest.raises(errors.DiskFull):
            await journal.publish([event])
        await journal.publish([event])

    assert len(await lab.rows()) == 2
    lab.sound()


BOUNDS = {
    "QUEUE_UNITS_MAX": 5,
    "QUEUE_BYTES_MAX": 5 * (append.RECORD_BYTES + 2),
    "GROUP_UNITS_MAX": 5,
    "GROUP_BYTES_MAX": 5 * (append.RECORD_BYTES + 2),
}


@pytest.mark.needs("queues_publishes")
@pytest.mark.parametrize("bound", BOUNDS)
async def test_what_waits_to_be_written_is_bounded(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """In units and in bytes, in the queue and in one transaction; who waits for a place is written too."""
    journal = await lab.journal()
    assert isinstance(journal, SqliteJournal)
    appender = journal._appender
    assert appender is not None
    monkeypatch.setattr(append, bound, BOUNDS[bound])
    queued, groups, take = list[int](), list[int](), appender._next_group

    def taken() -> list[Any]:
        queued.append(len(appender._queue))
        group = take()
        groups.append(len(group))
        return group

    monkeypatch.setattr(appender, "_next_group", taken)
    units = [[await lab.event(Content(str(n)))] for n in range(23)]

    receipts = await asyncio.gather(*(journal.publish(unit) for unit in units))

    assert [one.event_id for (one,) in receipts] == [event.event_id for (event,) in units]
    assert len(await lab.rows()) == len(units)
    assert max(queued if "QUEUE" in bound else groups) == 5
    assert appender._queued_bytes == 0


@pytest.mark.needs("queues_publishes")
async def test_a_unit_larger_than_the_queue_is_let_in(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for its turn, not for ever; what its headers weigh counts."""
    monkeypatch.setattr(append, "QUEUE_BYTES_MAX", 100)
    journal = await lab.journal()
    large = await lab.event(Content("a", b"x" * 50))
    large.head.headers = {"name": b"y" * 200}
    small = await lab.event(Content("b"))

    assert (large.size_bytes, small.size_bytes) == (254, 2)
    await asyncio.gather(journal.publish([large]), journal.publish([small]))

    assert len(await lab.rows()) == 2
