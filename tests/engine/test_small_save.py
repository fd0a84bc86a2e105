"""What a small save costs around its bytes is counted: system calls, calls of the store, calls of Python (DESIGN 9)."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost import CheckpointEngine, Keep
from milepost.clock import FakeClock, SystemClock
from milepost.store.local import LocalStore
from milepost.store.memory import MemoryStore
from milepost.store.posix import Posix

# Three files with bytes and the directory of each, in the order of their need: progress, blob, manifest; then what is retired.
CHANGES = "fsync 3, sync_directory 4, open_new 4, write 6, replace 3, link 1, unlink 3, open_append 2"
# blobs/ (is all still there that may be shared?), pins/ twice (rules 15 and 17), terms/ (rule 13). No directory of a run root
# is a link, and each is still there: asked at each use. LATEST and progress.json are read before they are replaced: another
# program may have written its own there meanwhile (A8).
LOOKS = "scan 4, is_link 15, is_directory 9, close 10, open_read 4, read_into 4, size 5, exists 1, subdirectories 1"
STORE_CALLS = "replace 2, open_blob 1, create 1, append 2, list 4, read 3, read_into 1, delete 2, sync 1"
VARIABLES = 40
PYTHON_CALLS = 6_000
"""Functions called for a save of 20 arrays, C ones included. It would be 8,500 if each event looked through the environment
for each of its texts."""


def allowed(text: str) -> Counter[str]:
    return Counter({name: int(count) for name, count in (entry.split() for entry in text.split(", "))})


class Counting(Posix):
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def perform(self, name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.calls[name] += 1
        return function(*args, **kwargs)


def small_state() -> dict[str, Any]:
    return {"policy": {f"layer{n}": np.zeros(256, np.float32) for n in range(20)}}


def saving(store: Any, state: dict[str, Any]) -> CheckpointEngine:
    engine = CheckpointEngine(store, state=state, keep=Keep(last=2), writer="inline")
    for step in range(4):
        save(engine, state, step)
    return engine


def save(engine: CheckpointEngine, state: dict[str, Any], step: int) -> None:
    for array in state["policy"].values():
        array += 1
    engine.save(step)
    engine.wait()


def counted(work: Callable[[], object]) -> int:
    """Count calls of functions, which no clock and no neighbour changes."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def surround(monkeypatch: pytest.MonkeyPatch, variables: int) -> None:
    """Be in an environment of this many variables: its size is in what a save costs."""
    for name in [*os.environ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("API_TOKEN", "hunter2")
    for number in range(variables):
        monkeypatch.setenv(f"VARIABLE_{number}", "x" * 20)


def test_a_small_save_makes_these_system_calls_and_no_more(tmp_path: Path) -> None:
    posix, state = Counting(), small_state()
    with saving(LocalStore(tmp_path / "run", SystemClock(), posix=posix), state) as engine:
        posix.calls.clear()
        save(engine, state, 10)
        most = allowed(f"{CHANGES}, {LOOKS}")
        assert posix.calls <= most, posix.calls - most


def test_a_small_save_asks_the_store_for_this_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    state, calls = small_state(), Counter[str]()
    with saving(MemoryStore(), state) as engine:
        for name in ("read", "read_into", "list", "create", "replace", "append", "open_blob", "delete", "move", "sync"):
            monkeypatch.setattr(MemoryStore, name, noting(name, getattr(MemoryStore, name), calls))
        save(engine, state, 10)
        assert calls <= allowed(STORE_CALLS), calls - allowed(STORE_CALLS)


def noting(name: str, method: Any, calls: Counter[str]) -> Any:
    def noted(self: MemoryStore, *args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return method(self, *args, **kwargs)

    return noted


def test_a_small_save_runs_this_much_python_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = small_state()
    surround(monkeypatch, VARIABLES)
    with saving(LocalStore(tmp_path / "run", SystemClock()), state) as engine:
        assert min(counted(lambda: save(engine, state, 10 + n)) for n in range(3)) < PYTHON_CALLS  # noqa: B023


def test_a_large_environment_is_looked_through_once_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    from milepost.engine.events import Events

    events = Events(MemoryStore(), FakeClock(), run_id="run", term=1, attempt=1)
    facts = {f"text{n}": f"value {n}" for n in range(20)}
    costs = []
    for size in (0, 500):
        surround(monkeypatch, size)
        costs.append(counted(lambda: events.write("published", **facts)))
    assert costs[1] - costs[0] <= 500 * 10
