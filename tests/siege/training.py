"""Be what is trained in the siege: a few arrays, a replay ring, counters, three generators. Knows nothing of milepost."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np

CAPACITY = 24


class Training:
    """Train one step at a time. All of it follows from the number of steps, and every step from all that was before it."""

    def __init__(self, told: Callable[[], object] = lambda: None) -> None:
        random.seed(11)
        np.random.seed(12)
        self.own = np.random.default_rng(13)
        self.weights, self.moments = np.zeros(48), np.zeros(48)
        self.frozen = np.arange(256.0)
        self.counters = {"step": 0}
        self.observations, self.rewards = np.zeros((CAPACITY, 6)), np.zeros(CAPACITY)
        self.told = told

    @property
    def steps(self) -> int:
        return self.counters["step"]

    def step(self) -> None:
        """Train one step: a row goes into the ring, a batch comes out of it."""
        row = self.steps % CAPACITY
        self.observations[row] = self.own.normal(size=6) + self.weights[:6]
        self.rewards[row] = random.random()
        self.told()
        batch = self.own.integers(0, min(self.steps + 1, CAPACITY), 5)
        gradient = np.random.normal(size=48)
        gradient[:6] += self.observations[batch].mean(axis=0) * self.rewards[batch].sum()
        self.moments += 0.1 * (gradient - self.moments)
        self.weights += 0.01 * self.moments
        self.counters["step"] += 1

    def bits(self) -> str:
        """Return a hash of everything."""
        found = hashlib.sha256()
        rows = min(self.steps, CAPACITY)  # what lies beyond was never written, and is nobody's
        for array in (self.weights, self.moments, self.frozen, self.observations[:rows], self.rewards[:rows]):
            found.update(array.tobytes())
        generators = (random.getstate(), np.random.get_state()[1:3], self.own.bit_generator.state)
        found.update(repr((self.counters, [_plain(each) for each in generators])).encode())
        return found.hexdigest()[:24]


def _plain(state: Any) -> Any:
    return [part.tolist() if isinstance(part, np.ndarray) else part for part in state] if isinstance(state, tuple) else state


def alone(steps: int) -> list[str]:
    """Return the hash after each number of steps of training that nobody disturbs or saves. Leaves the generators as they are."""
    before = random.getstate(), np.random.get_state()
    try:
        training = Training()
        hashes = [training.bits()]
        for _ in range(steps):
            training.step()
            hashes.append(training.bits())
        return hashes
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
