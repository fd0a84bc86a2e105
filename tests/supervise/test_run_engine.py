"""`milepost run` over training that milepost saves: what is progress, hangs, crash loops, what a killed supervisor leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import milepost
from milepost.clock import SystemClock
from milepost.publish.view import read
from milepost.store.local import LocalStore
from tests.supervise.attempts import PRELUDE, is_alive, until
from tests.supervise.runs import LOOP, MILEPOST, QUICK, Started, ran, running

AT = 'at(counters["step"])'
"""The place in `LOOP` where a test has it do something."""


def steps_of(path: Path) -> dict[int, int]:
    view = read(LocalStore(str(path), SystemClock()))
    return {number: summary.step for number, summary in view.live.items()}


def kinds(run: Started) -> list[str]:
    return [each["kind"] for each in run.events() if each["event"] == "ended"]


def told(run: Started, event: str) -> list[dict[str, Any]]:
    return [each for each in run.events() if each["event"] == event]


def test_a_budget_is_given_back_by_a_new_generation_and_by_nothing_else(tmp_path: Path) -> None:
    # Four failures with a budget of one: each but the last comes after progress.
    script = LOOP.replace(AT, "counters['step'] == {1: 15, 2: 25, 3: 35}.get(attempt) and os.kill(os.getpid(), 9)")
    script = script.replace("engine.resume()", "engine.resume()\n    attempt == 4 and os.kill(os.getpid(), 9)")
    run = ran(tmp_path, script, *QUICK, "--max-infrastructure", "1")
    assert run.process.returncode == 137
    assert [each["published"] for each in told(run, "ended")] == [True, True, True, False]
    assert run.events()[-1]["exit_code"] == 137


def test_what_a_writer_process_publishes_after_its_trainer_was_killed_is_progress(tmp_path: Path) -> None:
    # Posted, and killed at once: whoever asks the trainer's own words hears of nothing.
    script = LOOP.replace("when=every(steps=10)", "when=every(steps=10), writer='process'").replace("engine.wait()", "die()")
    script = script.replace(
        "np.random.seed", "def die():\n    attempt == 1 and os.kill(os.getpid(), 9)\n\nnp.random.seed"
    ).replace(AT, "")
    run = ran(tmp_path, script, *QUICK, "--max-infrastructure", "1")
    assert run.process.returncode == 0, run.said()
    assert [each["published"] for each in told(run, "ended")] == [True, True]
    assert [each["step"] for each in told(run, "newest")] == [10, 40]
    assert "went on from g000001" in run.said()


HANGS = LOOP.replace(AT, "attempt == 1 and counters['step'] == 15 and wait_for_ever()")


def test_a_hang_is_seen_its_stacks_are_told_and_training_goes_on(tmp_path: Path) -> None:
    # Four seconds: a busy machine that kept it longer from its next safe point would have it taken for a hang, too.
    run = ran(tmp_path, HANGS, *QUICK, "--hang-after", "4s", "--grace", "0.3s")
    assert run.process.returncode == 0, run.said()
    assert [each["event"] for each in run.events()][:4] == ["started", "suspect", "hung", "stacks"]
    assert "in wait_for_ever" in told(run, "stacks")[0]["stacks"]
    assert kinds(run) == ["hang", "done"]
    assert milepost.load(tmp_path / "runs" / "mine")["counters"]["step"] == 40


def test_two_runs_of_one_root_do_not_hammer_it_and_the_second_goes_on_when_the_first_has_ended(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    script = (
        LOOP.replace("runs/mine", "../mine")
        .replace(AT, "counters['step'] == 15 and hold()")
        .replace("np.random.seed", "def hold():\n    made('holds')\n    while not Path('go').exists(): pass\n\nnp.random.seed")
    )
    with running(first, script) as one:
        one.gate("holds")
        with running(second, script, "--backoff", "0.1s..1s") as other:
            other.hears("starts again in", "holds")
            (first / "go").touch()
            assert one.ends() == 0
            (second / "go").touch()
            assert other.ends() == 0, other.said()
    refused = [each for each in told(other, "ended") if each["kind"] == "another-writer"]
    assert refused
    assert {each["exit_code"] for each in refused} == {1}
    waits = [each["wait_s"] for each in told(other, "next")]
    assert min(waits) >= 0.5, "half of the longest wait, at least"
    assert kinds(one) == ["done"]


def test_a_crash_loop_steps_back_one_generation_once(tmp_path: Path) -> None:
    script = LOOP.replace("engine.resume()", "resumed = engine.resume()\n    first = resumed.step if resumed else 0")
    script = script.replace(AT, "(attempt == 1 or first == 20) and counters['step'] == 25 and os.kill(os.getpid(), 9)")
    run = ran(tmp_path, script, *QUICK)
    assert run.process.returncode == 0, run.said()
    assert "CRASH LOOP" in run.said()
    back = told(run, "next")[-1]
    assert [number for _, number in back["resume"]] == [1]
    assert "went on from g000001" in run.said()
    assert milepost.load(tmp_path / "runs" / "mine")["counters"]["step"] == 40


def test_a_generation_that_kills_what_loads_it_is_marked_and_passed_over(tmp_path: Path) -> None:
    part = """
class Native:
    step = 0
    def state_dict(self):
        return {"step": counters["step"]}
    def load_state_dict(self, state):
        if state["step"] == 20:
            os.kill(os.getpid(), signal.SIGSEGV)

"""
    script = LOOP.replace("state = {", "state = {'extra': {'native': Native()}, ").replace(
        "np.random.seed", part + "np.random.seed"
    )
    script = script.replace(AT, "attempt == 1 and counters['step'] == 25 and os.kill(os.getpid(), 9)")
    run = ran(tmp_path, script, *QUICK)
    assert run.process.returncode == 0, run.said()
    assert [each["signal"] for each in told(run, "ended")] == [9, 11, 11, None]
    assert "generation 2 has killed what loads it twice" in run.said()
    view = read(LocalStore(str(tmp_path / "runs" / "mine"), SystemClock()))
    assert view.marks[2].kind == "kills-loader"
    assert "went on from g000001" in run.said()
    assert view.head is not None
    assert view.head.step == 40


def test_a_supervisor_that_is_killed_has_the_command_save_and_leave_as_if_it_were_stopped(tmp_path: Path) -> None:
    script = LOOP.replace(AT, "counters['step'] == 15 and hold()").replace(
        "np.random.seed",
        "def hold():\n    made('holds')\n    while not Path('go').exists(): print('.' * 100, file=sys.stderr)\n\nnp.random.seed",
    )
    with running(tmp_path, script) as run:
        pid = int(run.gate("holds"))
        folder = next(tmp_path.glob("milepost-run-*"))
        run.process.kill()
        run.process.wait()
        # It writes to a stderr that nobody passes on any more, and does not die of that before it has saved.
        (tmp_path / "go").touch()
        until(lambda: not is_alive(pid))
    assert steps_of(tmp_path / "runs" / "mine") == {1: 10, 2: 16}
    left = json.loads(next(folder.glob("attempt-1/stopped-*.json")).read_text())
    assert (left["path"], left["exit_code"], left["step"]) == ("SIGTERM", 75, 16)


def test_a_run_within_a_run_hands_everything_on(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(
        LOOP.replace(AT, "counters['step'] == 15 and hold()").replace(
            "np.random.seed",
            "def hold():\n    made('holds', os.environ['MILEPOST_SUPERVISED'])\n    while not Path('go').exists(): pass\n\n"
            "np.random.seed",
        )
    )
    words = [*MILEPOST, "run", "--log", "inner-log", "--", sys.executable, "inner.py"]
    with running(tmp_path, f"import os\nos.execvp({words[0]!r}, {words!r})") as run:
        inner = Path(run.gate("holds"))
        # What belongs to the inner one is known to the outer one by where it lies.
        outer = next(tmp_path.glob("milepost-run-*/attempt-1"))
        assert inner.is_relative_to(outer)
        run.send(signal.SIGTERM)
        run.hears("SIGTERM: passed on")
        until(lambda: run.said().count("SIGTERM: passed on") == 2)
        (tmp_path / "go").touch()
        assert run.ends() == 75, run.said()
    assert milepost.load(tmp_path / "runs" / "mine")["counters"]["step"] == 16
    assert not outer.exists()


def test_an_inner_run_that_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    script = PRELUDE + "signal.signal(signal.SIGTERM, signal.SIG_IGN); made('deaf'); wait_for_ever()"
    words = [*MILEPOST, "run", "--", sys.executable, "-c", script]
    with running(
        tmp_path,
        f"import os\nopen('inner', 'w').write(str(os.getpid()))\nos.execvp({words[0]!r}, {words!r})",
        "--max-infrastructure",
        "0",
    ) as run:
        deaf = int(run.gate("deaf"))
        os.kill(int(run.gate("inner")), 9)
        assert run.ends() == 137
    assert not is_alive(deaf)


def block_below(heading: str) -> str:
    """Return the first Python program below a heading of the README."""
    page = (Path(milepost.__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    _, _, below = page.partition(f"\n{heading}\n")
    found = re.search(r"^```python\n(.*?)^```", below, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


HOLDS = """
# Imported by Python itself before the program, which stays as its author wrote it, and waits at a safe point for a strike.
import os, signal
from pathlib import Path

def hold(step, at, done=[]):
    name = f"held-{os.environ.get('MILEPOST_ATTEMPT')}"
    if step >= at.get(os.environ.get("MILEPOST_ATTEMPT"), 1 << 60) and not done:
        done.append(step)
        Path(name + ".new").write_text(str(os.getpid()))
        os.replace(name + ".new", name)
        while not Path("go").exists():
            pass
        os.unlink("go")

import importlib.abc, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "milepost.engine.checkpoint_engine":
            return None
        sys.meta_path.remove(self)
        import importlib.util
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            engine = module.CheckpointEngine
            real = engine.save_if_due
            def save_if_due(self, step, **more):
                saved = real(self, step, **more)
                if saved:
                    self.wait()
                hold(step, AT)
                return saved
            engine.save_if_due = save_if_due
        spec.loader.exec_module = exec_module
        return spec

AT = {}
sys.meta_path.insert(0, Finder())
"""

EXAMPLES = {
    "## With your own loop": ({"1": 150, "2": 250}, "runs/mine"),
    # Torch is imported four times: some twenty seconds.
    "## With Stable-Baselines3: one line": ({"1": 200, "2": 300}, "runs/ppo"),
}


@pytest.mark.parametrize("heading", EXAMPLES)
def test_the_readmes_programs_work_unchanged_and_end_with_the_bits_of_a_run_left_alone(tmp_path: Path, heading: str) -> None:
    at, root = EXAMPLES[heading]
    script = block_below(heading)
    if root == "runs/mine":
        script = script.replace("weights = np", "np.random.seed(1)\nweights = np", 1)  # it is a new run each time, as it stands
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    for folder in (alone, killed):
        (folder / "site").mkdir(parents=True)
        (folder / "site" / "sitecustomize.py").write_text(HOLDS.replace("AT = {}", f"AT = {at if folder == killed else {}!r}"))
    path = os.pathsep.join(filter(None, ("site", os.environ.get("PYTHONPATH"))))
    (alone / "train.py").write_text(script)
    subprocess.run([sys.executable, "train.py"], cwd=alone, check=True, env={**os.environ, "PYTHONPATH": path})
    with running(killed, script, *QUICK, env={"PYTHONPATH": path}) as run:
        os.kill(int(run.gate("held-1")), signal.SIGKILL)
        pid = int(run.gate("held-2"))
        os.kill(pid, signal.SIGTERM)  # to the command itself, as a platform does that knows it
        (killed / "go").touch()
        assert run.ends() == 0, run.said()
    assert kinds(run) == ["killed", "preempted", "done"], run.said()
    assert_same(alone / root, killed / root)


def assert_same(one: Path, other: Path) -> None:
    from milepost.supervise.judging import compare
    from milepost.supervise.watching import Watch

    watches = []
    for root in (one, other):
        watch = Watch(root.parent, SystemClock())
        watch.look()
        watches.append(watch)
    comparison = compare(watches[0], watches[1], SystemClock())
    assert comparison.parting is None
    assert comparison.compared
