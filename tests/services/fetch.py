"""Fetches the jars of Kafka by Maven into a cache, whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.services.process import ServiceFailed, soon

HERE = Path(__file__).parent
POM = HERE / "pom.xml"
#: What the POM has to come to, in the format of sha256sum.
DIGESTS = HERE / "jars.sha256"
CACHE = HERE.parents[1] / ".cache" / "services"

#: 45 jars, 43 MB; ten times what a slow line took.
FETCH_SECONDS_MAX = 600.0
#: The oldest Java that Kafka 4 runs on.
JAVA_MIN = 17
JAVA_SECONDS_MAX = 30.0

REMEDY = "scripts/services.sh installs what is missing, or says how"


def kafka_jars() -> Path:
    """Return the folder of the jars, which is fetched first if need be; others that fetch are waited for."""
    folder = kafka_folder()
    if not folder.exists():
        with _alone(folder.with_suffix(".lock")):
            if not folder.exists():
                _fetch(folder)
    return folder


def kafka_folder() -> Path:
    """Return where the jars belong; another POM, another folder."""
    cache = Path(os.environ.get("HEADRACE_SERVICES_CACHE") or CACHE).absolute()
    digest = hashlib.sha256(POM.read_bytes() + DIGESTS.read_bytes()).hexdigest()
    return cache / f"kafka-{digest[:16]}"


@cache
def java() -> str:
    """Return the path of a Java that is new enough."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        raise ServiceFailed(f"no java{f' in {home}/bin' if home else ''}: {REMEDY}")
    version = java_version(found)
    if int(version.split(".")[0].split("-")[0]) < JAVA_MIN:
        raise ServiceFailed(f"{found} is Java {version}, Kafka needs {JAVA_MIN}: {REMEDY}")
    return found


def java_version(program: str) -> str:
    """Return what a Java says of itself (`17.0.15`)."""
    said = subprocess.run(
        [program, "-version"], check=True, capture_output=True, text=True, timeout=JAVA_SECONDS_MAX
    )
    return said.stderr.split('"')[1]


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold the lock; the kernel lets go of it when a holder dies."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        if not soon(lambda: _locks(file.fileno()), FETCH_SECONDS_MAX):
            raise ServiceFailed(f"{lock} was held for {FETCH_SECONDS_MAX} s")
        yield


def _locks(file: int) -> bool:
    """Try to lock the file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fetch(folder: Path) -> None:
    """Fetch into a folder beside it, look at every byte, and only then give it its name."""
    maven = shutil.which("mvn")
    if maven is None:
        raise ServiceFailed(f"no mvn, which fetches Kafka: {REMEDY}")
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as scratch:
        jars = Path(scratch) / "jars"
        command = [maven, "-q", "-B", "-C", "-f", POM, "dependency:copy-dependencies"]
        options = [f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
        try:
            subprocess.run(
                [*command, *options],
                check=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=FETCH_SECONDS_MAX,
            )
        except subprocess.CalledProcessError as error:
            raise ServiceFailed(f"mvn could not fetch Kafka:\n{error.stdout}{error.stderr}") from error
        except subprocess.TimeoutExpired as error:
            raise ServiceFailed(f"mvn did not fetch Kafka within {FETCH_SECONDS_MAX} s") from error
        _check(jars)
        jars.rename(folder)


def _check(jars: Path) -> None:
    """See that the jars are those of the digests, and on the disk."""
    expected = set(DIGESTS.read_text().splitlines())
    found = {f"{_digest(jar)}  {jar.name}" for jar in jars.iterdir()}
    if found != expected:
        lines = [
            *(f"- {line}" for line in sorted(expected - found)),
            *(f"+ {line}" for line in sorted(found - expected)),
        ]
        raise ServiceFailed("\n".join([f"the jars are not those of {DIGESTS.name}:", *lines]))


def _digest(jar: Path) -> str:
    """Return the digest of a file that is on the disk, not only in memory, when this returns."""
    with jar.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
