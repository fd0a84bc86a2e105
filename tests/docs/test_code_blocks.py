"""Run what the documentation shows: every python block, every `$ milepost` command, every doctest.

Blocks of one file share a folder and a namespace and run in order, as a reader would type them; one that begins with the
name of a file, ``# train.py`` or ``# pipeline.toml``, is written to it. A block that cannot run
here says why, in an HTML comment right before it: ``<!-- not run: needs a cluster -->``. A command that ends in `` &`` is started
as a process; once it has printed what is shown the page goes on, and at its end it is told to end, and has to do so with 0.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import milepost
from tests.cli.serving import forget
from tests.service.leftovers import nothing_outlives_the_tests

__all__ = ["nothing_outlives_the_tests"]  # a fixture, found by its name

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")] if path.exists())
MODULES = sorted(module.name for module in pkgutil.walk_packages(milepost.__path__, "milepost.", onerror=lambda _: None))

FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
A_FILE = re.compile(r"# (\w+\.(?:py|toml))\n")
"""A block that begins so is a file for the commands after it, and does not run by itself."""
NOT_RUN = re.compile(r"<!--\s*not run:\s*\S[^>]*-->\s*\Z")


@dataclass(frozen=True)
class Block:
    language: str
    body: str
    line: int
    """The line of the page on which the body starts, from 1."""


def runnable_blocks(text: str) -> Iterator[Block]:
    for match in FENCE.finditer(text):
        if not NOT_RUN.search(text[: match.start()]):
            yield Block(match["language"], match["body"], text.count("\n", 0, match.start("body")) + 1)


def run_page(text: str, page: str) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with ExitStack() as beside:
        run_blocks(text, page, namespace, beside)


def run_blocks(text: str, page: str, namespace: dict[str, Any], beside: ExitStack) -> None:
    for block in runnable_blocks(text):
        if block.language in ("python", "toml") and (named := A_FILE.match(block.body)):
            Path(named[1]).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            # Empty lines in front make the line numbers of a traceback those of the page.
            exec(compile("\n" * (block.line - 1) + block.body, page, "exec", dont_inherit=True), namespace)
        elif block.language == "console" and block.body.startswith("$ milepost"):
            run_console(block, page, beside)


def run_console(block: Block, page: str, beside: ExitStack) -> None:
    from milepost.cli.main import main

    exit_code = 0
    for command, expected in commands(block.body):
        if command == "echo $?":
            got = f"{exit_code}\n"
        elif command.endswith(" &"):
            got = beside.enter_context(in_the_background(command.removesuffix(" &"), expected))
        else:
            program, *arguments = shlex.split(command, comments=True)
            assert program == "milepost", f"{page}:{block.line}: only milepost and `echo $?` run in such a block, not {command!r}"
            result = CliRunner().invoke(main, arguments, prog_name="milepost")
            exit_code, got = result.exit_code, result.output
        assert is_as_shown(expected, got), f"{page}:{block.line}: $ {command}\n--- shown\n{expected}\n--- got\n{got}"


def is_as_shown(expected: str, got: str) -> bool:
    return doctest.OutputChecker().check_output(expected, got, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


@contextmanager
def in_the_background(command: str, expected: str) -> Iterator[str]:
    """Start a command, yield what it says until that is what the page shows, or it ends; tell it to end after all."""
    main = [sys.executable, "-c", "from milepost.cli.main import main; main(prog_name='milepost')"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        main + shlex.split(command)[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            got = ""
            while not is_as_shown(expected, got) and (line := process.stdout.readline()):
                got += line
            yield got
            process.terminate()
            said = process.communicate(timeout=60)[0]
            assert process.returncode == 0, f"$ {command} & ended with {process.returncode}\n{said}"
        finally:
            process.kill()


def commands(body: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command.strip(), expected


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_of_the_page_runs_and_prints_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    try:
        run_page(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))
    finally:
        for served in Path().glob("runs/*/service"):
            forget(served.parent)


@pytest.mark.parametrize("name", MODULES)
def test_every_example_in_a_docstring_is_true(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert not failed


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


# The harness itself: a harness that passes everything would make all of the above true.


def page_of(*blocks: str) -> str:
    return "# A page\n\n" + "\n\n".join(blocks)


def test_a_block_that_raises_fails_the_page_at_its_own_line() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_page(page_of("```python\nx = 1\n```", "```python\nx / 0\n```"), "page.md")
    assert caught.traceback[-1].lineno + 1 == 8
    assert str(caught.traceback[-1].path).endswith("page.md")


def test_blocks_of_a_page_share_their_names() -> None:
    run_page(page_of("```python\nx = 1\n```", "```python\nassert x == 1\n```"), "page.md")


def test_a_block_with_a_reason_not_to_run_does_not_run() -> None:
    run_page(page_of("<!-- not run: needs a cluster -->\n\n```python\n1 / 0\n```"), "page.md")
    with pytest.raises(ZeroDivisionError):
        run_page(page_of("<!-- not run: -->\n```python\n1 / 0\n```"), "page.md")


def test_a_command_that_prints_something_else_fails_the_page() -> None:
    run_page(page_of("```console\n$ milepost --version\nmilepost, version ...\n$ echo $?\n0\n```"), "page.md")
    with pytest.raises(AssertionError, match=r"--- got\s+milepost, version"):
        run_page(page_of("```console\n$ milepost --version\nmilepost, version 0.0\n```"), "page.md")


def test_a_block_that_is_a_file_is_written_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page_of("```python\n# train.py\n1 / 0\n```"), "page.md")
    assert Path("train.py").read_text() == "# train.py\n1 / 0\n"


def test_a_command_that_ends_in_an_ampersand_runs_beside_the_page_and_has_to_say_what_is_shown() -> None:
    with pytest.raises(AssertionError, match=r"--- got\s+milepost, version"):
        run_page(page_of("```console\n$ milepost --version &\nmilepost, version 0.0\n```"), "page.md")
    with pytest.raises(AssertionError, match=r"& ended with (10|-15)"):  # by itself, or by SIGTERM just before
        run_page(page_of("```console\n$ milepost ls nothing &\nerror: ...\n```"), "page.md")


def test_other_languages_are_only_read() -> None:
    run_page(page_of("```sh\nfalse\n```", "```\n1 / 0\n```", "```console\n$ pip install milepost\n```"), "page.md")


def test_there_is_something_to_check() -> None:
    assert MODULES
    assert any(ast.get_docstring(ast.parse(path.read_text())) for path in (ROOT / "src" / "milepost").glob("*.py"))
