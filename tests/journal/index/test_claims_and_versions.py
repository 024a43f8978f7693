"""Claims, attempts and versions in an index: noted before, forgotten when closed, the same for everybody."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.journal.index.shelf import HANDLER, Log, Shelf, opened, topic_of
from tests.journal.lab import offer

from headrace import errors
from headrace.ports import VersionOffer
from headrace.ports.index import Claim, Index, Looked, Tried

LOG = Log(topic_of(1), [[1, 2, 3, 4], [1, 1]])


async def test_a_claim_is_noted_with_the_look(shelf: Shelf) -> None:
    """One transaction indexes, notes what is taken, and says which version takes it."""
    claims = [Claim(HANDLER, 0, 0, 4, "me"), Claim(HANDLER, 1, 0, 2, "me")]
    async with opened(shelf) as index, opened(shelf) as other:
        assert (await index.look(HANDLER, list(LOG.whole()), claims)).active is None
        version = (await index.offer(offer("d1"))).mine
        looked = await index.look(HANDLER, list(LOG.whole()), claims)

        assert looked == Looked(LOG.copies(*LOG.whole()), version.id)
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
    """They stand in no log, so `forget` leaves them, and the versions."""
    async with opened(shelf) as index:
        version = (await index.offer(offer("d1"))).mine
        await index.look(HANDLER, list(LOG.whole()), [Claim(HANDLER, 0, 0, 4, "me")])
        await index.try_again(HANDLER, 0, [Tried(1, 1, 0)])
        await index.forget()

        assert await index.claims(HANDLER) == [Claim(HANDLER, 0, 0, 4, "me")]
        assert await index.tried(HANDLER, 0) == [Tried(1, 1, 0)]
        assert await index.active(HANDLER) == version.id


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


# --- versions -----------------------------------------------------------------------------------------


async def test_an_unknown_version_becomes_active(shelf: Shelf) -> None:
    """Weights or a declared version never seen before take over; offered again they change nothing."""
    async with opened(shelf) as index, opened(shelf) as other:
        assert await index.active(HANDLER) is None
        for told in (offer("d1"), offer("d2"), offer("d2", "2"), offer(None, "3")):
            found = await index.offer(told)
            assert found.mine == found.active
            assert await other.offer(told) == found
            assert await other.active(HANDLER) == found.active.id


async def test_a_known_inactive_version_stays_inactive(shelf: Shelf) -> None:
    """Going back is a decision, not an offer."""
    async with opened(shelf) as index:
        old = (await index.offer(offer("d1"))).mine
        new = (await index.offer(offer("d2"))).mine
        again = await index.offer(offer("d1"))
        assert (again.mine, again.active) == (old, new)


async def test_the_same_bytes_are_never_a_new_version(shelf: Shelf) -> None:
    """Epochs count digests per model name, whoever offers them; what the model says of itself is shown."""
    async with opened(shelf) as index:
        names = [
            (await index.offer(offer(digest, handler=handler))).mine.model_name
            for digest, handler in (("d1", "a"), ("d2", "b"), ("d1", "b"), ("d3", "a"), ("d2", "a"))
        ]
        declared = await index.offer(VersionOffer(HANDLER, "2", "m", "f" * 64, "2026-05"))

    assert names == ["model@1:d1", "model@2:d2", "model@1:d1", "model@3:d3", "model@2:d2"]
    assert declared.mine.name == "2+m@2026-05:ffffffffffff"


async def test_activate_goes_back(shelf: Shelf) -> None:
    """A version is named whole, by its epoch, or by a part that only it has; a wrong name changes nothing."""
    async with opened(shelf) as index:
        old = (await index.offer(offer("d1"))).mine
        new = (await index.offer(offer("d2"))).mine
        for name in (old.name, "model@1:d1", "model@1", "@1", "d1"):
            assert await index.activate(HANDLER, name) == old
            assert (await index.offer(offer("d2"))).active == old
            await index.activate(HANDLER, new.name)
        for name in ("@9", "model", "d"):
            with pytest.raises(errors.VersionUnknown):
                await index.activate(HANDLER, name)
        with pytest.raises(errors.HandlerUnknown, match=HANDLER):
            await index.activate("lab.mak", "@1")
        assert await index.active(HANDLER) == new.id


async def test_two_workers_offer_at_once(shelf: Shelf) -> None:
    """The same new version gets one number, two new models of one name get two epochs."""
    async with opened(shelf) as one, opened(shelf) as two:
        for _ in range(5):
            same = await asyncio.gather(one.offer(offer("same")), two.offer(offer("same")))
            assert same[0].mine == same[1].mine
        made = await asyncio.gather(
            one.offer(offer("x", handler="a")), two.offer(offer("y", handler="b")), one.offer(offer("z"))
        )
        names = {str(found.mine.model_name).partition(":")[0] for found in made}
        assert names == {"model@2", "model@3", "model@4"}
        assert await two.active("a") == made[0].mine.id
