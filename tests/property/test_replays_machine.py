"""Replays beside live work, in any order: no version finishes an event twice, live and replayed together.

Hypothesis plays publishers, workers, upgrades, roll-backs, redrives and replays that are begun, fail, die and
go on; after every step the rules of the ledger hold (`SqliteLedger.breaches`), and the books agree.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.property.play import ENDINGS
from tests.property.replay_play import ReplayPlay

KEYS = st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=6)
PICK = st.integers(0, 7)
HOW = st.lists(st.sampled_from(["done", "done", "dead", *ENDINGS]), min_size=1, max_size=3)
OTHERS = ("join", "beat", "beat", "balance", "die", "stall", "activate", "activate", "redrive", "redrive")


class ReplaysMachine(RuleBasedStateMachine):
    """Rules over everything that may happen to a history."""

    def __init__(self) -> None:
        super().__init__()
        self.play = ReplayPlay()

    def teardown(self) -> None:
        """Forget the journal."""
        self.play.close()

    @initialize(keys=KEYS, endings=HOW)
    def begin(self, keys: list[str | None], endings: list[str]) -> None:
        """Begin with a history."""
        self.play.publish(keys, 0)
        self.play.join(0)
        self.live(keys, 0, 8, endings)

    @rule(keys=KEYS, pick=PICK, limit=st.integers(1, 8), endings=HOW)
    def live(self, keys: list[str | None], pick: int, limit: int, endings: list[str]) -> None:
        """Events come, and a worker takes some and brings them to some ends."""
        self.play.publish(keys, pick)
        if self.play.take(pick, limit):
            self.play.settle(-1, endings)

    @rule(pick=PICK, endings=HOW)
    def settle(self, pick: int, endings: list[str]) -> None:
        """A worker settles what it has in hand."""
        self.play.settle(pick, endings)

    @rule(pick=PICK, again=st.sampled_from([False, False, False, True]))
    def replay_begins(self, pick: int, again: bool) -> None:
        """Somebody begins a replay, or goes on with one."""
        self.play.begin(pick, again)

    @rule(pick=PICK, limit=st.integers(1, 6), endings=HOW)
    def replay_goes_on(self, pick: int, limit: int, endings: list[str]) -> None:
        """A worker of a replay takes a batch, and settles one."""
        self.play.replay(pick, limit, endings)

    @rule(pick=PICK)
    def replay_dies(self, pick: int) -> None:
        """A worker of a replay is killed."""
        self.play.replay_dies(pick)

    @rule(what=st.sampled_from(OTHERS), pick=PICK)
    def something_happens(self, what: str, pick: int) -> None:
        """Something else happens."""
        getattr(self.play, what)(pick)

    @rule(letter=PICK, version=PICK, endings=HOW)
    def an_old_letter_comes_back(self, letter: int, version: int, endings: list[str]) -> None:
        """What has died is redriven, and whatever version is active by then may come to have it."""
        self.play.redrive(letter)
        self.play.activate(version)
        self.play.balance(0)
        if self.play.take(0, 8):
            self.play.settle(-1, endings)

    @rule()
    def everything_is_finished(self) -> None:
        """Whatever has happened, live work and every replay can be brought to an end."""
        self.play.finish(0)

    @invariant()
    def the_books_agree(self) -> None:
        """The journal keeps its rules, and says what has happened."""
        self.play.check()


TestReplays = ReplaysMachine.TestCase
TestReplays.settings = settings(stateful_step_count=25)
#: Each step reads the whole ledger anew: on a busy machine that takes longer than a test has by default.
TestReplays.pytestmark = [pytest.mark.timeout(600)]  # type: ignore[attr-defined]  # read by pytest alone
