"""Hot reload: a change of the files is seen once it rests, and a bad one changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace import errors
from headrace.model import Model
from headrace.runtime.reload import Watch


class Recipe:
    """A model whose files are one value, and whose load does as it is told."""

    name, batch_max, batch_wait_ms = "fake", 64, 0.0

    def __init__(self):
        self.files = "a"
        self.failure = None
        self.looks = 0
        self.loads = []

    def fingerprint(self):
        """Count the looks."""
        self.looks += 1
        return self.files

    def load(self, like=None):
        """Return what the files say, or fail."""
        self.loads.append(self.files)
        if self.failure is not None:
            raise self.failure
        return Loaded(self.files)


class Loaded:
    """What a fake recipe loads."""

    name, declared, closed = "fake", None, False

    def __init__(self, files):
        self.digest = files.upper()

    def infer(self, inputs):
        """Answer nothing."""
        return list(inputs)

    def close(self):
        """Note it."""
        self.closed = True


def watching(recipe, serving=None) -> Any:
    """Return a watch that looks once a second."""
    return Watch(recipe, serving, interval_ms=1000)


def settle(watch, second):
    """Let a change stand still for an interval, from a second on."""
    watch.poll(second)
    watch.poll(second + 1)


@pytest.fixture
def recipe():
    """Return a recipe."""
    return Recipe()


@pytest.fixture
def watch(recipe):
    """Return a watch over it, one second between looks, with its first model serving."""
    return watching(recipe, recipe.load())


def test_nothing_changed_is_nothing_to_do(watch):
    """Files that rest are never reported."""
    assert [watch.poll(float(s)) for s in range(10)] == [False] * 10


def test_a_change_is_reported_once_it_rests(recipe, watch):
    """A change is reported at the first look at which it has stood still for an interval."""
    watch.poll(0)
    recipe.files = "b"

    assert [watch.poll(1), watch.poll(2)] == [False, True]
    assert watch.load().digest == "B"


def test_a_file_being_written_is_left_alone(recipe, watch):
    """As long as the files change from look to look, nothing is loaded."""
    for second in range(10):
        recipe.files = f"half {second}"
        assert not watch.poll(second)
    assert [watch.poll(9.5), watch.poll(10)] == [False, True]
    assert recipe.loads == ["a"]


def test_looks_are_spaced(recipe, watch):
    """However often the watch is asked, it looks once per interval."""
    watch.poll(0)
    before = recipe.looks
    for tick in range(1, 1000):
        watch.poll(tick / 1000)

    assert before == recipe.looks


def test_a_candidate_is_reported_once(recipe, watch):
    """What has been loaded is not reported again, whether it is taken or not."""
    recipe.files = "b"
    settle(watch, 0)
    watch.load()

    assert [watch.poll(s) for s in range(2, 7)] == [False] * 5


def test_a_broken_file_is_told_once(recipe, watch):
    """The error of a broken file comes once for each state of the file; the model in use stays."""
    serving = watch.serving
    recipe.files, recipe.failure = "broken", errors.ModelCorrupt(path="x")
    settle(watch, 0)

    assert watch.load() is recipe.failure
    assert [watch.poll(s) for s in range(2, 7)] == [False] * 5
    assert watch.serving is serving
    assert not serving.closed


def test_a_mended_file_is_tried_again(recipe, watch):
    """After a broken file another state of it is a new chance."""
    recipe.files, recipe.failure = "broken", errors.ModelCorrupt(path="x")
    settle(watch, 0)
    watch.load()
    recipe.files, recipe.failure = "mended", None

    assert [watch.poll(2), watch.poll(3)] == [False, True]
    assert watch.load().digest == "MENDED"


def test_going_back_is_a_change(recipe, watch):
    """The first file put back after another is reported: what to make of it is the journal's matter."""
    recipe.files = "b"
    settle(watch, 0)
    watch.serving = watch.load()
    recipe.files = "a"

    assert [watch.poll(2), watch.poll(3)] == [False, True]
    assert watch.load().digest == "A"


def test_going_back_after_a_broken_file_is_no_new_model(recipe, watch):
    """A broken file replaced by the one in use is loaded, found to be the same, and let go."""
    recipe.files, recipe.failure = "broken", errors.ModelCorrupt(path="x")
    settle(watch, 0)
    watch.load()
    recipe.files, recipe.failure = "a", None
    watch.poll(2)

    assert watch.poll(3)
    assert watch.load() is None


def test_a_touched_file_is_the_same_model(recipe, watch):
    """Files that look new and hold the same are no candidate, and do not stay in memory."""
    recipe.files = "b"
    settle(watch, 0)
    watch.serving.digest = "B"

    assert watch.load() is None


def test_errors_of_the_program_are_not_hidden(recipe, watch):
    """Only coded errors are told; anything else is a fault and comes through."""
    recipe.failure = ZeroDivisionError()

    with pytest.raises(ZeroDivisionError):
        watch.load()


def test_a_watch_may_begin_without_a_model(recipe):
    """A worker whose model is missing at the start gets it when the file appears."""
    recipe.files = "missing"
    watch = watching(recipe)
    settle(watch, 0)
    recipe.files = "here"

    assert [watch.poll(2), watch.poll(3)] == [False, True]
    assert watch.load().digest == "HERE"


# --- real files ---------------------------------------------------------------------------------


def plus(amount, name="X"):
    """Return the bytes of Y = X + amount."""
    made = helper.make_graph(
        [helper.make_node("Add", [name, "c"], ["Y"])],
        "plus",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["N"])],
        [numpy_helper.from_array(np.array(amount, np.float32), "c")],
    )
    return helper.make_model(
        made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()


def rename(path, data):
    """Replace a file atomically, as a deployment should."""
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").replace(path)


def write_in_place(path, data):
    """Overwrite a file, as an editor or `cp` does."""
    path.write_bytes(data)


def move_link(path, data):
    """Point a link at another file, as a release directory does."""
    target = path.with_name(f"target{len(list(path.parent.iterdir()))}.onnx")
    target.write_bytes(data)
    path.with_suffix(".link").symlink_to(target)
    path.with_suffix(".link").replace(path)


@pytest.mark.parametrize("put", [rename, write_in_place, move_link])
def test_every_way_to_replace_a_file_is_seen(tmp_path, put):
    """A rename, a write in place and a moved link each bring the new model."""
    path = tmp_path / "model.onnx"
    put(path, plus(1))
    recipe = Model.onnx(path)
    watch = watching(recipe, recipe.load())
    assert not watch.poll(0)

    put(path, plus(20))
    found = [watch.poll(s) for s in (1, 2)]
    candidate = watch.load()

    assert found == [False, True]
    assert [watch.serving.infer([1]), candidate.infer([1])] == [[2.0], [21.0]]


def test_a_change_between_load_and_watch_is_seen(tmp_path):
    """A file replaced after it was read and before it was watched is not missed."""
    path = tmp_path / "model.onnx"
    path.write_bytes(plus(1))
    recipe = Model.onnx(path)
    loaded = recipe.load()
    rename(path, plus(20))
    watch = watching(recipe, loaded)

    assert [watch.poll(0), watch.poll(1)] == [False, True]
    assert watch.load().infer([1]) == [21.0]


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"", errors.ModelCorrupt), (plus(1)[:50], errors.ModelCorrupt), (plus(1, "Z"), errors.ModelMismatch)],
)
def test_a_bad_file_leaves_the_old_one_serving(tmp_path, data, error):
    """Half a file or one that does not fit is told once, and the old model goes on."""
    path = tmp_path / "model.onnx"
    path.write_bytes(plus(1))
    recipe = Model.onnx(path)
    watch = watching(recipe, recipe.load())
    rename(path, data)
    settle(watch, 0)

    assert isinstance(watch.load(), error)
    assert not any(watch.poll(s) for s in range(2, 9))
    assert watch.serving.infer([1]) == [2.0]


def test_a_file_that_is_gone_is_told_and_comes_back(tmp_path):
    """A deleted file is an error told once; the same file back is no new model."""
    path = tmp_path / "model.onnx"
    path.write_bytes(plus(1))
    recipe = Model.onnx(path)
    watch = watching(recipe, recipe.load())
    path.unlink()
    settle(watch, 0)

    assert isinstance(watch.load(), errors.ModelMissing)
    path.write_bytes(plus(1))
    assert [watch.poll(2), watch.poll(3)] == [False, True]
    assert watch.load() is None
