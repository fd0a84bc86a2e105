"""Stories that are told on a real file system of a few megabytes: ``python -m tests.sick.real_disk STORY DIRECTORY``.

The caller mounts it (see test_real_disk). Nothing is injected: the kernel says that there is no space left.
"""

from __future__ import annotations

import errno
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost.engine import oneshot, provenance
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import SaveFailed, StoreError
from milepost.lifecycle.retain import Keep
from milepost.publish import layout, pins
from milepost.publish.view import read
from tests.engine.training import local

STATE_BYTES = 256 << 10


def took_it(action: Callable[[], object]) -> bool:
    """Run ``action``; return false if the disk is full."""
    try:
        action()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


class Disk:
    """Hold a run root on a small disk, and beside it a foreign file that eats the space."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.root = place / "run"
        self.foreign = place / "somebody-elses-file"

    def fill(self, leave_bytes: int = 0) -> None:
        """Eat all space but so many bytes."""
        with self.foreign.open("wb", buffering=0) as file:
            while took_it(lambda: file.write(bytes(4096))):
                continue
            file.truncate(max(0, file.tell() - leave_bytes))

    def free(self) -> None:
        self.foreign.unlink()


class Loop:
    """Train: a part that changes at each save, and one of twice its size that never does."""

    def __init__(self, disk: Disk, **settings: Any) -> None:
        self.state = {"policy": {"w": np.zeros(STATE_BYTES // 8)}, "replay": {"obs": np.arange(STATE_BYTES // 4)}}
        self.engine = CheckpointEngine(disk.root, state=self.state, **settings)

    def save(self, value: int) -> bool:
        """Save; return whether the newest generation is that one."""
        self.state["policy"]["w"][:] = value
        self.engine.save(value)
        head = self.engine.wait()
        assert float(self.state["policy"]["w"][0]) == value
        return head is not None and head.step == value


def check(disk: Disk, newest: int) -> None:
    assert oneshot.verify(disk.root).ok
    loaded: Any = oneshot.load(disk.root)
    assert bool((loaded["policy"]["w"] == newest).all())
    assert bool((loaded["replay"]["obs"] == np.arange(STATE_BYTES // 4)).all())


def steps(disk: Disk) -> list[int]:
    return [summary.step for summary in read(local(disk.root)).live.values()]


def heals(disk: Disk) -> None:
    """Retire the oldest first, then nothing more may go, then the space returns."""
    loop = Loop(disk, keep=Keep(last=10), on_save_error="warn", save_errors_max=100)
    with loop.engine as engine:
        for value in (1, 2, 3, 4):
            assert loop.save(value)
        disk.fill(leave_bytes=8192)
        assert loop.save(5), "it made room for itself"
        left = steps(disk)
        assert left[-1] == 5
        assert left == sorted(left)
        assert 1 not in left
        assert len(left) > 2, "as few went as would do"
        check(disk, 5)
        disk.free()
        pins.pin(local(disk.root), engine.wait().number)  # type: ignore[union-attr]
        disk.fill(leave_bytes=8192)
        for value in range(6, 12):
            assert loop.save(value)
            check(disk, value)
        assert 5 in steps(disk), "it is pinned"
        disk.free()
        for number in list(read(local(disk.root)).live):
            pins.pin(local(disk.root), number)
        disk.fill()
        assert not loop.save(20)
        disk.free()
        assert loop.save(21), "the same engine, once there is space"
        check(disk, 21)


def says_what_is_lacking(disk: Disk) -> None:
    loop = Loop(disk, keep=Keep(last=1))
    with loop.engine:
        loop.save(1)
        disk.fill(leave_bytes=65536)
        with pytest.raises(SaveFailed) as caught:
            loop.save(2)
        cause = caught.value.__cause__
        assert isinstance(cause, StoreError)
        assert (caught.value.kind, cause.exit_code) == ("disk-full", 16)
        facts: Any = cause.facts
        assert STATE_BYTES < facts["needed_bytes"] < STATE_BYTES + 16_384, "what never changes is not written again"
        assert facts["free_bytes"] < facts["needed_bytes"]
        assert facts["staying"][1] == "the newest"
        check(disk, 1)
        disk.free()
        assert loop.save(3)
        check(disk, 3)
    left = {path.name for path in (disk.root / "blobs").iterdir()}
    named = {blob.name.removeprefix("blobs/") for each in read(local(disk.root)).live.values() for blob in each.blobs}
    assert left == named, "nothing is left over"


def every_level(disk: Disk) -> None:
    """With any amount of free space a save works or fails as a whole."""
    loop = Loop(disk, keep=Keep(last=1), on_save_error="warn", save_errors_max=1000)
    newest = 0
    with loop.engine:
        newest = 1 if loop.save(1) else 0
        for value, leave_bytes in enumerate(range(0, STATE_BYTES + 65536, 12288), 2):
            disk.fill(leave_bytes)
            if loop.save(value):
                newest = value
            assert steps(disk)[-1] == newest
            check(disk, newest)
            disk.free()
    assert newest > 1
    with Loop(disk).engine as engine:
        assert engine.resume().step == newest  # type: ignore[union-attr]


def no_inodes(disk: Disk) -> None:
    """Run out of files, not of bytes."""
    loop = Loop(disk, keep=Keep(last=1))
    with loop.engine:
        loop.save(1)
        loop.save(2)
        others = disk.place / "others"
        others.mkdir()
        names = (others / str(number) for number in itertools.count())
        while took_it(next(names).touch):
            continue
        with pytest.raises(SaveFailed, match="df -i") as caught:
            loop.save(3)
        assert caught.value.kind == "disk-full"
        check(disk, 2)
        for path in others.iterdir():
            path.unlink()
        assert loop.save(4)
        check(disk, 4)


def heals_of_inodes(disk: Disk) -> None:
    """Run out of files with generations to spare: a trim needs one file only, and the ballast was one."""
    loop = Loop(disk, keep=Keep(last=3))
    with loop.engine:
        for value in (1, 2, 3):
            loop.save(value)
        others = disk.place / "others"
        others.mkdir()
        names = (others / str(number) for number in itertools.count())
        while took_it(next(names).touch):
            continue
        assert loop.save(4)
        check(disk, 4)


def commands(disk: Disk) -> None:
    """Start, roll back, pin, drop and reset without a byte left."""
    loop = Loop(disk, keep=Keep(last=3))
    with loop.engine:
        for value in (1, 2, 3):
            loop.save(value)
    disk.fill()
    assert oneshot.rollback(disk.root, 1).step == 1
    check(disk, 1)
    disk.free()
    with Loop(disk, keep=Keep(last=10)).engine:
        assert (disk.root / layout.BALLAST).exists(), "held again"
    disk.fill()
    with Loop(disk, keep=Keep(last=10)).engine as engine:
        assert engine.resume().step == 1  # type: ignore[union-attr]
    (disk.root / layout.BALLAST).unlink(missing_ok=True)
    disk.free()
    disk.fill()
    for act in (lambda: pins.pin(local(disk.root), 4), lambda: oneshot.reset(disk.root), lambda: oneshot.rollback(disk.root, 2)):
        with pytest.raises(StoreError) as caught:
            act()
        assert (caught.value.kind, caught.value.exit_code) == ("disk-full", 16)
    check(disk, 1)
    disk.free()
    with Loop(disk).engine as engine:
        engine.resume()
    disk.fill()
    record = oneshot.reset(disk.root)
    disk.free()
    with Loop(disk).engine as engine:
        assert engine.resume() is None
    assert oneshot.verify(disk.root / record.to).ok


STORIES = {story.__name__: story for story in (heals, says_what_is_lacking, every_level, no_inodes, heals_of_inodes, commands)}

if __name__ == "__main__":
    provenance.git_commit = lambda: ""
    STORIES[sys.argv[1]](Disk(Path(sys.argv[2])))
