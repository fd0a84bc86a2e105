"""Hold the recipes of docs/service.md against what systemd, Docker and SLURM know, and against what ``milepost serve`` does."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from milepost import errors
from milepost.cli.main import main
from milepost.cli.serve import serve
from tests.docs.test_code_blocks import ROOT, runnable_blocks

PAGE = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
BLOCKS = [(block.language, block.body) for block in runnable_blocks(PAGE)]


def options_of(command: str) -> None:
    """Let the command line read a command, up to where it would begin to serve."""
    words = shlex.split(command.replace('"$(hostname -f)"', "localhost"))
    at = words.index("serve")
    with serve.make_context("serve", words[at + 1 :]):
        pass


def test_the_unit_starts_it_again_but_for_what_another_start_does_not_heal(tmp_path: Path) -> None:
    (text,) = (body for language, body in BLOCKS if language == "ini")
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text)
    service = unit["Service"]
    options_of(service["ExecStart"])
    prevented = {int(code) for code in service["RestartPreventExitStatus"].split()}
    final = {errors.UsageError, errors.ConflictError, errors.MismatchError}
    assert {kind.exit_code for kind in final} | {12, 13, 14} == prevented
    assert int(service["TimeoutStopSec"]) >= 30
    program = shutil.which("systemd-analyze")
    if program is not None:
        (tmp_path / "weights.service").write_text(text)
        done = subprocess.run([program, "verify", str(tmp_path / "weights.service")], capture_output=True, text=True, check=False)
        assert [line for line in done.stderr.splitlines() if "weights.service" in line] == []


def test_the_container_has_more_shared_memory_than_versions_may_take() -> None:
    (docker,) = (body for language, body in BLOCKS if language == "sh" and body.startswith("docker"))
    options_of(docker)
    (shared,), (versions,) = re.findall(r"--shm-size (\d+)g", docker), re.findall(r"--memory (\d+)GiB", docker)
    assert int(shared) > int(versions)


def test_the_batch_script_says_what_sbatch_knows() -> None:
    (script,) = (body for language, body in BLOCKS if language == "sh" and "#SBATCH" in body)
    first, *lines = script.splitlines()
    assert first == "#!/bin/bash"
    asked = {line.removeprefix("#SBATCH --").partition("=")[0] for line in lines if line.startswith("#SBATCH")}
    assert asked == {"job-name", "time", "requeue", "open-mode", "output"}
    options_of(lines[-1])


def test_the_table_of_options_has_each_option_with_its_default() -> None:
    rows = PAGE[PAGE.index("| option |") : PAGE.index("Who can read `ROOT")]
    told = set(re.findall(r"`(--[a-z-]+)", rows))
    there = {name for parameter in serve.params for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--")}
    assert there - told == {"--verbose", "--help"} & there
    assert told <= there


@pytest.mark.parametrize("verb", ["serve", "status", "top", "fetch", "rollback", "unhold"])
def test_each_verb_of_the_page_has_its_own_help(verb: str) -> None:
    assert f"milepost {verb}" in PAGE
    result = CliRunner().invoke(main, [verb, "--help"], prog_name="milepost")
    assert result.exit_code == 0
    assert f"Usage: milepost {verb}" in result.output


def test_the_bounds_of_the_protocol_are_those_of_the_code() -> None:
    from milepost.service import wire
    from milepost.service.server import shelf, watching
    from milepost.service.settings import ServiceSettings

    settings, page = ServiceSettings(), (ROOT / "docs" / "service-protocol.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", page.partition("## Bounds")[2], re.MULTILINE))
    numbers = {name: int(found[1].replace(",", "")) for name, value in rows.items() if (found := re.match(r"([\d,]+)", value))}
    from milepost.service.server import descriptors

    assert numbers == {
        "connections for control": descriptors._RESERVED,
        "a message": settings.max_message_bytes >> 20,
        "names of components, incarnations and keys": wire.MAX_NAME,
        "slots of a version": wire.MAX_SLOTS,
        "a chunk": wire.MAX_CHUNK_BYTES >> 20,
        "a piece of a stream": wire.MAX_PIECE_BYTES >> 20,
        "calls that are open at once": settings.max_calls,
        "watches that are open at once": watching.MAX_WATCHERS,
        "connections to the bulk port": shelf._CONNECTIONS,
    }
