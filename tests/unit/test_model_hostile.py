"""Model files that are broken, half written, or up to something."""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace import errors
from headrace.model import Model, onnxfile, weights
from headrace.model import onnx as loading
from headrace.model.onnxfile import Malformed, inspect

SHIPPED = Path(loading.__file__).parents[1] / "demo/intent.onnx"
FLOAT = TensorProto.FLOAT


def build(nodes=None, shape=("N", 3), out=("N", 3), constants=None, opsets=(("", 17),), **properties):
    """Return a model, Y = X + 1 unless told otherwise."""
    constants = {"c": np.array(1, np.float32)} if constants is None else constants
    made = helper.make_graph(
        nodes or [helper.make_node("Add", ["X", "c"], ["Y"])],
        "test",
        [helper.make_tensor_value_info("X", FLOAT, list(shape))],
        [helper.make_tensor_value_info("Y", FLOAT, list(out))],
        [numpy_helper.from_array(value, key) for key, value in constants.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid(*each) for each in opsets])
    model.ir_version = 8
    helper.set_model_props(model, {f"headrace.{key}": value for key, value in properties.items()})
    return model


def save(folder, model, name="model.onnx"):
    """Write a model, or bytes, into a folder; return the path."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def with_external(location, *more):
    """Return a model whose constant lies in another file."""
    model = build()
    move_out(model.graph.initializer[0], location, *more)
    return model


def move_out(tensor, location, *more):
    """Make a tensor refer to a file in place of its bytes."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), *more):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text


def load(path, **more) -> Any:
    """Load a model."""
    return Model.onnx(path, **more).load()


def answer(path, **more):
    """Load and infer; return the name of the error, or None."""
    try:
        load(path, **more).infer([[1, 2, 3]])
    except errors.ModelError as error:
        return type(error).__name__
    return None


# --- broken bytes -------------------------------------------------------------------------------


def test_a_truncated_file_is_refused_at_every_length(tmp_path):
    """No beginning of a model passes for a model, and none brings the process down."""
    whole = build().SerializeToString()
    taken = [n for n in range(len(whole)) if answer(save(tmp_path, whole[:n])) is None]

    # The last field of the file is the opset: without it, or with half of it, nothing runs.
    assert taken == []


def test_the_shipped_model_cut_anywhere_is_refused(tmp_path):
    """Half of a real model, as after an interrupted copy, is refused."""
    whole = SHIPPED.read_bytes()
    lengths = [1, 7, 100, 5_000, 1_000_000, len(whole) - 5_000, len(whole) - 300, len(whole) - 1]

    assert ["ModelCorrupt"] * len(lengths) == [answer(save(tmp_path, whole[:n])) for n in lengths]


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bits_end_in_an_error_or_an_answer(tmp_path, seed):
    """Whatever bits flip, what comes is an answer or a coded error."""
    dice, whole = random.Random(seed), build(labels='["a", "b", "c"]', temperature="1.5").SerializeToString()
    for _ in range(100):
        data = bytearray(whole)
        for _ in range(dice.choice([1, 1, 2, 5])):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        answer(save(tmp_path, bytes(data)))


@pytest.mark.parametrize(
    "data", [b"\0", b"\xff" * 100, b"hello", os.urandom(1000), b"\x0a\xff\xff\xff\xff\x7f"]
)
def test_rubbish_is_refused(tmp_path, data):
    """A file that is no model is refused."""
    assert answer(save(tmp_path, data)) == "ModelCorrupt"


def test_an_empty_file_is_refused(tmp_path):
    """An empty file, as at the start of a write in place, is refused and named as such."""
    with pytest.raises(errors.ModelCorrupt, match="empty"):
        load(save(tmp_path, b""))


def test_nesting_is_bounded():
    """Subgraphs within subgraphs end at a bound, not at the end of the stack."""
    data = b""
    for _ in range(200):  # graph > node > attribute > graph, inside out
        for number in (6, 5, 1):
            data = bytes([number << 3 | 2]) + varint(len(data)) + data
    with pytest.raises(Malformed, match="deep"):
        inspect(bytes([7 << 3 | 2]) + varint(len(data)) + data)


def varint(number):
    """Encode a number as protobuf does."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def test_metadata_is_bounded(monkeypatch):
    """More metadata than any model needs is refused."""
    monkeypatch.setattr(onnxfile, "PROPERTY_BYTES_MAX", 10)

    with pytest.raises(Malformed, match="metadata"):
        inspect(build(labels="[" + " " * 20 + "]").SerializeToString())


def test_what_is_said_of_a_model_is_what_onnx_reads():
    """Metadata and operator families are found as the onnx package finds them."""
    model = onnx.load(SHIPPED)
    about = inspect(SHIPPED.read_bytes())

    assert {entry.key: entry.value for entry in model.metadata_props} == about.properties
    assert {node.domain for node in model.graph.node} <= about.domains_used | {""}


# --- paths --------------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path):
    """A file that is not there is refused with its path."""
    with pytest.raises(errors.ModelMissing, match="nowhere"):
        load(tmp_path / "nowhere.onnx")


def test_a_folder_is_no_model(tmp_path):
    """A folder in place of a file is refused."""
    with pytest.raises(errors.ModelMissing, match="directory"):
        load(tmp_path)


def test_a_pipe_does_not_block(tmp_path):
    """A named pipe is refused at once; nobody may ever write into it."""
    os.mkfifo(tmp_path / "model.onnx")

    with pytest.raises(errors.ModelMissing, match="plain file"):
        load(tmp_path / "model.onnx")


def test_a_circle_of_links_is_no_model(tmp_path):
    """Links that lead to each other are refused."""
    (tmp_path / "a.onnx").symlink_to(tmp_path / "b.onnx")
    (tmp_path / "b.onnx").symlink_to(tmp_path / "a.onnx")

    with pytest.raises(errors.ModelMissing):
        load(tmp_path / "a.onnx")
    assert Model.onnx(tmp_path / "a.onnx").fingerprint()


def test_a_file_without_permission_is_refused(tmp_path, monkeypatch):
    """A file that may not be read is refused with the system's reason."""

    def deny(*_):
        raise PermissionError(13, "Permission denied")

    path = save(tmp_path, build())
    monkeypatch.setattr(weights.os, "open", deny)

    with pytest.raises(errors.ModelMissing, match="Permission denied"):
        load(path)


def test_size_is_bounded(tmp_path, monkeypatch):
    """A file above the bound is refused before it is read, with both numbers."""
    path = save(tmp_path, build())
    monkeypatch.setattr(weights, "MODEL_BYTES_MAX", 10)

    with pytest.raises(errors.ModelMismatch, match="the limit is 10"):
        load(path)


@pytest.mark.parametrize(
    "location",
    [
        "../secret.bin",
        "a/../../secret.bin",
        "/etc/passwd",
        "..",
        "",
        "..\\secret.bin",
        "C:\\secret.bin",
        "*/_ORT_MEM_ADDR_/*",
        "a\0b",
    ],
)
def test_external_data_may_not_leave_the_folder(tmp_path, location):
    """A model that names a file elsewhere, or an address in memory, is refused before anything is read."""
    (tmp_path / "secret.bin").write_bytes(b"\0" * 4)

    assert answer(save(tmp_path / "m", with_external(location))) == "ModelPathRefused"


def test_a_link_beside_the_model_may_not_lead_out(tmp_path):
    """External data that is a link to a file elsewhere is refused."""
    (tmp_path / "secret.bin").write_bytes(b"\0" * 4)
    path = save(tmp_path / "m", with_external("w.bin"))
    (tmp_path / "m/w.bin").symlink_to(tmp_path / "secret.bin")

    with pytest.raises(errors.ModelPathRefused, match="secret"):
        load(path)
    assert answer(path, folder=tmp_path) is None


def test_the_fence_holds_the_model_too(tmp_path):
    """With `folder`, neither `..` nor a link leads to a model outside."""
    save(tmp_path, build(), "outside.onnx")
    inside = tmp_path / "models"
    save(inside, build(), "inside.onnx")
    (inside / "link.onnx").symlink_to(tmp_path / "outside.onnx")

    assert answer("inside.onnx", folder=inside) is None
    for path in ("../outside.onnx", "link.onnx", tmp_path / "outside.onnx"):
        assert answer(path, folder=inside) == "ModelPathRefused"


def test_missing_external_data_is_named(tmp_path):
    """A model whose data has not arrived is refused with the name of the file."""
    with pytest.raises(errors.ModelMissing, match=r"w\.bin"):
        load(save(tmp_path, with_external("w.bin")))


def test_short_external_data_is_refused(tmp_path):
    """External data that ends too soon is refused."""
    path = save(tmp_path, with_external("w.bin", ("offset", "0"), ("length", "4")))
    (tmp_path / "w.bin").write_bytes(b"\0\0")

    assert answer(path) == "ModelCorrupt"


def test_a_tensor_inside_a_node_is_fenced_in_too(tmp_path, monkeypatch):
    """A constant within a node is read from beside the model, never from the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.bin").write_bytes(np.full(1, 666, np.float32).tobytes())
    hidden = numpy_helper.from_array(np.array([1], np.float32), "c")
    move_out(hidden, "w.bin")
    nodes = [
        helper.make_node("Constant", [], ["c"], value=hidden),
        helper.make_node("Add", ["X", "c"], ["Y"]),
    ]
    path = save(tmp_path / "m", build(nodes, constants={}))

    assert answer(path) == "ModelMissing"
    (tmp_path / "m/w.bin").write_bytes(np.full(1, 1, np.float32).tobytes())
    assert load(path).infer([[1, 2, 3]])[0].tolist() == [2, 3, 4]


def test_a_tensor_inside_a_branch_reads_nothing(tmp_path, monkeypatch):
    """External data of a subgraph, which the runtime takes only from a file, is refused."""
    monkeypatch.chdir(tmp_path)
    inner = numpy_helper.from_array(np.array([1], np.float32), "c")
    move_out(inner, "w.bin")

    def branch(name):
        result = [helper.make_tensor_value_info(name, FLOAT, ["N", 3])]
        return helper.make_graph([helper.make_node("Add", ["X", "c"], [name])], name, [], result, [inner])

    choice = helper.make_node("If", ["yes"], ["Y"], then_branch=branch("a"), else_branch=branch("b"))
    path = save(tmp_path / "m", build([choice], constants={"yes": np.array(True)}))
    for folder in (tmp_path, tmp_path / "m"):
        (folder / "w.bin").write_bytes(np.full(1, 666, np.float32).tobytes())

    assert answer(path) == "ModelCorrupt"


def test_marks_of_external_data_count_wherever_they_stand(tmp_path):
    """A location is seen although the tensor does not say that its data is external."""
    model = build()
    entry = model.graph.initializer[0].external_data.add()
    entry.key, entry.value = "location", "../w.bin"

    assert answer(save(tmp_path, model)) == "ModelPathRefused"


def test_many_external_files_are_bounded(tmp_path, monkeypatch):
    """A model that names more files than any exporter writes is refused."""
    monkeypatch.setattr(weights, "DATA_FILES_MAX", 0)

    assert answer(save(tmp_path, with_external("w.bin"))) == "ModelCorrupt"


# --- native code --------------------------------------------------------------------------------


def test_custom_operators_are_refused(tmp_path):
    """A model that needs foreign operators is refused, and the hint names the switch."""
    model = build([helper.make_node("Steal", ["X"], ["Y"], domain="evil")], opsets=(("", 17), ("evil", 1)))
    path = save(tmp_path, model)

    with pytest.raises(errors.ModelMismatch, match="evil") as caught:
        load(path)
    assert "allow_custom_ops" in caught.value.hint
    assert answer(path, allow_custom_ops=True) == "ModelCorrupt"  # there is no such library


def test_a_library_is_not_loaded_unasked(tmp_path):
    """A library of operators that the file names is refused; allowed, it must be a library."""
    path = save(tmp_path, build(custom_ops='["ops.so"]'))
    (tmp_path / "ops.so").write_bytes(b"no library")

    assert answer(path) == "ModelMismatch"
    assert answer(path, allow_custom_ops=True) == "ModelCorrupt"


def test_a_library_may_not_lie_elsewhere(tmp_path):
    """An allowed library is fenced in like everything else."""
    path = save(tmp_path, build(custom_ops='["../ops.so"]'))

    assert answer(path, allow_custom_ops=True) == "ModelPathRefused"


# --- metadata -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "told",
    [
        {"labels": "[]"},
        {"labels": '["a", "b"]'},
        {"labels": '["a", "b", "c", "d"]'},
        {"labels": "a,b,c"},
        {"labels": '"abc"'},
        {"labels": "[1, 2, 3]"},
        {"labels": "[" * 100_000},
        {"temperature": "0"},
        {"temperature": "-1"},
        {"temperature": "NaN"},
        {"temperature": '"1"'},
        {"version": "a+b@c:d"},
        {"version": "x" * 1000},
        {"encoder": "unheard-of/1"},
        {"encoder": "hashed-ngrams/1"},
        {"encoder": "hashed-ngrams/1", "encoder_parameters": "[]"},
        {"encoder": "hashed-ngrams/1", "encoder_parameters": '{"buckets": 1000000000, "features_max": 9}'},
        {
            "encoder": "hashed-ngrams/1",
            "encoder_parameters": '{"buckets": 9, "features_max": 9, "slot": "Z"}',
        },
        {"labels": '["a", "b", "\\ud800"]'},
        {"custom_ops": json.dumps(["x"] * 1000)},
        {"custom_ops": '["\\ud800"]'},
    ],
    ids=lambda told: str(told)[:40],
)
def test_metadata_that_does_not_fit_is_refused(tmp_path, told):
    """Labels of another count, odd numbers, unknown encoders: refused before the model is in use."""
    assert answer(save(tmp_path, build(**told))) == "ModelMismatch"


def test_labels_are_counted_also_where_the_file_leaves_it_open(tmp_path):
    """Where the shape does not tell the number of classes, the first run does."""
    path = save(tmp_path, build(shape=("N", 3), out=("N", "C")))

    assert answer(path, labels=["a", "b", "c"]) is None
    assert answer(path, labels=["a", "b"]) == "ModelMismatch"


def test_labels_for_open_inputs_are_counted_by_each_answer(tmp_path):
    """Where even the input is open, an answer of another size is refused, not cut to fit."""
    path = save(tmp_path, build(shape=("N", "M"), out=("N", "M")))
    loaded = load(path, labels=["a"])

    with pytest.raises(errors.ModelOutput, match="no logits of 1 labels"):
        loaded.infer([[1, 2]])


# --- runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"labels": ["a", "b", "c"]}])
@pytest.mark.parametrize("value", [float("nan"), [float("nan"), 1, 2]])
def test_nan_is_no_answer(tmp_path, more, value):
    """An output of NaN is refused as the model's fault, with or without labels."""
    loaded = load(save(tmp_path, build()), **more)

    with pytest.raises(errors.ModelOutput):
        loaded.infer([[1, 2, 3], np.broadcast_to(value, 3)])


def test_infinite_logits_are_no_confidence(tmp_path):
    """Infinite logits have no softmax, so there is no label."""
    with pytest.raises(errors.ModelOutput, match="finite"):
        load(save(tmp_path, build()), labels=["a", "b", "c"]).infer([[float("inf"), 0, 0]])


def test_a_model_that_cannot_run_is_found_at_the_load(tmp_path):
    """A file that loads but fails on its first run is refused before it is in use."""
    nodes = [helper.make_node("Gather", ["c", "i"], ["g"]), helper.make_node("Add", ["X", "g"], ["Y"])]
    broken = build(nodes, constants={"c": np.ones(2, np.float32), "i": np.array(1_000, np.int64)})

    with pytest.raises(errors.ModelCorrupt):
        load(save(tmp_path, broken))


def test_a_giant_input_is_not_warmed_up(tmp_path):
    """A declared input of a size that no memory holds does not make the load allocate it."""
    nodes = [helper.make_node("ReduceSum", ["X"], ["Y"], keepdims=0)]
    path = save(tmp_path, build(nodes, shape=(1, 10**12), out=(), constants={}))

    with pytest.raises(errors.ModelMismatch, match="elements"):
        load(path)


def test_errors_cross_processes(tmp_path):
    """An error of a load keeps its code and its text when it is pickled."""
    with pytest.raises(errors.ModelMissing) as caught:
        load(tmp_path / "x.onnx")

    copy = pickle.loads(pickle.dumps(caught.value))
    assert (caught.value.code, str(caught.value)) == (copy.code, str(copy))
