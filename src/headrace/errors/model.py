"""Errors 3xx: models."""

from __future__ import annotations

from headrace.errors.tree import Fault, HeadraceError


class ModelError(HeadraceError):
    """A model cannot be used."""


class ModelMissing(ModelError):
    """Model file {path} is not there.

    At start the worker does not take events of this handler; on a reload the old model keeps serving.

    Hint: the path is resolved against the working directory.
    """

    code = "HR-E301"
    fault = Fault.YOURS


class ModelCorrupt(ModelError):
    """Model file {path} cannot be loaded.

    At start the worker does not take events of this handler; on a reload the old model keeps serving.

    Hint: write to a new file and rename it over the old one, so that nobody sees half a model.
    """

    code = "HR-E302"
    fault = Fault.THEIRS


class ModelMismatch(ModelError):
    """Model file {path} does not fit: {problem}.

    A new file must have the inputs and outputs of the one it replaces. The old model keeps serving.

    Hint: a model with another shape belongs to another handler, or to a new ``version=`` of this one.
    """

    code = "HR-E303"
    fault = Fault.YOURS


class ModelPathRefused(ModelError):
    """Model file {path} refers to {target}, outside its folder.

    Nothing was loaded.

    Hint: keep external data beside the model.
    """

    code = "HR-E304"
    fault = Fault.THEIRS


class ModelLive(ModelError):
    """A live model session was passed where a path is expected.

    A session made at import would be shared by forked workers, where it hangs.

    Hint: pass the path, ``Model.onnx("file.onnx")``; each worker makes its own session.
    """

    code = "HR-E305"
    fault = Fault.YOURS


class InputRefused(ModelError):
    """Model {model} cannot take this input: {problem}.

    The attempt fails and is not repeated; other inputs of the batch are not touched.

    Hint: see the encoder of the model.
    """

    code = "HR-E306"
    fault = Fault.YOURS


class VersionInactive(ModelError):
    """Version {version} of handler {handler} is known but not active; {active} is.

    Going back to an old version is a decision, so it is not taken by putting an old file in place. This
    worker takes no events of the handler until its version is the active one.

    Hint: put the file of the active version back (a restarted worker has only the bytes on disk), or make
    this one active: headrace model activate {handler} {version}
    """

    code = "HR-E307"
    fault = Fault.YOURS


class VersionUnknown(ModelError):
    """Handler {handler} has no version {version}.

    Nothing was changed.

    Hint: ``headrace model history {handler}`` lists the versions.
    """

    code = "HR-E308"
    fault = Fault.YOURS


class ModelOutput(ModelError):
    """Model {model} gave an answer that cannot be used: {problem}.

    The attempt fails and is retried by the policy of the handler.

    Hint: check the model with the input named in the dead letter.
    """

    code = "HR-E309"
    fault = Fault.THEIRS
