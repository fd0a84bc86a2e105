"""A run of every format version that was ever released is read, verified and continued by today's milepost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from milepost.engine import oneshot
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.records import FORMAT_VERSION
from milepost.state.tree import flatten
from tests.old_runs.content import STEPS, logs_at, state_at

HERE = Path(__file__).parent
RUNS = sorted(path.name for path in HERE.iterdir() if path.name.isdecimal())


def bits(value: object) -> tuple[object, ...]:
    flat = flatten(value, "state")
    leaves = []
    for leaf in flat.leaves:
        data = bytearray(leaf.size_bytes)
        leaf.copy_into(memoryview(data))
        leaves.append((leaf.spec, bytes(data)))
    return flat.node, leaves


def state_of(version: str, step: int) -> dict[str, object]:
    return state_at(step) | (logs_at(step) if int(version) > 1 else {})


def test_there_is_a_run_of_every_format_version() -> None:
    assert [str(version) for version in range(1, FORMAT_VERSION + 1)] == RUNS


@pytest.mark.parametrize("version", RUNS)
def test_an_old_run_verifies_and_its_generations_hold_what_was_saved(version: str, tmp_path: Path) -> None:
    root = shutil.copytree(HERE / version, tmp_path / "run")
    report = oneshot.verify(root)
    assert (report.ok, report.resume_from) == (True, 3)
    for number, step in enumerate(STEPS, 1):
        if number > 1:
            assert bits(oneshot.load(root, which=number)) == bits(state_of(version, step))


@pytest.mark.parametrize("version", RUNS)
def test_an_old_run_goes_on(version: str, tmp_path: Path) -> None:
    root = shutil.copytree(HERE / version, tmp_path / "run")
    state = state_of(version, 0)
    with CheckpointEngine(root, state=state) as engine:
        restored = engine.resume()
        assert restored is not None
        assert (restored.generation, restored.step, restored.counters["episodes"]) == (3, 30, 3)
        assert bits(state) == bits(state_of(version, 30))
        state["policy"]["weight"] += 1
        engine.save(40)
        newest = engine.wait()
    assert newest is not None
    assert (newest.number, newest.line) == (4, (2, 3, 4))
    assert oneshot.verify(root).ok
