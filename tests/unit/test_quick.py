"""What may be done on the event loop: learned from how long it takes."""

from __future__ import annotations

from headrace.gate.quick import ASIDE, QUICK_MS_MAX, SLOW_MS, TIMES_KEPT, Quick


def learned(took_ms: float) -> Quick:
    """Return what has measured the same time often enough, in a thread."""
    found = Quick()
    for _ in range(TIMES_KEPT):
        assert not found.may(), "too little is known"
        found.note(took_ms, on_loop=False)
    return found


def test_what_is_quick_may_and_what_is_not_may_not() -> None:
    """The bound holds for all that is to be done at once."""
    found = learned(QUICK_MS_MAX / 4)
    assert found.may()
    assert found.may(4)
    assert not found.may(5)
    assert not learned(QUICK_MS_MAX * 1.01).may()


def test_noise_does_not_count() -> None:
    """Of a few times the quickest is what it takes; all the rest came from elsewhere."""
    found = learned(QUICK_MS_MAX / 2)
    for _ in range(TIMES_KEPT - 1):
        found.note(SLOW_MS / 2, on_loop=False)
        assert found.may()
    found.note(SLOW_MS / 2, on_loop=False)
    assert not found.may(), "it has become slow"


def test_what_held_the_loop_goes_to_a_thread_for_a_while() -> None:
    """However quick it is as a rule."""
    found = learned(0.1)
    found.note(SLOW_MS * 1.01, on_loop=True)
    for _ in range(ASIDE):
        assert not found.may()
        found.note(0.1, on_loop=False)
    assert found.may()


def test_a_batch_is_measured_by_the_piece() -> None:
    """Sixteen in a millisecond are quick one by one."""
    found = Quick()
    for _ in range(TIMES_KEPT):
        found.note(QUICK_MS_MAX * 2, 16, on_loop=False)
    assert found.may(8)
    assert not found.may(9)
