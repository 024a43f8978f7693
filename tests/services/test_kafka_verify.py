"""`status --verify` on a real Kafka: replays are looked at too, and each rule about them can be broken."""

from __future__ import annotations

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from msgspec import structs
from tests.services.desks import Bench
from tests.services.replaying import lived, ran

from headrace.codec.allotment import write_allotment
from headrace.codec.ledger import POSITION, Key, OpenEntry, write_key, write_position
from headrace.journal.kafka.allotter import Allotments
from headrace.journal.kafka.course import Course
from headrace.journal.kafka.survey import Survey


async def _forged(bench: Bench, topic: str, key: bytes, value: bytes) -> list[str]:
    """Write a record into a topic of Headrace's own, as a fault would; return the rules broken then."""
    producer = Producer({"bootstrap.servers": bench.broker})
    producer.produce(topic, value, key, 0)
    assert producer.flush(10) == 0
    return sorted({one.rule for one in await bench.violations()})


async def test_verify_looks_at_replays(bench: Bench) -> None:
    """A sound one is clean; a ledger that does not add up, or an allotment given twice, is told."""
    await lived(bench, range(20))
    await ran(bench)
    assert await bench.violations() == []
    async with bench.log() as log:
        (one,) = await Allotments(log, bench.handler).read()
        course = Course(Survey(log), bench.handler, one.replay)
        positions = dict(await course.read())
    ledger, told_by = f"headrace.{course.name}.ledger", f"headrace.{bench.handler}.replays"
    at = next(at for at, position in positions.items() if position.done)
    good, key = positions[at], write_key(Key(POSITION, at))

    def changed(**more: object) -> bytes:
        return write_position(structs.replace(good, **more))

    assert await _forged(bench, ledger, key, changed(done=good.done + 1)) == ["accounting"]
    twice = changed(done=good.done + 1, taken=good.taken + 1)
    assert await _forged(bench, ledger, key, twice) == ["replay_taken"]
    assert await _forged(bench, ledger, key, changed(high=good.high + 1_000)) == ["bounds"]
    other = changed(ranges=[structs.replace(good.ranges[0], version="1")])
    assert await _forged(bench, ledger, key, other) == ["range_version"]
    away = OpenEntry(good.high + 1_000, "waiting", 1, 0, 0, (), 0)
    assert "replay_open" in await _forged(bench, ledger, key, changed(open=[away], taken=good.taken + 1))
    assert await _forged(bench, ledger, key, write_position(good)) == []

    second = structs.replace(one, replay="0" * 16, version="0", allotted=one.allotted + 1)
    assert await _forged(bench, told_by, b"0" * 16, write_allotment(second)) == ["replay_version"]
    second = structs.replace(second, version=one.version, allotted=one.allotted)
    assert await _forged(bench, told_by, b"0" * 16, write_allotment(second)) == ["replay_twice"]
    first = structs.replace(one, allotted=one.allotted + 1)
    assert "replay_count" in await _forged(bench, told_by, one.replay.encode(), write_allotment(first))
    admin = AdminClient({"bootstrap.servers": bench.broker})
    lost = f"headrace.{bench.handler}.replay-{'f' * 16}.ledger"
    admin.create_topics([NewTopic(lost, 1)])[lost].result(10)
    assert "replay_lost" in await _forged(bench, lost, key, write_position(good))
