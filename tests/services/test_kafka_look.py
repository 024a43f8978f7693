"""Commands that look into a journal on Kafka: the documents of SQLite, and what only a cluster has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.services.kafka import Broker
from tests.services.postgres import Postgres
from tests.services.stage import CONFLICTS, COPIES, DEAD, HANDLED, WAITING, Stage, event_id, order, play
from tests.unit.terminal import apart

from headrace.cli.output import Exit

TERMS = ("waiting", "running", "parked", "done", "dead", "expired")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A journal of either kind of index, once for all tests that only look."""
    name = f"shop{uuid4().hex[:8]}.pack"
    with Broker() as node:
        journal = f"kafka://{node.bootstrap}"
        if request.param == "sqlite":
            found = Stage(journal, str(tmp_path_factory.mktemp("index") / "index.db"), name)
            asyncio.run(play(found))
            yield found
            return
        with Postgres() as postgres:
            found = Stage(journal, postgres.url, name)
            asyncio.run(play(found))
            yield found


# --- status -----------------------------------------------------------------------------------


def test_status_adds_up(stage: Stage, tmp_path: Path) -> None:
    """Published is counted once whatever was published twice; each term is what was done to it."""
    ran = stage.run("status", "--json", cwd=tmp_path)

    assert (ran.code, ran.err) == (Exit.DONE, "")
    (one,) = ran.document["subscriptions"]
    assert ran.document["sound"] is True
    assert one["published"] == HANDLED + DEAD + CONFLICTS + 1 + WAITING == sum(one[term] for term in TERMS)
    assert [one[term] for term in TERMS] == [WAITING, 0, 0, HANDLED + 1, DEAD + CONFLICTS, 0]
    assert (one["handler"], one["topic"], one["lag"]) == (stage.handler, "orders", WAITING)
    assert (one["active_version"], one["trouble"], one["owners"]) == ("1", "no live worker", [])
    assert one["oldest_waiting_s"] > 0
    assert one["rebalances"] >= 0
    kept = dict.fromkeys(("age_us", "bytes_max", "bytes"))  # retention is the brokers' there
    assert ran.document["topics"] == [
        {"name": "orders", "partitions": 16, "events": one["published"], **kept},
        {"name": "parcels", "partitions": 16, "events": HANDLED + 1, **kept},
    ]


def test_status_as_text_says_so(stage: Stage, tmp_path: Path) -> None:
    """The equation, what is in the way, and what nobody handles."""
    ran = stage.run("status", "--verify", cwd=tmp_path)

    assert (ran.code, ran.err) == (Exit.DONE, "")
    assert "published = waiting + running + parked + done + dead + expired: holds" in ran.out
    assert "no live worker (1)" in ran.out
    assert f"topic parcels: {HANDLED + 1} events, and no handler" in ran.out
    assert "verify: clean" in ran.out


# --- events -----------------------------------------------------------------------------------


def test_tail_shows_events_of_all_topics(stage: Stage, tmp_path: Path) -> None:
    """The newest, or from an offset of each partition; in order within a partition; filters work."""

    def shown(*options: object) -> list[Any]:
        ran = stage.run("tail", "--jsonl", *options, cwd=tmp_path)
        assert (ran.code, ran.err) == (Exit.DONE, "")
        return ran.lines

    everything = shown("--from-offset", 0)
    orders = HANDLED + DEAD + COPIES + CONFLICTS + 1 + WAITING
    assert len(everything) == orders + HANDLED + 1
    for topic in ("orders", "parcels"):
        for partition in range(16):
            offsets = [
                one["offset"] for one in everything if (one["topic"], one["partition"]) == (topic, partition)
            ]
            assert offsets == sorted(set(offsets))
    newest = shown()
    assert len(newest) == 10
    assert {one["payload"]["number"] for one in newest[-WAITING:]} == {2_000 + n for n in range(WAITING)}
    assert {one["type"] for one in shown("--type", "Parcel", "--limit", 500)} == {"Parcel"}
    assert len(shown("--topic", "parcels", "--limit", 500)) == HANDLED + 1
    assert all(one["offset"] >= 5 for one in shown("--from-offset", 5))
    assert len(shown("--from-offset", 0, "--limit", 3)) == 3
    nothing = stage.run("tail", "--topic", "ordres", cwd=tmp_path)
    assert (nothing.code, nothing.out) == (Exit.DONE, "")
    assert "no topic ordres; it has orders, parcels" in nothing.err


def test_show_finds_an_event_and_its_chain(stage: Stage, tmp_path: Path) -> None:
    """By its id, by its beginning, by the name that its publisher gave; with all that was caused."""
    wanted = event_id(30)
    for text in (str(wanted), wanted.hex[:20]):
        found = stage.run("show", text, "--json", cwd=tmp_path).document
        assert (found["event_id"], found["topic"], found["type"]) == (str(wanted), "orders", "Order")
        assert found["payload"] == {"who": order(30).who, "number": 30}
        assert [one["type"] for one in found["chain"]] == ["Order", "Parcel"]
        assert found["chain"][1]["parent_ids"] == [str(wanted)]
        assert found["chain_whole"] is True
    named = stage.run("show", "mail-4711", "--json", cwd=tmp_path).document
    assert named["payload"]["number"] == 1_000
    parcel = stage.run("show", found["chain"][1]["event_id"], "--json", cwd=tmp_path).document
    assert [one["event_id"] for one in parcel["chain"]] == [one["event_id"] for one in found["chain"]]


def test_what_is_not_there_is_not_found(stage: Stage, tmp_path: Path) -> None:
    """An unknown id, one of another topic, and a beginning of several: exit 1, told apart."""
    for arguments, told in (
        (("show", str(UUID(int=1))), "No event has the id"),
        (("show", str(event_id(30)), "--topic", "parcels"), "in topic parcels alone"),
        (("why", "0" * 8), "Several begin so"),
        (("model", "history", "nobody"), "knows no handler nobody"),
    ):
        ran = stage.run(*arguments, cwd=tmp_path)
        assert (ran.code, ran.out) == (Exit.NO, "")
        assert told in ran.err


# --- where an event stands --------------------------------------------------------------------


def test_why_says_how_an_event_ended_or_what_it_waits_for(stage: Stage, tmp_path: Path) -> None:
    """Handled, dead with its reason, or not taken yet: each with what is known."""

    def why(text: str) -> dict[str, Any]:
        ran = stage.run("why", text, "--json", cwd=tmp_path)
        assert (ran.code, ran.err) == (Exit.DONE, "")
        (found,) = ran.document["handlers"]
        return dict(found)

    done, dead = why(str(event_id(20))), why(str(event_id(1)))
    assert (done["state"], done["because"]) == ("done", ["Handled by version 1."])
    assert (dead["state"], dead["version"]) == ("dead", "1")
    assert "no box for 1" in " ".join(dead["because"])
    (letter,) = [
        one
        for one in stage.run("dlq", "ls", "--jsonl", cwd=tmp_path).lines
        if one["event_id"] == str(event_id(1))
    ]
    assert dead["dead_letter"] == letter["id"]
    newest = stage.run("tail", "--topic", "orders", "--jsonl", "--limit", 1, cwd=tmp_path).lines[0]
    waiting = why(newest["event_id"])
    assert (waiting["state"], waiting["workers"], waiting["owner_pid"]) == ("waiting", 0, None)
    assert "No worker is alive: start one with `headrace run`." in waiting["because"]


def test_dead_letters_are_listed_and_shown(stage: Stage, tmp_path: Path) -> None:
    """With reason, attempts and original bytes; filters work; by number or by event."""

    def listed(*options: object) -> list[Any]:
        ran = stage.run("dlq", "ls", "--jsonl", *options, cwd=tmp_path)
        assert (ran.code, ran.err) == (Exit.DONE, "")
        return ran.lines

    everything = listed()
    assert sorted(one["reason"] for one in everything) == ["conflict"] * CONFLICTS + ["failed"] * DEAD
    assert {one["handler"] for one in everything} == {stage.handler}
    failed = listed("--reason", "failed", "--handler", "pack", "--type", "Order")
    assert [one["event_id"] for one in sorted(failed, key=lambda one: one["event_id"])] == [
        str(event_id(number)) for number in range(DEAD)
    ]
    assert listed("--type", "Parcel") == []
    one = failed[0]
    for text in (one["id"], one["event_id"]):
        shown = stage.run("dlq", "show", text, "--json", cwd=tmp_path).document
        assert shown["id"] == one["id"]
        assert "ValueError" in shown["traceback"]
        assert (shown["attempts"], len(shown["errors"])) == (2, 1)
        assert shown["event"]["payload"]["number"] < DEAD
    assert "no such dead letter" in stage.run("dlq", "show", "9999", cwd=tmp_path).err
    dry = stage.run("dlq", "redrive", "--reason", "failed", "--dry-run", "--json", cwd=tmp_path).document
    assert dry == {
        "matched": DEAD, "redriven": DEAD, "refused": [], "before": DEAD + CONFLICTS,
        "after": DEAD + CONFLICTS, "dry_run": True,
    }  # fmt: skip


# --- versions ---------------------------------------------------------------------------------


def test_model_history_counts_each_event_once(stage: Stage, tmp_path: Path) -> None:
    """Every event that was taken lies in one range of one version; handled by neither or both are none."""
    ran = stage.run("model", "history", "--json", cwd=tmp_path)

    (found,) = [one for one in ran.document if one["handler"] == stage.handler]
    assert ran.code == Exit.DONE
    assert found["versions"] == [{"version": "1", "handled": found["taken"], "replayed": 0}]
    assert found["taken"] == HANDLED + DEAD + CONFLICTS + 1 == sum(one["handled"] for one in found["ranges"])
    assert (found["unfinished"], found["neither"], found["both"]) == (0, 0, 0)
    assert found["active_version"] == "1"


def test_activating_what_is_not_known_is_refused(stage: Stage, tmp_path: Path) -> None:
    """A handler or a version that nobody has offered: exit 1, with what there is."""
    nobody = stage.run("model", "activate", "nobody", "1", cwd=tmp_path)
    version = stage.run("model", "activate", stage.handler, "9", cwd=tmp_path)
    known = stage.run("model", "activate", stage.handler, "1", "--json", cwd=tmp_path)

    assert (nobody.code, version.code, known.code) == (Exit.NO, Exit.NO, Exit.DONE)
    assert stage.handler in nobody.err
    assert "Known: 1" in version.err
    assert known.document == {"handler": stage.handler, "active_version": "1"}


# --- what cannot be looked into ---------------------------------------------------------------

LOOKS = (
    ("status",),
    ("tail",),
    ("show", "01234567"),
    ("why", "01234567"),
    ("dlq", "ls"),
    ("model", "history"),
    ("model", "activate", "a", "b"),
)


@pytest.mark.parametrize("arguments", LOOKS, ids=" ".join)
def test_without_an_index_nothing_is_made(stage: Stage, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A command that looks says so, with exit code 3, and leaves none behind."""
    ran = apart(*arguments, "--journal", stage.journal, "--index", "none.db", cwd=tmp_path)

    assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
    assert ran.err.startswith("error[HR-E226]: There is no index at none.db.")
    assert not list(tmp_path.iterdir())


def test_without_a_broker_it_says_so(tmp_path: Path) -> None:
    """Exit code 3 and the code of an outage, within the time of one request."""
    ran = apart("status", "--journal", "kafka://127.0.0.1:9", "--index", "none.db", cwd=tmp_path)

    assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
    assert "error[HR-E202]: Journal kafka://127.0.0.1:9 does not answer" in ran.err
