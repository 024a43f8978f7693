"""Which versions a handler has and which one is active: facts in the journal, not in a process."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from headrace import errors
from headrace.journal.connection import Connection
from headrace.journal.queries import load
from headrace.ports import Offered, VersionInfo, VersionOffer

_DIGEST_SHOWN_CHARS = 12


def info_of(row: tuple[Any, ...]) -> VersionInfo:
    """Return a version from a row of the query ``version_info`` or ``versions``."""
    number, handler, declared, model, digest, epoch, model_declared = row
    name = None if model is None else f"{model}@{model_declared or epoch}:{digest[:_DIGEST_SHOWN_CHARS]}"
    return VersionInfo(number, handler, declared, model, digest, name)


def handler_unknown(handler: str, known: Sequence[str]) -> errors.HandlerUnknown:
    """Return the error for a name that no handler has, with the names that may have been meant."""
    whole = {one.rpartition(".")[2]: one for one in reversed(known)} | {one: one for one in known}
    near = [one for one in known if one.endswith(f".{handler}")]
    near = near or list(dict.fromkeys(whole[one] for one in get_close_matches(handler, whole)))
    if near:
        told = f"Did you mean {' or '.join(near)}?"
    else:
        told = f"It knows {', '.join(known)}." if known else "It knows none."
    return errors.HandlerUnknown(told, handler=handler)


def chosen(known: Sequence[VersionInfo], handler: str, text: str) -> VersionInfo:
    """Return the one version that a text names: whole, by ``@epoch``, or by a part that only it has."""
    wanted = [one for one in known if text == one.name] or [one for one in known if text in _names(one)]
    wanted = wanted or [one for one in known if len(text) >= 2 and text in one.name]  # noqa: PLR2004
    if len(wanted) != 1:
        names = ", ".join(one.name for one in known) or "none"
        raise errors.VersionUnknown(f"Known: {names}.", handler=handler, version=text)
    return wanted[0]


def meant(info: VersionInfo, handler: str, text: str) -> VersionInfo:
    """Return the version that an app holds, if it is the one that is meant; raises `ReplayRefused`."""
    try:
        return chosen([info], handler, text) if text else info
    except errors.VersionUnknown as fault:
        problem = f"the app holds version {info.name} of it, not {text}"
        hint = "put the code and the model file of that version in place for this command"
        raise errors.ReplayRefused(handler=handler, problem=problem, hint=hint) from fault


class Versions:
    """The versions of all handlers, in one SQLite journal."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._queries = db.queries

    def info(self, number: int) -> VersionInfo:
        """Return a version by its number."""
        return info_of(self._db.row(self._queries.version_info, (number,)))

    async def offer(self, offer: VersionOffer) -> Offered:
        """Make a version known; one that no worker has offered before becomes the active one."""
        known = self._known(offer)
        return await self._db.write(lambda: self._add(offer)) if known is None else known

    def _known(self, offer: VersionOffer) -> Offered | None:
        handler = self._db.row(self._queries.handler_get, (offer.handler,))
        found = self.find(offer)
        if handler is None or handler[1] is None or found is None or found[1]:
            return None
        return Offered(self.info(found[0]), self.info(handler[1]))

    def find(self, offer: VersionOffer) -> tuple[int, int] | None:
        """Return the number of a version, and whether replays alone know it."""
        handler = self._db.row(self._queries.handler_get, (offer.handler,))
        model = 0
        if offer.digest is not None:
            found = self._db.row(self._queries.model_get, (offer.model, offer.digest))
            model = -1 if found is None else found[0]
        bindings = (-1 if handler is None else handler[0], offer.declared, model)
        known: tuple[int, int] | None = self._db.row(self._queries.version_get, bindings)
        return known

    def _add(self, offer: VersionOffer) -> Offered:
        known = self._known(offer)
        if known is not None:  # another worker was quicker
            return known
        version = self.know(offer, trial=False)
        handler = self._db.row(self._queries.handler_get, (offer.handler,))[0]
        self._db.ex(self._queries.version_live, (version,))
        self._db.ex(self._queries.handler_activate, (version, handler))
        self._db.faults.at("version.offered")
        return Offered(self.info(version), self.info(version))

    def know(self, offer: VersionOffer, *, trial: bool) -> int:
        """Inside a transaction: return the number of a version, made known where it is not."""
        known = self.find(offer)
        if known is not None:
            return known[0]
        row, queries, now = self._db.row, self._queries, self._db.clock.wall_us()
        self._db.ex(queries.handler_add, (offer.handler,))
        handler = row(queries.handler_get, (offer.handler,))[0]
        model = 0
        if offer.digest is not None:
            found = row(queries.model_get, (offer.model, offer.digest))
            added = found or row(queries.model_add, (offer.model, offer.model_declared, offer.digest, now))
            model = added[0]
        return int(row(queries.version_add, (handler, offer.declared, model, now, int(trial)))[0])

    async def activate(self, handler: str, text: str) -> VersionInfo:
        """Make the version named (whole, or by ``@epoch``, or by a unique part) the active one."""
        return await self._db.write(lambda: self._activate(handler, text))

    def _activate(self, handler: str, text: str) -> VersionInfo:
        found = self._db.row(self._queries.handler_get, (handler,))
        if found is None:
            handlers = [row[0] for row in self._db.rows(load("history.sql").handlers, (None,))]
            raise handler_unknown(handler, handlers)
        known = [info_of(row) for row in self._db.rows(self._queries.versions, (handler,))]
        wanted = chosen(known, handler, text)
        self._db.ex(self._queries.version_live, (wanted.id,))
        self._db.ex(self._queries.handler_activate, (wanted.id, found[0]))
        return wanted


def _names(version: VersionInfo) -> set[str]:
    if version.model_name is None:
        return {version.declared}
    model, _, _digest = version.model_name.partition(":")
    return {version.model_name, model, "@" + model.partition("@")[2], f"{version.declared}+{model}"}
