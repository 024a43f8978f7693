"""What a kafka:// address may say: settings of librdkafka, but for those on which the guarantees rest."""

from __future__ import annotations

import asyncio

import pytest

from headrace import errors
from headrace.journal.kafka import client
from headrace.journal.kafka.client import LOG_LEVEL, Admin, cluster_of
from headrace.world import SystemClock


def test_settings_are_handed_on() -> None:
    """Security, sizes and the like are the library's to understand; how groups are balanced is ours."""
    url = "kafka://a:1,b:2?security.protocol=SASL_SSL&fetch.max.bytes=9&group.protocol=consumer&acks=all"
    found = cluster_of(url)
    assert found.address == "kafka://a:1,b:2"
    assert found.config == {
        "log_level": LOG_LEVEL,
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "fetch.max.bytes": "9",
    }
    assert found.by_broker
    assert cluster_of("kafka://a:1?log_level=6").config["log_level"] == "6"
    assert not cluster_of("kafka://a:1?partition.assignment.strategy=range").by_broker


def test_a_hint_is_right_for_whoever_has_ended_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and workers that start end where no broker answers: nobody connects again by itself."""
    monkeypatch.setattr(client, "REQUEST_TIMEOUT_S", 0.1)
    admin = Admin(cluster_of("kafka://127.0.0.1:1?socket.timeout.ms=50"), SystemClock())
    with pytest.raises(errors.JournalUnavailable) as refused:
        asyncio.run(admin.check())
    told = refused.value.hint, hints(errors.JournalUnavailable), hints(errors.JournalBusy)
    assert "brokers run" in told[0]
    assert not any("themselves" in one or "itself" in one for one in told)


def hints(kind: type[errors.HeadraceError]) -> str:
    """Return what an error of a kind says by default."""
    return kind(path="kafka://a:1", waited_s=30).hint


@pytest.mark.parametrize(
    "setting",
    [
        "acks=1",
        "request.required.acks=0",
        "enable.idempotence=false",
        "isolation.level=read_uncommitted",
        "enable.auto.commit=true",
        "auto.offset.reset=earliest",
        "partition.assignment.strategy=cooperative-sticky",
        "group.remote.assignor=uniform",
        "group.protocol=share",
        "group.id=mine",
        "group.instance.id=one",
        "transactional.id=mine",
        "bootstrap.servers=other:9092",
        "session.timeout.ms=1000",
    ],
)
def test_what_the_guarantees_rest_on_is_refused(setting: str) -> None:
    """Silently doing otherwise would be as bad as doing it; the message names the setting."""
    with pytest.raises(errors.SettingInvalid, match=setting.partition("=")[0]):
        cluster_of(f"kafka://host:9092?{setting}")


@pytest.mark.parametrize("setting", ["sasl.pasword=x", "fetch.max.bytes=many"])
def test_what_the_library_does_not_know_is_refused(setting: str) -> None:
    """A typing error shows at the start."""
    with pytest.raises(errors.SettingInvalid, match=setting.partition("=")[0]):
        Admin(cluster_of(f"kafka://host:9092?{setting}"), SystemClock())
