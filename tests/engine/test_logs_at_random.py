"""Logs through everything that happens to a run, in any order: what is saved is what was there, after every save. B4, B9, C14"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from milepost.engine import oneshot
from milepost.errors import SaveFailed, StoreError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.verify import verify
from milepost.publish.view import read
from milepost.testing.faults import FaultStore
from tests.engine.test_logs import Buffer, Run
from tests.engine.training import local

FULL = StoreError("no space left on device", kind="disk-full", retryable=False, undone=True)
SICK = StoreError("input/output error", kind="io", retryable=False)
UNKNOWN = StoreError("timed out", kind="timeout", retryable=True)


class World:
    """Be a run and what happens to it."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = FaultStore(local(root))
        self.windows: dict[int, dict[str, bytes]] = {}
        self.settings: dict[str, Any] = {
            "keep": self.random.choice([Keep(last=1), Keep(last=3), Keep(last=3, independent=2)]),
            "writer": self.random.choice(["thread", "inline"]),
            "staging_bytes": self.random.choice([None, None, 8_000]),
        }
        self.run = self.started(Buffer(self.random.choice([300, 1_000])))

    def started(self, buffer: Buffer) -> Run:
        run = Run(self.store, buffer, **self.settings)
        run.buffer.rows.log.piece_bytes = self.random.choice([4_000, 20_000, 1 << 20])
        run.buffer.rows.log.gap_bytes = self.random.choice([0, 500])
        run.engine.resume()
        return run

    def add(self) -> None:
        self.run.buffer.add(self.random.choice([0, 1, 7, 40, 400]))

    def touch(self) -> None:
        rows = self.run.buffer.rows
        first, last = rows.window
        for _ in range(self.random.choice([1, 5, 40])):
            if first < last:
                row = self.random.randrange(first, last)
                self.run.buffer.write(row, self.random.randrange(1 << 30))
                rows.touch(row, row + 1)

    def save(self) -> None:
        self.run.step += 1
        self.run.engine.save(self.run.step)
        window = self.run.buffer.window()
        if self.random.random() < 0.5:
            self.add()  # training goes on beside it
        saved = self.run.engine.wait()
        assert saved is not None
        self.windows[saved.number] = window
        assert self.run.stored() == window

    def fail(self) -> None:
        operation, name = self.random.choice(
            [("commit_blob", "blobs/*"), ("write_blob", "blobs/*"), ("create", "generations/*"), ("replace", "progress.json")]
        )
        error = self.random.choice([FULL, SICK, UNKNOWN])
        self.store.fail(operation, name, error, times=self.random.choice([1, 2, 3]))
        try:
            self.save()
        except SaveFailed:
            pass
        finally:
            self.store._rules.clear()

    def go_back(self) -> None:
        if not self.windows:
            return
        live = [number for number in read(self.store).live if number in self.windows]
        which: Any = self.random.choice([*live, "latest", "latest"]) if live else "latest"
        restored = self.run.engine.resume(which)
        if restored is not None and restored.generation in self.windows:
            assert self.run.buffer.window() == self.windows[restored.generation]

    def start_again(self) -> None:
        self.run.engine.close()
        self.run = self.started(Buffer(self.run.buffer.rows.capacity))
        self.run.step = 1_000 + self.random.randrange(1_000)

    def adopt(self) -> None:
        if self.windows:
            self.run.engine.adopt()

    def lose_files(self) -> None:
        for entry in list(self.store.list("blobs/")):
            if self.random.random() < 0.3:
                self.store.delete(entry.name)
        for _ in range(2):
            try:
                self.save()
            except SaveFailed as error:
                if error.kind != "blobs-gone":
                    raise


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_what_is_saved_is_what_was_there(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    happens = [world.add, world.touch, world.save, world.save, world.fail, world.go_back, world.start_again, world.adopt]
    for _ in range(40):
        world.random.choice(happens)()
    world.save()
    world.lose_files()
    world.save()
    world.run.engine.close()
    newest = max(read(local(tmp_path)).live)
    assert verify(local(tmp_path), [newest]).problems == ()
    assert oneshot.load(local(tmp_path)) is not None
