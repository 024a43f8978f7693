"""Who may not is told what; who comes by password or certificate works like everybody; unfit topics."""

# pyright: reportPrivateImportUsage=false
# What the documentation of confluent_kafka.admin imports, its __all__ does not name.

from __future__ import annotations

import asyncio
import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from tests.services.certificates import Authority
from tests.services.desks import Bench, serving, until
from tests.services.kafka import Broker, Node
from tests.services.reading import committed
from tests.services.server_properties import MECHANISMS, Options

from headrace import App, Event, errors
from headrace.settings import Settings

PATIENCE_S = 30.0
SECRET = "ann's & secret"
ALL = AclOperation.ALL


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The one that the broker believes."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[Node]:
    """One broker with every kind of listener, where nobody may do what no rule allows."""
    with Broker(Options(users={"ann": SECRET}, authority=authority, authorise=True)) as node:
        yield node


def url(config: dict[str, Any]) -> str:
    """Return settings of a client as a user writes them."""
    options = {name: value for name, value in config.items() if name != "bootstrap.servers"}
    return f"kafka://{config['bootstrap.servers']}?{urlencode(options)}"


def allow(node: Node, user: str, *rules: tuple[ResourceType, str, AclOperation]) -> None:
    """Allow a user something, by the administrator."""
    if not rules:
        return
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    bindings = [
        AclBinding(
            kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", what, AclPermissionType.ALLOW
        )
        for kind, name, what in rules
    ]
    for answer in admin.create_acls(bindings).values():
        answer.result(PATIENCE_S)


EVERYTHING = tuple(
    (kind, "*", ALL) for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
)


def make_topic(node: Node, name: str, **config: str) -> None:
    """Make a topic, by the administrator."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    settings = {one.replace("_", "."): value for one, value in config.items()}
    admin.create_topics([NewTopic(name, 1, config=settings)])[name].result(PATIENCE_S)


async def publish_and_handle(bench: Bench) -> None:
    """Publish one by one and as a unit, handle all; a plain reader sees the results."""
    async with serving(bench.app()) as app:
        await bench.publish(app, range(3))
        await app.publish([bench.sent(who="u", number=number) for number in (3, 4)])

        async def handled() -> bool:
            return len(await bench.results()) == 5

        await until(handled)
    assert await bench.results() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_an_app_works_with_a_password(broker: Node, tmp_path: Path, mechanism: str) -> None:
    """Security settings in the URL reach every client there is: the whole way of an event works."""
    allow(broker, "ann", *EVERYTHING)
    bench = Bench(broker.bootstrap, tmp_path)
    bench.url = url(broker.by_password("ann", SECRET, mechanism))
    await publish_and_handle(bench)


async def test_an_app_works_with_a_certificate(broker: Node, authority: Authority, tmp_path: Path) -> None:
    """The same over TLS, where the name in the certificate is the user."""
    allow(broker, "bob", *EVERYTHING)
    bench = Bench(broker.bootstrap, tmp_path)
    bench.url = url(broker.by_certificate(authority.issue("bob")))
    await publish_and_handle(bench)


async def test_a_wrong_password_is_a_denial(broker: Node, tmp_path: Path) -> None:
    """Not an outage: it would not get better by waiting."""
    bench = Bench(broker.bootstrap, tmp_path)
    bench.url = url(broker.by_password("ann", "no secret"))
    with pytest.raises(errors.JournalDenied) as caught:
        await bench.app().open()
    assert "no secret" not in caught.value.message


TOPIC, GROUP, IDS = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
DESCRIBE = AclOperation.DESCRIBE


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ([], "describe topic sent-{}"),
        ([(TOPIC, DESCRIBE)], "create topic sent-{}"),
        ([(TOPIC, DESCRIBE), (TOPIC, AclOperation.CREATE)], "write to topic sent-{}"),
        ([(TOPIC, ALL)], "write to transactional id headrace.publish.*"),
        ([(TOPIC, ALL), (IDS, ALL)], "read group headrace.{}.handle"),
    ],
)
async def test_who_may_not_is_told_what(
    broker: Node, authority: Authority, tmp_path: Path, rules: list[Any], said: str
) -> None:
    """The denial names what was tried, and on which topic, group or transactional id."""
    bench = Bench(broker.bootstrap, tmp_path)
    allow(broker, bench.name, *((kind, "*", what) for kind, what in rules))
    bench.url = url(broker.by_certificate(authority.issue(bench.name)))

    async def use() -> None:
        async with asyncio.timeout(PATIENCE_S), bench.app() as app:
            await bench.publish(app, range(1))
            await app.publish([bench.sent(who="u", number=number) for number in (1, 2)])
            await app.run()

    with pytest.raises(errors.JournalDenied) as caught:
        await use()
    assert said.format(bench.name) in caught.value.message
    assert "access rules" in caught.value.hint


async def test_a_compacted_topic_is_refused(broker: Node, tmp_path: Path) -> None:
    """Of each key only the last event would be kept; the hint is the command that mends it."""
    bench = Bench(broker.bootstrap, tmp_path)
    topic = f"sent-{bench.name}"
    make_topic(broker, topic, cleanup_policy="compact")
    async with bench.app() as app:
        with pytest.raises(errors.TopicUnfit, match=r"cleanup.policy is compact") as caught:
            await bench.publish(app, range(1))
    assert f"--entity-name {topic}" in caught.value.hint
    assert "--add-config cleanup.policy=delete" in caught.value.hint


def noise(chars: int, seed: int = 1) -> str:
    """Return a text that does not become smaller when it is compressed."""
    return "".join(random.Random(seed).choices(string.ascii_letters, k=chars))


async def test_a_message_over_the_brokers_limit_is_refused(broker: Node, tmp_path: Path) -> None:
    """At once and for good, with the setting that would let it in; the next one is written."""
    bench = Bench(broker.bootstrap, tmp_path)
    topic = f"sent-{bench.name}"
    make_topic(broker, topic, max_message_bytes="1048588")
    settings = Settings(journal=bench.url, index=str(bench.index), payload_bytes_max=4_000_000)

    class Long(Event, topic=topic, type=f"Long-{bench.name}"):
        text: str

    large = Long(text=noise(1_200_000))
    async with App(bench.name, settings=settings, events=[Long]) as app:
        for unit in (large, [Long(text="b"), large]):
            with pytest.raises(errors.RecordTooLarge) as caught:
                await app.publish(unit)
            assert "max.message.bytes" in caught.value.hint
            assert not caught.value.retryable
        await app.publish(Long(text="a"))
    assert [one.body()["text"] for one in committed(broker.bootstrap, topic)] == ["a"]


async def test_a_result_over_the_brokers_limit_is_a_dead_letter_of_its_event(
    broker: Node, tmp_path: Path
) -> None:
    """It alone: others of its batch are done; a letter that does not fit either has place and beginning."""
    mark, limit = uuid4().hex[:8], 1_048_588
    for topic in ("asked", "told", "asked.dlq"):
        bytes_max = 4_000_000 if topic == "asked" else limit
        make_topic(broker, topic.replace("asked", f"asked-{mark}").replace("told", f"told-{mark}"),
                   max_message_bytes=str(bytes_max))  # fmt: skip

    class Asked(Event, topic=f"asked-{mark}", type=f"Asked-{mark}"):
        text: str

    class Told(Event, topic=f"told-{mark}", type=f"Told-{mark}"):
        text: str

    journal, index = f"kafka://{broker.bootstrap}", str(tmp_path / "i.db")
    app = App(mark, settings=Settings(journal=journal, index=index, payload_bytes_max=3_000_000),
              events=[Asked, Told])  # fmt: skip

    async def tell(asked: Asked) -> Told:
        return Told(text=asked.text)

    tell.__annotations__ = {"asked": Asked, "return": Told}
    app.handler(tell)
    large = noise(1_500_000)
    async with serving(app):
        await app.publish([Asked(text=text) for text in ("a", large, "b")])

        async def settled() -> bool:
            found = [committed(broker.bootstrap, f"{topic}-{mark}{end}") for topic, end in ENDS]
            return [len(one) for one in found] == [2, 1]

        await until(settled)
    assert sorted(one.body()["text"] for one in committed(broker.bootstrap, f"told-{mark}")) == ["a", "b"]
    (letter,) = committed(broker.bootstrap, f"asked-{mark}.dlq")
    assert letter.headers["dead_reason"] == b"too_large"
    assert letter.headers["dead_code"] == errors.RecordTooLarge.code.encode()
    assert int(letter.headers["dead_bytes"]) == len(large) + len('{"text":""}')
    assert f'{{"text":"{large}"}}'.encode().startswith(letter.value)
    assert {"dead_partition", "dead_offset"} <= letter.headers.keys()


ENDS = (("told", ""), ("asked", ".dlq"))
