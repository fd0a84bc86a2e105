"""Make a run with every kind of file in it, and damage it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from milepost.clock import SystemClock
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.lifecycle.retain import Keep
from milepost.publish import layout, pins, quarantine
from milepost.publish.manifest import load_record
from milepost.publish.view import read
from milepost.records import Manifest
from milepost.store.base import Store
from milepost.testing.faults import run_in_child
from tests.engine.training import Training, bits, local, with_logs


def state_at(step: int) -> dict[str, Any]:
    """Return a state whose ``frozen`` part is one blob for the generations of steps 5 and 6, and another before."""
    return {
        "policy": {"w": np.full((16, 8), step, np.float32), "frozen": np.arange(512, dtype=np.float64) * min(step, 5)},
        "counters": {"step": step},
    }


class Trainer:
    """Be one start of the training script."""

    def __init__(self, where: Path | Store, keep: Keep | None = None, **settings: Any) -> None:
        self.state = state_at(0)
        store = where if isinstance(where, Store) else local(where)
        self.engine = CheckpointEngine(store, state=self.state, keep=keep or Keep(last=3), writer="inline", **settings)

    def save(self, step: int, **arguments: Any) -> None:
        fresh = state_at(step)
        for name, array in fresh["policy"].items():
            self.state["policy"][name][:] = array
        self.state["counters"]["step"] = step
        self.engine.save(step, **arguments)

    def is_at(self, step: int) -> bool:
        return bool(bits(self.state) == bits(state_at(step)))


def newest_sound(root: Path, file: str, spoils: Callable[[int, int], bool]) -> int:
    """Return the newest generation of which nothing is lost with what ``file`` has lost; ``spoils`` says it of [start, stop).

    A blob in which no array of a generation is hit takes nothing from that one.
    """
    store = local(root)
    live = {number: load_record(store, layout.manifest(number), Manifest) for number in read(store).live}
    hit = {
        number
        for number, manifest in live.items()
        for leaf in (leaf for component in manifest.components for leaf in component.leaves)
        if manifest.blobs[leaf.blob].name == file and spoils(leaf.start, leaf.stop)
    }
    return max(number for number in live.keys() - hit if file != layout.manifest(number))


def make_run(root: Path) -> None:
    """Write generations 4, 5 and 6 (at these steps, earlier ones retired) in four terms, the last holder killed at work."""
    for steps in ((1, 2, 3), (4, 5), (), (6,)):
        trainer = Trainer(root)
        trainer.engine.resume()
        for step in steps:
            trainer.save(step)
        trainer.engine.close()
    # As a killed writer leaves it: with its name in the lock file. The claim of term 5 is undone, so that it killed no term.
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert run_in_child(lambda: claim_and_die(root)) == 3
    for path in [path for path in root.rglob("*") if path.is_file() and path.name != "writer.lock"]:
        if path in before:
            path.write_bytes(before[path])
        else:
            path.unlink()
    store, clock = local(root), SystemClock()
    pins.pin(store, 4, by="a test")
    run_id = pins.read(store).run_id
    quarantine.mark(store, clock, run_id=run_id, term=4, number=5, kind="damaged", reason="looked so once")


def make_run_with_logs(root: Path, steps: int) -> None:
    """Write so many generations and keep three, which hold pieces of each other's: some packed, some covered, some merged."""
    with with_logs(), Training(root, keep=Keep(last=3)) as training:
        for step in range(1, steps + 1):
            training.save(step)


def claim_and_die(root: Path) -> None:
    trainer = Trainer(root)
    trainer.engine.claim()
    os._exit(3)


def files_of(root: Path) -> list[str]:
    """Return every file with bytes in it, relative to the root."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file() and path.stat().st_size)


def copy_of(root: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(root, to)
    return to


def flip(path: Path, byte: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)
