"""Claims, attempts and versions in an index: noted before, forgotten when closed, the same for everybody."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.journal.index.shelf import HANDLER, Log, Shelf, opened, topic_of

from headrace import errors
from headrace.ports.index import (
    Active,
    Claim,
    HandlerRow,
    Index,
    Looked,
    ModelRow,
    Projection,
    Tried,
    VersionRow,
)

LOG = Log(topic_of(1), [[1, 2, 3, 4], [1, 1]])


async def test_a_claim_is_noted_with_the_look(shelf: Shelf) -> None:
    """One transaction indexes, notes what is taken, and says which version takes it."""
    claims = [Claim(HANDLER, 0, 0, 4, "me"), Claim(HANDLER, 1, 0, 2, "me")]
    async with opened(shelf) as index, opened(shelf) as other:
        assert (await index.look(HANDLER, list(LOG.whole()), claims)).active is None
        await index.project(projected(2, active=2))
        looked = await index.look(HANDLER, list(LOG.whole()), claims)

        assert looked == Looked(LOG.copies(*LOG.whole()), 2, upto=2)
        assert (await index.look(HANDLER, list(LOG.whole()))).active is None
        assert await other.claims(HANDLER) == claims
        assert await other.claims("lab.other") == []


async def test_a_claim_without_a_stretch_is_noted(shelf: Shelf) -> None:
    """What another subscription has indexed is claimed like anything else."""
    async with opened(shelf) as index:
        await index.look(HANDLER, [], [Claim(HANDLER, 3, 5, 9, "me")])
        assert await index.claims(HANDLER) == [Claim(HANDLER, 3, 5, 9, "me")]


async def test_a_gap_notes_no_claim(shelf: Shelf) -> None:
    """The look failed as a whole, so nothing is in hand."""
    async with opened(shelf) as index:
        with pytest.raises(errors.IndexGap):
            await index.look(HANDLER, [LOG.stretch(0, 2, 4)], [Claim(HANDLER, 0, 2, 4, "me")])
        assert await index.claims(HANDLER) == []


async def test_what_is_closed_is_forgotten(shelf: Shelf) -> None:
    """Below an offset claims and attempts go, of a claim the rest stays; other partitions are left alone."""
    async with opened(shelf) as index:
        await index.look(HANDLER, [], [Claim(HANDLER, n, 10, 20, "me") for n in range(3)])
        for n in range(2):
            await index.try_again(HANDLER, n, [Tried(12, 1, 0), Tried(15, 2, 1)])
        await index.finished(HANDLER, 0, 15)
        await index.finished(HANDLER, 2, 20)

        assert await index.claims(HANDLER) == [
            Claim(HANDLER, 0, 15, 20, "me"),
            Claim(HANDLER, 1, 10, 20, "me"),
        ]
        assert await index.tried(HANDLER, 0) == [Tried(15, 2, 1)]
        assert await index.tried(HANDLER, 1) == [Tried(12, 1, 0), Tried(15, 2, 1)]
        await index.finished(HANDLER, 1, 1 << 62)
        assert await index.tried(HANDLER, 1) == []


async def test_claims_and_attempts_outlive_a_rebuild(shelf: Shelf) -> None:
    """They stand in no log, so `forget` leaves them, and the versions, which are of another log."""
    async with opened(shelf) as index:
        await index.project(projected(2))
        await index.look(HANDLER, list(LOG.whole()), [Claim(HANDLER, 0, 0, 4, "me")])
        await index.try_again(HANDLER, 0, [Tried(1, 1, 0)])
        await index.forget()

        assert await index.claims(HANDLER) == [Claim(HANDLER, 0, 0, 4, "me")]
        assert await index.tried(HANDLER, 0) == [Tried(1, 1, 0)]
        assert await index.active(HANDLER) == Active(1, 2)


_CLAIMED = st.tuples(st.just("claim"), st.integers(0, 1), st.integers(0, 9), st.integers(1, 5))
_TRIED = st.tuples(st.just("try"), st.integers(0, 1), st.integers(0, 9), st.integers(1, 3))
_CLOSED = st.tuples(st.just("close"), st.integers(0, 1), st.integers(0, 14), st.just(0))
_names = iter(range(1 << 40))


async def play(index: Index, other: Index, steps: list[tuple[str, int, int, int]]) -> None:
    """Do the same to an index and to two dictionaries; another index has to show what they hold."""
    subscription = f"lab.play{next(_names)}"
    claims: dict[int, Claim] = {}
    tries: dict[tuple[int, int], Tried] = {}
    for what, partition, offset, number in steps:
        if what == "claim":
            claims[partition] = Claim(subscription, partition, offset, offset + number, f"worker {number}")
            await index.take_over(subscription, partition, claims[partition].owner)
            await index.look(HANDLER, [], [claims[partition]])
        elif what == "try":
            new = [Tried(offset + n, number, n) for n in range(number)]
            tries |= {(partition, one.offset): one for one in new}
            await index.try_again(subscription, partition, new)
        else:
            tries = {at: one for at, one in tries.items() if at[0] != partition or at[1] >= offset}
            if partition in claims:
                kept = claims.pop(partition)
                if kept.upto > offset:
                    claims[partition] = kept._replace(after=max(kept.after, offset))
            await index.finished(subscription, partition, offset)
        assert await other.claims(subscription) == [claims[n] for n in sorted(claims)]
        for n in range(2):
            wanted = sorted(one for at, one in tries.items() if at[0] == n)
            assert await other.tried(subscription, n) == wanted


def test_claims_and_attempts_round_trip(shelf: Shelf) -> None:
    """Whatever is noted and closed, in any order: what another process reads is what stands."""
    with asyncio.Runner() as runner:
        index, other = shelf.make(), shelf.make()
        runner.run(index.open())
        runner.run(other.open())

        @given(steps=st.lists(_CLAIMED | _TRIED | _CLOSED, max_size=8))
        @settings(max_examples=settings().max_examples // 2)
        def holds(steps: list[tuple[str, int, int, int]]) -> None:
            runner.run(play(index, other, steps))

        try:
            holds()
        finally:
            runner.run(index.close())
            runner.run(other.close())


# --- owners -------------------------------------------------------------------------------------------


async def test_a_claim_of_one_who_was_replaced_is_refused(shelf: Shelf) -> None:
    """However late it comes: what the new owner has noted stays, and the rest of the look is done."""
    async with opened(shelf) as index, opened(shelf) as other:
        mine, late = Claim(HANDLER, 0, 2, 4, "new"), Claim(HANDLER, 0, 0, 2, "old")
        assert await index.take_over(HANDLER, 0, "old") is None
        await index.look(HANDLER, [], [late])
        assert await other.take_over(HANDLER, 0, "new") == late
        await other.look(HANDLER, [], [mine])
        looked = await index.look(HANDLER, list(LOG.whole()), [late, Claim(HANDLER, 1, 0, 2, "old")])

        assert looked.refused == {0}
        assert looked.copies == LOG.copies(*LOG.whole())
        assert await index.claims(HANDLER) == [mine, Claim(HANDLER, 1, 0, 2, "old")]


async def test_what_is_in_hand_outlives_owners_that_claim_nothing(shelf: Shelf) -> None:
    """One dies with events in hand, the next before its first claim: the third still knows of them."""
    async with opened(shelf) as index:
        await index.take_over(HANDLER, 0, "a")
        await index.look(HANDLER, [], [Claim(HANDLER, 0, 3, 7, "a")])
        assert await index.take_over(HANDLER, 0, "b") == Claim(HANDLER, 0, 3, 7, "a")
        assert await index.take_over(HANDLER, 0, "c") == Claim(HANDLER, 0, 3, 7, "b")
        assert await index.take_over(HANDLER, 0, "c") is None, "its own is in its own hand"


async def test_who_hands_over_leaves_nothing_in_hand(shelf: Shelf) -> None:
    """Nothing is suspected of it, and no claim of it counts any more; what another has is left alone."""
    async with opened(shelf) as index:
        await index.take_over(HANDLER, 0, "a")
        await index.look(HANDLER, [], [Claim(HANDLER, 0, 3, 7, "a")])
        await index.hand_over(HANDLER, 0, "b")
        assert await index.claims(HANDLER) == [Claim(HANDLER, 0, 3, 7, "a")]
        await index.hand_over(HANDLER, 0, "a")
        assert (await index.look(HANDLER, [], [Claim(HANDLER, 0, 7, 9, "a")])).refused == {0}
        assert await index.take_over(HANDLER, 0, "b") is None
        assert await index.claims(HANDLER) == []


# --- versions -----------------------------------------------------------------------------------------


def projected(upto: int, active: int = 1, log: bytes = bytes(16)) -> Projection:
    """Return what a log of versions leads to: a handler with two versions."""
    return Projection(
        log,
        upto,
        [ModelRow(1, "m", 1, None, "d1", 5), ModelRow(2, "m", 2, "2026-05", "d2", 6)],
        [HandlerRow(1, HANDLER, active)],
        [VersionRow(1, 1, "1", 1, 5), VersionRow(2, 1, "1", 2, 6)],
    )


async def test_the_newest_projection_stands(shelf: Shelf) -> None:
    """Whoever writes, and in what order: an older one never replaces a newer; another log does."""
    async with opened(shelf) as index, opened(shelf) as other:
        assert await index.active(HANDLER) == Active(None, 0)
        await index.project(projected(2, active=2))
        assert await other.active(HANDLER) == Active(2, 2)
        await other.project(projected(1, active=1))
        assert await index.active(HANDLER) == Active(2, 2)
        await other.project(projected(3, active=1))
        assert await index.active(HANDLER) == Active(1, 3)
        await other.project(projected(2, active=2, log=b"x" * 16))
        assert await index.active(HANDLER) == Active(2, 2)
        assert await index.active("lab.other") == Active(None, 2)


async def test_two_workers_project_at_once(shelf: Shelf) -> None:
    """What stands is the newest of them, whole."""
    async with opened(shelf) as one, opened(shelf) as two:
        for upto in range(1, 20, 2):
            first, second = projected(upto, active=1), projected(upto + 1, active=2)
            await asyncio.gather(one.project(first), two.project(second))
            assert await one.active(HANDLER) == Active(2, upto + 1)
