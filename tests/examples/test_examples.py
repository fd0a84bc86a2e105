"""The examples as a reader runs them: real processes, really killed. And the demo's judgement, which must be able to say no."""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("killer")


@pytest.fixture
def demo(killer: ModuleType) -> ModuleType:
    return importlib.import_module("demo")


def dqn(root: Path) -> list[str]:
    return [sys.executable, str(EXAMPLES / "dqn_cartpole.py"), "--root", str(root), "--steps", "5000"]


def test_a_dqn_killed_twice_ends_like_one_left_alone_and_once_more_trains_nothing(killer: ModuleType, tmp_path: Path) -> None:
    # B3, B20: parameters to the last bit, and every episode on the way.
    alone, killed, log = tmp_path / "alone", tmp_path / "killed", tmp_path / "log"
    straight = killer.live(dqn(alone), log)
    first = killer.live(dqn(killed), log, killer.Aim(at_step=2_600))
    second = killer.live(dqn(killed), log, killer.Aim(at_step=4_200))
    third = killer.live(dqn(killed), log)

    assert (first.killed, second.killed, third.killed) == (True, True, False)
    assert second.lines[0].startswith("resumed generation")
    assert third.lines[0].startswith("resumed generation")
    assert 0 < second.steps[0] < third.steps[0]
    assert third.sha256 == straight.sha256 != ""
    assert (killed / "episodes.csv").read_bytes() == (alone / "episodes.csv").read_bytes()

    generations = sorted(path.name for path in (killed / "generations").iterdir())
    again = killer.live(dqn(killed), log)
    assert (again.steps, again.sha256) == ([], straight.sha256)
    assert sorted(path.name for path in (killed / "generations").iterdir()) == generations
    assert (killed / "episodes.csv").read_bytes() == (alone / "episodes.csv").read_bytes()


def test_a_kill_takes_the_whole_group_and_keeps_what_was_said(killer: ModuleType, tmp_path: Path) -> None:
    # The grandchild holds the pipe open: were it left alive, the output would not end before this test's time limit.
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(900)'])"
    code = f"{child}\nprint('step 1\\nstep 7', flush=True)\nimport time; time.sleep(900)"
    life = killer.live([sys.executable, "-c", code], tmp_path / "log", killer.Aim(at_step=1))
    assert life.killed
    assert life.steps[0] == 1
    assert life.start_up_s is not None


def test_a_kill_in_start_up_finds_no_step(killer: ModuleType, tmp_path: Path) -> None:
    life = killer.live([sys.executable, "-c", "import time; time.sleep(900)"], tmp_path / "log", killer.Aim(after_s=0.1))
    assert (life.killed, life.steps, life.start_up_s) == (True, [], None)


def test_a_script_that_fails_by_itself_is_told_with_its_last_words(killer: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(killer.ScriptFailed, match=r"(?s)status 1.*ValueError: no luck"):
        killer.live([sys.executable, "-c", "raise ValueError('no luck')"], tmp_path / "log")


def write_events(root: Path, term: int, *events: tuple[str, int, int]) -> None:
    (root / "events").mkdir(parents=True, exist_ok=True)
    records = [{"event": e, "generation": g, "step": s, "milliseconds": {"choose": "1.5", "load": "2.5"}} for e, g, s in events]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (root / "events" / f"{term:04d}.jsonl").write_text(text + '{"event": "publi', encoding="utf-8")


def life(killer: ModuleType, *steps: int, sha256: str = "") -> object:
    lines = [f"step {step}\n" for step in steps] + ([f"final sha256 {sha256} at step 0\n"] if sha256 else [])
    return killer.Life(not sha256, tuple(lines), 1.0)


def test_the_demo_counts_what_a_kill_cost(demo: ModuleType, killer: ModuleType, tmp_path: Path) -> None:
    tale = demo.Tale(tmp_path)
    write_events(tmp_path, 1, ("published", 1, 1_000), ("published", 2, 2_000))
    demo.note_events(tale, life(killer, 0, 2_600))
    # A death before the claim leaves no events, and one between the two kills nothing that was made.
    demo.note_events(tale, life(killer))
    write_events(tmp_path, 2, ("resumed", 2, 2_000), ("published", 3, 3_000))
    demo.note_events(tale, life(killer, 2_000, 3_400))
    assert (tale.repeated, tale.generation, tale.step, tale.reached, tale.lost) == ([600], 3, 3_000, 3_400, [])
    assert tale.resumes == [demo.Resume(2, 2_000, 4.0)]


def test_the_demo_sees_a_lost_generation(demo: ModuleType, killer: ModuleType, tmp_path: Path) -> None:
    older, anew = demo.Tale(tmp_path / "older"), demo.Tale(tmp_path / "anew")
    for tale in (older, anew):
        write_events(tale.root, 1, ("published", 1, 1_000), ("published", 2, 2_000))
        demo.note_events(tale, life(killer, 0, 2_600))
    write_events(older.root, 2, ("resumed", 1, 1_000))
    write_events(anew.root, 2, ("claimed", 0, 0))
    demo.note_events(older, life(killer, 1_000))
    demo.note_events(anew, life(killer, 0))
    assert older.lost == ["generation 2 was published, and generation 1 resumed"]
    assert anew.lost == ["generation 2 was published, and training started anew"]


def test_the_demo_fails_for_other_bits_other_episodes_and_too_few_kills(
    demo: ModuleType, killer: ModuleType, tmp_path: Path
) -> None:
    subject = demo.Subject("off-policy", "DQN", "dqn_cartpole.py", 1_000, kills=1, early_kills=0)
    alone = demo.Tale(tmp_path / "alone", lives=[life(killer, 0, sha256="aa")])
    same = demo.Tale(tmp_path / "same", lives=[life(killer, 0, sha256="aa")], kills=[(500, True)])
    other = demo.Tale(tmp_path / "other", lives=[life(killer, 0, sha256="ab")], lost=["generation 7 went missing"])
    for tale, value in ((alone, "9"), (same, "9"), (other, "8")):
        tale.root.mkdir()
        (tale.root / "episodes.csv").write_text(f"step,return\n20,{value}\n")
    assert demo.faults(subject, alone, same) == []
    found = demo.faults(subject, alone, other)
    assert found[0] == "off-policy: generation 7 went missing"
    assert found[1] == "off-policy: the final parameters differ: aa left alone, ab killed"
    assert found[2].startswith("off-policy: the episodes differ")
    assert found[3:] == ["off-policy: only 0 of 1 kills landed before the end"]


def test_kills_in_mid_run_always_leave_something_to_kill(demo: ModuleType, tmp_path: Path) -> None:
    subject = demo.Subject("on-policy", "PPO", "ppo_cartpole.py", 10_000, kills=10, early_kills=0)
    rng, step = random.Random(3), 0
    for left in range(10, 0, -1):
        tale = demo.Tale(tmp_path, step=step)
        step = demo.take_aim(subject, tale, [False] * left, 3.0, rng).at_step
        assert tale.step < step < subject.steps
