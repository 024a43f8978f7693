"""Models: what a user declares. Declaring is cheap; a worker loads when it starts."""

from __future__ import annotations

import os
from collections.abc import Sequence

from headrace.model.onnx import OnnxModel
from headrace.model.recipe import Decode, Encode, checked_labels, checked_path, name_of

__all__ = ["Model"]


class Model:
    """The kinds of model that a handler can carry."""

    @staticmethod
    def onnx(  # noqa: PLR0913 - one keyword for each thing that a file may leave open
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        version: str | None = None,
        labels: Sequence[str] | None = None,
        encode: Encode | None = None,
        decode: Decode | None = None,
        temperature: float | None = None,
        batch_max: int = 64,
        batch_wait_ms: float = 0.0,
        folder: str | os.PathLike[str] | None = None,
        allow_custom_ops: bool = False,
        threads: int | None = None,
    ) -> OnnxModel:
        """Declare an ONNX file, run on the CPU.

        The file may say in its metadata what it needs (``headrace.labels``, ``headrace.temperature``,
        ``headrace.encoder``, ``headrace.encoder_parameters``, ``headrace.version``; JSON but for encoder and
        version). An argument wins over the file. Where neither says anything, numbers and arrays go in, and
        come out, as they are.

        Args:
            path: The file. It is looked for when a worker starts, from the working directory.
            name: Stands in the name of the version; by default the name of the file without its ending.
            version: A version for people. Without it the journal counts epochs.
            labels: Names of the classes, in the order of the outputs. With them the answer is a `Label`.
            encode: Takes the list of inputs of a batch, returns one array for each input of the model. In the
                digest stand its module, qualified name and attribute ``version``: change that attribute when
                the function changes its answers. A lambda has no name of its own, so give it one.
            decode: Takes the list of output arrays, returns one answer for each input; as ``encode``.
            temperature: What logits are divided by before the softmax; above 1 makes less sure.
            batch_max: How many inputs go in together at most.
            batch_wait_ms: How long a batch waits to become full. 0: it takes what is there.
            folder: Nothing that is loaded may lie outside of it, links followed. A relative ``path`` starts
                here. Without it the fence is the folder of the file itself.
            allow_custom_ops: Load the libraries of native code that ``headrace.custom_ops`` names.
            threads: For one inference; by default the cores divided by the worker processes.

        """
        file = checked_path(path)
        return OnnxModel(
            path=file,
            name=name_of(file) if name is None else name,
            version=version,
            labels=checked_labels(labels),
            encode=encode,
            decode=decode,
            temperature=temperature,
            batch_max=batch_max,
            batch_wait_ms=batch_wait_ms,
            folder=None if folder is None else os.fspath(folder),
            allow_custom_ops=allow_custom_ops,
            threads=threads,
        )
