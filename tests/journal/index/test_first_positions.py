"""First positions: the lowest offset wins whoever writes, without gaps, and an answer never changes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.journal.index.hammer import RECORDS, Hammer, common_log
from tests.journal.index.shelf import HANDLER, Log, Shelf, id_of, opened, topic_of

from headrace import errors
from headrace.ports.index import First, Index, Looked, Place, Stretch

ROOT = Path(__file__).parents[3]


async def test_a_first_look_finds_no_copies(shelf: Shelf) -> None:
    """Ids that are new are first where they lie, and the index says how far it has come."""
    log = Log(topic_of(1), [[1, 2, None, 3], [4]])
    async with opened(shelf) as index:
        assert await index.indexed(log.topic_id, 0) == 0
        assert await index.look(HANDLER, list(log.whole())) == Looked({}, None)
        assert [await index.indexed(log.topic_id, partition) for partition in (0, 1, 2)] == [4, 1, 0]


async def test_a_second_look_answers_the_same(shelf: Shelf) -> None:
    """What is indexed is looked up only: the same stretch, in whole or in part, has the same copies."""
    log = Log(topic_of(1), [[1, 2, 1, None, 2, 3]])
    async with opened(shelf) as index, opened(shelf) as other:
        for one in (index, other, index):
            for after, upto in ((0, 6), (0, 6), (2, 6), (4, 5), (6, 6)):
                stretch = log.stretch(0, after, upto)
                assert (await one.look(HANDLER, [stretch])).copies == log.copies(stretch)


async def test_copies_within_one_stretch_are_found(shelf: Shelf) -> None:
    """The first of two in one stretch wins, and the copy is told with the content of the first."""
    log = Log(topic_of(1), [[7, 7, 8, 7]])
    first = log.seen(0)[0]
    async with opened(shelf) as index:
        looked = await index.look(HANDLER, list(log.whole()))
    assert looked.copies == {(0, 1): First(0, first.content), (0, 3): First(0, first.content)}


async def test_one_id_in_two_partitions_is_first_in_both(shelf: Shelf) -> None:
    """Copies of one event meet in one partition; elsewhere, and in another topic, an id is another."""
    log, other = Log(topic_of(1), [[1], [1]]), Log(topic_of(2), [[None, 1]])
    async with opened(shelf) as index:
        assert (await index.look(HANDLER, list(log.whole()))).copies == {}
        assert (await index.look(HANDLER, list(other.whole()))).copies == {}
        found = await index.find(id_of(1))
    root = topic_of(1)
    wanted = [
        Place(log.topic_id, 0, 0, root, 0),
        Place(log.topic_id, 1, 0, root, 0),
        Place(other.topic_id, 0, 1, root, 1),
    ]
    assert found == sorted(wanted)


async def test_an_id_that_was_never_seen_is_nowhere(shelf: Shelf) -> None:
    """Nothing is found for it, and nothing raised."""
    async with opened(shelf) as index:
        assert await index.find(id_of(1)) == []


async def test_a_gap_is_refused_and_writes_nothing(shelf: Shelf) -> None:
    """A stretch beyond what is indexed fails with what stands; the other stretches are not indexed either."""
    log = Log(topic_of(1), [[1, 2, 3, 4], [5, 6]])
    async with opened(shelf) as index:
        await index.look(HANDLER, [log.stretch(0, 0, 2)])
        with pytest.raises(errors.IndexGap) as caught:
            await index.look(HANDLER, [log.stretch(1, 0, 2), log.stretch(0, 3, 4)])

        assert caught.value.context == {"partition": 0, "indexed": 2, "after": 3}
        assert [await index.indexed(log.topic_id, partition) for partition in (0, 1)] == [2, 0]
        assert await index.find(id_of(4)) == await index.find(id_of(5)) == []
        await index.look(HANDLER, [log.stretch(1, 0, 2), log.stretch(0, 2, 4)])


async def test_a_stretch_without_records_moves_the_end(shelf: Shelf) -> None:
    """Markers and aborted records are holes: only how far the index has come changes."""
    log = Log(topic_of(1), [[None, None, None, 1]])
    async with opened(shelf) as index:
        await index.look(HANDLER, [log.stretch(0, 0, 3)])
        assert await index.indexed(log.topic_id, 0) == 3
        await index.look(HANDLER, [log.stretch(0, 3, 3), *list(Log(log.topic_id, [[], [2]]).whole())[1:]])
        assert await index.indexed(log.topic_id, 0) == 3


async def test_a_look_at_nothing_is_harmless(shelf: Shelf) -> None:
    """No stretches, no claims: no answer."""
    async with opened(shelf) as index:
        assert await index.look(HANDLER, []) == Looked({}, None)


async def test_what_the_port_rules_out_is_refused(shelf: Shelf) -> None:
    """Two topics, one partition twice, records outside of their stretch: the caller is wrong."""
    log, other = Log(topic_of(1), [[1, 2]]), Log(topic_of(2), [[], [3]])
    outside = log.stretch(0, 0, 2)._replace(upto=1)
    async with opened(shelf) as index:
        for wrong in (
            [*log.whole(), other.stretch(1, 0, 1)],
            [log.stretch(0, 0, 1), log.stretch(0, 1, 2)],
            [outside],
        ):
            with pytest.raises(ValueError, match=r"[Pp]artition"):
                await index.look(HANDLER, wrong)
        assert await index.indexed(log.topic_id, 0) == 0


async def test_forgotten_positions_are_made_again(shelf: Shelf) -> None:
    """After `forget` the index starts at nothing and comes to the same answers."""
    log = Log(topic_of(1), [[1, 2, 1], [3, 3]])
    stretches = list(log.whole())
    async with opened(shelf) as index, opened(shelf) as other:
        before = await other.look(HANDLER, stretches)
        await index.forget()
        assert await other.indexed(log.topic_id, 0) == 0
        assert await index.find(id_of(1)) == []
        with pytest.raises(errors.IndexGap):
            await other.look(HANDLER, [log.stretch(0, 1, 2)])
        assert await other.look(HANDLER, stretches) == before


async def test_large_numbers_come_back_whole(shelf: Shelf) -> None:
    """Offsets and contents of 63 bits, ids of all bytes, five hundred records of sixteen partitions."""
    top = (1 << 63) - 1
    log = Log(topic_of(1), [[n * 16 + partition for n in range(32)] for partition in range(16)])
    far = Stretch(topic_of(2), 3, 0, top, [log.seen(0)[0]._replace(offset=top - 2, content=top, depth=1_000)])
    again = far._replace(records=[*far.records, far.records[0]._replace(offset=top - 1)])
    async with opened(shelf) as index:
        assert (await index.look(HANDLER, list(log.whole()))).copies == {}
        assert (await index.look(HANDLER, [far])).copies == {}
        assert await index.indexed(topic_of(2), 3) == top
        assert (await index.look(HANDLER, [again])).copies == {(3, top - 1): First(top - 2, top)}
        assert await index.find(bytes(16)) == []


# --- properties ---------------------------------------------------------------------------------------

#: Few ids, so that most records are copies; `None` is a hole.
_RECORDS = st.lists(st.none() | st.integers(0, 5), min_size=1, max_size=14)
#: Who looks, how far beyond or below the end of the index, how many offsets, and whether with the next.
_STEPS = st.lists(st.tuples(st.integers(0, 1), st.integers(-6, 2), st.integers(0, 6), st.booleans()))
_topics = iter(range(1 << 40))


async def play(indexes: list[Index], log: Log, steps: list[tuple[int, int, int, bool]]) -> None:
    """Have two writers look at parts of a log; check every answer against the whole log."""
    ends = [len(records) for records in log.partitions]
    upto = [0] * len(ends)

    async def look(writer: int, shift: int, size: int) -> None:
        cuts = [(max(0, min(upto[n] + shift, end)), end) for n, end in enumerate(ends)]
        wanted = [log.stretch(n, after, min(end, after + size)) for n, (after, end) in enumerate(cuts)]
        gap = any(one.after > upto[one.partition] for one in wanted)
        try:
            looked = await indexes[writer].look(HANDLER, wanted)
        except errors.IndexGap:
            assert gap
            return
        assert looked.copies == log.copies(*wanted)
        for one in wanted:
            upto[one.partition] = max(upto[one.partition], one.upto)

    together: list[tuple[int, int, int]] = []
    for writer, shift, size, joined in steps:
        together.append((writer, shift, size))
        if not joined:
            await asyncio.gather(*(look(*step) for step in together))
            together.clear()
            found = [await indexes[0].indexed(log.topic_id, n) for n in range(len(ends))]
            assert found == upto
    await asyncio.gather(*(look(*step) for step in together))
    for name in range(6):
        places = await indexes[1].find(id_of(name))
        firsts = [
            (partition, log.firsts[partition][id_of(name)].offset)
            for partition, records in enumerate(log.partitions)
            if name in records[: upto[partition]]
        ]
        assert [one[1:3] for one in places if one.topic_id == log.topic_id] == firsts


def test_the_lowest_offset_wins_whoever_writes(shelf: Shelf) -> None:
    """Two writers, any cuts, at once or in turn: each answer is that of the whole log; no gap is indexed."""
    with asyncio.Runner() as runner:
        indexes = [shelf.make(), shelf.make()]
        for index in indexes:
            runner.run(index.open())

        @given(partitions=st.lists(_RECORDS, min_size=1, max_size=3), steps=_STEPS)
        @settings(max_examples=settings().max_examples // 2)
        def holds(partitions: list[list[int | None]], steps: list[tuple[int, int, int, bool]]) -> None:
            runner.run(play(indexes, Log(topic_of(f"play {next(_topics)}"), partitions), steps))

        try:
            holds()
        finally:
            for index in indexes:
                runner.run(index.close())


def hammer(shelf: Shelf, seed: int) -> subprocess.Popen[str]:
    """Start a process that indexes a log."""
    command = [sys.executable, "-m", "tests.journal.index.hammer", shelf.kind, shelf.where, str(seed)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_two_processes_come_to_one_answer(shelf: Shelf) -> None:
    """Two processes that index the same partitions in cuts of their own, as fast as they can, agree."""
    running = [hammer(shelf, seed) for seed in (1, 2)]
    answers = [json.loads(one.communicate(timeout=100)[0]) for one in running]
    assert [one.returncode for one in running] == [0, 0]
    assert [one["wrong"] for one in answers] == [0, 0]
    assert all(one["looks"] > 20 for one in answers)
    assert sum(one["unavailable"] for one in answers) == 0


async def test_a_killed_process_leaves_a_sound_index(shelf: Shelf) -> None:
    """SIGKILL in the middle of looks: what it has indexed stands, the rest is not there, others go on."""
    log = common_log()
    async with opened(shelf) as index:
        with hammer(shelf, 1) as killed:
            while not await index.indexed(log.topic_id, 0):  # noqa: ASYNC110 - another process does it
                await asyncio.sleep(0.005)
            killed.kill()
        assert await index.indexed(log.topic_id, 0) <= RECORDS
        other = Hammer(index, 2)
        await other.run()
        assert other.report() | {"looks": 0} == {"looks": 0, "wrong": 0, "unavailable": 0, "gaps": 0}


async def test_ids_are_present_in_whatever_topic(shelf: Shelf) -> None:
    """Asked by id alone, for parents may lie anywhere; one that nobody has indexed is not there."""
    here, there = Log(topic_of(1), [[1, 2]]), Log(topic_of(2), [[3, None, 3]])
    async with opened(shelf) as index:
        await index.look(HANDLER, list(here.whole()))
        await index.look(HANDLER, list(there.whole()))
        assert await index.present({id_of(n) for n in (1, 3, 4)}) == {id_of(1), id_of(3)}
        assert await index.present(set()) == set()
