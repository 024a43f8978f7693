"""Replays on a real Kafka beside each other and beside live work, killed at any moment: each event once."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.services.desks import Bench, serving, until, wipe
from tests.services.replaying import (
    NEW,
    Apart,
    by_version,
    closed,
    lived,
    order,
    planned,
    ran,
    replayed,
    side,
    told,
    worker,
)

from headrace.codec.allotment import Allotment
from headrace.journal.kafka import letters
from headrace.journal.kafka.allotter import Allotments, Quicker
from headrace.ports import KAFKA_FAILPOINTS, REPLAY_FAILPOINTS, VersionOffer
from headrace.ports.replay import Replay, ReplayPlan

EVENTS = 40
#: The second time at some of them is in the midst of the work.
_LATER = ("settle.begin", "settle.records", "settle.offsets", "settle.committed", "handle.after")
#: Those that a replay does not pass, or that are killed by hand here.
_ELSEWHERE = ("version.offered", "decide.noted", "release.committed", "replay.extended")
DEATHS = [
    *((one, 1) for one in (*REPLAY_FAILPOINTS, *KAFKA_FAILPOINTS) if one not in _ELSEWHERE),
    *((one, 2) for one in _LATER),
]
#: So many at a time: most of it is waiting for the sessions of the dead to run out.
ABREAST = 6


async def once(bench: Bench, versions: dict[str, int]) -> None:
    """See that no version has an event twice, and how many each has."""
    counted = await by_version(bench)
    assert [pair for pair, times in counted.items() if times > 1] == []
    assert Counter(by for _, by in counted) == versions
    assert await bench.violations() == []


async def survive(broker: str, folder: Path, point: str, hit: int) -> None:
    """Let a replay die and the same order go on; see what came of it."""
    await asyncio.to_thread(folder.mkdir)
    bench = Bench(broker, folder)
    await lived(bench, range(EVENTS))
    assert await Apart(bench, point, hit).ended() == -signal.SIGKILL, f"it has not died at {point}"
    state = await replayed(bench)
    if isinstance(state, ReplayPlan):  # it has died behind the last outcome
        assert (point, state.skipped) == ("settle.committed", {"replayed": EVENTS})
    else:
        assert (state.done, state.emitted) == (EVENTS, EVENTS), point
    assert await side(bench) == list(range(EVENTS)), point
    await once(bench, {"1": EVENTS, NEW: EVENTS})
    assert isinstance(await replayed(bench), ReplayPlan)


@pytest.mark.parametrize("some", [DEATHS[at : at + ABREAST] for at in range(0, len(DEATHS), ABREAST)])
async def test_the_same_order_goes_on(some: list[tuple[str, int]], broker: str, tmp_path: Path) -> None:
    """Killed at each step of an allotment, a take-over and a transaction: once each, and nothing left."""
    runs = (survive(broker, tmp_path / f"{point}-{hit}", point, hit) for point, hit in some)
    await asyncio.gather(*runs)


async def test_killed_again_and_again_while_the_version_goes_live(bench: Bench) -> None:
    """Two processes share the work and die; live goes on under the old version, then under the new one."""
    chance, kills = random.Random(7), 0
    await lived(bench, range(400))
    async with serving(bench.app()) as app:
        for first in range(400, 500, 25):
            both = [Apart(bench, rate=30.0), Apart(bench, rate=30.0)]
            for one in both:
                await one.start()
            await bench.publish(app, range(first, first + 25))
            had = len(await side(bench))

            async def at_work(had: int = had) -> bool:
                return len(await side(bench)) > had

            await until(at_work)
            await asyncio.sleep(chance.random())
            kills += sum([await one.kill() for one in both])
        await closed(bench, 500)
    assert kills == 8
    assert len(await side(bench)) < 400
    await lived(bench, range(500, 550), NEW)  # the new version goes live in the middle
    both = [Apart(bench), Apart(bench)]
    assert await asyncio.gather(*(one.ended() for one in both)) == [0, 0]
    assert 0 < (await ran(bench)).done <= 100, "what the old version has handled since it was allotted"
    await once(bench, {"1": 500, NEW: 550})
    assert (await planned(bench)).allotted == 0


async def test_two_at_once_share_the_work(bench: Bench) -> None:
    """Begun at the same moment: one allotment, both work on it, no event is handled twice."""
    await lived(bench, range(200))
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(bench.app(version=NEW)) for _ in range(3)]
        workers = [worker(bench, app) for app in apps]
        begun = await asyncio.gather(*(one.begin() for one in workers))
        assert not [one for one in begun if isinstance(one, ReplayPlan)]
        await asyncio.gather(*(one.until_done(asyncio.Event(), lambda _: None) for one in workers))
        assert [(await one.state()).done for one in workers] == [200] * 3
    assert len(await told(bench, f"headrace.{bench.handler}.replays")) == 1
    await once(bench, {"1": 200, NEW: 200})


async def test_orders_that_overlap_share_no_event(bench: Bench) -> None:
    """Begun at the same moment by processes that know nothing of each other."""
    await lived(bench, range(120))
    wanted = [{"to_offset": 5}, {"side": "trial"}, {"from_offset": 3}, {"to_offset": 9, "from_offset": 1}]
    await asyncio.gather(*(replayed(bench, one) for one in wanted))
    assert await side(bench) == list(range(120))
    await once(bench, {"1": 120, NEW: 120})


async def test_dead_letters_are_redriven_during_a_replay(bench: Bench) -> None:
    """Under the version that is replayed, which is live by then: it has each of them once."""
    bench.broken |= set(range(0, 30, 3))
    await lived(bench, range(30))
    bench.gate.clear()
    running = asyncio.create_task(ran(bench))

    async def begun() -> bool:
        return bool(await told(bench, f"headrace.{bench.handler}.replays"))

    await until(begun)
    bench.broken.clear()
    bench.gate.set()
    async with serving(bench.app(version=NEW)), bench.log() as log:
        await letters.redrive(log, await bench.letters())
        await closed(bench, 30)

        async def redriven() -> bool:
            return not (await bench.positions())["dead"]

        await until(redriven)
    assert (await running).done == 20
    await once(bench, {"1": 20, NEW: 30})
    assert isinstance(await replayed(bench), ReplayPlan)


async def test_who_allots_fences_who_has_begun_before(bench: Bench) -> None:
    """Of many that allot at once each gets something of its own: what they have adds up to all there is."""
    await lived(bench, range(60))

    async def begun(at: int) -> int:
        async with bench.app(version=NEW) as app:
            one = worker(bench, app)
            replays, offer = one._journal.replays(), VersionOffer(bench.handler, NEW)
            found = await replays.begin(order(bench, side=f"side{at}"), offer)
            await one.finish()
            return found.plan.allotted if isinstance(found, Replay) else 0

    counts = await asyncio.gather(*(begun(at) for at in range(5)))
    assert sum(counts) == 60
    assert len(await told(bench, f"headrace.{bench.handler}.replays")) == sum(count > 0 for count in counts)


async def test_who_has_begun_last_allots(bench: Bench) -> None:
    """One who was slow is refused whatever he has planned, and nothing of his is seen."""
    await lived(bench, range(3))
    async with bench.log() as log:
        allotments, others = Allotments(log, bench.handler), Allotments(log, bench.handler)
        slow, quick = await allotments.writer(), await others.writer()
        made = [
            Allotment(
                replay=f"{at:016x}", version=NEW, topic="", side=None, again=None, wanted="{}", at_us=at,
                parts={0: [(0, 1)]}, allotted=1, skipped={},
            )
            for at in range(2)
        ]  # fmt: skip
        with pytest.raises(Quicker) as quicker:
            await slow.write(made[0])
        assert quicker.value.sure
        await quick.write(made[1])
        assert await allotments.read() == await others.read() == made[1:]


async def test_an_index_emptied_in_the_middle_changes_nothing(bench: Bench) -> None:
    """First positions are read again, with all that the replay passes over; what was allotted stands."""
    await lived(bench, range(60))
    await ran(bench, {"to_offset": 2})
    had = len(await side(bench))
    wipe(Path(bench.index))
    assert (await ran(bench)).done == 60 - had
    wipe(Path(bench.index))
    assert isinstance(await replayed(bench), ReplayPlan)
    await lived(bench, range(60, 70))
    await once(bench, {"1": 70, NEW: 60})


async def test_it_follows_what_live_closes(bench: Bench) -> None:
    """A moment after live each event is handled by the new version; killed, the same order goes on."""
    await lived(bench, range(20))
    stop = asyncio.Event()
    async with serving(bench.app()) as app:
        for first in (20, 40):
            async with bench.app(version=NEW) as beside:
                one = worker(bench, beside, follow=True)
                assert isinstance(await one.begin(), Replay)
                running = asyncio.create_task(one.until_done(stop, lambda _: None))
                await bench.publish(app, range(first, first + 20))

                async def caught_up(count: int = first + 20) -> bool:
                    return len(await side(bench)) >= count

                await until(caught_up)
                stop.set()
                await running
                stop.clear()
    await once(bench, {"1": 60, NEW: 60})
