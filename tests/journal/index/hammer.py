"""A process that indexes a log in cuts of its own and counts the answers that are wrong.

`python -m tests.journal.index.hammer KIND WHERE SEED`: the log is the same for every seed, the cuts are not.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Callable

from tests.journal.index.shelf import HANDLER, Log, Shelf, at, topic_of

from headrace import errors
from headrace.ports.index import First, Index, Stretch

PARTITIONS, RECORDS, IDS = 6, 700, 300
#: Between two tries of a server that is down.
NAP_S = 0.02


def common_log() -> Log:
    """Return the log that all processes index."""
    chance = random.Random(0)
    names = [None, *range(IDS)]
    return Log(topic_of("hammer"), [chance.choices(names, k=RECORDS) for _ in range(PARTITIONS)])


class Hammer:
    """Looks at a log until all of it is indexed."""

    def __init__(self, index: Index, seed: int) -> None:
        self.index, self.log = index, common_log()
        self.chance = random.Random(seed)
        self.right = self.log.copies(*self.log.whole())
        self.looks = self.wrong = self.unavailable = self.gaps = 0
        self._upto = [0] * PARTITIONS
        self._looked = asyncio.Event()

    async def run(self, *, enough: Callable[[], bool] = lambda: True) -> None:
        """Look until the end is reached and it is enough; from the start again where it is not."""
        while True:
            try:
                await self._look()
            except errors.IndexGap as gap:
                self.gaps += 1
                partition = int(str(gap.context["partition"]))
                self._upto[partition] = int(str(gap.context["indexed"]))
            except errors.JournalUnavailable:
                self.unavailable += 1
                await asyncio.sleep(NAP_S)
            if self._upto == [RECORDS] * PARTITIONS:
                if enough():
                    return
                self._upto = [0] * PARTITIONS
        self._looked = asyncio.Event()

    async def _look(self) -> None:
        chosen = self.chance.sample(range(PARTITIONS), self.chance.randint(1, PARTITIONS))
        wanted: list[Stretch] = []
        for partition in chosen:  # in any order: it is for the index to take its locks in one
            after = max(0, self._upto[partition] - self.chance.choice((0, 0, 0, 5)))
            wanted.append(
                self.log.stretch(partition, after, min(RECORDS, after + self.chance.randint(0, 40)))
            )
        looked = await self.index.look(HANDLER, wanted)
        self.looks += 1
        self._looked.set()
        self.wrong += looked.copies != self._expected(wanted)
        for one in wanted:
            self._upto[one.partition] = max(self._upto[one.partition], one.upto)

    def _expected(self, wanted: list[Stretch]) -> dict[tuple[int, int], First]:
        places = ((one.partition, record.offset) for one in wanted for record in one.records)
        return {place: self.right[place] for place in places if place in self.right}

    async def next_look(self) -> None:
        """Wait until one more look was answered."""
        self._looked.clear()
        await self._looked.wait()

    def report(self) -> dict[str, int]:
        """Return what came of it."""
        return {"looks": self.looks, "wrong": self.wrong, "unavailable": self.unavailable, "gaps": self.gaps}


async def main(shelf: Shelf, seed: int) -> None:
    """Index the log in one process."""
    index = shelf.make()
    await index.open()
    hammer = Hammer(index, seed)
    await hammer.run()
    print(json.dumps(hammer.report()))
    await index.close()


if __name__ == "__main__":
    asyncio.run(main(at(sys.argv[1], sys.argv[2]), int(sys.argv[3])))
