"""ONNX models: the recipe that a user declares, and the session that a worker makes of it."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from headrace.errors import (
    ExtraMissing,
    HeadraceError,
    InputRefused,
    ModelCorrupt,
    ModelMismatch,
    ModelOutput,
)
from headrace.model import metadata
from headrace.model.metadata import Told, Unfit
from headrace.model.onnxfile import About
from headrace.model.recipe import Decode, Encode, Recipe
from headrace.model.weights import Place, Stamp, Weights, peek, read_beside, read_model, stamp

_log = logging.getLogger("headrace.model")

# numpy and the runtime take longer to import than a whole app may: only loading needs them.
if TYPE_CHECKING:
    from headrace.model.encoders import Array, Slot
    from headrace.ports import LoadedModel

WARM_ELEMENTS_MAX = 2**26  # of one input: twice an image in 8K; bounds what a file makes the warm-up allocate
DETAIL_CHARS_MAX = 300  # of a message of the runtime: some hold a whole graph

#: Families of operators that ONNX Runtime brings; any other comes from a library of native code.
_DOMAINS = {
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.training",
    "ai.onnx.preview.training",
    "com.microsoft",
    "com.microsoft.nchwc",
    "com.ms.internal.nhwc",
}
_FATAL = 4  # severity of logging: what fails is raised, and told once, with its code
#: Data of a model comes from memory alone: what is not there must not be looked for in the working directory.
_NOWHERE = "/dev/null/"

# --- the recipe ---------------------------------------------------------------------------------


class OnnxModel(Recipe):
    """How to load an ONNX file; `Model.onnx` tells what each part means.

    It holds no session, so it can be pickled and survives a fork.
    """

    __slots__ = ()

    def fingerprint(self) -> tuple[Stamp, ...]:
        """Return what changes when the file, what it refers to, or a link to them changes."""
        place = self._place()
        first = stamp(place.resolved)
        names = self._beside.get(first)
        if names is None:
            names = self._note(first, peek(place, first))
        return first, *(_stamp_beside(place, name) for name in names)

    def load(self, like: LoadedModel | None = None) -> LoadedOnnx:
        """Read, check, build and warm up; blocking. Raises the `ModelError` family.

        ``like`` is the model to be replaced: one with other names of inputs or outputs is refused.
        """
        place = self._place()
        model, about, first = read_model(place)
        names = self._note(first, about)
        try:
            told = self._told(about)
        except Unfit as error:
            raise ModelMismatch(path=self.path, problem=str(error)) from error
        self._refuse_native_code(about, told)
        beside, more = read_beside(place, names)
        return LoadedOnnx(self, told, Weights(model, beside, (first, *more)), like)

    def told(self) -> Told:
        """Return what file and code say beside the weights; raises the `ModelError` family."""
        try:
            return self._told(read_model(self._place())[1])
        except Unfit as error:
            raise ModelMismatch(path=self.path, problem=str(error)) from error

    def _note(self, first: Stamp, about: About) -> list[str]:
        names = sorted(about.locations.union(metadata.libraries(about.properties)))
        self._beside = {first: names}
        return names

    def _place(self) -> Place:
        return Place(self.path, self.folder)

    def _told(self, about: About) -> Told:
        told = metadata.read_told(about.properties)
        return told._replace(
            version=told.version if self.version is None else self.version,
            labels=told.labels if self.labels is None else self.labels,
            temperature=told.temperature if self.temperature is None else float(self.temperature),
        )

    def _refuse_native_code(self, about: About, told: Told) -> None:
        foreign = sorted(about.domains_used - about.domains_defined - _DOMAINS) or told.custom_ops
        if foreign and not self.allow_custom_ops:
            problem = f"it needs a library of custom operators for {', '.join(foreign)}"
            hint = "such a library is native code: if you trust it, pass allow_custom_ops=True"
            raise ModelMismatch(path=self.path, problem=problem, hint=hint)


def _stamp_beside(place: Place, name: str) -> Stamp:
    try:
        return stamp(place.beside(name))
    except HeadraceError:
        return name, 0, 0, 0


# --- the session --------------------------------------------------------------------------------


class LoadedOnnx:
    """A session with its encoder and decoder, in the process that uses it."""

    def __init__(self, recipe: OnnxModel, told: Told, weights: Weights, like: LoadedModel | None) -> None:
        self.name = recipe.name
        self.declared = told.version
        self.on_loop = True
        self.fingerprint = weights.stamps
        self._path = recipe.path
        self._session: Any = _new_session(recipe, weights, told.custom_ops)
        self._slots = self._named(self._session.get_inputs())
        self._results = self._named(self._session.get_outputs())
        self._labels: tuple[str, ...] | None = None
        self._refuse_another_shape(like)
        self._encode = recipe.encode or self._own_encoder(told)
        self._decode = recipe.decode or self._own_decoder(told)
        #: An input without an axis for the batch holds one value whole.
        self._alone = recipe.encode is None and not self._slots[0].batched
        self.digest = weights.digest([self._settings(told)])
        closed = all(size is not None for slot in self._slots for size in slot.shape[1:])
        self._warm_up(sure=recipe.encode is None and (closed or told.encoder is not None))
        providers, threads = ", ".join(self._session.get_providers()), recipe.thread_count()
        _log.info("session of %s: digest %s, %s, threads %d", self.name, self.digest[:12], providers, threads)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(slot.name for slot in self._slots)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return tuple(slot.name for slot in self._results)

    def infer(self, inputs: Sequence[object]) -> list[object]:
        """Return one answer per input, in order. Blocking, thread-safe.

        Raises `InputRefused` or `ModelOutput` for the batch as a whole.
        """
        if self._alone:
            return [answer for value in inputs for answer in self._infer([value])]
        return self._infer(list(inputs)) if inputs else []

    def close(self) -> None:
        """Let go of the memory, as soon as the last inference has ended."""
        self._session = None

    def _infer(self, inputs: list[object]) -> list[object]:
        outputs = self._run(self._encode(inputs))
        if self._alone:
            outputs = [_as_batch(one) for one in outputs]
        answers = list(self._decode(outputs))
        if len(answers) != len(inputs):
            raise self._bad_output(f"{len(answers)} answers for {len(inputs)} inputs")
        return answers

    def _run(self, feeds: Mapping[str, Array]) -> list[Array]:
        session = self._session
        if session is None:
            raise self._bad_output("it has been closed")
        try:
            return cast("list[Array]", session.run(None, dict(feeds)))
        except Exception as error:
            # The errors of the runtime have no ancestor of their own; these two are about what went in.
            if type(error).__name__ in ("InvalidArgument", "ValueError"):
                raise InputRefused(model=self.name, problem=_brief(error)) from error
            raise self._bad_output(_brief(error)) from error

    # --- checks at the start

    def _named(self, entries: list[Any]) -> list[Slot]:
        try:
            return [_slot(entry) for entry in entries]
        except UnicodeError as error:
            raise ModelCorrupt("A name in it is not UTF-8.", path=self._path) from error

    def _refuse_another_shape(self, like: LoadedModel | None) -> None:
        for what, mine in (("inputs", self.inputs), ("outputs", self.outputs)):
            theirs = getattr(like, what, mine)
            if sorted(theirs) != sorted(mine):
                raise self._unfit(f"its {what} are {', '.join(mine)}, not {', '.join(theirs)}")

    def _own_encoder(self, told: Told) -> Encode:
        from headrace.model import encoders

        if len(self._slots) != 1 or not self._slots[0].is_tensor:
            kinds = ", ".join(f"{slot.name}: {slot.kind}" for slot in self._slots)
            raise self._unfit(f"its inputs are ({kinds}), and encode= is missing")
        slot = self._slots[0]
        if told.encoder is None:
            return encoders.Tensor(slot, self.name)
        if told.encoder != encoders.HashedNGrams.id:
            raise self._unfit(f"its encoder {told.encoder!r} is not known here")
        try:
            return encoders.HashedNGrams(**told.encoder_parameters, slot=slot.name, model=self.name)
        except (TypeError, ValueError) as error:
            raise self._unfit(f"encoder_parameters: {error}") from error

    def _own_decoder(self, told: Told) -> Decode:
        from headrace.model import confidence

        if len(self._results) != 1 or not self._results[0].kind.startswith("tensor("):
            raise self._unfit(f"its outputs are {', '.join(self.outputs)}, and decode= is missing")
        if told.labels is None:
            return confidence.Rows(self.name)
        self._labels = told.labels
        self._refuse_other_count(self._results[0].shape[-1] if self._results[0].shape else 1)
        return confidence.Classes(told.labels, told.temperature, self.name)

    def _refuse_other_count(self, classes: int | None) -> None:
        wanted = len(self._labels or ())
        if self._labels is not None and classes not in (None, wanted):
            raise self._unfit(f"it has {wanted} labels for {classes} outputs")

    def _settings(self, told: Told) -> bytes:
        from headrace.model.encoders import identity

        settings = {
            "encode": identity(self._encode),
            "decode": identity(self._decode),
            "labels": told.labels,
            "temperature": told.temperature,
        }
        return json.dumps(settings, sort_keys=True).encode()

    def _warm_up(self, *, sure: bool) -> None:
        """Run once with zeros: the first run allocates, and a file that cannot run is found here.

        Where a size is open or the encoder is the user's, the zeros are a guess, and may fail.
        """
        if not all(slot.is_tensor for slot in self._slots):
            return  # zeros of a map or a sequence would say nothing
        if any(math.prod(slot.sizes) > WARM_ELEMENTS_MAX for slot in self._slots):
            raise self._unfit(f"one of its inputs has more than {WARM_ELEMENTS_MAX} elements")
        try:
            outputs = self._run({slot.name: slot.zeros() for slot in self._slots})
        except HeadraceError as error:
            if sure:
                problem = error.context.get("problem")
                raise ModelCorrupt(f"A first run failed: {problem}.", path=self._path) from error
            return
        if self._labels is not None:
            self._refuse_other_count(outputs[0].shape[-1] if outputs[0].ndim else 1)

    def _unfit(self, problem: str) -> ModelMismatch:
        return ModelMismatch(path=self._path, problem=problem)

    def _bad_output(self, problem: str) -> ModelOutput:
        return ModelOutput(model=self.name, problem=problem)


def runtime() -> Any:
    """Return ONNX Runtime, loaded when it is first asked for; raises `ExtraMissing`."""
    # From 1.29 on it reports to its maker, over the network, unless told not to before it is first loaded.
    # Who wants that sets the variable to 0.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise ExtraMissing(feature="Model.onnx", extra="onnx") from error
    return onnxruntime


def _new_session(recipe: OnnxModel, weights: Weights, libraries: Sequence[str]) -> Any:
    """Return a session of exactly these bytes."""
    ort = runtime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = recipe.thread_count()
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _FATAL
    # Threads that spin while they wait take the core from the event loop beside them.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", _NOWHERE)
    try:
        for name in libraries:
            _register_operators(options, weights.beside[name])
        data = {name: content for name, content in weights.beside.items() if name not in libraries}
        if data:
            sizes = [len(content) for content in data.values()]
            options.add_external_initializers_from_files_in_memory(list(data), list(data.values()), sizes)
        return ort.InferenceSession(
            weights.model, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as error:
        raise ModelCorrupt(_brief(error), path=recipe.path) from error


def _register_operators(options: Any, library: bytes) -> None:
    import tempfile

    # A copy of the bytes that were hashed; the system keeps it for as long as it is in use.
    with tempfile.NamedTemporaryFile(suffix=".so") as copy:
        copy.write(library)
        copy.flush()
        options.register_custom_ops_library(copy.name)


def _as_batch(output: Any) -> Any:
    # Only an array has axes; a list or a map is for the decoder of the user to read.
    if not hasattr(output, "shape") or output.shape[:1] == (1,):
        return output
    return output[None]


def _slot(entry: Any) -> Slot:
    from headrace.model.encoders import Slot

    # A size that the file leaves open has a name there, or nothing.
    shape = tuple(size if isinstance(size, int) and size >= 0 else None for size in entry.shape or ())
    return Slot(entry.name, entry.type, shape)


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:DETAIL_CHARS_MAX]
