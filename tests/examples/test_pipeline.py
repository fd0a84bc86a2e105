"""The example of a pipeline, with parts of it killed: it ends with the weights of the one that was left alone."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from milepost.supervise.orders import RestartRole, RestartWorker
from tests.supervise.ups import started

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pipeline"
PAGE = EXAMPLE.parents[1] / "docs" / "pipelines.md"
ANSWER = "                noise ="
HOLD = """
                while question["step"] in (100, 200) and not os.path.exists(f"pass.{question['step']}"):
                    time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def python_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)


def copy(to: Path) -> Path:
    shutil.copytree(EXAMPLE, to)
    # It stands still where a part is to be killed, however busy the machine.
    sampler = (to / "sampler.py").read_text()
    assert ANSWER in sampler
    (to / "sampler.py").write_text(sampler.replace(ANSWER, HOLD[1:] + ANSWER))
    return to


def weights_of(said: str) -> str:
    (found,) = re.findall(r"^\[trainer\.0\] weights (\w+)$", said, re.MULTILINE)
    return str(found)


def test_whoever_is_killed_on_the_way_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    # Two runs of three seconds, and six starts of an interpreter with numpy.
    alone, killed = copy(tmp_path / "alone"), copy(tmp_path / "killed")
    for step in (100, 200):
        (alone / f"pass.{step}").touch()
    with started(alone) as there:
        assert there.ended() == 0
        weights = weights_of(there.said)
    with started(killed) as there:
        there.hears("[trainer.0] step 100")
        before = there.pids()
        os.kill(before["sampler.1"], signal.SIGKILL)
        there.hears("sampler.1: started, pid", 2)
        assert [name for name, pid in there.pids().items() if pid != before[name]] == ["sampler.1"]
        (killed / "pass.100").touch()
        there.hears("[trainer.0] step 200")
        before = there.pids()
        os.kill(before["trainer.0"], signal.SIGKILL)
        there.hears("trainer.0: started, pid", 2)
        there.hears("trainer.0: went on from g0000")
        assert {name for name, pid in there.pids().items() if pid != before[name]} == {"trainer.0"}
        assert there.order(RestartWorker("sampler", 0, now=True))["ok"]
        assert there.order(RestartRole("trainer"))["ok"]
        (killed / "pass.200").touch()
        assert there.ended() == 0
        assert weights_of(there.said) == weights


def test_told_to_end_while_it_waits_for_a_sampler_it_saves_and_goes_on_from_there(tmp_path: Path) -> None:
    folder = copy(tmp_path / "run")
    with started(folder) as there:
        there.hears("[trainer.0] step 100")
        there.term()
        assert there.ended() == 75
        assert "stopped by SIGTERM" in there.said
    for step in (100, 200):
        (folder / f"pass.{step}").touch()
    with started(folder) as there:
        assert there.ended() == 0
        assert "[trainer.0] step 200" in there.said
        assert there.said.count("[trainer.0] step 100") == 1


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLE.iterdir() if path.is_file()))
def test_the_page_shows_the_example_as_it_is(name: str) -> None:
    assert f"\n{(EXAMPLE / name).read_text()}```" in PAGE.read_text()
