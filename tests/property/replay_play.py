"""`Play` with replays beside it: any of them may be begun, take, fail, die and go on at any moment."""

from __future__ import annotations

from collections import defaultdict

from tests.journal.lab import LEASE_MS, offer
from tests.journal.ledger import SqliteLedger
from tests.journal.runner import Runner, begun
from tests.property.play import Play, Work, one_of

RUNNERS_MAX = 4


class ReplayPlay(Play):
    """Everything that may happen to one subscription, and to the history behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.runners: list[Runner] = []
        self.replayed: list[Work] = []
        self.live_sub = 0
        #: What each version has finished in replays: ledger of its own or "", offset, version.
        self.books: defaultdict[tuple[str, int, str], list[int]] = defaultdict(list)

    @property
    def seen(self) -> SqliteLedger:
        """What the journal has written down."""
        assert isinstance(self.lab.ledger, SqliteLedger)
        return self.lab.ledger

    # --- replays ------------------------------------------------------------------------------

    def join(self, pick: int) -> None:
        """A worker comes; the first one makes the subscription."""
        super().join(pick)
        self.live_sub = self.members[0].sub if self.members else self.live_sub

    def begin(self, pick: int, again: bool) -> None:
        """Somebody begins a replay, of a known version or a new one; or goes on with one."""
        if len(self.runners) >= RUNNERS_MAX or not self.members:
            return
        version = offer(f"d{1 + pick % (self.versions + 1)}")
        wanted = {"again": "once more" if again else None, "side": one_of(["trial", "other"], pick)}
        found = self.run(begun(self.lab, version, journal=one_of(self.journals, pick), **wanted))
        if isinstance(found, Runner):
            found.again = wanted["again"] or ""
            self.runners.append(found)

    def replay(self, pick: int, limit: int, endings: list[str]) -> None:
        """A worker of a replay takes a batch and brings (a part of) it to some ends."""
        if not self.runners:
            return
        runner = one_of(self.runners, pick)
        self.run(runner.consumer.balance())
        batch = self.run(runner.take(limit))
        if batch is not None:
            finished = {row[0] for row in batch.rows if self.books[self._at(runner, row[0])]}
            assert not finished, "handed out by a replay although its version has finished it in one"
            self.replayed.append(Work(runner, batch, list(batch.rows)))
        self.replay_settle(pick, endings)

    def replay_settle(self, pick: int, endings: list[str]) -> None:
        """A worker of a replay commits what (a part of) a batch came to."""
        if not self.replayed:
            return
        work = one_of(self.replayed, pick)
        outcome, left = self.outcome(work, endings)
        (settled,) = self.run(work.member.consumer.settle([(work.batch, outcome)]))
        assert not settled.conflicts, "an id was derived twice"
        for row in outcome.done:
            if row[0] not in settled.stale:
                at = self._at(work.member, row[0])
                self.books[at].append(work.member.sub)
                assert len(self.books[at]) == 1, "finished twice in replays"
        self.block(work, outcome)
        work.rows = [row for row in left if row[0] not in settled.stale]
        if not work.rows:
            self.replayed.remove(work)

    def _at(self, runner: object, offset: int) -> tuple[str, int, str]:
        assert isinstance(runner, Runner)
        return runner.again, offset, runner.version.name

    def replay_dies(self, pick: int) -> None:
        """A worker of a replay is gone without a word, and its lease runs out."""
        if self.runners:
            runner = one_of(self.runners, pick)
            runner.die()
            self.runners.remove(runner)
            self.replayed = [work for work in self.replayed if work.member is not runner]

    # --- what is otherwise --------------------------------------------------------------------

    def take(self, pick: int, limit: int) -> bool:
        """As without replays; but a redriven event may turn out to be with one of the version."""
        found = super().take(pick, limit)
        self.see_buried()
        return found

    def settle(self, pick: int, endings: list[str], limit: int = 0, point: str | None = None) -> None:
        """As without replays, with the same exception."""
        super().settle(pick, endings, limit, point)
        self.see_buried()

    def see_buried(self) -> None:
        """Enter the events into the books that were put aside because a replay has them."""
        if self.members:
            sub = self.members[0].sub
            places = self.seen.places(self.topic)
            for seq, reason, _ in self.seen.dead(sub):
                if reason == "replayed" and seq not in self.final:
                    self.final[seq] = "dead", self.seen.version_of(sub, places[seq], seq) or "?"

    def redrive(self, pick: int) -> None:
        """An operator makes a dead event waiting again, live or in a replay."""
        letters = self.seen.letters()
        if letters:
            number = one_of(letters, pick)
            seq, sub = self.seen.offset_of(number), self.seen.sub_of(number)
            (problem,) = self.run(self.lab.kind.redrive(self.journals[1], [number]))
            if not problem and sub == self.live_sub:
                self.redriven.add(seq)
                del self.final[seq]

    def finish(self, _: int) -> None:
        """All die; then live, and each replay that was begun, can be brought to its end."""
        for runner in self.runners:
            runner.die()
        self.runners.clear()
        self.replayed.clear()
        super().finish(0)
        self.lab.clock.advance(LEASE_MS / 1000 + 1)
        for member in self.members:
            member.worker.renew()
        for number in range(2 * (self.versions + 1)):
            self.begin(number, again=False)
            while self.runners:
                self.bring_to_its_end(self.runners.pop())
        self.check()

    def bring_to_its_end(self, runner: Runner) -> None:
        """Handle all that a replay has left."""
        self.run(runner.consumer.balance())
        for _ in range(10 * len(self.published) + 10):
            if self.run(runner.state()).complete:
                break
            batch = self.run(runner.take(5))
            if batch is None:
                due = runner.consumer.next_due_ns() or 0
                self.lab.clock.advance(max(0.0, (due - self.lab.clock.boot_ns()) / 1e9))
                runner.worker.renew()
                continue
            self.replayed.append(Work(runner, batch, list(batch.rows)))
            self.replay_settle(-1, ["done"])
        assert self.run(runner.state()).complete, "a replay is stuck"
        self.run(runner.leave())
