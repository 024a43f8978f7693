"""ONNX models: what may be declared, what comes out, and what makes a version."""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace import errors
from headrace.event.label import Label
from headrace.model import Model

FLOAT = TensorProto.FLOAT


def graph(nodes, shapes, constants=None, *, kind=FLOAT, out=FLOAT, name="X", result="Y", **properties):
    """Return the bytes of a model from `name` to `result`."""
    made = helper.make_graph(
        [helper.make_node(op, inputs, outputs, **more) for op, inputs, outputs, more in nodes],
        "test",
        [helper.make_tensor_value_info(name, kind, shapes[0])],
        [helper.make_tensor_value_info(result, out, shapes[1])],
        [numpy_helper.from_array(value, key) for key, value in (constants or {}).items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    helper.set_model_props(model, {f"headrace.{key}": value for key, value in properties.items()})
    return model.SerializeToString()


def about(name, confidence):
    """Return the label that is meant, its confidence to the sixth digit."""
    return (name, pytest.approx(confidence))


def pair(label):
    """Return a label as `about` does; another kind of answer fails."""
    assert isinstance(label, Label)
    return (label.name, label.confidence)


def plus(amount=1.0, shape=("N",), out_shape=None, name="X", result="Y", kind=np.float32, **properties):
    """Return the bytes of Y = X + amount."""
    proto = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    return graph(
        [("Add", [name, "c"], [result], {})],
        (list(shape), list(shape if out_shape is None else out_shape)),
        {"c": np.array(amount, kind)},
        kind=proto,
        out=proto,
        name=name,
        result=result,
        **properties,
    )


def load(path, like=None, **more) -> Any:
    """Load a model."""
    return Model.onnx(path, **more).load(like)


@pytest.fixture
def write(tmp_path):
    """Write bytes into a file and return its path."""

    def write(data, name="model.onnx"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    return write


# --- declaring ----------------------------------------------------------------------------------


def test_declaring_imports_nothing_heavy():
    """An app that only declares a model pays neither for numpy nor for the runtime."""
    code = (
        "import sys; from headrace.model import Model; Model.onnx('x.onnx');"
        "print([m for m in ('numpy', 'onnxruntime') if m in sys.modules])"
    )

    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def test_the_name_is_that_of_the_file():
    """A model without a name takes the file's, as far as it can stand in a version."""
    assert Model.onnx("models/intent.onnx").name == "intent"
    assert Model.onnx("my model+2.onnx").name == "my-model-2"
    assert Model.onnx("x.onnx", name="triage").name == "triage"


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a@b"},
        {"version": "1:2"},
        {"labels": []},
        {"labels": "abc"},
        {"labels": [1]},
        {"labels": ["\ud800"]},
        {"temperature": 0},
        {"temperature": float("nan")},
        {"batch_max": 0},
        {"batch_max": 10**6},
        {"batch_wait_ms": -1},
        {"threads": 10**6},
    ],
)
def test_a_wrong_argument_is_refused_at_once(wrong):
    """A value that cannot work is refused where it is written, not where a worker starts."""
    with pytest.raises(errors.SettingInvalid, match=next(iter(wrong))):
        Model.onnx("x.onnx", **wrong)


def test_a_live_session_is_refused(write):
    """A session in place of a path is refused, and the error says what to pass."""
    session = onnxruntime.InferenceSession(plus(), providers=["CPUExecutionProvider"])

    with pytest.raises(errors.ModelLive) as caught:
        load(session)

    assert "pass the path" in caught.value.hint


@pytest.mark.parametrize("path", [3, None, "", "a\0b", "\ud800", b"x.onnx"])
def test_what_is_no_path_is_refused(path):
    """Anything else in place of a path is refused when it is declared."""
    with pytest.raises(errors.ModelMissing):
        Model.onnx(path)


def test_a_recipe_can_be_pickled(write):
    """A recipe crosses to another process and loads there as here."""
    recipe = Model.onnx(write(plus()), encode=None, labels=None)

    assert recipe.load().digest == pickle.loads(pickle.dumps(recipe)).load().digest


def test_threads_follow_the_workers():
    """Workers share the cores; each inference has at least one thread, and a setting wins."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    recipe = Model.onnx("x.onnx")

    assert cores == recipe.thread_count()
    assert recipe.for_workers(10_000).thread_count() == 1
    assert Model.onnx("x.onnx", threads=3).for_workers(2).thread_count() == 3


# --- numbers in, numbers out --------------------------------------------------------------------


@pytest.mark.parametrize("shape", [("N",), (None,), ("N", 1), (1,), (1, 1), ()])
def test_plain_numbers_work_without_metadata(write, shape):
    """Y = X + 1 takes numbers and gives numbers, whatever the declared shape of one number."""
    loaded = load(write(plus(1.0, shape)))

    assert loaded.infer([1, 2.5]) == [2.0, 3.5]
    assert loaded.infer([np.float64(1)]) == [2.0]


@pytest.mark.parametrize("shape", [("N", 3), ("N", "M"), (1, 3), (3,), ("N", 1, 3)])
def test_rows_come_out_as_rows(write, shape):
    """Lists and arrays go in as rows; each answer is the row of its input, without a confidence."""
    answers = load(write(plus(1.0, shape))).infer([[1, 2, 3], np.array([4, 5, 6])])

    assert [np.asarray(answer).ravel().tolist() for answer in answers] == [[2, 3, 4], [5, 6, 7]]
    assert [getattr(answer, "confidence", None) for answer in answers] == [None, None]


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "int64", "int32", "uint8"])
def test_the_type_is_that_of_the_input(write, kind):
    """Numbers become the type that the model declares."""
    assert load(write(plus(1, ("N",), kind=kind))).infer([2]) == [3]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("float32", "1.0"),
        ("float32", None),
        ("float32", [[1, 2], [3]]),
        ("float32", 1e300),
        ("float32", {"a": 1}),
        ("float32", 1 + 2j),
        ("float32", object()),
        ("int64", 1.5),
        ("int64", 2**64),
        ("uint8", -1),
        ("uint8", 300),
        ("int64", float("nan")),
    ],
)
def test_what_does_not_fit_the_type_is_refused(write, kind, value):
    """A value that would lose its meaning in the type of the model is refused, never bent."""
    loaded = load(write(plus(1, ("N",), kind=kind)))

    with pytest.raises(errors.InputRefused):
        loaded.infer([value])


@pytest.mark.parametrize("values", [[[1, 2]], [[1, 2, 3], [1, 2]], [[[1, 2, 3]] * 2], [[]]])
def test_a_wrong_shape_is_refused(write, values):
    """A row of another size is refused before the runtime sees it."""
    with pytest.raises(errors.InputRefused):
        load(write(plus(1, ("N", 3)))).infer(values)


def test_open_sizes_must_agree_within_a_batch(write):
    """Where the model leaves a size open, rows of different sizes cannot share a batch."""
    loaded = load(write(plus(1, ("N", "M"))))

    assert [row.tolist() for row in loaded.infer([[1, 2], [3, 4]])] == [[2, 3], [4, 5]]
    with pytest.raises(errors.InputRefused, match="different shapes"):
        loaded.infer([[1, 2], [3, 4, 5]])


def test_no_input_is_no_work(write):
    """An empty batch has an empty answer."""
    assert load(write(plus())).infer([]) == []


def test_strings_go_in(write):
    """A model that takes strings gets them."""
    data = graph(
        [("Identity", ["X"], ["Y"], {})], (["N"], ["N"]), kind=TensorProto.STRING, out=TensorProto.STRING
    )

    assert load(write(data)).infer(["a", "ä"]) == ["a", "ä"]


def test_threads_share_one_model(write):
    """Many threads at once get each their own answers."""
    loaded = load(write(plus(1.0, ("N",))))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: loaded.infer([n, n + 0.5]), range(500)))

    assert [[n + 1, n + 1.5] for n in range(500)] == answers


def test_a_closed_model_says_so(write):
    """After close nothing is inferred."""
    loaded = load(write(plus()))
    loaded.close()

    with pytest.raises(errors.ModelOutput, match="closed"):
        loaded.infer([1])


# --- labels -------------------------------------------------------------------------------------


def test_logits_become_a_label(write):
    """With labels the answer is the likeliest one and its share of the softmax."""
    loaded = load(write(plus(0.0, ("N", 3))), labels=["a", "b", "c"])

    (first, second) = loaded.infer([[0, 0, 0], [1.0, 3.0, 1.0]])

    assert pair(first) == about("a", 1 / 3)
    assert pair(second) == about("b", np.e**3 / (np.e**3 + 2 * np.e))


def test_temperature_makes_less_sure(write):
    """Logits are divided by the temperature; the order of the classes stays."""
    path = write(plus(0.0, ("N", 2)))
    cool, warm = (load(path, labels=["a", "b"], temperature=t) for t in (0.5, 4.0))

    (sure,), (unsure,) = cool.infer([[1, 2]]), warm.infer([[1, 2]])

    assert "b" == sure.name == unsure.name
    assert sure.confidence == pytest.approx(1 / (1 + np.exp(-2)))
    assert unsure.confidence == pytest.approx(1 / (1 + np.exp(-0.25)))


def test_metadata_speaks_and_arguments_win(write):
    """The file says what it needs; what is declared goes before it."""
    path = write(plus(0.0, ("N", 2), labels='["no", "yes"]', temperature="2.0", version="2024-10"))

    loaded = load(path)
    other = load(path, labels=["left", "right"], temperature=1.0, version="mine")

    assert loaded.declared == "2024-10"
    assert pair(loaded.infer([[0, 4]])[0]) == about("yes", 1 / (1 + np.exp(-2)))
    assert other.declared == "mine"
    assert pair(other.infer([[0, 4]])[0]) == about("right", 1 / (1 + np.exp(-4)))


def test_without_a_version_nothing_is_declared(write):
    """A model without a version has none, so that the journal counts epochs."""
    assert load(write(plus())).declared is None


# --- the user's encoder and decoder -------------------------------------------------------------


def encode_length(texts):
    """Encode a text as its length."""
    return {"X": np.array([len(text) for text in texts], np.float32)}


def decode_text(outputs):
    """Decode a number as text."""
    return [f"{value:.0f}!" for value in outputs[0]]


def test_functions_of_the_user_do_the_work(write):
    """`encode` and `decode` stand in place of what the file or the type would say."""
    loaded = load(write(plus(1.0)), encode=encode_length, decode=decode_text)

    assert loaded.infer(["a", "abc"]) == ["2!", "4!"]


def test_errors_of_the_user_come_through(write):
    """What a function of the user raises is not dressed up."""

    def encode(texts):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        load(write(plus()), encode=encode).infer([1])


@pytest.mark.parametrize(
    "feeds", [{}, {"Z": np.zeros(1, np.float32)}, {"X": np.zeros((1, 2, 3), np.float32)}]
)
def test_a_wrong_encoding_is_refused(write, feeds):
    """Tensors that the model does not take are the input's fault, and the runtime's words say why."""
    with pytest.raises(errors.InputRefused):
        load(write(plus()), encode=lambda inputs: feeds).infer([1])


def test_each_input_has_its_answer(write):
    """A decoder that gives more or fewer answers than inputs is refused: nothing may shift."""
    loaded = load(write(plus()), decode=lambda outputs: [1])

    with pytest.raises(errors.ModelOutput, match="1 answers for 2 inputs"):
        loaded.infer([1, 2])


@pytest.mark.parametrize("shape", [["N"], [1]])
def test_outputs_that_are_no_arrays_are_for_the_decoder(write, shape):
    """A model with a list for an output, as exporters of classifiers make them, runs with `decode`."""
    listed = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["X", "X"], ["Y"])],
        "listed",
        [helper.make_tensor_value_info("X", FLOAT, shape)],
        [helper.make_tensor_sequence_value_info("Y", FLOAT, shape)],
    )
    model = helper.make_model(listed, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = write(model.SerializeToString())

    with pytest.raises(errors.ModelMismatch, match="decode="):
        load(path)
    assert load(path, decode=lambda outputs: outputs[0][0].tolist()).infer([3]) == [3.0]


def test_several_inputs_need_an_encoder(write):
    """A model with two inputs is refused without `encode`, and runs with it."""
    two = helper.make_graph(
        [helper.make_node("Add", ["A", "B"], ["Y"])],
        "two",
        [helper.make_tensor_value_info(name, FLOAT, ["N"]) for name in "AB"],
        [helper.make_tensor_value_info("Y", FLOAT, ["N"])],
    )
    model = helper.make_model(two, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = write(model.SerializeToString())

    def encode(pairs):
        return dict(zip("AB", np.array(pairs, np.float32).T, strict=True))

    with pytest.raises(errors.ModelMismatch, match="encode="):
        load(path)
    assert load(path, encode=encode).infer([(1, 2), (3, 4)]) == [3.0, 7.0]


# --- versions -----------------------------------------------------------------------------------


def test_the_digest_is_that_of_the_content(write):
    """The same bytes elsewhere are the same model; other bytes are another."""
    first, copy = write(plus(1.0)), write(plus(1.0), "elsewhere/other.onnx")

    assert load(first).digest == load(copy, name="x", version="9").digest
    assert load(first).digest != load(write(plus(2.0), "b.onnx")).digest


def test_what_decides_an_answer_is_in_the_digest(write):
    """Labels, temperature, encoder and decoder each make another version."""
    path = write(plus(0.0, ("N", 2)))

    def encode(rows):
        return {"X": np.array(rows, np.float32)}

    def encode_again(rows):
        return {"X": np.array(rows, np.float32)}

    encode_again.__dict__["version"] = 2
    variants = [
        {},
        {"labels": ["a", "b"]},
        {"labels": ["b", "a"]},
        {"labels": ["a", "b"], "temperature": 2.0},
        {"encode": encode},
        {"encode": encode_again},
        {"decode": decode_text},
        {"encode": functools.partial(encode_length)},
    ]
    digests = [load(path, **variant).digest for variant in variants]

    assert len(variants) == len(set(digests))
    assert digests[0] == load(path, batch_max=3, threads=1).digest


def test_saying_it_twice_is_the_same_version(write):
    """An argument that repeats what the file says changes nothing."""
    path = write(plus(0.0, ("N", 2), labels='["a", "b"]', temperature="2"))

    assert load(path).digest == load(path, labels=("a", "b"), temperature=2).digest


def test_the_version_of_a_function_counts(write):
    """A function that says it has changed makes another version, although its name is the same."""
    path, digests = write(plus()), []
    for version in (1, 2):

        def encode(rows):
            return {"X": np.array(rows, np.float32)}

        encode.__dict__["version"] = version
        digests.append(load(path, encode=encode).digest)

    assert digests[0] != digests[1]


def external(tmp_path, location="weights.bin", value=1.0, folder="m", size=100):
    """Write a model whose weights lie in a second file; return the path of the model."""
    weights = np.full(size, value, np.float32)
    model = onnx.load_from_string(plus(0.0, ("N", size)))
    tensor = model.graph.initializer[0]
    tensor.CopyFrom(numpy_helper.from_array(weights, "c"))
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), ("offset", "0"), ("length", str(weights.nbytes))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text
    place = tmp_path / folder
    place.mkdir(exist_ok=True)
    (place / "model.onnx").write_bytes(model.SerializeToString())
    (place / "weights.bin").write_bytes(weights.tobytes())
    return place / "model.onnx"


def test_external_data_is_loaded_and_counts(tmp_path):
    """Weights beside the model are used, and other weights are another version."""
    one, two = external(tmp_path), external(tmp_path, value=2.0, folder="n")
    same = external(tmp_path, folder="o")
    loaded, other = load(one), load(two)

    assert loaded.infer([[0] * 100])[0].tolist() == [1.0] * 100
    assert other.infer([[0] * 100])[0].tolist() == [2.0] * 100
    assert loaded.digest != other.digest
    assert loaded.digest == load(same).digest


def test_external_data_follows_a_link(tmp_path):
    """A link to a model in another folder takes its data along, as a swap of releases does."""
    real = external(tmp_path)
    link = tmp_path / "current.onnx"
    link.symlink_to(real)

    assert load(real).digest == load(link).digest


def test_loaded_bytes_are_read_once(tmp_path):
    """After the load the files may go: nothing is read again."""
    path = external(tmp_path)
    loaded = load(path)
    path.unlink()
    (path.parent / "weights.bin").write_bytes(b"")

    assert loaded.infer([[0] * 100])[0].tolist() == [1.0] * 100


def test_the_fingerprint_sees_every_change(tmp_path):
    """A touched, replaced or relinked file changes the fingerprint; so does its external data."""
    path = external(tmp_path)
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    recipe = Model.onnx(link)
    seen = [recipe.fingerprint()]
    loaded = recipe.load()

    (path.parent / "weights.bin").write_bytes(b"x")
    seen.append(recipe.fingerprint())
    path.write_bytes(path.read_bytes() + b"\0")
    seen.append(recipe.fingerprint())
    link.unlink()
    seen.append(recipe.fingerprint())
    link.symlink_to(external(tmp_path, folder="n"))
    seen.append(recipe.fingerprint())

    assert loaded.fingerprint == seen[0]  # a load alone changes nothing
    assert len(seen) == len(set(seen))


def test_a_replacement_must_fit(write):
    """A model with other inputs or outputs than the one in use is refused."""
    serving = load(write(plus()))

    assert load(write(plus(2.0), "b.onnx"), like=serving).digest != serving.digest
    for name, data in (("in.onnx", plus(name="Z")), ("out.onnx", plus(result="Z"))):
        with pytest.raises(errors.ModelMismatch, match="Z"):
            load(write(data, name), like=serving)


def test_metadata_of_an_encoder_is_used(write):
    """The encoder that the file names takes text."""
    data = graph(
        [("Cast", ["X"], ["f"], {"to": FLOAT}), ("ReduceMax", ["f"], ["Y"], {"axes": [1], "keepdims": 0})],
        (["N", "K"], ["N"]),
        kind=TensorProto.INT32,
        encoder="hashed-ngrams/1",
        encoder_parameters=json.dumps({"buckets": 50, "features_max": 9}),
    )
    loaded = load(write(data))

    assert 0 < loaded.infer(["hello"])[0] < 50
    with pytest.raises(errors.InputRefused, match="text, not int"):
        loaded.infer([3])
