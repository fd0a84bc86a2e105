"""Fill a Stable-Baselines3 replay buffer with what Atari looks like to an agent, as fast as `add` goes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import zstandard
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback

from bench.savers import Finish
from milepost import Keep, every
from milepost.adapters.sb3 import Checkpointing
from milepost.clock import SystemClock
from milepost.store.local import LocalStore
from milepost.store.posix import Posix

SIDE = 84
_SPRITES = 12
_PERIOD = 1024
"""Frames repeat after so many: 7 MB, farther back than a fast compressor looks."""


def frames(count: int = _PERIOD, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return ``count`` frames of 84 × 84: a still background of bands, a dozen small things that move, a score that changes."""
    rng = np.random.default_rng(seed)
    bands = np.repeat(rng.integers(0, 256, SIDE // 6, np.uint8), 6)
    found = np.broadcast_to(bands[:, None], (count, SIDE, SIDE)).copy()
    places, speeds = rng.uniform(0, SIDE, (_SPRITES, 2)), rng.normal(0, 2, (_SPRITES, 2))
    looks = [rng.integers(0, 256, rng.integers(3, 9, 2), np.uint8) for _ in range(_SPRITES)]
    for number, frame in enumerate(found):
        for (y, x), look in zip((places + speeds * number) % (SIDE - 9), looks, strict=True):
            frame[int(y) : int(y) + look.shape[0], int(x) : int(x) + look.shape[1]] = look
        frame[:5, :24] = np.repeat(np.unpackbits(np.frombuffer((number * 10).to_bytes(3, "big"), np.uint8)), 1) * 200
    return found


def shrinks(some: np.ndarray[Any, Any]) -> float:
    """Return how many times smaller zstd makes these frames at its fastest ordinary level."""
    data = some.tobytes()
    return len(data) / len(zstandard.ZstdCompressor(level=1).compress(data))


class Frames(gymnasium.Env[np.ndarray[Any, Any], np.int64]):
    """Show black frames of the shape of Atari's. Nobody plays: the buffer is filled beforehand."""

    def __init__(self, stacked: int) -> None:
        self.observation_space = spaces.Box(0, 255, (stacked, SIDE, SIDE), np.uint8)
        self.action_space = spaces.Discrete(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        """Return a black frame."""
        super().reset(seed=seed, options=options)
        return self.observation_space.low, {}  # type: ignore[attr-defined]

    def step(self, action: np.int64) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """Return a black frame."""
        return self.observation_space.low, 0.0, False, False, {}  # type: ignore[attr-defined]

    def milepost_get_state(self) -> dict[str, Any]:
        """Return what an episode consists of: nothing."""
        return {}

    def milepost_set_state(self, state: dict[str, Any]) -> None:
        """Take it back."""


class Played:
    """Hold a DQN whose replay buffer is full, and play on as long as asked."""

    def __init__(self, size_bytes: int, *, policy: str, stacked: int, lean: bool, **options: Any) -> None:
        self._frames = frames()
        self._number = count(_PERIOD // 3)
        frame_bytes = stacked * SIDE * SIDE
        rows = size_bytes // (frame_bytes if lean else 2 * frame_bytes)
        if lean:
            options |= {"optimize_memory_usage": True}
            options["replay_buffer_kwargs"] = {"handle_timeout_termination": False, **options.get("replay_buffer_kwargs", {})}
        self.model = DQN(policy, Frames(stacked), buffer_size=rows, learning_starts=1 << 40, seed=0, device="cpu", **options)
        self.buffer: Any = self.model.replay_buffer
        self._stacked = stacked
        self._fill()

    def _fill(self) -> None:
        """Write all rows at once, as `add` would have one by one."""
        buffer, rows = self.buffer, self.buffer.buffer_size
        arrays = [vars(buffer)[name] for name in ("observations", "next_observations") if name in vars(buffer)]
        for array in arrays:
            for start in range(0, rows, _PERIOD):
                stop = min(start + _PERIOD, rows)
                array[start:stop, 0] = self._frames[: stop - start, None]
        buffer.full = True

    def play(self, steps: int) -> None:
        """Add rows as ``collect_rollouts`` does."""
        action, reward, done = np.zeros((1, 1), np.int64), np.zeros(1, np.float32), np.zeros(1, bool)
        assert self.buffer.buffer_size % _PERIOD, "a row is to be another one each time round"
        shape = (1, self._stacked, SIDE, SIDE)
        for _ in range(steps):
            number = next(self._number)
            seen, following = self._frames[number % _PERIOD], self._frames[(number + 1) % _PERIOD]
            self.buffer.add(np.broadcast_to(seen, shape), np.broadcast_to(following, shape), action, reward, done, [{}])


class Saving:
    """Save as ``learn()`` sets milepost up: the engine is the callback's own, and is asked at a safe point."""

    def __init__(self, model: DQN, root: Path, posix: Posix | None = None) -> None:
        store = LocalStore(root, SystemClock(), posix=posix)
        self._model, self._steps = model, count()
        self._callback = Checkpointing(store, when=every(steps=1 << 40), keep=Keep(last=1))
        _, first = model._setup_learn(1 << 30, self._callback, reset_num_timesteps=False)
        assert isinstance(first, BaseCallback)
        first.on_training_start({"total_timesteps": 1 << 30, "callback": first}, {})
        self._engine = self._callback._running
        self.start()()  # the arena is warm from here on

    def start(self) -> Finish:
        """Stage, and return what waits until the disk has it."""
        self._engine.save(next(self._steps), counters=self._callback._now.marks.counters(self._model))
        return self._engine.wait

    def close(self) -> None:
        """Give the run up."""
        self._engine.close()


def arrays_of(buffer: ReplayBuffer) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return the buffer's arrays by name."""
    return {name: value for name, value in vars(buffer).items() if isinstance(value, np.ndarray)}


def state_arrays(model: DQN) -> list[np.ndarray[Any, Any]]:
    """Return the memory of all that is learned."""
    return [tensor.detach().numpy() for tensor in model.policy.state_dict().values()]
