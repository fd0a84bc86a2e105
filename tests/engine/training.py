"""Train something so small that a thousand runs take seconds, and whose whole state follows from its step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

import numpy as np
import pytest

from milepost import Items, Rows
from milepost.clock import SystemClock
from milepost.encode import compress
from milepost.engine import provenance
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.lifecycle.retain import Keep
from milepost.records import Summary
from milepost.store import blob_bytes
from milepost.store.base import Store
from milepost.store.local import LocalStore
from milepost.store.posix import Posix
from tests.engine.logs import move_queue, move_ring, queue_at, ring_at, window_of


class _Logs:
    """Say whether the states here have a ring of rows and a queue of episodes in them, too."""

    there = False


@contextmanager
def with_logs() -> Iterator[None]:
    """Let every state have logs in it, cut into many small pieces, some of them changed and merged.

    What is done with large blobs only is done with small ones: they are compressed, set aside room for, written directly.
    """
    before, _Logs.there = _Logs.there, True
    try:
        with (
            mock.patch.object(blob_bytes, "LARGE_BYTES", 4400),
            mock.patch.object(compress, "LEAST_LEAF_BYTES", 64),
            mock.patch.object(compress, "LEAST_BLOB_BYTES", 256),
        ):
            yield
    finally:
        _Logs.there = before


def local(root: Path, posix: Posix | None = None, wait: Callable[[float], object] | None = None) -> LocalStore:
    return LocalStore(root, SystemClock(), posix=posix, wait=wait)


def without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare each claim two child processes."""
    monkeypatch.setattr(provenance, "git_commit", lambda: "")


def state_at(step: int) -> dict[str, Any]:
    """Return the whole state as training has it after ``step`` steps: a part that changes, one that never does, a replay."""
    state: dict[str, Any] = {
        "policy": {"w": np.full((16, 8), step, np.float32), "frozen": np.arange(256, dtype=np.float64)},
        "optimizer": {"moments": [np.full(32, step / 3, np.float64), None], "lr": 0.5 / (step + 1)},
        "replay": {"obs": np.arange(400, dtype=np.int64) * step},
        "counters": {"step": step},
    }
    if _Logs.there:
        state["replay"] |= {"ring": ring_at(step), "episodes": queue_at(step)}
    return state


def bits(value: Any) -> Any:
    """Return what is equal for two trees exactly if every type, key, dtype, shape and bit in them is."""
    if isinstance(value, dict):
        return {key: bits(part) for key, part in value.items()}
    if isinstance(value, list | deque):
        return [bits(part) for part in value]
    if isinstance(value, Rows):
        return (value.capacity, value.count, bits(window_of(value)))
    if isinstance(value, Items):
        return bits(value.items)
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    return (type(value).__name__, value.hex() if isinstance(value, float) else value)


def set_to(state: dict[str, Any], step: int) -> None:
    """Change ``state`` in place, as training does, to what it is after ``step`` steps."""
    fresh = state_at(step)
    state["policy"]["w"][:] = fresh["policy"]["w"]
    state["optimizer"]["moments"][0][:] = fresh["optimizer"]["moments"][0]
    state["optimizer"]["lr"] = fresh["optimizer"]["lr"]
    state["replay"]["obs"][:] = fresh["replay"]["obs"]
    state["counters"]["step"] = step
    if _Logs.there:
        move_ring(state["replay"]["ring"], step)
        move_queue(state["replay"]["episodes"], step)


def snapshot(store: Store) -> dict[str, bytes]:
    """Return every file of a run root with its bytes."""
    return {entry.name: store.read(entry.name) for entry in store.list("")}


class Training:
    """Be one process that trains: an engine and the state that it saves."""

    def __init__(self, where: Path | Store, keep: Keep | None = None, **settings: Any) -> None:
        self.state = state_at(0)
        self.store = where if isinstance(where, Store) else local(where)
        settings.setdefault("writer", "inline")
        self.engine = CheckpointEngine(self.store, state=self.state, keep=keep or Keep(last=2), **settings)

    def __enter__(self) -> Training:
        self.engine.claim()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.engine.__exit__(kind, error, trace)

    def train_to(self, step: int) -> None:
        set_to(self.state, step)

    def save(self, step: int, **arguments: Any) -> Summary:
        """Train to ``step``, save, and return the generation once it is acknowledged."""
        self.train_to(step)
        self.engine.save(step, **arguments)
        saved = self.engine.wait()
        assert saved is not None
        return saved

    def is_at(self, step: int) -> bool:
        return bool(bits(self.state) == bits(state_at(step)))
