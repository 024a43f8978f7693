"""The model of the fault tests."""

from __future__ import annotations

from pathlib import Path

from onnx import TensorProto, helper


def plus(path: Path, amount: float) -> None:
    """Put a model in place at once, by renaming: Y = X + amount."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "XY")
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [amount])
    graph = helper.make_graph([helper.make_node("Add", ["X", "one"], ["Y"])], "plus", [x], [y], [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(model.SerializeToString())
    fresh.replace(path)
