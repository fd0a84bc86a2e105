"""`milepost scrub`: reads slowly, remembers, names what rots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from milepost.cli.main import main
from milepost.lifecycle.scrub import Scrub
from milepost.publish import layout
from milepost.publish.view import read
from tests.cli.runs import Run


def scrub(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["scrub", *map(str, arguments)], prog_name="milepost")


def document(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(scrub(*arguments, "--json").stdout)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "ppo").saves([1000, 2000, 3000])


def flip(run: Run, number: int, position: int = 100) -> str:
    name = read(run.store).live[number].blobs[0].name
    data = bytearray((run.root / name).read_bytes())
    data[position] ^= 1
    (run.root / name).write_bytes(data)
    return name


def test_a_sound_run_is_read_once_and_then_left_alone_for_a_while(run: Run) -> None:
    first, second = scrub(run.root), scrub(run.root, "--older-than", "7d")
    assert (first.exit_code, first.stdout, first.stderr) == (0, "3 files (12 KiB) read: all sound\n", "")
    assert (second.exit_code, second.stdout) == (0, "nothing to read; 3 left out: found sound within 7d\n")
    found = document(run.root, "--older-than", "0")
    assert (found["ok"], found["files_read"], found["read_bytes"], found["problems"]) == (True, 3, 12288, [])


def test_what_rots_is_named_with_its_generation_its_component_and_what_to_do(run: Run) -> None:
    name = flip(run, 2)
    result = scrub(run.root)
    assert result.exit_code == 13
    assert result.stdout.splitlines() == [
        f"g000002  {name} (policy): its digest is not the one that was written",
        "3 files (16 KiB) read: 1 DAMAGED",
        f"hint: milepost verify {run.root} says what a resume would take; a running engine should save soon",
    ]
    found = document(run.root, "--older-than", "7d")
    assert [problem["generation"] for problem in found["problems"]] == [2]
    assert found["files_left_out"] == 2, "what is damaged is read again"


def test_it_changes_nothing_but_its_own_record(run: Run) -> None:
    flip(run, 2)
    before = {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file()}
    scrub(run.root)
    after = {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file()}
    assert after.keys() - before.keys() == {run.root / layout.SCRUB}
    assert before.items() <= after.items()


def test_interrupted_it_says_so_and_goes_on_from_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = Scrub._note, []

    def ctrl_c(self: Scrub, *arguments: Any, **sound: bool) -> None:
        real(self, *arguments, **sound)
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Scrub, "_note", ctrl_c)
    assert scrub(run.root).exit_code == 130
    monkeypatch.undo()
    assert scrub(run.root, "--older-than", "1d").stdout == "1 file (4 KiB) read: all sound; 2 left out: found sound within 1d\n"


@pytest.mark.parametrize("options", [("--rate", "0"), ("--rate", "fast"), ("--older-than", "soon")])
def test_what_is_no_rate_or_age_is_a_usage_error(run: Run, options: tuple[str, str]) -> None:
    result = scrub(run.root, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith("hint: like ")


def test_a_run_without_a_save_has_nothing_to_read(tmp_path: Path) -> None:
    assert scrub(Run(tmp_path).root).stdout == "nothing to read\n"
