"""The whole of an index: counts, ids, chains, topics, whose it is; and what is forgotten before a rebuild."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.journal.index.shelf import HANDLER, Log, Shelf, id_of, opened, topic_of

from headrace import errors
from headrace.ports.index import Bound, Index, Place, Stretch


def alike(stretch: Stretch, *others: int) -> Stretch:
    """Return the stretch with the same content for the same id, but other content at some offsets."""
    records = [
        one._replace(content=int.from_bytes(one.event_id[:7], "big") + (one.offset in others))
        for one in stretch.records
    ]
    return stretch._replace(records=records)


async def test_events_are_counted_once_within_bounds(shelf: Shelf) -> None:
    """First positions and conflicts count, copies and holes do not; each bound has its own count."""
    log = Log(topic_of(1), [[1, None, 2, 1, 3], [4, 4, 4]])
    async with opened(shelf) as index:
        await index.look(HANDLER, [alike(log.stretch(0, 0, 5)), alike(log.stretch(1, 0, 3), 2)])
        bounds = [
            Bound(0, 0, 5),
            Bound(0, 1, 4),
            Bound(0, 4, 5),
            Bound(1, 0, 3),
            Bound(1, 2, 3),
            Bound(7, 0, 9),
        ]

        assert await index.view.counts(log.topic_id, bounds) == [3, 1, 1, 2, 1, 0]
        assert await index.view.counts(topic_of(2), bounds) == [0] * 6
        assert await index.view.counts(log.topic_id, []) == []


async def test_many_bounds_are_counted_as_few(shelf: Shelf) -> None:
    """Whatever way is taken, also of bounds that overlap, are empty, or end before they begin."""
    chance = random.Random(3)
    ids = [[*(chance.choice([None, *range(1, 200)]) for _ in range(300))] for _ in range(3)]
    log = Log(topic_of(1), ids)
    ends = [(chance.randrange(4), chance.randrange(320), chance.randrange(320)) for _ in range(1_000)]
    bounds = [Bound(*one) for one in ends]
    async with opened(shelf) as index:
        await index.look(HANDLER, [alike(log.stretch(at, 0, 300), *range(50, 90)) for at in range(3)])
        few = [await index.view.counts(log.topic_id, [one]) for one in bounds[:200]]

        many = await index.view.counts(log.topic_id, bounds)

        assert many[:200] == [count for (count,) in few]
        (whole,) = await index.view.counts(log.topic_id, [Bound(0, 0, 300)])
        singly = await index.view.counts(log.topic_id, [Bound(0, at, at + 1) for at in range(300)])
        assert sum(singly) == whole
        assert {*singly} == {0, 1}


async def test_a_conflict_is_noted_once(shelf: Shelf) -> None:
    """However often a stretch is looked at, and whatever it holds the second time."""
    log = Log(topic_of(1), [[4, 4]])
    async with opened(shelf) as index:
        for _ in range(3):
            await index.look(HANDLER, [alike(log.stretch(0, 0, 2), 1)])
        await index.look(HANDLER, [alike(log.stretch(0, 0, 2))])

        assert await index.view.counts(log.topic_id, [Bound(0, 0, 2)]) == [2]


async def test_ids_are_found_by_their_beginning_and_by_their_chain(shelf: Shelf) -> None:
    """Between two ids, of a chain, or of a partition: each with where it lies."""
    log = Log(topic_of(1), [[1, 2, 1], [3]])
    async with opened(shelf) as index:
        await index.look(HANDLER, list(log.whole()))
        places = {id_of(n): (await index.find(id_of(n)))[0] for n in (1, 2, 3)}
        view = index.view

        assert await view.between(bytes(16), b"\xff" * 16, 10) == sorted(places.items())
        assert await view.between(id_of(2), id_of(2), 10) == [(id_of(2), places[id_of(2)])]
        assert len(await view.between(bytes(16), b"\xff" * 16, 2)) == 2
        for event_id, place in places.items():
            assert (event_id, place) in await view.chain(place.root, 10)
        assert await view.chain(id_of(99), 10) == []
        found = await view.firsts(log.topic_id, 0, [id_of(1), id_of(3), id_of(9)])
        assert {one: first.offset for one, first in found.items()} == {id_of(1): 0}
        paged = await view.ids(log.topic_id, 0, bytes(16), 1)
        assert [*paged, *await view.ids(log.topic_id, 0, paged[-1][0], 5)] == sorted(
            [(id_of(1), 0), (id_of(2), 1)]
        )


async def test_topics_that_were_used_are_known(shelf: Shelf) -> None:
    """By the cluster's id, however often they are named."""
    async with opened(shelf) as index:
        for name in ("asked", "asked", "told"):
            await index.view.know(topic_of(len(name)), name)

        assert await index.view.topics() == {topic_of(5): "asked", topic_of(4): "told"}


async def test_an_index_belongs_to_one_cluster(shelf: Shelf) -> None:
    """The first that comes has it; another is refused, and changes nothing."""
    async with opened(shelf) as index:
        await index.view.belong("one")
        with pytest.raises(errors.IndexForeign, match="one"):
            await index.view.belong("other")
        await index.view.belong("one")


async def test_before_a_rebuild_only_what_the_log_still_has_is_forgotten(shelf: Shelf) -> None:
    """Below the beginning of the log the ids stay known, and indexing goes on there."""
    log, gone = Log(topic_of(1), [[1, 2, 3, 1], [4]]), Log(topic_of(2), [[5]])
    async with opened(shelf) as index:
        for one in (log, gone):
            await index.look(HANDLER, list(one.whole()))
        await index.view.forget({(log.topic_id, 0): 2, (log.topic_id, 1): 0})

        assert {at: upto for at, upto in (await index.view.indexed()).items() if upto} == {
            (log.topic_id, 0): 2
        }
        assert [len(await index.find(id_of(n))) for n in (1, 2, 3, 4, 5)] == [1, 1, 0, 0, 0]
        assert (await index.look(HANDLER, [log.stretch(0, 2, 4)])).copies == log.copies(log.stretch(0, 2, 4))


async def test_with_a_whole_log_everything_is_forgotten(shelf: Shelf) -> None:
    """Claims stay, for no log has them."""
    log = Log(topic_of(1), [[1, 2, 3]])
    async with opened(shelf) as index:
        await index.look(HANDLER, list(log.whole()))
        await index.view.forget({(log.topic_id, 0): 0})

        assert await index.indexed(log.topic_id, 0) == 0
        assert await index.find(id_of(1)) == []
        assert await index.view.counts(log.topic_id, [Bound(0, 0, 3)]) == [0]


async def test_looking_makes_no_index(shelf: Shelf, tmp_path: Path) -> None:
    """One that is not there is refused with its own code, and is not there after it either."""
    index: Index = shelf.make()
    for _ in range(2):
        with pytest.raises(errors.IndexMissing):
            await index.open(make=False)
        await index.close()
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240 - the folder of a test
    async with opened(shelf):
        pass
    await index.open(make=False)
    assert await index.find(id_of(1)) == list[Place]()
    await index.close()
