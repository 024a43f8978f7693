"""``headrace model calibrate``: true figures, a temperature that is a new version, files left whole."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.terminal import Ran, apart
from tests.unit.test_intent_model import DATA, needs_data

from headrace import Model, errors
from headrace.cli.output import Exit
from headrace.demo.app import MODEL
from headrace.demo.messages import OFF_TOPIC, messages
from headrace.model import calibrate as module
from headrace.model.calibrate import Labelled, bins_of, calibrated
from headrace.model.onnxfile import inspect, with_property

APP = """
from headrace import App, Event, Model

class Ask(Event, topic="asks"):
    text: str

app = App("asks")

@app.handler(model=Model.onnx("intent.onnx"))
async def route(ask: Ask, model) -> None: ...

@app.handler
async def plain(ask: Ask) -> None: ...

@app.handler(model=Model.onnx("intent.onnx", temperature=2.0))
async def fixed(ask: Ask, model) -> None: ...
"""


@pytest.fixture(scope="module")
def lines() -> str:
    """Labelled inputs: what the model says of the project's own messages, and foreign ones."""
    texts = [text for _, text in messages(120)]
    loaded = Model.onnx(MODEL).load()
    found: list[Any] = loaded.infer(texts)
    loaded.close()
    rows = [{"text": text, "intent": one.name} for text, one in zip(texts, found, strict=True)]
    slots = "".join(OFF_TOPIC).count("{")
    foreign = [one for one in OFF_TOPIC if "{" not in one] or ["what is the meaning of a stone"] * (
        slots and 8
    )
    rows += [{"text": text, "intent": None} for text in foreign]
    return "\n".join(json.dumps(row) for row in rows)


@pytest.fixture
def folder(tmp_path: Path, lines: str) -> Path:
    """A folder with an app, its model, and labelled inputs."""
    (tmp_path / "asks.py").write_text(APP)
    (tmp_path / "intent.onnx").write_bytes(MODEL.read_bytes())
    (tmp_path / "labelled.jsonl").write_text(lines)
    return tmp_path


def run(folder: Path, handler: str, *more: object) -> Ran:
    """Calibrate."""
    return apart("model", "calibrate", "asks:app", handler, *more, cwd=folder)


def test_a_temperature_is_a_new_version(folder: Path) -> None:
    """The file has it, everything else in it is as before, and the digest is another one."""
    before = Model.onnx(folder / "intent.onnx").load().digest
    told = run(folder, "route", "labelled.jsonl", "--goal", "likelihood", "--json")

    assert told.code == Exit.DONE, told.err
    after = told.document["after"]["temperature"]
    assert after != told.document["before"]["temperature"]
    assert told.document["after"]["loss"] <= told.document["before"]["loss"]
    now, was = inspect((folder / "intent.onnx").read_bytes()), inspect(MODEL.read_bytes())
    assert now.properties["headrace.temperature"] == repr(after)
    assert {
        **now.properties,
        "headrace.temperature": was.properties["headrace.temperature"],
    } == was.properties
    assert Model.onnx(folder / "intent.onnx").load().digest != before
    assert not list(folder.glob(".intent*"))


def test_a_dry_run_writes_nothing(folder: Path) -> None:
    """The table and the bars are shown; model and picture stay as they were."""
    before = sorted((one.name, one.stat().st_mtime_ns) for one in folder.iterdir() if one.is_file())
    told = run(folder, "route", "labelled.jsonl", "--dry-run", "--picture", "r.svg")

    assert (told.code, told.err) == (Exit.DONE, "nothing was written\n")
    assert "expected calibration error" in told.out
    assert "█" in told.out
    assert sorted((one.name, one.stat().st_mtime_ns) for one in folder.iterdir() if one.is_file()) == before


def test_the_picture_is_a_picture(folder: Path) -> None:
    """SVG with a bar for each bin that holds something; the model goes where it is told to."""
    told = run(folder, "route", "labelled.jsonl", "--picture", "r.svg", "--out", "out.onnx", "--json")

    root = ET.fromstring((folder / "r.svg").read_text())
    bars = [one for one in root if one.tag.endswith("rect") and one.get("fill") != "none"]
    assert len(bars) == sum(one["inputs"] > 0 for one in told.document["after"]["bins"])
    assert (folder / "intent.onnx").read_bytes() == MODEL.read_bytes()
    assert (folder / "out.onnx").exists()


@pytest.mark.parametrize(
    ("handler", "content", "said"),
    [
        ("route", '{"text": "x"}', "labelled.jsonl:1: no JSON object with 'text' and 'intent' (KeyError)"),
        ("route", "[1]", "labelled.jsonl:1: no JSON object"),
        ("route", '{"text": "x", "intent": 5}', "labelled.jsonl:1: a label is text, or null"),
        ("route", '\n{"text": "x", "intent": "nope"}', "labelled.jsonl:2: the model has no label 'nope'"),
        ("route", '{"text": "x", "intent": null}', "has 1 line; 30 are the least"),
        ("plain", "", "asks.plain has no model"),
        ("nobody", "", "has no handler 'nobody'; it has asks.route"),
        ("fixed", None, "its temperature is given in the code"),
    ],
)
def test_what_cannot_be_used_is_told_with_its_place(
    folder: Path, handler: str, content: str | None, said: str
) -> None:
    """File and line; the model stays as it was."""
    if content is not None:
        (folder / "labelled.jsonl").write_text(content)
    told = run(folder, handler, "labelled.jsonl")

    assert told.code in (Exit.UNUSABLE, Exit.UNREACHABLE)
    assert said in told.err
    assert (folder / "intent.onnx").read_bytes() == MODEL.read_bytes()


def test_the_error_is_that_of_the_definition() -> None:
    """Mean distance of confidence and accuracy over 15 bins, weighted by their inputs, worked out by hand."""
    share = np.array([0.95, 0.95, 0.95, 0.95, 0.5])
    right = np.array([True, True, True, False, False])
    found = [one for one in bins_of(share, right) if one.inputs]

    assert [(one.inputs, round(one.right, 2)) for one in found] == [(1, 0.0), (4, 0.75)]
    assert module._error(found) == pytest.approx((1 * 0.5 + 4 * 0.2) / 5)
    assert bins_of(np.array([1.0]), np.array([True]))[-1].inputs == 1


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 10_000))
def test_a_true_temperature_is_found(seed: int) -> None:
    """Of answers drawn as the softmax says at some temperature, likelihood finds it; the error is small."""
    chance = np.random.default_rng(seed)
    true = float(chance.uniform(0.5, 2.0))
    logits = chance.normal(0, 3, (2_000, 5))
    shares = np.exp(logits / true)
    shares /= shares.sum(axis=1, keepdims=True)
    targets = np.array([chance.choice(5, p=row) for row in shares])
    found = Labelled(logits, targets).fit(0.5, "likelihood")

    assert found == pytest.approx(true, rel=0.15)
    assert (Labelled(logits, targets).figures(found, 0.5).error or 0) < 0.05


@given(value=st.text(max_size=300), key=st.sampled_from(["headrace.temperature", "new"]))
def test_an_entry_is_set_and_nothing_else(value: str, key: str) -> None:
    """Once, whatever was there before; set twice is as set once."""
    before = MODEL.read_bytes()
    try:
        after = with_property(before, key, value)
    except UnicodeEncodeError:
        return
    assert inspect(after).properties == {**inspect(before).properties, key: value}
    assert with_property(after, key, value) == after


def test_a_link_keeps_leading_there(folder: Path) -> None:
    """What is replaced is the file behind it; its mode stays."""
    (folder / "models").mkdir()
    real = folder / "models" / "intent-3.onnx"
    (folder / "intent.onnx").rename(real)
    real.chmod(0o640)
    (folder / "intent.onnx").symlink_to(real)
    os.chdir(folder)
    content = calibrated(Model.onnx("intent.onnx"), 1.5)
    module.put(module.place_of(Model.onnx("intent.onnx")), content)

    assert (folder / "intent.onnx").is_symlink()
    assert real.read_bytes() == content
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_disk_that_is_full_leaves_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole or not at all."""

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(errors.ModelMissing, match="No space left"):
        module.put(folder / "intent.onnx", b"half")
    assert (folder / "intent.onnx").read_bytes() == MODEL.read_bytes()
    assert not list(folder.glob(".intent*"))


@needs_data
def test_the_shipped_model_has_the_figures_of_its_card(tmp_path: Path) -> None:
    """Fitted on the validation split, out-of-scope messages included; measured on the test split."""
    (tmp_path / "asks.py").write_text(APP)
    (tmp_path / "intent.onnx").write_bytes(MODEL.read_bytes())
    rows = [json.loads(line) for line in DATA.read_text("utf-8").splitlines()]
    for name in ("val", "test"):
        mine = [row for row in rows if row["split"] in (name, f"oos_{name}")]
        for row in mine:
            row["intent"] = None if row["split"].startswith("oos") else row["intent"]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, mine)))
    told = run(tmp_path, "route", "val.jsonl", "--held-out", "test.jsonl", "--json", "--dry-run")
    sure = run(
        tmp_path, "route", "val.jsonl", "--held-out", "test.jsonl", "--json", "--dry-run",
        "--goal", "likelihood",
    ).document["after"]  # fmt: skip

    found = told.document["after"]
    assert found["temperature"] == told.document["before"]["temperature"] == 0.7726
    assert found["accuracy"] >= 0.92
    assert found["right_and_kept"] >= 0.86
    assert found["foreign_caught"] >= 0.90
    assert sure["error"] < found["error"]
    card = (MODEL.with_name("MODEL_CARD.md")).read_text("utf-8")
    for shown in (found["error"], sure["error"], sure["temperature"], sure["foreign_caught"]):
        assert f"{shown:.4f}" in card


def test_a_picture_that_cannot_be_written_leaves_the_model_as_it_was(folder: Path) -> None:
    """It is written first: workers take up a model that has changed."""
    told = run(folder, "route", "labelled.jsonl", "--picture", "nowhere/r.svg")

    assert told.code == Exit.UNUSABLE
    assert "nowhere/r.svg cannot be written (No such file or directory); nothing was" in told.err
    assert (folder / "intent.onnx").read_bytes() == MODEL.read_bytes()
