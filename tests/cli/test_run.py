"""What `milepost run`, `up` and `selftest` say to a wrong call, and whose an option is: theirs, or the command's. A5, B11"""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner, Result

from milepost.cli.main import main

SHOW = [sys.executable, "-c", "import sys; sys.stderr.write(repr(sys.argv[1:]))"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="milepost")


@pytest.mark.parametrize("dashes", [(), ("--",)])
def test_what_follows_the_command_is_the_commands(dashes: tuple[str, ...]) -> None:
    result = invoke("run", *dashes, *SHOW, "--json", "--grace", "5s", "-v")
    assert result.exit_code == 0, result.output
    assert "['--json', '--grace', '5s', '-v']" in result.stderr
    assert "[run] exit code 0 after 1 attempt: it is done" in result.stderr


def test_an_option_behind_the_dashes_changes_nothing_about_how_a_failure_is_told() -> None:
    said = invoke("run", "--", "no-such-program", "--json", "-v").stderr
    assert said.startswith("error: the command cannot be started: No such file or directory")
    assert "Traceback" not in said
    assert json.loads(invoke("run", "--json", "--", "no-such-program").stderr)["kind"] == "no-such-command"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "--max-failure", "0", "--", "true"), "No such option"),
        (("selftest", "--kill", "1", "--", "true"), "No such option"),
        (("run", "--grace", "abc", "--", "true"), "'--grace': 'abc' is not a length of time (like 90s, 15m, 12h or 7d, auto)"),
        (("run", "--grace", "-5s", "--", "true"), "'--grace': '-5s' is not a length of time"),
        (("run", "--grace", "0", "--", "true"), "'--grace': it has to be longer than no time at all"),
        (("run", "--limit", "0", "--", "true"), "'--limit': it has to be longer than no time at all"),
        (("run", "--hang-after", "never", "--", "true"), "'--hang-after': 'never' is not a length of time"),
        (("run", "--backoff", "5m..5s", "--", "true"), "error: the longest wait is shorter than the first"),
        (("run", "--backoff", "..5s", "--", "true"), "error: --backoff is not a length of time"),
        (("selftest", "--timeout", "soon", "--", "true"), "'--timeout': 'soon' is not a length of time"),
        (("restart", "all", "--timeout", "soon"), "'--timeout': 'soon' is not a length of time"),
        (("up", "."), "hint: name the file itself"),
    ],
)
def test_a_wrong_call_names_its_option_and_starts_nothing(arguments: tuple[str, ...], says: str) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, says in result.stderr) == (2, True), result.output
    assert "attempt 1" not in result.stderr


@pytest.mark.parametrize("value", ["soon", "0"])
def test_a_grace_in_the_environment_is_named_as_that(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MILEPOST_GRACE", value)
    result = invoke("run", "--", "true")
    assert (result.exit_code, "MILEPOST_GRACE is not a length of time above 0" in result.stderr) == (2, True), result.output


def test_every_verb_has_a_line_in_the_list_that_is_not_cut() -> None:
    listed = invoke("--help").stdout.partition("Commands:")[2].splitlines()
    assert [line for line in listed if "..." in line] == []
    assert len([line for line in listed if line.strip()]) >= 19


def test_a_code_without_a_reason_is_said_once() -> None:
    said = invoke("run", "--max-failures", "0", "--", sys.executable, "-c", "raise SystemExit(7)").stderr
    assert "[run] attempt 1: exit code 7 after" in said
    assert said.count("exit code 7") == 2  # of the attempt, and of milepost run
    assert said.rstrip().endswith("exit code 7 after 1 attempt: no retry is allowed")
