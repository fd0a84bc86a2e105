"""Let one process save and resume for a long time, and look whether it grows: memory, open files, threads, children, mappings.

Run as a process of its own (``python -m tests.soak.ages PLACE ROUNDS [WRITER]``): what a process holds is nobody else's then.
"""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import subprocess
import sys
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import milepost
from milepost import CheckpointEngine, Keep
from milepost.clock import SystemClock
from milepost.errors import MilepostError
from milepost.store.local import LocalStore
from milepost.store.posix import Posix

CYCLE = 10
"""After so many rounds all has been done once, and sizes are back where they were: then is looked."""
ROWS = 512


@dataclass(frozen=True, slots=True)
class Held:
    """Hold what the process held at one look, the engine open and nothing in flight."""

    resident_bytes: int
    files: int
    threads: int
    children: int
    mappings: int


def held() -> Held:
    """Look at this process, once garbage is gone."""
    gc.collect()
    tasks = Path("/proc/self/task")
    children: set[str] = set()
    for task in tasks.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ends
            children |= {*(task / "children").read_text().split()}
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    mappings = len(Path("/proc/self/maps").read_text().splitlines())
    return Held(
        pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), len(list(tasks.iterdir())), len(children), mappings
    )


class Failing(Posix):
    """Be a disk that is full whenever it is told to be."""

    full = False

    def perform(self, name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self.full and name in ("write", "write_at", "preallocate"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return function(*args, **kwargs)


class Life:
    """Train, save, fail and start again."""

    def __init__(self, root: Path, writer: Any) -> None:
        self.root, self.writer = root, writer
        self.posix = Failing()
        self.rng = np.random.default_rng(1)
        self.engine: CheckpointEngine | None = None
        self.state: dict[str, Any] = {}
        self.failed = self.saved = self.resumed = 0

    def start(self) -> None:
        """Be a new start of the run: all objects are new, and come back from the disk."""
        replay = milepost.Rows({"observations": np.zeros((ROWS, 300), np.uint8), "rewards": np.zeros(ROWS)})
        self.state = {
            "policy": {"w": np.zeros(2000), "varying": b""},
            "replay": replay,
            "queue": milepost.Items(deque()),
            "rng": milepost.Rng(own=self.rng),
        }
        # By its path for a writer process, which opens the store anew; the other one gets the disk that can be full.
        where = self.root if self.writer == "process" else LocalStore(self.root, SystemClock(), posix=self.posix)
        self.engine = CheckpointEngine(
            where, state=self.state, keep=Keep(last=3), writer=self.writer, on_save_error="warn", save_errors_max=100
        )
        self.resumed += self.engine.resume() is not None

    def round(self, number: int) -> None:
        """Change the state, save it, and now and then let the disk fail, load a part, or start again."""
        assert self.engine is not None
        self.change(number)
        self.posix.full = number % CYCLE == 3
        self.engine.save(number)
        try:
            self.engine.wait()
            self.saved += not self.posix.full
        except MilepostError:
            self.failed += 1
        self.failed += self.posix.full
        self.posix.full = False
        if number % CYCLE == 5:
            milepost.load(self.root, parts=["policy"])
            milepost.verify(self.root)
        if number % CYCLE in (4, 8):
            self.engine.close()
            self.start()

    def change(self, number: int) -> None:
        """Train one round: sizes come and go, rows are added past the end of the ring, episodes come in and fall out."""
        policy, replay, queue = self.state["policy"], self.state["replay"], self.state["queue"]
        policy["w"] += 1
        policy["varying"] = self.rng.bytes(1 + 160_000 * (number % CYCLE))
        added = 20 + 40 * (number % 3)
        for _ in range(added):
            for array in replay.arrays.values():
                array[replay.position] = number % 200
            replay.advance()
        queue.append({"steps": self.rng.random(100 + number % CYCLE)})
        while queue.count - queue.start > 8:
            queue.popleft()


def live(place: Path, rounds: int, writer: str = "thread") -> tuple[list[Held], Life]:
    """Live through the rounds and return what was held at the end of each cycle."""
    life = Life(place / "run", writer)
    life.start()
    looks: list[Held] = []
    for number in range(rounds):
        life.round(number)
        if number % CYCLE == CYCLE - 1:
            assert life.engine is not None
            life.engine._background.settle()  # what is deleted after a save is part of that save
            looks.append(held())
    assert life.engine is not None
    life.engine.close()
    return looks, life


def writers() -> list[str]:
    """Return the ways in which milepost writes beside training here."""
    return ["thread", *(["process"] if find_spec("milepost.engine.process_writer") else [])]


def aged(place: Path, rounds: int, writer: str = "thread") -> dict[str, Any]:
    """Have a process of its own live through the rounds, and return what it saw."""
    command = [sys.executable, "-m", "tests.soak.ages", str(place), str(rounds), writer]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "MALLOC_ARENA_MAX": "1"})
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def grown(looks: list[dict[str, int]], *, noise_bytes: int) -> list[str]:
    """Return what grew in the second half: counts that changed at all are told, and what grew by more than noise."""
    half = looks[len(looks) // 2 :]
    says = [what for what in ("files", "threads", "children") if len({look[what] for look in half}) > 1]
    says += [what for what, noise in (("resident_bytes", noise_bytes), ("mappings", 3)) if growth(half, what) > noise]
    return [f"{what}: {[look[what] for look in looks]}" for what in says]


def growth(looks: list[dict[str, int]], what: str) -> int:
    """Return by how much the least that was held grew from the first half of these looks to the second.

    The least: memory that an allocator has not given back yet is there at one look and gone at the next.
    """
    values = [look[what] for look in looks]
    middle = len(values) // 2
    return min(values[middle:]) - min(values[:middle])


def main() -> None:
    logging.disable()  # what fails on purpose is told each time
    looks, life = live(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    print(
        json.dumps(
            {"looks": [asdict(look) for look in looks], "saved": life.saved, "failed": life.failed, "resumed": life.resumed}
        )
    )


if __name__ == "__main__":
    main()
