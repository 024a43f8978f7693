"""The model that ships, and the messages that the demo feeds it."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.demo import messages as words
from headrace.demo.messages import CUSTOMERS, INTENTS, OFF_TOPIC, messages
from headrace.event.label import Label
from headrace.model import Model
from headrace.model.confidence import fit_temperature, top1
from headrace.model.onnxfile import inspect

ROOT = Path(__file__).parents[2]
FILE = ROOT / "src/headrace/demo/intent.onnx"
DATA = ROOT.parent / "shared/data/clinc150/clinc150.jsonl"

needs_data = pytest.mark.skipif(
    not DATA.is_file(),
    reason="shared data absent: CLINC150 as ../shared/data/clinc150/clinc150.jsonl (not ours to ship)",
)


@pytest.fixture(scope="module")
def tool() -> Any:
    """Return the training script as a module."""
    spec = importlib.util.spec_from_file_location("train_intent", ROOT / "tools/train_intent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model() -> Any:
    """Return the shipped model, loaded."""
    return Model.onnx(FILE).load()


def classify(model, texts):
    """Return the labels of any number of texts."""
    return [label for n in range(0, len(texts), 64) for label in model.infer(texts[n : n + 64])]


# --- the model ----------------------------------------------------------------------------------


@needs_data
def test_the_shipped_model_keeps_its_promises(tool):
    """On the test split: accuracy, right answers kept, and foreign texts caught, each above its bound."""
    figures = tool.evaluate(DATA, FILE)

    assert figures["accuracy"] >= 0.92
    assert figures["right_and_kept"] >= 0.86
    assert figures["foreign_caught"] >= 0.90


@needs_data
def test_the_card_tells_the_figures_of_the_file(tool):
    """The model card holds the figures that the shipped file reaches, its temperature and its digest."""
    card = (FILE.parent / "MODEL_CARD.md").read_text("utf-8")
    figures = tool.evaluate(DATA, FILE)

    assert all(f"{value:.4f}" in card for value in figures.values()), figures
    assert f"temperature {inspect(FILE.read_bytes()).properties['headrace.temperature']} " in card
    assert Model.onnx(FILE).load().digest[:12] in card


@needs_data
def test_training_and_serving_count_alike(tool):
    """The features that training sees are those of the encoder, over the root of their number."""
    rows = tool.read_splits(DATA)["val"][:50]
    encoder = tool.HashedNGrams(buckets=tool.BUCKETS, features_max=tool.FEATURES_MAX)
    matrix = tool.count_features(encoder, rows).toarray()

    for (text, _), found in zip(rows, matrix, strict=True):
        numbers = Counter(encoder([text])["features"][0].tolist())
        expected = np.zeros(tool.BUCKETS)
        for number, count in numbers.items():
            expected[number] = count / np.sqrt(sum(numbers.values()))
        assert np.allclose(expected, found)


def test_the_file_is_small():
    """The model is small enough to travel in a package."""
    assert FILE.stat().st_size < 2_000_000


def test_the_file_holds_no_text_of_its_data():
    """Besides names of intents and settings there is no text in the metadata."""
    told = inspect(FILE.read_bytes()).properties

    assert set(told) == {f"headrace.{key}" for key in (*TOLD, "data")}
    assert all(re.fullmatch(r"[a-z0-9_]+", label) for label in json.loads(told["headrace.labels"]))


TOLD = ("encoder", "encoder_parameters", "labels", "temperature")


def test_a_text_is_answered_alike_in_any_company(model):
    """The answer for a text does not depend on the batch, to the last bit."""
    texts = [text for _, text in messages(200)]
    together = classify(model, texts)

    assert together == [model.infer([text])[0] for text in texts]


@pytest.mark.parametrize("text", ["", " ", "?!", "\ud800", "\0", "a" * 2**20, "word " * 2**18, "🙂" * 1000])
def test_odd_texts_are_answered_with_doubt(model, text):
    """Empty, endless and broken texts get a label, and little confidence."""
    (label,) = model.infer([text])

    assert isinstance(label, Label)
    assert 0 < label.confidence < 0.5


@given(text=st.text(max_size=300))
def test_any_text_is_answered(model, text):
    """Every text has an answer with a confidence between 0 and 1."""
    (label,) = model.infer([text])

    assert 0 < label.confidence <= 1


@pytest.mark.parametrize(
    ("text", "intent"),
    [
        ("I want to report fraud on my card", "report_fraud"),
        ("WHAT'S THE EXCHANGE RATE, DOLLARS TO EUROS???", "exchange_rate"),
        ("my luggage is lost", "lost_luggage"),
    ],
)
def test_plain_requests_are_understood(model, text, intent):
    """Ordinary requests get the right intent, in capitals and with punctuation too."""
    (label,) = model.infer([text])

    assert label.name == intent
    assert label.confidence > 0.5


# --- confidence ---------------------------------------------------------------------------------


def test_top1_does_not_overflow():
    """Large logits have a confidence like any other."""
    number, share = top1(np.array([[1e4, 1e4 - 1], [-1e30, 1e30]], np.float32), 1.0)

    assert number.tolist() == [0, 1]
    assert share == pytest.approx([1 / (1 + np.exp(-1)), 1.0])


def test_temperature_without_foreign_inputs_is_the_likeliest():
    """Logits that are three times too large are divided by three."""
    dice = np.random.default_rng(1)
    true = dice.normal(size=(4_000, 5))
    chances = np.exp(true) / np.exp(true).sum(axis=1, keepdims=True)
    targets = np.array([dice.choice(5, p=row) for row in chances])

    assert fit_temperature(true * 3, targets) == pytest.approx(3, rel=0.1)


def test_temperature_with_foreign_inputs_separates():
    """The temperature puts the threshold between what the model knows and what it does not."""
    known, foreign = np.array([[4.0, 0.0, 0.0]] * 50), np.array([[2.0, 0.0, 0.0]] * 50)
    logits = np.vstack([known, foreign])
    targets = np.array([0] * 50 + [-1] * 50)

    temperature = fit_temperature(logits, targets)
    _, shares = top1(logits, temperature)

    assert shares[0] > 0.5 > shares[-1]


# --- the messages -------------------------------------------------------------------------------


def test_messages_are_seeded():
    """The same seed gives the same messages, another seed others."""
    assert list(messages(300, seed=7)) == list(messages(300, seed=7))
    assert list(messages(300, seed=7)) != list(messages(300, seed=8))


def test_more_messages_begin_like_fewer():
    """A longer run starts with the messages of a shorter one."""
    assert list(messages(100)) == list(messages(500))[:100]


def test_messages_are_all_different():
    """Thousands of messages hold no text twice, and a few hundred customers write them."""
    found = list(messages(words.COUNT_MAX))

    assert len({text for _, text in found}) == words.COUNT_MAX
    assert len({customer for customer, _ in found}) == len(CUSTOMERS) == 300
    assert all("{" not in text for _, text in found)
    assert max(len(text) for _, text in found) < 200


@pytest.mark.parametrize("count", [-1, words.COUNT_MAX + 1])
def test_the_number_of_messages_is_bounded(count):
    """More messages than there are different ones cannot be asked for."""
    with pytest.raises(ValueError, match="count must be"):
        list(messages(count))


def test_the_model_knows_the_intents(model):
    """Every intent that the messages are written for is one of the model's."""
    assert set(INTENTS) <= set(json.loads(inspect(FILE.read_bytes()).properties["headrace.labels"]))


def test_messages_reach_every_lane(model):
    """Most messages are clear to the model, some are half clear, and a share is not."""
    labels = classify(model, [text for _, text in messages(2_000)])
    sure = sum(label.confidence >= 0.8 for label in labels) / len(labels)
    doubtful = sum(label.confidence < 0.5 for label in labels) / len(labels)

    assert 0.25 < sure < 0.6
    assert 0.1 < doubtful < 0.35
    assert len({label.name for label in labels if label.confidence >= 0.5}) >= 20


def test_off_topic_messages_give_low_confidence(model):
    """What no intent fits is told by the confidence."""
    slots = {slot: values[0] for slot, values in words._SLOTS.items()}
    labels = model.infer([sentence.format(**slots) for sentence in OFF_TOPIC])

    assert sum(label.confidence < 0.5 for label in labels) >= len(OFF_TOPIC) - 1


@needs_data
def test_messages_are_our_own_words():
    """No message stands in the data set, and none shares six words in a row with it."""
    theirs: set[str] = set()
    for line in DATA.read_text("utf-8").splitlines():
        theirs |= runs(json.loads(line)["text"])

    assert not [text for _, text in messages(5_000) if runs(text) & theirs]


def runs(text, size=6):
    """Return every run of some words of a text; a shorter text is its own run."""
    found = re.sub(r"[^a-z0-9 ]", "", text.lower()).split()
    return {" ".join(found[n : n + size]) for n in range(max(1, len(found) - size + 1))}
