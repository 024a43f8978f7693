"""``headrace replay``: run history through a version of a handler, each event once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import errors
from headrace.cli.moments import stretch_of
from headrace.cli.options import Index, Journal, Json, Target, examples, not_empty
from headrace.cli.output import Exit, Progress, counted, plain, put, put_facts, put_json, say

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.ports.replay import Order, Replay, ReplayPlan, ReplayState
    from headrace.runtime.handlers import Handler
    from headrace.runtime.replay import ReplayWorker

_EPILOG = examples(
    "headrace replay app:app route --dry-run",
    "headrace replay app:app route --side trial --from 2026-01-01 --rate 200/s",
    "headrace replay app:app route --model-version intent@2 --chain 01a22a41-9f19-79cd",
    "headrace replay app:app route --live --to 5000",
    "headrace replay app:app route --side trial --again second",
    "headrace replay app:app route --side shadow --follow",
    more="The version is that of the code and the model file of this app. Killed at any moment, the same"
    " command goes on. Ctrl-C: what is in hand ends or is handed back.",
)
#: After so many looks (a second) a replay without partitions says so: who ends in order hands over at once.
IDLE_LOOKS = 10
#: What the reasons mean for which an event is not replayed.
_REASONS = {
    "before_start": "older than the start of the handler",
    "unfinished": "not finished live",
    "dead": "dead letters of this version: redrive them",
    "handled": "handled by this version live",
    "replayed": "with another replay of this version",
    "expired": "deleted by retention",
}

#: Options of which only one can be meant, and why.
_APART = {
    ("--live", "--side"): "results lie in the live topics, or beside them",
    ("--live", "--again"): "what was handled is handled again only beside the live results",
    ("--follow", "--to"): "what follows has no end",
    ("--follow", "--chain"): "what follows takes every event",
}


# fmt: off
Version = Annotated[
    str | None,
    typer.Option(
        "--model-version", show_default=False, metavar="VERSION",
        help="Go on only if the app holds this version: as `model history` names it, or @epoch.",
    ),
]
Side = Annotated[
    str | None,
    typer.Option(
        "--side", show_default=False, metavar="NAME",
        help="Put results beside the live ones, in topics `<topic>.side.NAME`. [default: replay]",
    ),
]
Again = Annotated[
    str | None,
    typer.Option(
        "--again", show_default=False, metavar="NAME",
        help="Also what the version has handled before, once under this name; with --side only.",
    ),
]
Begin = Annotated[
    str | None,
    typer.Option(
        "--from", show_default=False, metavar="TIME|OFFSET",
        help="Begin at this time (UTC, or 15m, 2h, 3d ago) or offset.",
    ),
]
End = Annotated[
    str | None,
    typer.Option(
        "--to", show_default=False, metavar="TIME|OFFSET",
        help="End before this time, or with this offset.",
    ),
]
# fmt: on


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("replay", epilog=_EPILOG)(_replay)


def _replay(  # noqa: PLR0913, PLR0917 - one parameter per option
    target: Target,
    handler: Annotated[
        str, typer.Argument(metavar="HANDLER", help="app.function, or function.", show_default=False)
    ],
    version: Version = None,
    side: Side = None,
    live: Annotated[bool, typer.Option("--live", help="Put results into the live topics.")] = False,
    again: Again = None,
    first: Begin = None,
    last: End = None,
    chain: Annotated[
        str | None,
        typer.Option(
            "--chain", show_default=False, metavar="EVENT", help="Events of the chain of this one.",
            callback=not_empty,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Shadow: go on with what is handled live from now on.")
    ] = False,
    rate: Annotated[
        str | None, typer.Option("--rate", show_default=False, metavar="N/s", help="At most so many events.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be replayed; nothing is written.")
    ] = False,
    journal: Journal = None,
    index: Index = None,
    as_json: Json = False,
) -> int:  # fmt: skip
    """Run history through the version of a handler that this app holds, each event once."""
    from headrace.cli.target import load
    from headrace.ports.replay import SIDE_DEFAULT, Order
    from headrace.world import SystemClock

    _check(
        {"--live": live, "--side": side, "--again": again, "--follow": follow, "--to": last, "--chain": chain}
    )
    if version is not None and not version:
        raise errors.CommandInvalid(problem="--model-version is empty", hint="leave it out for any version")
    for flag, name in (("--side", side), ("--again", again)):
        _check_name(flag, name)
    begin, end = stretch_of(first, last, SystemClock().wall_us())
    app = load(target)
    app.configure({"journal": journal, "index": index})
    found = _found(app, handler)
    _check_side(found, side)
    order = Order(
        handler=found.name, topic=found.consumes.topic,
        version=version or "", side=None if live else side or SIDE_DEFAULT, again=again,
        from_offset=begin.offset, from_us=begin.us, to_offset=end.offset, to_us=end.us, follow=follow,
    )  # fmt: skip
    run = _Run(app, _rate(rate), chain, dry_run=dry_run, as_json=as_json)
    return asyncio.run(run.whole(order))


def _check(given: Mapping[str, str | bool | None]) -> None:
    """Refuse options that contradict each other."""
    for (one, other), why in _APART.items():
        if given[one] not in {None, False} and given[other] not in {None, False}:
            raise errors.CommandInvalid(
                problem=f"{one} and {other} do not go together",
                hint=f"drop one of them: {why}",
            )


def _check_name(flag: str, name: str | None) -> None:
    """Refuse what no side and no ledger can be called."""
    from headrace.event.contract import NAME, NAME_CHARS_MAX

    if name is None or NAME.fullmatch(name):
        return
    hint = f"1 to {NAME_CHARS_MAX} of these: letters A to Z or a to z, digits, and any of . _ -"
    if len(name) > NAME_CHARS_MAX:
        problem = f"{flag} is too long: {len(name):,} characters, and at most {NAME_CHARS_MAX} are allowed"
    elif name:
        problem = f"{flag} {name!r} has characters that are not allowed in a name"
    else:
        problem = f"{flag} is empty"
    raise errors.CommandInvalid(problem=problem, hint=hint)


def _check_side(handler: Handler, side: str | None) -> None:
    """Refuse the name of a side that makes that of a topic too long."""
    from headrace.event.contract import NAME_CHARS_MAX
    from headrace.runtime.plan import side_topic

    longest = max((contract.topic for contract in handler.emits), key=len, default=None)
    if side is None or longest is None:
        return
    most = NAME_CHARS_MAX - len(side_topic(longest, ""))
    if len(side) > most:
        raise errors.CommandInvalid(
            problem=f"--side is too long beside topic {longest}: {len(side):,} characters, and at most"
            f" {most:,} are allowed",
            hint=f"the topic of its results would be called {longest}.side.NAME, and a topic has at most"
            f" {NAME_CHARS_MAX} characters",
        )


def _found(app: App, name: str) -> Handler:
    """Return a handler of the app; raises `HandlerUnknown`."""
    from headrace.cli.target import handler_named
    from headrace.journal.versions import handler_unknown

    found = handler_named(app, name)
    if found is None:
        raise handler_unknown(name, list(app.handlers))
    return found


def _rate(text: str | None) -> float | None:
    """Return events a second."""
    if text is None:
        return None
    number = text.removesuffix("/s")
    try:
        rate = float(number)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise errors.CommandInvalid(
            problem=f"--rate {text!r} is no number of events a second", hint="--rate 200/s"
        )
    return rate


class _Run:
    """One replay: the plan or the work, and what is told of it."""

    def __init__(
        self, app: App, rate: float | None, chain: str | None, *, dry_run: bool, as_json: bool
    ) -> None:
        self._app, self._rate, self._chain = app, rate, chain
        self._dry_run, self._as_json = dry_run, as_json
        self._stop = asyncio.Event()
        self._interrupted = False
        self._before = 0
        #: Looks at a replay that goes on, but holds no partition yet.
        self._idle_looks = 0

    async def whole(self, order: Order) -> int:
        """Plan or carry out; returns the exit code."""
        from headrace.cli.access import reading
        from headrace.runtime.replay import ReplayWorker

        settings = self._app.settings
        async with reading(settings.journal, settings.index) as look:
            # Nothing is made where there is no journal.
            if self._chain is not None:
                found = await look.find(self._chain)
                order = replace(order, chain=found.envelope.event_id.bytes)
        async with self._app as app:
            worker = ReplayWorker(app.worker(only=[order.handler]), order, rate=self._rate)
            try:
                if self._dry_run:
                    self._tell_plan(order, await worker.plan())
                    return Exit.DONE
                return await self._carry_out(worker, order)
            finally:
                await worker.finish()

    async def _carry_out(self, worker: ReplayWorker, order: Order) -> int:
        from headrace.ports.replay import ReplayPlan

        begun = await worker.begin()
        if isinstance(begun, ReplayPlan):
            self._tell_plan(order, begun)
            return Exit.DONE
        self._watch_signals()
        self._tell_start(order, begun)
        state = await worker.state()
        bar = Progress(state.allotted)
        self._before = state.done + state.dead + state.expired

        def tell(now: ReplayState) -> None:
            self._tell_wait(worker, begun, now)
            bar.total = now.allotted
            bar.at(now.done + now.dead + now.expired, f"{now.dead:,} dead" if now.dead else "")

        try:
            await worker.until_done(self._stop, tell)
        finally:
            bar.end()
        state = await worker.state()
        self._tell_end(order, begun, state)
        if self._interrupted:
            return Exit.INTERRUPTED
        return Exit.NO if state.dead else Exit.DONE

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._interrupt)

    def _interrupt(self) -> None:
        self._interrupted = True
        self._stop.set()

    # --- words --------------------------------------------------------------------------------

    def _tell_start(self, order: Order, begun: Replay) -> None:
        plan = begun.plan
        how = "goes on" if begun.resumed else f"{counted(plan.allotted, 'event')} of history"
        say(f"{order.handler}, version {plan.version.name}, {_where(order)}: {how}")
        if order.follow:
            say("following what is handled live; Ctrl-C ends it")

    def _tell_wait(self, worker: ReplayWorker, begun: Replay, now: ReplayState) -> None:
        """Say once what a replay waits for that goes on after the death of another process."""
        if not begun.resumed or now.complete or any(one.consumer.held() for one in worker.servers):
            return
        self._idle_looks += 1
        if self._idle_looks == IDLE_LOOKS:
            lease_s = self._app.settings.lease_ms / 1000
            say(f"no partition is free yet; those of a process that has died come free within {lease_s:g} s")

    def _tell_plan(self, order: Order, plan: ReplayPlan) -> None:
        """Print what would be done, or that there is nothing to do."""
        from headrace.ports.replay import ReplayState

        if self._as_json:
            done = {} if self._dry_run else _done(ReplayState(0, 0, 0, 0, 0, complete=True), resumed=False)
            put_json(_about(order, plan) | {"dry_run": self._dry_run} | done)
            return
        events = counted(plan.allotted, "event")
        if self._dry_run:
            put(f"{events} would be replayed, {_where(order)}")
        else:
            put(f"nothing to replay {_where(order)}: {events}")
        self._put_facts(plan)

    def _tell_end(self, order: Order, begun: Replay, state: ReplayState) -> None:
        if self._as_json:
            done = _done(state, resumed=begun.resumed)
            put_json(_about(order, begun.plan) | {"dry_run": False} | done)
            return
        expired = f" {state.expired:,} expired," if state.expired else ""
        put(
            f"{state.done:,} of {counted(state.allotted, 'event')} handled, {state.emitted:,} emitted,"
            f" {state.dead:,} dead,{expired} {_left(state):,} left, {_where(order)}"
        )
        self._put_facts(begun.plan)
        if state.dead:
            say(f"dead letters: headrace dlq ls --handler {order.handler}")
        if not state.complete:
            say("the same command goes on")

    def _put_facts(self, plan: ReplayPlan) -> None:
        facts: dict[str, Any] = {"version": plan.version.name}
        skipped = [f"{count:,} {_REASONS[reason]}" for reason, count in plan.skipped.items()]
        put_facts(facts | {"passed over": ", ".join(skipped)})


def _left(state: ReplayState) -> int:
    return state.allotted - state.done - state.dead - state.expired


def _where(order: Order) -> str:
    return "into the live topics" if order.side is None else f"on side {plain(order.side)}"


def _about(order: Order, plan: ReplayPlan) -> dict[str, Any]:
    return {
        "handler": order.handler,
        "topic": order.topic,
        "version": plan.version.name,
        "side": order.side,
        "again": order.again,
        "follow": order.follow,
        "allotted": plan.allotted,
        "skipped": dict(plan.skipped),
    }


def _done(state: ReplayState, *, resumed: bool) -> dict[str, Any]:
    return {
        "allotted": state.allotted,
        "handled": state.done,
        "emitted": state.emitted,
        "dead": state.dead,
        "expired": state.expired,
        "left": _left(state),
        "complete": state.complete,
        "resumed": resumed,
    }
