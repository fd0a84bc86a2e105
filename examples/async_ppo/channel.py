"""Carry rollouts from samplers to the trainer: a folder, in which each is a file.

Whoever falls finds its place again: there is no connection to lose. What the trainer has taken is gone when it falls, and what
it has trained on since its last checkpoint with it: samplers make more.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from rollouts import Rollout


class Outbox:
    """Send. A sampler that is ``most`` rollouts ahead waits: what lies here grows older with every step of the trainer."""

    def __init__(self, folder: str, sampler: str, most: int = 2) -> None:
        self.folder, self.sampler, self.most = Path(folder), sampler, most
        self.folder.mkdir(parents=True, exist_ok=True)

    def put(self, rollout: Rollout) -> None:
        """Send a rollout: it is there as a whole, or not at all."""
        while sum(1 for _ in self.folder.glob(f"*-{self.sampler}.npz")) >= self.most:
            time.sleep(0.01)
        draft = self.folder / f"{self.sampler}.draft"
        draft.write_bytes(rollout.encode())
        draft.rename(self.folder / f"{time.time_ns():020d}-{self.sampler}.npz")


class Inbox:
    """Receive."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def take(self) -> Rollout | None:
        """Return the oldest rollout that is there, and take it away; None: there is none."""
        name = min((name for name in os.listdir(self.folder) if name.endswith(".npz")), default=None)
        if name is None:
            return None
        data = (self.folder / name).read_bytes()
        (self.folder / name).unlink()
        return Rollout.decode(data)
