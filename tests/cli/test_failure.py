"""How a command fails: three lines for a person, one object for a script, and a code for both."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from milepost import errors
from milepost.cli.failure import run
from milepost.cli.main import main
from milepost.records import Difference

CASES = [
    (errors.UsageError("m", kind="k"), 2),
    (errors.MissingExtraError("sb3", "gymnasium"), 2),
    (errors.NotFoundError("m", kind="k"), 10),
    (errors.ConflictError("m", kind="k"), 11),
    (errors.StoreError("m", kind="permission", retryable=False), 12),
    (errors.CorruptError("m", kind="k"), 13),
    (errors.MismatchError("m", [], kind="k"), 15),
    (errors.StoreError("m", kind="disk-full", retryable=False), 16),
    (errors.StoreError("m", kind="other", retryable=True), 1),
    (errors.InternalError("m", kind="k"), 1),
    (click.UsageError("m"), 2),
    (click.Abort(), 130),
    (ZeroDivisionError("m"), 1),
]


def milepost(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="milepost")


def fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(("error", "code"), CASES, ids=lambda case: type(case).__name__)
def test_each_kind_of_failure_has_its_exit_code(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: fail(error), as_json=False, verbose=False) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "Traceback" not in err


@pytest.mark.parametrize(("error", "code"), CASES, ids=lambda case: type(case).__name__)
def test_the_same_failure_as_json_is_one_object(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: fail(error), as_json=True, verbose=False) == code
    said = json.loads(capsys.readouterr().err)
    assert said["message_type"] == "exit_error"
    assert said["code"] == code
    assert said.keys() == {"message_type", "schema_version", "code", "kind", "message", "facts", "differences", "hint"}


def test_a_command_that_succeeds_says_nothing_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: None, as_json=False, verbose=False) == 0
    assert run(lambda: 13, as_json=False, verbose=False) == 13
    assert capsys.readouterr() == ("", "")


def test_an_error_is_what_facts_and_hint_each_on_its_line(tmp_path: Path) -> None:
    result = milepost("ls", tmp_path / "nothing")
    assert result.exit_code == 10
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "error: there is no milepost run here",
        f"  root: {tmp_path}/nothing",
        "hint: check the path; a run root holds milepost.json",
    ]
    assert not (tmp_path / "nothing").exists()


def test_every_difference_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    differences = [Difference("policy/w", "(3,)", "(4,)"), Difference("policy/b", "float32", "float64", "dtype")]
    run(lambda: fail(errors.MismatchError("it does not fit", differences, kind="shapes")), as_json=False, verbose=False)
    assert "  policy/w: saved (3,), here (4,)\n  policy/b: saved float32, here float64\n" in capsys.readouterr().err
    run(lambda: fail(errors.MismatchError("it does not fit", differences, kind="shapes")), as_json=True, verbose=False)
    assert len(json.loads(capsys.readouterr().err)["differences"]) == 2


def test_the_traceback_comes_with_v_and_a_bug_asks_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    run(lambda: 1 // 0, as_json=False, verbose=False)
    assert "-v" in capsys.readouterr().err
    run(lambda: 1 // 0, as_json=False, verbose=True)
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "m")], ids=["MemoryError", "OSError"])
def test_too_little_memory_is_no_bug_of_milepost(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: fail(error), as_json=True, verbose=False) == 1
    assert json.loads(capsys.readouterr().err)["kind"] == "memory"


def test_text_in_an_error_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    run(lambda: fail(errors.NotFoundError("m", kind="k", name="a\x1b]0;b\x07\nhint: rm -rf")), as_json=False, verbose=False)
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert not [line for line in err.splitlines() if line.startswith("hint")]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [(["frobnicate"], "milepost --help"), (["ls"], "milepost ls --help"), (["ls", "x", "--no"], "milepost ls --help")],
)
def test_a_wrong_call_names_the_help_that_helps(arguments: list[str], hint: str) -> None:
    result = milepost(*arguments)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"hint: {hint}"
    assert json.loads(milepost(*arguments, "--json").stderr)["kind"] == "usage"


def test_no_verb_at_all_prints_the_help() -> None:
    result = milepost()
    assert result.exit_code == 2
    assert "Commands:" in result.stderr
    assert milepost("--help").exit_code == 0


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("milepost.cli.look.read", interrupted)
    result = milepost("ls", tmp_path)
    assert result.exit_code == 130
    assert result.stderr.strip() == "error: interrupted"


def test_a_reader_that_has_seen_enough_gets_no_traceback(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-c", "from milepost.cli.main import main; main()", "--help"], stdout=write_end, stderr=subprocess.PIPE
    )
    os.close(write_end)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr


def test_words_that_find_no_room_are_no_bug_of_milepost() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from milepost.cli.main import main; main()", "--help"], stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 1
    assert b"the output could not be written: No space left on device" in done.stderr
    assert b"bug" not in done.stderr
