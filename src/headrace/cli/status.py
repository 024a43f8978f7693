"""``headrace status``: how far every handler has come, and whether the numbers add up."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import Index, Journal, Json, examples
from headrace.cli.output import Exit, counted, paint, put, put_json, put_table, warn

if TYPE_CHECKING:
    from headrace.ports.look import Look, Owner, Progress, Topic, Violation

EQUATION = "published = waiting + running + parked + done + dead + expired"
_EPILOG = examples("headrace status", "headrace status --json", "headrace status --verify")
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

    async def look(at: Look) -> tuple[str, list[Progress], list[Topic], list[Violation] | None]:
        violations = await at.violations() if verify else None
        return at.address, await at.progress(), await at.topics(), violations

    path, found, stored, violations = looked(journal, index, look)
    now = moment(SystemClock().wall_us())
    if as_json:
        put_json(_document(path, found, stored, violations, now))
    else:
        _put_text(path, found, stored, now)
        _put_violations(violations)
    return Exit.NO if violations else Exit.DONE


def _put_text(path: str, found: list[Progress], stored: list[Topic], now: datetime) -> None:
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
    for topic in stored:
        if topic.name not in handled:
            put(f"  topic {topic.name}: {counted(topic.events, 'event')}, and no handler{_kept(topic)}")
        elif _kept(topic):
            put(f"  topic {topic.name}: {counted(topic.events, 'event')}{_kept(topic)}")
    put()
    if all(one.sound for one in found):
        put(f"{EQUATION}: {paint('holds', 'green')}")
    else:
        put(f"{EQUATION}: {paint('does not hold', 'red')}; see `headrace status --verify`")


def _kept(topic: Topic) -> str:
    """Say how long a topic keeps its events, where an app has said so."""
    bounds: list[str] = []
    if topic.age_us is not None:
        days, rest_s = divmod(topic.age_us / 1e6, 86_400)
        bounds.append(f"{days:.0f} d" if not rest_s else f"{topic.age_us / 1e6:,.0f} s")
    if topic.bytes_max is not None:
        bounds.append(f"{topic.bytes_max / (1 << 20):,.1f} MiB (has {(topic.bytes or 0) / (1 << 20):,.1f})")
    return f", kept for {' and '.join(bounds)}" if bounds else ""


def _owners(one: Progress) -> str:
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
        told.append(f"{counted(one.dead, 'dead letter')}: headrace dlq ls --handler {one.handler}")
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


def _document(
    path: str,
    found: list[Progress],
    stored: list[Topic],
    violations: list[Violation] | None,
    now: datetime,
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "journal": path,
        "sound": all(one.sound for one in found),
        "subscriptions": [_entry(one, now) for one in found],
        "topics": [one._asdict() for one in stored],
    }
    if violations is not None:
        document["violations"] = [one._asdict() for one in violations]
    return document


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
