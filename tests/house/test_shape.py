"""The shape of the code: small files, small functions, named threads, no sleeping tests, nothing of one machine's."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.longest import LONGEST

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for path in (ROOT / "src").rglob("*.py") if not path.stem.startswith("service_pb2"))  # those are generated
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TOO_LONG: dict[str, str] = {}
"""Files (``path``) and functions (``path::name``) over the limits, each with the reason why splitting it would be worse."""

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

# Written in pieces, so that this file does not name what it forbids.
ROOTS_OF_ONE_MACHINE = ("wor" + "k", "roo" + "t", "opt/whe" + "els", "opt/py" + "pi")
ONE_MACHINE = re.compile(rf"(?<![\w.}}\])>~-])/(?:{'|'.join(ROOTS_OF_ONE_MACHINE)})(?:/|\b)")
NOT_OURS = {
    ".git",
    ".venv",
    ".venvs",
    ".chaos",
    ".bench",
    ".fuzz",
    ".exactness",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    ".import_linter_cache",
    "demo-run",  # what the demos have left, with the paths of whoever ran them
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def files_of_ours() -> Iterator[Path]:
    """Yield every file that is kept, without a look into folders where other tests write and remove at the same time."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in NOT_OURS]
        yield from (Path(folder) / name for name in names if name not in NOT_OURS)


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def calls_of(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_source_file_and_its_functions_stay_small(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    long = {f"{name_of(path)}::{f.name}" for f in functions_of(path) if (f.end_lineno or 0) - f.lineno + 1 > MAX_FUNCTION_LINES}
    if lines > MAX_FILE_LINES:
        long.add(name_of(path))
    assert long - TOO_LONG.keys() == set()


def test_every_exception_to_the_limits_is_still_one() -> None:
    functions = {f"{name_of(path)}::{function.name}" for path in SOURCES for function in functions_of(path)}
    assert TOO_LONG.keys() <= functions | {name_of(path) for path in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_thread_has_a_name_that_says_whose_it_is(path: Path) -> None:
    unnamed = [
        call.lineno
        for name, call in calls_of(path)
        if name in ("Thread", "threading.Thread") and not any(keyword.arg == "name" for keyword in call.keywords)
    ]
    assert unnamed == []


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_no_test_sleeps(path: Path) -> None:
    assert [call.lineno for name, call in calls_of(path) if name in ("sleep", "time.sleep")] == []


def test_every_file_that_begins_because_it_takes_longest_is_there_and_named_once() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).exists()] == []
    assert len(set(LONGEST)) == len(LONGEST)


def test_nothing_names_a_path_of_one_machine() -> None:
    named = [
        f"{name_of(path)}: {match[0]}"
        for path in files_of_ours()
        for match in ONE_MACHINE.finditer(path.read_bytes().decode("utf-8", "replace"))
    ]
    assert named == []
