"""``headrace status``: how far every handler has come, and whether the numbers add up."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headrace.cli.options import Index, Journal, Json, examples
from headrace.cli.output import Exit, counted, mib, paint, put, put_json, put_table, warn

if TYPE_CHECKING:
    from headrace.ports.look import Look, Owner, Progress, Replayed, Topic, Violation

EQUATION = "published = waiting + running + parked + done + dead + expired"
_EPILOG = examples("headrace status", "headrace status --json", "headrace status --verify")
_REPLAY_HEAD = (
    "REPLAY", "RESULTS", "ALLOTTED", "WAITING", "RUNNING", "DONE", "DEAD", "EMITTED", "VERSION", "STANDS",
)  # fmt: skip
_HEAD = (
    "HANDLER", "PUBLISHED", "WAITING", "RUNNING", "PARKED", "DONE", "DEAD", "EXPIRED", "VERSION", "OWNERS",
)  # fmt: skip


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("status", epilog=_EPILOG)(_status)


def _status(
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Check every event and every rule of the journal; exit 1 if one is broken."
        ),
    ] = False,
    journal: Journal = None,
    index: Index = None,
    as_json: Json = False,
) -> int:
    """Show, per handler, published = waiting + running + parked + done + dead + expired."""
    from headrace.cli.access import looked
    from headrace.ports.look import moment
    from headrace.world import SystemClock

    async def look(at: Look) -> _Found:
        violations = await at.violations() if verify else None
        return _Found(at.address, await at.progress(), await at.replays(), await at.topics(), violations)

    found = looked(journal, index, look)
    now = moment(SystemClock().wall_us())
    if as_json:
        put_json(_document(found, now))
    else:
        _put_text(found.address, found.handlers, found.topics, now, found.replays)
        _put_violations(found.violations)
    return Exit.NO if found.violations else Exit.DONE


class _Found(NamedTuple):
    """What the journal says."""

    address: str
    handlers: list[Progress]
    replays: list[Replayed]
    topics: list[Topic]
    violations: list[Violation] | None


def _put_text(
    path: str, found: list[Progress], stored: list[Topic], now: datetime, replays: list[Replayed]
) -> None:
    events = sum(topic.events for topic in stored)
    put(f"journal {path}: {counted(events, 'event')} in {counted(len(stored), 'topic')}")
    put()
    rows = [
        (
            one.handler, one.published, one.waiting, one.running, one.parked, one.done, one.dead, one.expired,
            one.active.name if one.active else "-", _owners(one),
        )
        for one in found
    ]  # fmt: skip
    put_table(_HEAD, rows, numbers=range(1, 8))
    for one in found:
        for line in _notes(one, now):
            put(f"  {one.handler}: {line}")
    handled = {one.topic for one in found}
    sides = tuple(f".side.{one.side}" for one in replays if one.side is not None)
    for topic in stored:
        if topic.name not in handled:
            what = "results of a replay" if topic.name.endswith(sides) else "and no handler"
            put(f"  topic {topic.name}: {counted(topic.events, 'event')}, {what}{_kept(topic)}")
        elif _kept(topic):
            put(f"  topic {topic.name}: {counted(topic.events, 'event')}{_kept(topic)}")
    put()
    if replays:
        _put_replays(replays)
    if all(one.sound for one in found):
        put(f"{EQUATION}: {paint('holds', 'green')}")
    else:
        put(f"{EQUATION}: {paint('does not hold', 'red')}; see `headrace status --verify`")


def _put_replays(replays: list[Replayed]) -> None:
    rows = [
        (
            one.handler, _results(one), one.allotted, one.waiting,
            one.running, one.done, one.dead, one.emitted, one.version.name if one.version else "-",
            _stands(one),
        )
        for one in replays
    ]  # fmt: skip
    put_table(_REPLAY_HEAD, rows, numbers=range(2, 8))
    put()


def _results(one: Replayed) -> str:
    where = "live topics" if one.side is None else f"side {one.side}"
    return f"{where}, again {one.again}" if one.again else where


def _stands(one: Replayed) -> str:
    """Say whether a replay is complete, or who is at it."""
    owners = _owners(one)
    if owners == "-":
        owners = "complete" if one.complete else "nobody is at it"
    if one.expired:
        owners += f", {one.expired:,} expired"
    return f"follows, {owners}" if one.follow else owners


def _kept(topic: Topic) -> str:
    """Say how long a topic keeps its events, where an app has said so."""
    bounds: list[str] = []
    if topic.age_us is not None:
        days, rest_s = divmod(topic.age_us / 1e6, 86_400)
        bounds.append(f"{days:.0f} d" if not rest_s else f"{topic.age_us / 1e6:,.0f} s")
    if topic.bytes_max is not None:
        bounds.append(f"{mib(topic.bytes_max)} (has {(topic.bytes or 0) / (1 << 20):,.1f})")
    return f", kept for {' and '.join(bounds)}" if bounds else ""


def _owners(one: Progress | Replayed) -> str:
    told = [f"{_who(owner)} ({owner.partitions})" for owner in one.owners if owner.alive]
    lost = sum(owner.partitions for owner in one.owners if not owner.alive)
    return ", ".join(told + ([f"lease run out ({lost})"] if lost else [])) or "-"


def _who(owner: Owner) -> str:
    return f"pid {owner.pid}" + (f" on {owner.host}" if owner.host else "") if owner.pid else owner.host


def _notes(one: Progress, now: datetime) -> list[str]:
    told: list[str] = []
    opened = ", ".join(f"{count:,} {state}" for state, count in sorted(one.open.items()))
    if opened:
        told.append(f"of those that wait, {opened}")
    if one.oldest_waiting is not None and one.waiting:
        told.append(f"the oldest has waited {_age_s(one, now):,.1f} s")
    if one.events_per_s is not None:
        told.append(f"{one.events_per_s:,.1f} events/s, {counted(one.rebalances or 0, 'rebalance')}")
    if one.trouble:
        told.append(paint(one.trouble, "yellow") + (f" ({one.active.name})" if one.active else ""))
    if one.dead:
        told.append(f"{counted(one.dead, 'dead letter')}: headrace dlq ls --all --handler {one.handler}")
    return told


def _age_s(one: Progress, now: datetime) -> float:
    return max(0.0, (now - one.oldest_waiting).total_seconds()) if one.oldest_waiting else 0.0


def _put_violations(violations: list[Violation] | None) -> None:
    if violations is None:
        return
    if not violations:
        put(f"verify: {paint('clean', 'green')}")
    for one in violations:
        warn(f"verify: {one.rule}: {one.where}")


def _document(found: _Found, now: datetime) -> dict[str, Any]:
    document: dict[str, Any] = {
        "journal": found.address,
        "sound": all(one.sound for one in found.handlers),
        "subscriptions": [_entry(one, now) for one in found.handlers],
        "replays": [_replay_entry(one) for one in found.replays],
        "topics": [one._asdict() for one in found.topics],
    }
    if found.violations is not None:
        document["violations"] = [one._asdict() for one in found.violations]
    return document


def _replay_entry(one: Replayed) -> dict[str, Any]:
    told = one._asdict() | {"version": one.version.name if one.version else None}
    return told | {"owners": [owner._asdict() for owner in one.owners]}


def _entry(one: Progress, now: datetime) -> dict[str, Any]:
    return {
        "handler": one.handler,
        "topic": one.topic,
        "active_version": one.active.name if one.active else None,
        "partitions": one.partitions,
        "published": one.published,
        "waiting": one.waiting,
        "running": one.running,
        "parked": one.parked,
        "done": one.done,
        "dead": one.dead,
        "expired": one.expired,
        "sound": one.sound,
        "lag": one.untaken,
        "open": one.open,
        "events_per_s": one.events_per_s,
        "rebalances": one.rebalances,
        "oldest_waiting": one.oldest_waiting,
        "oldest_waiting_s": round(_age_s(one, now), 3),
        "owners": [owner._asdict() for owner in one.owners],
        "workers": one.workers,
        "workers_serving": one.serving,
        "trouble": one.trouble,
    }
