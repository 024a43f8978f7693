"""What follows from the log of versions: the same for everybody who reads it, whatever is in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.commands import Activate, Offer, VersionCommand, read_version_command, write_command
from headrace.journal.kafka.versions import Known
from headrace.ports import VersionOffer


def known(*commands: VersionCommand) -> Known:
    """Return what follows from commands."""
    found = Known()
    for command in commands:
        found.apply(command)
        found.upto += 1
    return found


def offered(digest: str | None = None, declared: str = "1", handler: str = "a") -> Offer:
    """Return the offer of a version: with a model when there is a digest."""
    return Offer(handler, declared, 7, digest and "m", digest)


def names(found: Known, handler: str = "a") -> list[str]:
    """Return the names of a handler's versions."""
    return [one.name for one in found.of(handler)]


def test_versions_are_numbered_as_they_appear() -> None:
    """Epochs count digests per model name, numbers all versions; what was offered before gets no other."""
    found = known(offered("x"), offered("y", handler="b"), offered("x"), offered("z"), offered("y"))
    assert names(found) == ["1+m@1:x", "1+m@3:z", "1+m@2:y"]
    assert [one.id for one in found.of("a")] == [1, 3, 4]
    assert names(found, "b") == ["1+m@2:y"]


def test_a_known_version_offered_again_does_not_become_active() -> None:
    """Going back is a decision, not an offer; two offers of the same at once are one."""
    found = known(offered("x"), offered("y"), offered("x"))
    answer = found.offered(VersionOffer("a", "1", "m", "x"))
    assert answer is not None
    assert (answer.mine.name, answer.active.name) == ("1+m@1:x", "1+m@2:y")


def test_a_version_is_activated_by_what_it_is_made_of() -> None:
    """The active one changes, the numbers do not; one that nobody offered changes nothing."""
    found = known(offered("x"), offered("y"), Activate("a", "1", 8, "m", "x"), Activate("a", "9", 9))
    active = found.active("a")
    assert active is not None
    assert active.name == "1+m@1:x"
    assert found.active("b") is None


def test_an_unknown_version_has_no_answer() -> None:
    """It has to be appended first."""
    assert known(offered("x")).offered(VersionOffer("a", "1", "m", "y")) is None
    assert known().offered(VersionOffer("a", "1")) is None


def test_what_is_no_command_has_no_effect() -> None:
    """Somebody may write anything into a topic."""
    for value in (b"", b"\xff", b"{}", b'{"command": "offer"}', b'{"command": "forget", "handler": "a"}'):
        assert read_version_command(value) is None


_OFFERS = st.builds(offered, st.sampled_from([None, "x", "y"]), st.sampled_from("12"), st.sampled_from("ab"))
_ACTIVATIONS = st.builds(lambda one: Activate(one.handler, one.declared, 9, one.model, one.digest), _OFFERS)


@given(st.lists(_OFFERS | _ACTIVATIONS, max_size=12), st.integers(0, 12))
def test_the_same_log_leads_to_the_same(commands: list[VersionCommand], at: int) -> None:
    """Read by bytes or kept in mind, in one go or in two; numbers once given stay."""
    read = [read_version_command(write_command(one)) for one in commands]
    again = known(*(one for one in read if one is not None))
    assert again.projection(b"log") == known(*commands).projection(b"log")
    before = {one.name: one.id for one in known(*commands[:at]).of("a")}
    assert before.items() <= {one.name: one.id for one in again.of("a")}.items()
