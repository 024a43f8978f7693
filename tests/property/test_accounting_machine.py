"""A stateful machine on a real journal file: after every step the accounting holds and nothing is doubled.

Hypothesis plays publishers, workers that come, stall, die and go, upgrades and roll-backs, redrives,
retention, erasures, clocks and failing commits in any order; `Play` does what it says and checks the result.
There are few rules with much in each, because Hypothesis leaves some rules out of every run.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.property.play import ENDINGS, POINTS, Play

KEYS = st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=6)
PICK = st.integers(0, 7)
POINT = st.sampled_from([*[None] * len(POINTS), *POINTS])
OFTEN = ("join", "beat", "balance")
WORKERS = ("die", "stall", "leave")
OTHERS = ("activate", "redrive", "jump", "publish_again", "publish_other", "publish_child", "sweep", "erase")
HOW = st.lists(st.sampled_from(ENDINGS), min_size=1, max_size=4)


class JournalMachine(RuleBasedStateMachine):
    """Rules over everything that may happen to one subscription."""

    def __init__(self) -> None:
        super().__init__()
        self.play = Play()

    def teardown(self) -> None:
        """Forget the journal."""
        self.play.close()

    @initialize(keys=KEYS, workers=st.integers(1, 2))
    def begin(self, keys: list[str | None], workers: int) -> None:
        """Begin with some events and workers: the first steps need both."""
        self.play.publish(keys, 0)
        for _ in range(workers):
            self.play.join(0)

    @rule(keys=KEYS, pick=PICK)
    def publish(self, keys: list[str | None], pick: int) -> None:
        """Publish a unit of events."""
        self.play.publish(keys, pick)

    @rule(pick=PICK, limit=st.integers(1, 8), endings=HOW)
    def take_and_settle(self, pick: int, limit: int, endings: list[str]) -> None:
        """A worker takes a batch and brings it to some ends, in one go."""
        if self.play.take(pick, limit):
            self.play.check()
            self.play.settle(-1, endings)

    @rule(pick=PICK, limit=st.integers(1, 8))
    def take(self, pick: int, limit: int) -> None:
        """A worker takes a batch, and has it in hand from now on."""
        self.play.take(pick, limit)

    @rule(
        pick=PICK,
        limit=st.integers(0, 4),
        endings=HOW,
        point=POINT,
    )
    def settle(self, pick: int, limit: int, endings: list[str], point: str | None) -> None:
        """A worker settles (a part of) what it has in hand, and may take more with it."""
        self.play.settle(pick, endings, limit, point)

    @rule(what=st.sampled_from([*OFTEN, *OFTEN, *WORKERS, *OTHERS]), pick=PICK)
    def something_happens(self, what: str, pick: int) -> None:
        """Something else happens."""
        getattr(self.play, what)(pick)

    @rule()
    def everything_is_finished(self) -> None:
        """Whatever has happened, one healthy worker can finish all there is."""
        self.play.finish(0)

    @invariant()
    def the_books_agree(self) -> None:
        """The journal keeps its rules, and says what has happened."""
        self.play.check()


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(stateful_step_count=50)
