"""The demo of a trainer on two ranks as a reader runs it, in short. And its judgement, which must be able to say no."""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.at_length import AT_LENGTH

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ONE = "step 0 reward 0.25 smooth 0.25"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("trainer_demo")


@pytest.fixture
def strike(demo: ModuleType) -> ModuleType:
    return importlib.import_module("strike")


@pytest.mark.timeout(400)
def test_a_trainer_of_two_ranks_that_is_killed_ends_like_one_left_alone(tmp_path: Path) -> None:
    # A5, A6, A9, A12. Half a minute: each start of torchrun is three processes that import torch, so one kill will do here.
    kills = 2 if AT_LENGTH else 1
    script = [sys.executable, str(EXAMPLES / "trainer_demo.py"), "--out", str(tmp_path), "--steps", "18", "--kills", f"{kills}"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{done.stdout}"
    assert len(re.findall(rf"\] kill \d of {kills}: ", done.stderr)) == kills
    assert re.search(r"^generations published, lost +\d+, 0 +\d+, 0$", done.stdout, re.MULTILINE)
    finals = re.findall(r"^final ([\w-]+) +(\w+) +(\w+)$", done.stdout, re.MULTILINE)
    assert [name for name, _, _ in finals] == ["weights", "optimizer", "data-0", "rng-0", "data-1", "rng-1"]
    assert [name for name, alone, killed in finals if alone != killed] == []
    assert (tmp_path / "trainer.png").stat().st_size > 10_000
    exports = sorted((tmp_path / "killed" / "checkpoints" / "demo" / "count-on" / "first" / "default").glob("epoch*"))
    assert [path.name for path in exports] == ["epoch0epochstep14globalstep14"]


def tale(demo: ModuleType, home: Path, *lines: str, published: int = 0) -> Any:
    home.mkdir(parents=True)
    found = demo.Tale(home)
    for path in ("generations", "blobs"):
        (found.root / path).mkdir(parents=True)
    start(found)
    for line in lines:
        found.hear(line)
    for number in range(1, published + 1):
        (found.root / "generations" / f"{number:06d}.json").touch()
    return found


def start(found: Any, *told: str) -> None:
    with found.journal.open("a") as journal:
        journal.write(json.dumps({"event": "started", "pid": 1, "told": told}) + "\n")
    found.look()


def test_the_demo_counts_what_was_made_again(demo: ModuleType, tmp_path: Path) -> None:
    found = tale(demo, tmp_path / "run", "begins", ONE, "step 1 reward 0.5 smooth 0.3", published=1)
    start(found)
    assert found.moment == "start"
    found.hear("loads")
    assert found.moment == "load"
    found.hear("goes on from generation 1 at step 1")
    assert (found.moment, found.repeated, found.lives, found.wrong) == ("train", [1], [demo.Life(0, 2), demo.Life(1, 1)], [])
    (found.root / "blobs" / "000002-t1-00.part").touch()
    assert found.moment == "save"


def test_the_demo_sees_a_lost_generation_but_for_one_that_was_doubted(demo: ModuleType, tmp_path: Path) -> None:
    lost = tale(demo, tmp_path / "lost", "begins", ONE, published=2)
    start(lost)
    lost.hear("goes on from generation 1 at step 0")
    assert lost.wrong == ["generation 2 was published, and 1 was gone on from"]
    doubted = tale(demo, tmp_path / "doubted", "begins", ONE, published=2)
    start(doubted, "MILEPOST_RESUME=x:1")
    doubted.hear("goes on from generation 1 at step 0")
    assert doubted.wrong == []


def test_the_demo_fails_for_other_bits_other_rewards_and_too_few_kills(demo: ModuleType, tmp_path: Path) -> None:
    alone = tale(demo, tmp_path / "alone", "begins", ONE, "eval 0 reward 0.1", "final weights aa")
    other = tale(demo, tmp_path / "other", "begins", ONE.replace("25", "26"), "eval 0 reward 0.2", "final weights ab")
    other.hear(ONE)
    assert demo.faults(alone, alone, 0) == []
    assert demo.faults(alone, other, 1) == [
        f"made again it came out otherwise: {ONE.replace('25', '26')!r}, {ONE!r}",
        "the final weights differs: aa left alone, ab killed",
        "the rewards differ, first at step 0",
        "the evaluations differ, first at step 0",
        "only 0 of 1 kills have struck before the end",
    ]


def test_the_last_words_of_a_dying_life_are_not_those_of_the_next(demo: ModuleType, tmp_path: Path) -> None:
    found = tale(demo, tmp_path / "run", "begins", ONE)
    found.is_struck, found.heard_s = True, {}
    for line in ("loads", "begins", "final weights aa", "step 1 reward 0.5 smooth 0.5"):
        found.hear(line)
    assert (len(found.lives), found.finals, found.heard_s, found.made) == (1, {}, found.heard_s, 2)
    assert set(found.heard_s) == {"step"}


def test_ten_kills_hit_everything_and_every_moment(demo: ModuleType) -> None:
    aims = demo.draw_aims(10, random.Random(1))
    assert Counter(aim.target for aim in aims) == {"rank 0": 3, "rank 1": 3, "torchrun": 2, "everything": 2}
    assert set(Counter(aim.moment for aim in aims)) == {"start", "load", "train", "save"}


def test_all_below_a_process_die_with_it_and_nobody_else(strike: ModuleType) -> None:
    # The grandchild is in a session of its own, as what torchrun starts may be: a kill of the group would leave it.
    sleeper = f"[{sys.executable!r}, '-c', 'import time; print(1, flush=True); time.sleep(900)']"
    code = f"import subprocess, time; subprocess.Popen({sleeper}, start_new_session=True); time.sleep(900)"
    with (
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        (grandchild,) = strike.below(process.pid)
        assert strike.kill_with_all_below(process.pid)
        assert process.wait() == -9
        assert not os.path.exists(f"/proc/{grandchild.pid}") or "Z" in Path(f"/proc/{grandchild.pid}/stat").read_text()
        assert not strike.kill_with_all_below(process.pid)
        assert not strike.kill(bystander.pid, under=process.pid)
        assert bystander.communicate(b"\n") == (None, None)
        assert bystander.returncode == 0
