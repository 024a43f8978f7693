"""The bytes of a model: found, fenced in, read once. What is hashed here is what gets loaded."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from headrace.errors import ModelCorrupt, ModelError, ModelMismatch, ModelMissing, ModelPathRefused
from headrace.model.onnxfile import About, Malformed, inspect

MODEL_BYTES_MAX = 2**31 - 1  # a protobuf message cannot be larger
DATA_BYTES_MAX = 16 * 1024**3  # all external data; what is larger belongs behind a server of its own
DATA_FILES_MAX = 1_000  # exporters write one file, or one for each tensor of a large model
PEEK_BYTES_MAX = 16 * 1024**2  # a graph without its weights; a few milliseconds, once for each change

#: ONNX Runtime reads a location with this tag as an address in memory, which no file may name.
_ADDRESS_TAG = "_ORT_MEM_ADDR_"

#: What tells one content of a file from another without reading it: resolved path, inode, size, mtime_ns.
Stamp = tuple[str, int, int, int]


class Weights(NamedTuple):
    """A model as it was on disk at one moment."""

    model: bytes
    #: What it refers to (external data, libraries of operators), by its name in the model.
    beside: dict[str, bytes]
    stamps: tuple[Stamp, ...]

    def digest(self, more: Iterable[bytes]) -> str:
        """Return sha256 over all bytes, the names of the files beside, and what else decides an answer."""
        sha = hashlib.sha256(b"headrace model 1\n")
        named = [part for name in sorted(self.beside) for part in (name.encode(), self.beside[name])]
        for part in [self.model, *named, *more]:
            # The length before each part: no two lists of parts give the same stream.
            sha.update(len(part).to_bytes(8, "big"))
            sha.update(part)
        return sha.hexdigest()


class Place:
    """Where a model is asked for, and the folder that neither it nor what it refers to may leave."""

    def __init__(self, path: str, folder: str | None) -> None:
        self.asked = Path(folder or "", path)
        self.resolved = Path(os.path.realpath(self.asked))
        self._fence = Path(os.path.realpath(folder)) if folder is not None else self.resolved.parent

    def model(self) -> Path:
        """Return the file itself; raises `ModelPathRefused` when a link leads out of the folder."""
        return self._inside(self.resolved)

    def beside(self, location: str) -> Path:
        """Return a file that the model names: beside it, or beside the link that leads to it."""
        if not _is_plain(location):
            raise ModelPathRefused(path=self.asked, target=location)
        found = [Path(os.path.realpath(folder / location)) for folder in self._folders()]
        return self._inside(next((file for file in found if file.exists()), found[0]))

    def _folders(self) -> list[Path]:
        return [self.resolved.parent, self.asked.parent]

    def _inside(self, file: Path) -> Path:
        if not file.is_relative_to(self._fence):
            raise ModelPathRefused(path=self.asked, target=file)
        return file


def _is_plain(location: str) -> bool:
    parts = PurePosixPath(location).parts
    bad = not parts or location.startswith("/") or ".." in parts or _ADDRESS_TAG in location
    # What cannot be printed (NUL, half a character) is no name that an exporter writes.
    return not bad and location.isprintable() and "\\" not in location


def read_model(place: Place) -> tuple[bytes, About, Stamp]:
    """Read the file itself; raises the `ModelError` family."""
    path = place.model()
    model, stamp = read_file(path, MODEL_BYTES_MAX)
    return model, describe(path, model), stamp


def peek(place: Place, first: Stamp) -> About:
    """Return what a small model says about itself, or nothing: a look must not cost what a load does.

    A model whose weights lie in other files is small; in a large one everything is inside.
    """
    if 0 < first[2] <= PEEK_BYTES_MAX:
        try:
            return read_model(place)[1]
        except ModelError:
            pass  # a load will say what is wrong
    return About()


def read_beside(place: Place, locations: Iterable[str]) -> tuple[dict[str, bytes], list[Stamp]]:
    """Read the files that a model names; raises the `ModelError` family."""
    data: dict[str, bytes] = {}
    stamps, left_bytes = list[Stamp](), DATA_BYTES_MAX
    for location in locations:
        data[location], stamp = read_file(place.beside(location), left_bytes)
        stamps.append(stamp)
        left_bytes -= len(data[location])
    return data, stamps


def describe(path: Path, model: bytes) -> About:
    """Return what the model says about itself; raises `ModelCorrupt`."""
    try:
        about = inspect(model)
    except Malformed as error:
        raise ModelCorrupt(f"{error}.", path=path) from error
    if not model:
        raise ModelCorrupt("It is empty.", path=path)
    if len(about.locations) > DATA_FILES_MAX:
        raise ModelCorrupt(f"It names more than {DATA_FILES_MAX} files.", path=path)
    return about


def read_file(path: Path, bytes_max: int) -> tuple[bytes, Stamp]:
    """Return the bytes of a plain file and the stamp of what was read."""
    try:
        with open(path, "rb", opener=_open) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise ModelMissing("It is no plain file.", path=path)
            if about.st_size > bytes_max:
                problem = f"it has {about.st_size} bytes, the limit is {bytes_max}"
                raise ModelMismatch(path=path, problem=problem, hint="serve a larger model on its own")
            return file.read(about.st_size), _stamped(path, about)
    except OSError as error:
        raise ModelMissing(f"({error.strerror})", path=path) from error


def _open(path: str, flags: int) -> int:
    # Without NONBLOCK a pipe of that name would block the load for ever.
    return os.open(path, flags | os.O_NONBLOCK)


def stamp(path: Path) -> Stamp:
    """Return the stamp of a file; zeros when it cannot be seen."""
    try:
        return _stamped(path, path.stat())
    except OSError:
        return str(path), 0, 0, 0


def _stamped(path: Path, about: os.stat_result) -> Stamp:
    return str(path), about.st_ino, about.st_size, about.st_mtime_ns
