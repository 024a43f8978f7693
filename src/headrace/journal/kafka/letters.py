"""Dead letters of a journal on Kafka: what the ``.dlq`` topics hold, and what was decided about each.

Signatures first, agreed with the command line; what is behind them follows.  The numbers of letters are
 the same at every look and in every process.  `Log` is `KafkaJournal.log`, opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.journal.kafka.log import Log
from headrace.ports.look import UNDECIDED, Decided, Filter, Letter


async def letters(log: Log, wanted: Filter = UNDECIDED) -> list[Letter]:
    """Return all dead letters that pass, oldest first.

    ``fate`` is what was asked for or done; one that the owner refused is undecided again, and says why.
    """
    raise NotImplementedError


async def redrive(log: Log, numbers: Sequence[int]) -> list[Decided]:
    """Ask for events to be handled again: durable when this returns, done by the partition's owner."""
    raise NotImplementedError


async def drop(log: Log, numbers: Sequence[int]) -> list[Decided]:
    """Ask for letters to be put away; durable when this returns."""
    raise NotImplementedError


async def refusals(log: Log, numbers: Sequence[int], *, drop: bool = False) -> list[Decided]:
    """Return what `redrive` (or `drop`) would say of each letter, without doing it."""
    raise NotImplementedError
