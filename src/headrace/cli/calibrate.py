"""``headrace model calibrate``: how far to trust the confidence of a model, and a temperature for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import errors
from headrace.cli.options import Json, Target, examples
from headrace.cli.output import Exit, counted, paint, put, put_json, put_table, say

if TYPE_CHECKING:
    from headrace.model.calibrate import Figures, Labelled
    from headrace.model.onnx import OnnxModel

#: Labelled inputs are kept in memory, with a logit for each class.
LINES_MAX = 200_000
#: Fewer say nothing about fifteen bins.
LINES_MIN = 30
BAR_CHARS = 40
#: Of the picture, in units of SVG.
SIDE, MARGIN = 300, 40

EPILOG = examples(
    "headrace model calibrate app:app route labelled.jsonl --dry-run",
    "headrace model calibrate app:app route val.jsonl --held-out test.jsonl --picture reliability.svg",
    "headrace model calibrate app:app route labelled.jsonl --goal likelihood --input message --label topic",
    more='A line is {"text": "...", "intent": "..."}; the label null is for an input that fits no class.'
    " Another temperature is another version of the model: running workers take it up.",
)


def calibrate(  # noqa: PLR0913, PLR0917 - one parameter per option
    target: Target,
    handler: Annotated[
        str, typer.Argument(metavar="HANDLER", help="app.function, or function.", show_default=False)
    ],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Labelled inputs, one a line.", show_default=False)
    ],
    held_out: Annotated[
        Path | None,
        typer.Option(
            "--held-out", help="Measure with these instead of every fifth line of FILE.", show_default=False
        ),
    ] = None,
    goal: Annotated[
        str | None,
        typer.Option(
            "--goal", metavar="separation|likelihood", show_default=False,
            help="Tell the known from the foreign at the threshold, or be as sure as right."
            " [default: separation where FILE has foreign inputs]",
        ),
    ] = None,
    threshold: Annotated[
        float, typer.Option("--threshold", min=0.01, max=0.99, help="Below it an answer is not taken.")
    ] = 0.5,
    text_field: Annotated[str, typer.Option("--input", help="The field of the input.")] = "text",
    label_field: Annotated[str, typer.Option("--label", help="The field of the label.")] = "intent",
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Write the diagram as SVG.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the model here, not in its own place.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure only; no file is written.")] = False,
    as_json: Json = False,
) -> int:  # fmt: skip
    """Fit the temperature of a model's confidence to labelled inputs, measure, and write it into the file."""
    from headrace.model import calibrate as measure
    from headrace.model.confidence import LIKELIHOOD, SEPARATION

    if goal not in (None, SEPARATION, LIKELIHOOD):
        raise errors.CommandInvalid(problem=f"--goal is {SEPARATION} or {LIKELIHOOD}, not {goal!r}")
    model = _model(target, handler)
    labels, before = measure.labels_of(model)
    fields = (text_field, label_field)
    fitting = _labelled(model, labels, file, fields)
    measuring = _labelled(model, labels, held_out, fields) if held_out is not None else None
    if measuring is None:
        fitting, measuring = fitting.parted()
    after = fitting.fit(threshold, goal)
    found = [measuring.figures(one, threshold) for one in (before, after)]
    written = None
    if not dry_run:
        written = out or measure.place_of(model)
        if picture is not None:  # first: a model that was written is taken up by workers
            _put_picture(picture, picture_of(found[1]))
        measure.put(written, measure.calibrated(model, after))
    if as_json:
        put_json(_document(found, len(measuring.targets), threshold, written))
    else:
        _put_text(found, threshold)
        say(f"wrote {written}" if written is not None else "nothing was written")
    return Exit.DONE


def _put_picture(path: Path, picture: str) -> None:
    from headrace.model.calibrate import put

    try:
        put(path, picture.encode())
    except errors.ModelMissing as fault:
        reason = getattr(fault.__cause__, "strerror", "") or "?"
        problem = f"{path} cannot be written ({reason}); nothing was"
        raise errors.CommandInvalid(problem=problem, hint="--picture names a file") from None


def _model(target: str, name: str) -> OnnxModel:
    from headrace.cli.target import handler_named, load
    from headrace.model.onnx import OnnxModel

    app = load(target)
    handler = handler_named(app, name)
    if handler is None:
        known = ", ".join(app.handlers) or "none"
        raise errors.CommandInvalid(problem=f"{target} has no handler {name!r}; it has {known}")
    if not isinstance(handler.model, OnnxModel):
        raise errors.CommandInvalid(problem=f"{handler.name} has no model from an ONNX file")
    return handler.model


def _labelled(model: OnnxModel, labels: Sequence[str], file: Path, fields: tuple[str, str]) -> Labelled:
    """Read a file and run its inputs through the model."""
    from headrace.model.calibrate import labelled

    rows = list(_rows(file, *fields))
    numbers: dict[str | None, int] = {None: -1, **{label: at for at, label in enumerate(labels)}}
    for number, _, label in rows:
        if label not in numbers:
            raise errors.CommandInvalid(
                problem=f"{file}:{number}: the model has no label {label!r}",
                hint="a label of the model, or null for an input that belongs to no class",
            )
    if len(rows) < LINES_MIN:
        raise errors.CommandInvalid(
            problem=f"{file} has {counted(len(rows), 'line')}; {LINES_MIN} are the least"
        )
    return labelled(model, [value for _, value, _ in rows], [numbers[label] for _, _, label in rows])


def _rows(file: Path, text_field: str, label_field: str) -> Iterator[tuple[int, Any, str | None]]:
    """Yield number, input and label of each line."""
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                if number > LINES_MAX:
                    raise errors.CommandInvalid(problem=f"{file} has more than {counted(LINES_MAX, 'line')}")
                yield number, *_row(f"{file}:{number}", line, text_field, label_field)
    except OSError as fault:
        raise errors.CommandInvalid(problem=f"{file} cannot be read: {fault.strerror}") from None


def _row(where: str, line: bytes, text_field: str, label_field: str) -> tuple[Any, str | None]:
    try:
        row: Any = json.loads(line)
        value, label = row[text_field], row[label_field]
    except (ValueError, RecursionError, TypeError, KeyError) as fault:
        problem = f"{where}: no JSON object with {text_field!r} and {label_field!r} ({type(fault).__name__})"
        raise errors.CommandInvalid(problem=problem, hint="--input and --label name the fields") from None
    if not (label is None or isinstance(label, str)):
        raise errors.CommandInvalid(problem=f"{where}: a label is text, or null")
    return value, label


# --- what is told -----------------------------------------------------------------------------

_NAMES = {
    "temperature": "temperature",
    "error": "expected calibration error, inputs of a class",
    "error_all": "the same, foreign inputs counted as wrong",
    "loss": "negative log-likelihood",
    "accuracy": "right, no threshold",
    "right_and_kept": "right and kept at the threshold",
    "foreign_caught": "foreign, and below the threshold",
}


def _put_text(found: list[Figures], threshold: float) -> None:
    before, after = found
    rows = [
        (told, _number(getattr(before, name)), _number(getattr(after, name))) for name, told in _NAMES.items()
    ]
    put_table((f"THRESHOLD {threshold:g}", "BEFORE", "AFTER"), rows, numbers=(1, 2))
    put()
    put(paint("confidence      share that is right, and | where it should be", "bold"))
    for one in after.bins:
        if one.inputs:
            put(f"{one.low:.2f} to {one.high:.2f}  {_bar(one.right, one.confidence)}  {one.inputs:>7,}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _bar(right: float, wanted: float) -> str:
    """Return a bar with a mark where its end should be."""
    cells = ["█" if at < round(right * BAR_CHARS) else " " for at in range(BAR_CHARS)]
    cells[min(BAR_CHARS - 1, round(wanted * BAR_CHARS))] = "|"
    return "".join(cells)


def _document(found: list[Figures], lines: int, threshold: float, written: Path | None) -> dict[str, Any]:
    before, after = (
        {**{name: getattr(one, name) for name in _NAMES}, "bins": [part._asdict() for part in one.bins]}
        for one in found
    )
    return {
        "threshold": threshold,
        "measured_with": lines,
        "before": before,
        "after": after,
        "written": None if written is None else str(written),
    }


def picture_of(found: Figures) -> str:
    """Return the reliability diagram: bars of the share that is right over confidence, and the diagonal."""
    size, step = SIDE + 2 * MARGIN, SIDE / len(found.bins)
    bars = "".join(
        f'<rect x="{MARGIN + at * step:.1f}" y="{MARGIN + SIDE * (1 - one.right):.1f}" width="{step - 1:.1f}"'
        f' height="{SIDE * one.right:.1f}" fill="#4878a8"><title>{one.inputs} inputs, confidence'
        f" {one.confidence:.3f}, right {one.right:.3f}</title></rect>"
        for at, one in enumerate(found.bins)
        if one.inputs
    )
    low, high, middle = MARGIN, MARGIN + SIDE, MARGIN + SIDE / 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" font-family="sans-serif"'
        f' font-size="12">{bars}<rect x="{low}" y="{low}" width="{SIDE}" height="{SIDE}" fill="none"'
        f' stroke="#555"/><line x1="{low}" y1="{high}" x2="{high}" y2="{low}" stroke="#c33"'
        f' stroke-dasharray="4"/><text x="{middle}" y="{high + 28}" text-anchor="middle">confidence</text>'
        f'<text x="{low - 12}" y="{middle}" text-anchor="middle"'
        f' transform="rotate(-90 {low - 12} {middle})">share that is right</text>'
        f'<text x="{middle}" y="{low - 14}" text-anchor="middle">expected calibration error'
        f" {found.error_all:.4f}, temperature {found.temperature:g}</text></svg>\n"
    )
