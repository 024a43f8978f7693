"""A worker's share of a replay: as of a live subscription, but for what the replay was allotted alone."""

from __future__ import annotations

from headrace.journal.kafka.consumer import KafkaConsumer
from headrace.journal.kafka.part import Part
from headrace.journal.kafka.produce import Out
from headrace.ports import Batch, Outcome


class KafkaReplayConsumer(KafkaConsumer):
    """Claims what a replay was allotted, and counts what follows from it."""

    async def _write_down(self) -> None:
        """Say as well where nothing is left, though no event was the last."""
        for tp, part in self._share.parts.items():
            if part.ready and tp not in self._share.standing and part.may_end():
                part.end()
        await super()._write_down()

    def more(self) -> bool:
        """Return whether `take` may find something at once."""
        return super().more() or any(part.ready and part.may_end() for part in self._share.parts.values())

    def _records_of(self, changed: dict[int, Part], batch: Batch, outcome: Outcome) -> list[Out]:
        places = {row[0]: row[1] for row in batch.rows}
        for cause in outcome.causes:
            changed[places[cause]].emitted += 1
        return super()._records_of(changed, batch, outcome)
