"""``headrace why``: what an event waits for, or how it ended, for each handler of its topic."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli.options import EventId, Index, Journal, Json, TopicName, examples
from headrace.cli.output import Exit, counted, paint, plain, put, put_json

if TYPE_CHECKING:
    from headrace.ports.look import Look, Standing, StoredEvent

_EPILOG = examples("headrace why 01a22a41-9f19-79cd", "headrace why mail-4711 --json")


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("why", epilog=_EPILOG)(_why)


def _why(
    event: EventId,
    topic: TopicName = None,
    journal: Journal = None,
    index: Index = None,
    as_json: Json = False,
) -> int:
    """Say what an event waits for, or why it died."""
    from headrace.cli.access import looked
    from headrace.ports.look import moment
    from headrace.world import SystemClock

    async def look(at: Look) -> tuple[StoredEvent, list[Standing]]:
        found = await at.find(event, topic=topic)
        return found, await at.standings(found)

    found, told = looked(journal, index, look)
    now = moment(SystemClock().wall_us())
    if as_json:
        entries = [_entry(one, sentences(one, now)) for one in told]
        put_json({"event_id": found.envelope.event_id, "topic": found.envelope.topic, "handlers": entries})
        return Exit.DONE
    _put_text(found, told, now)
    return Exit.DONE


def _put_text(event: StoredEvent, told: list[Standing], now: datetime) -> None:
    one = event.envelope
    put(f"{paint(plain(one.type), 'bold')} {one.event_id} ({one.topic}, partition {one.partition})")
    if not told:
        put(f"  no handler has ever subscribed to topic {one.topic}")
    for standing in told:
        where = f" ({plain(standing.replay)})" if standing.replay else ""
        put(f"  {standing.handler}{where}: {paint(standing.state, 'bold')}")
        for line in sentences(standing, now):
            put(f"    {plain(line)}")


def sentences(one: Standing, now: datetime) -> list[str]:
    """Return why an event stands where it does, in words."""
    from headrace.ports.look import State

    told = {
        State.SKIPPED: lambda: ["It is older than the start of this handler (start='latest')."],
        State.DONE: lambda: [f"Handled by version {_name(one.version)}."],
        State.DEAD: lambda: _dead(one),
        State.EXPIRED: lambda: _expired(one),
        State.RUNNING: lambda: [f"A worker{_pid(one)} has it in hand, attempt {one.attempts}.", *_lease(one)],
    }.get(one.state)
    return told() if told is not None else [*_waits(one, now), *_workers(one)]


def _name(version: Any) -> str:
    return version.name if version is not None else "?"


def _pid(one: Standing) -> str:
    if one.owner is None:
        return ""
    where = f" on {one.owner.host}" if one.owner.host else ""
    return f" (pid {one.owner.pid}{where})" if one.owner.pid is not None else where


def _lease(one: Standing) -> list[str]:
    if one.owner is not None and one.owner.alive:
        return []
    return ["The lease of that worker has run out: another one takes over, and runs it again, alone."]


def _waits(one: Standing, now: datetime) -> list[str]:
    from headrace.ports.look import State

    if one.blocked_by is not None:
        return [f"An earlier event of its key comes first: {one.blocked_by}.", *_earlier(one)]
    return {
        State.WAITING: lambda: [_position(one)],
        State.RETRY: lambda: [f"Attempt {one.attempts + 1} is due {_when(one.due, now)}.", *_earlier(one)],
        State.BLOCKED: lambda: ["Its key is free again: it is next."],
        State.PARKED: lambda: ["It waits for something else than time.", *_earlier(one)],
        State.RETURNED: lambda: ["A worker that stopped has handed it back; it is next."],
        State.REDRIVEN: lambda: [f"Redriven ({_times(one.generation)}); it is next.", *_earlier(one)],
    }[one.state]()


def _position(one: Standing) -> str:
    ahead = f"Before it in its partition: {counted(one.ahead, 'event')}"
    before = ahead if one.ahead else "It is next in its partition"
    return f"{before}." + (
        " The partition takes nothing new until open events are closed." if one.paused else ""
    )


def _earlier(one: Standing) -> list[str]:
    crashed = [f"The process died {_times(one.crashes)} with it in hand."] if one.crashes else []
    return crashed + [f"Attempt {number}: {text}" for number, text in enumerate(one.errors, 1)]


def _when(due: datetime | None, now: datetime) -> str:
    wait_s = (due - now).total_seconds() if due is not None else 0
    return f"in {wait_s:,.1f} s" if wait_s > 0 else "now"


def _times(count: int) -> str:
    return "once" if count == 1 else counted(count, "time")


def _workers(one: Standing) -> list[str]:
    """Say who could take it, or that nobody can."""
    if one.owner is not None and one.owner.alive:
        return [f"Its partition is with a worker{_pid(one)}."]
    if one.replay:
        return ["Its replay does not run at present: `headrace replay` with the same options goes on."]
    if not one.workers:
        return ["No worker is alive: start one with `headrace run`."]
    if one.serving:
        return ["Its partition has no live owner; a worker takes it within a quarter of the lease."]
    if one.active is None:
        return ["No version of this handler is active yet."]
    todo = "start one that has, or activate another with `headrace model activate`"
    return [f"No live worker has the active version {one.active.name}: {todo}."]


def _dead(one: Standing) -> list[str]:
    letter = one.letter
    assert letter is not None, "the dead have a letter"
    fate = " It was dropped." if letter.fate == "dropped" else ""
    again = " It was redriven before, and died again for the same reason." if letter.again else ""
    reason = f"Dead letter {letter.id}: {letter.reason} [{letter.code}]"
    return [
        f"{reason}, tried {_times(letter.attempts)} under version {letter.version}.{fate}{again}",
        letter.error,
        f"`headrace dlq show {letter.id}` has the traceback.",
    ]


def _expired(one: Standing) -> list[str]:
    if one.letter is None:
        return ["Its payload was removed before this handler had taken it."]
    return [f"{one.letter.reason} [{one.letter.code}]: {one.letter.error}"]


def _entry(one: Standing, told: list[str]) -> dict[str, Any]:
    return {
        "handler": one.handler,
        "replay": one.replay or None,
        "state": str(one.state),
        "because": told,
        "version": one.version.name if one.version else None,
        "active_version": one.active.name if one.active else None,
        "ahead": one.ahead,
        "due": one.due,
        "attempts": one.attempts,
        "crashes": one.crashes,
        "generation": one.generation,
        "errors": list(one.errors),
        "blocked_by": one.blocked_by,
        "owner_pid": one.owner.pid if one.owner else None,
        "owner_alive": bool(one.owner and one.owner.alive),
        "workers": one.workers,
        "workers_serving": one.serving,
        "dead_letter": one.letter.id if one.letter else None,
    }
