"""Settings: which origin wins, and how a wrong one is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import errors
from headrace.settings import Settings, load, mistyped, path_of


def write(folder: Path, name: str, text: str) -> Path:
    """Write a file and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refused(said: str, *arguments: Any) -> errors.SettingInvalid:
    """Check that loading is refused with these words."""
    with pytest.raises(errors.SettingInvalid) as found:
        load(*arguments)
    assert said in str(found.value)
    return found.value


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    """They are the ones that the documentation names."""
    assert load({}, {}, tmp_path) == Settings(
        journal="headrace.db",
        durability="full",
        payload_bytes_max=1_048_576,
        depth_max=256,
        lease_ms=10_000,
        stop_grace_ms=10_000,
    )


def test_a_flag_wins_over_the_environment_over_the_file(tmp_path: Path) -> None:
    """Each origin may set a part; a flag that was not given is None and says nothing."""
    write(tmp_path, "headrace.toml", 'journal = "file"\nlease_ms = 1000\ndepth_max = 3\n')
    environment = {"HEADRACE_JOURNAL": "environment", "HEADRACE_LEASE_MS": "2000"}

    found = load({"journal": "flag", "lease_ms": None}, environment, tmp_path)
    assert (found.journal, found.lease_ms, found.depth_max, found.durability) == ("flag", 2000, 3, "full")


def test_the_nearest_file_counts(tmp_path: Path) -> None:
    """Looked for upwards; headrace.toml is looked at before pyproject.toml of the same folder."""
    write(tmp_path, "headrace.toml", "depth_max = 1")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert load({}, {}, inner).depth_max == 1
    write(tmp_path / "a", "pyproject.toml", "[tool.headrace]\ndepth_max = 2")
    assert load({}, {}, inner).depth_max == 2
    write(tmp_path / "a", "headrace.toml", "depth_max = 3")
    assert load({}, {}, inner).depth_max == 3


def test_a_project_without_a_table_ends_the_search(tmp_path: Path) -> None:
    """A pyproject.toml is the root of its project: what lies above is another one's."""
    write(tmp_path, "headrace.toml", "depth_max = 1")
    write(tmp_path / "project", "pyproject.toml", "[project]\nname = 'x'")
    assert load({}, {}, tmp_path / "project").depth_max == 256


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    """A typing error in a file or a flag shows, with its origin; other variables belong to others."""
    path, empty = write(tmp_path / "wrong", "headrace.toml", "depth_mx = 1"), tmp_path / "empty"
    found = refused("there is no such setting; the nearest is depth_max.", {}, {}, tmp_path / "wrong")
    assert found.context["origin"] == str(path)
    assert "the nearest" not in str(refused("no such setting", {"zzz": 1}, {}, empty))
    assert load({}, {"HEADRACE_DEPTH_MX": "1", "DEPTH_MAX": "1"}, empty) == Settings()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lease_ms = 1.5", "1.5 is not a whole number"),
        ("lease_ms = true", "True is not a whole number"),
        ("lease_ms = 'soon'", "'soon' is not a whole number"),
        ("lease_ms = [1]", "[1] is not a whole number"),
        ("journal = 5", "5 is not text"),
    ],
)
def test_a_value_of_another_type_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """The value, and what it should be."""
    write(tmp_path, "headrace.toml", text)
    refused(problem, {}, {}, tmp_path)


def test_text_of_the_environment_becomes_a_number(tmp_path: Path) -> None:
    """Digits are read; anything else is refused with the environment as its origin."""
    assert load({}, {"HEADRACE_LEASE_MS": "150"}, tmp_path).lease_ms == 150
    found = refused("'1e3' is not a whole number", {}, {"HEADRACE_LEASE_MS": "1e3"}, tmp_path)
    assert found.context["origin"] == "the environment"


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("payload_bytes_max", 1, 1 << 30),
        ("depth_max", 1, 1 << 20),
        ("lease_ms", 100, 3_600_000),
        ("stop_grace_ms", 0, 3_600_000),
    ],
)
def test_the_bounds_are_inclusive(tmp_path: Path, name: str, low: int, high: int) -> None:
    """Lowest and highest pass; one below and one above are refused with both bounds."""
    for value in (low, high):
        assert getattr(load({name: value}, {}, tmp_path), name) == value
    for value in (low - 1, high + 1):
        refused(f"it is {low:,} to {high:,}, not {value:,}.", {name: value}, {}, tmp_path)


def test_a_value_out_of_bounds_is_told_with_its_origin(tmp_path: Path) -> None:
    """Which of file, environment, flag and code has to be corrected stands in the message."""
    path = write(tmp_path / "file", "headrace.toml", "lease_ms = 1")
    found = [
        refused("it is 100 to", {}, {}, tmp_path / "file"),
        refused("it is 100 to", {}, {"HEADRACE_LEASE_MS": "1"}, tmp_path),
        refused("it is 100 to", {"lease_ms": 1}, {}, tmp_path),
    ]
    with pytest.raises(errors.SettingInvalid) as caught:
        Settings(lease_ms=1)
    origins = [one.context["origin"] for one in (*found, caught.value)]
    assert origins == [str(path), "the environment", "a flag", "Settings(...)"]


def test_a_mistyped_variable_is_found() -> None:
    """With the nearest name; known ones, those of others and those that resemble nothing are left alone."""
    given = {
        "HEADRACE_JOURNL": "x", "HEADRACE_LEASE": "1", "HEADRACE_JOURNAL": "x", "HEADRACE_NO_PROGRESS": "1",
        "HEADRACE_SERVICE_HOST": "10.0.0.1", "JOURNL": "x",
    }  # fmt: skip
    assert mistyped(given) == [
        ("HEADRACE_JOURNL", "HEADRACE_JOURNAL"),
        ("HEADRACE_LEASE", "HEADRACE_LEASE_MS"),
    ]


def test_the_durability_is_one_of_two(tmp_path: Path) -> None:
    """Other words are refused."""
    assert load({"durability": "normal"}, {}, tmp_path).durability == "normal"
    refused("it is 'full' or 'normal', not 'off'.", {"durability": "off"}, {}, tmp_path)


@pytest.mark.parametrize("content", [b"a =", b"\xff", b"a = 1\na = 2"])
def test_a_file_that_cannot_be_read_is_told_with_its_path(tmp_path: Path, content: bytes) -> None:
    """Broken TOML, broken UTF-8: a coded error, no traceback of the parser."""
    path = tmp_path / "headrace.toml"
    path.write_bytes(content)
    with pytest.raises(errors.SettingsUnreadable) as found:
        load({}, {}, tmp_path)
    assert str(found.value).startswith(f"Settings file {path} cannot be read: ")


def test_a_table_that_is_no_table_is_a_coded_error(tmp_path: Path) -> None:
    """`tool.headrace = 5` is a mistake of the user, not a traceback; what others have there is theirs."""
    write(tmp_path, "pyproject.toml", "[tool]\nheadrace = 5\n")
    refused("tool.headrace", {}, {}, tmp_path)
    write(tmp_path, "pyproject.toml", "tool = 5\n")
    assert load({}, {}, tmp_path) == Settings()


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("headrace.db", "headrace.db"),
        ("./a b.db", "./a b.db"),
        (":memory:", ":memory:"),
        ("sqlite:///relative.db", "relative.db"),
        ("sqlite:////absolute.db", "/absolute.db"),
    ],
)
def test_an_address_names_a_file(address: str, path: str) -> None:
    """A path as it is; three slashes are relative, four absolute, as SQLAlchemy has it."""
    assert path_of(address) == path


@pytest.mark.parametrize("address", ["", "kafka://host", "postgres://x/y", "sqlite://", "sqlite:///", "a\0b"])
def test_an_address_that_leads_nowhere_is_refused(address: str) -> None:
    """Other schemes, no file at all, a NUL."""
    with pytest.raises(errors.JournalUrlInvalid):
        path_of(address)
