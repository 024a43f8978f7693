"""The cache of Kafka's jars is whole or not there, whoever fetches, whatever fails."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.services import fetch
from tests.services.process import ServiceFailed

#: A stand-in for mvn: notes the call, takes its time, writes one jar.
MAVEN = """#!/bin/sh
echo called >> "$CALLS"
for word; do case $word in -DoutputDirectory=*) folder=${word#*=};; esac; done
mkdir "$folder"
sleep 0.2
printf whole > "$folder/a.jar"
exit "${STATUS:-0}"
"""
DIGEST = "5d5766cf2d78701614200418ee1450690d9af12c84d52545e4802f001ad53099"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Put the stand-in in Maven's place; return where it notes its calls."""
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text(MAVEN)
    maven.chmod(0o755)
    digests = tmp_path / "jars.sha256"
    digests.write_text(f"{DIGEST}  a.jar\n")
    monkeypatch.setattr(fetch, "DIGESTS", digests)
    monkeypatch.setenv("PATH", f"{maven.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HEADRACE_SERVICES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def left(calls: Path) -> list[str]:
    """Return what lies in the cache, the lock aside."""
    return [path.name for path in (calls.parent / "cache").iterdir() if path.suffix != ".lock"]


def test_two_that_fetch_fetch_once(calls: Path) -> None:
    """The second waits for the first, and both get the same folder."""
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: fetch.kafka_jars(), range(2))

    assert first == second
    assert [jar.name for jar in first.iterdir()] == ["a.jar"]
    assert calls.read_text() == "called\n"
    assert left(calls) == [first.name]


def test_a_failed_fetch_leaves_nothing(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a failing Maven has written is not used; the next try begins anew."""
    monkeypatch.setenv("STATUS", "1")
    with pytest.raises(ServiceFailed, match="could not fetch"):
        fetch.kafka_jars()
    assert left(calls) == []

    monkeypatch.setenv("STATUS", "0")
    assert fetch.kafka_jars().exists()


def test_other_jars_are_refused(calls: Path) -> None:
    """A jar that is not the expected one is named, and not used."""
    fetch.DIGESTS.write_text(f"{'0' * 64}  a.jar\n")

    with pytest.raises(ServiceFailed, match=rf"- {'0' * 64}  a.jar\n\+ {DIGEST}  a.jar"):
        fetch.kafka_jars()
    assert left(calls) == []
