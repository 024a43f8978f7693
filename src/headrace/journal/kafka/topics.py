"""What a topic has to be so that nothing is lost in it: the settings of new ones, faults of the others."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace import errors
from headrace.event import contract
from headrace.ports import Keep

_log = logging.getLogger("headrace.journal")

#: Copies of a topic that we create, where there are as many brokers; two must have what was accepted.
REPLICAS_MAX, REPLICAS_IN_SYNC = 3, 2
#: Topics of our own begin like this; that of the dead letters of a topic ends like that.
OWN, DEAD_SUFFIX = contract.OWN, contract.DEAD_SUFFIX
#: Payload (1 MiB), headers (64 KiB) and envelope of the largest event there is.
EVENT_BYTES_MAX = 1_310_720
#: As much, with an error and its traceback of four bytes a character.
LETTER_BYTES_MAX = 1_572_864
#: 1,000 open offsets, each with the errors of its attempts.
LEDGER_BYTES_MAX = 16_777_216
#: The library sends batches of up to 1 MB, and the broker's bound is that of a batch: its default will do.
BATCH_BYTES_MAX = 1_048_588
_DAY_MS = 86_400_000


def replay_name(handler: str, replay: str) -> str:
    """Return what a replay is called where a live subscription has the name of its handler."""
    return f"{handler}.replay-{replay}"


def replay_number(told: str) -> str:
    """Return the number of a replay, of what tells it from all others: 16 hexadecimal digits."""
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


def split_name(name: str) -> tuple[str, str]:
    """Return the handler of a subscription, and the number of the replay that it is; empty for a live one."""
    found = contract.REPLAY_NAME.fullmatch(name)
    return (name, "") if found is None else (found[1], found[2])


class Unfit(NamedTuple):
    """What is wrong with a topic, and the setting that would be right."""

    problem: str
    setting: str


def settings_of(name: str, given: Mapping[str, str], replicas: int) -> dict[str, str]:
    """Return the settings of a new topic: what nobody has asked to forget is kept, as in a file."""
    found = {"cleanup.policy": "delete", "max.message.bytes": str(_bytes_wanted(name)), **given}
    if found["cleanup.policy"] == "delete":
        found = {"retention.ms": "-1", "retention.bytes": "-1", **found}
    if replicas >= REPLICAS_MAX:
        found["min.insync.replicas"] = str(REPLICAS_IN_SYNC)
    return found


def unfit(name: str, found: Mapping[str, str], given: Mapping[str, str], replicas: int) -> Iterator[Unfit]:
    """Yield what makes a topic unfit: with it events would be lost, or could not be written."""
    wanted, policy = given.get("cleanup.policy", "delete"), found.get("cleanup.policy", "delete")
    if policy != wanted:
        lost = "of each key only the last record is kept" if "compact" in policy else "records expire"
        yield Unfit(f"cleanup.policy is {policy}: {lost}", f"cleanup.policy={wanted}")
    in_sync = int(found.get("min.insync.replicas", "1"))
    if replicas >= REPLICAS_MAX and in_sync < REPLICAS_IN_SYNC:
        problem = f"min.insync.replicas is {in_sync}: what is accepted may lie on a single broker"
        yield Unfit(problem, f"min.insync.replicas={REPLICAS_IN_SYNC}")
    if in_sync > replicas:
        problem = f"min.insync.replicas is {in_sync} of {replicas} replicas: nothing can be written"
        yield Unfit(problem, f"min.insync.replicas={replicas}")
    least = _bytes_wanted(name) if _is_ours(name) else BATCH_BYTES_MAX
    if int(found.get("max.message.bytes", least)) < least:
        problem = f"max.message.bytes is {found['max.message.bytes']}: what is written at once would not fit"
        yield Unfit(problem, f"max.message.bytes={least}")
    for setting in ("retention.ms", "retention.bytes") if _is_ours(name) and wanted == "delete" else ():
        if found.get(setting, "-1") != "-1":
            yield Unfit(f"{setting} is {found[setting]}: what has to be known would expire", f"{setting}=-1")


def remarks(name: str, found: Mapping[str, str], replicas: int, brokers: int) -> Iterator[str]:
    """Yield what whoever runs the topic should know of it."""
    kept_ms = int(found.get("retention.ms", "-1"))
    if kept_ms >= 0 and found.get("cleanup.policy") == "delete":
        yield f"retention.ms is {kept_ms} ({kept_ms / _DAY_MS:.3g} days): what is not handled by then expires"
    kept_bytes = int(found.get("retention.bytes", "-1"))
    if kept_bytes >= 0:
        yield f"retention.bytes is {kept_bytes}: what is not handled before so much comes behind it expires"
    if replicas < min(REPLICAS_MAX, brokers):
        yield f"it has {replicas} of {brokers} brokers: it is lost, or stands still, with them"
    largest = int(found.get("max.message.bytes", LEDGER_BYTES_MAX))
    if largest < _bytes_wanted(name):
        yield f"max.message.bytes is {largest}: larger events are refused (the largest has {EVENT_BYTES_MAX})"


def _is_ours(name: str) -> bool:
    return name.startswith(f"{OWN}.")


def _bytes_wanted(name: str) -> int:
    if _is_ours(name):
        return LEDGER_BYTES_MAX
    return LETTER_BYTES_MAX if name.endswith(DEAD_SUFFIX) else EVENT_BYTES_MAX


class Elsewhere:
    """Retention that an app declares, on a cluster: the brokers delete, so it is told and passed over."""

    def __init__(self, rules: Sequence[Keep]) -> None:
        self._rules = list(rules)

    async def step(self) -> bool:
        """Say which setting of a topic means the same."""
        while self._rules:
            rule = self._rules.pop()
            age = [] if rule.age_us is None else [f"retention.ms={rule.age_us // 1000}"]
            size = [] if rule.bytes_max is None else ["retention.bytes=<bytes_max / partitions>"]
            fault = errors.RetentionElsewhere(topic=rule.topic, setting=",".join(age + size))
            _log.warning("[%s] %s Hint: %s", fault.code, fault, fault.hint)
        return False
