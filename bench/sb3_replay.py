"""Save a Stable-Baselines3 model with an Atari-shaped replay buffer, by its own means and by milepost's callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

from bench.floors import Touched, allowance_s
from bench.goals import MEMCPY, SB3_SAVE
from bench.measure import Contender, Outcome, Setting, interleave, timed
from bench.savers import Saver, closing, contender, phases
from bench.states import Workload
from milepost import Keep, every
from milepost.adapters.sb3 import Checkpointing

FRAME = (4, 84, 84)


class Frames(gymnasium.Env[np.ndarray[Any, Any], np.int64]):
    """Show frames of the shape of Atari's. Nobody plays: the buffer is filled beforehand."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, FRAME, np.uint8)
        self.action_space = spaces.Discrete(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        """Return a black frame."""
        super().reset(seed=seed, options=options)
        return np.zeros(FRAME, np.uint8), {}

    def step(self, action: np.int64) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """Return a black frame."""
        return np.zeros(FRAME, np.uint8), 0.0, False, False, {}

    def milepost_get_state(self) -> dict[str, Any]:
        """Return what an episode consists of: nothing."""
        return {}

    def milepost_set_state(self, state: dict[str, Any]) -> None:
        """Take it back."""


def measure(setting: Setting) -> Outcome:
    """Save a DQN with a full replay buffer of 4 GB, as the callback does at a safe point."""
    size = setting.scaled(4_000_000_000, 400_000_000)
    model = _model(size)
    workload = _workload(model, f"DQN with a full replay buffer of {size / 1e9:g} GB uint8; all of it is saved")
    callback = Checkpointing(setting.place / "milepost", when=every(steps=1 << 40), keep=Keep(last=1))
    ours = _attached(model, callback)
    theirs = _own(model, setting.place)
    touched = Touched(workload.views, window_bytes=512 << 20)
    with closing([ours, theirs]):
        contenders = [
            Contender(MEMCPY, "floor", lambda: {"stall": timed(touched.copy) + allowance_s(len(workload.views))}),
            contender(ours, workload),
            contender(theirs, workload),
        ]
        rows = interleave(contenders, setting, rounds=setting.scaled(5, 3), budget_s=setting.scaled(60, 8))
    notes = ("with Rows, only what was added since the save before is staged and written", phases(setting.place / "milepost"))
    return Outcome("sb3-replay", workload.words, rows, notes)


def _model(size_bytes: int) -> DQN:
    # Frames before and after each step: both arrays, as SB3 keeps them unless it is told otherwise.
    rows = size_bytes // (2 * int(np.prod(FRAME)))
    model = DQN("CnnPolicy", Frames(), buffer_size=rows, learning_starts=1 << 40, seed=0, device="cpu")
    buffer: Any = model.replay_buffer
    rng = np.random.default_rng(0)
    pattern = rng.integers(0, 255, (256, *FRAME), np.uint8)
    for start in range(0, rows, 256):
        stop = min(start + 256, rows)
        buffer.observations[start:stop, 0] = pattern[: stop - start]
        buffer.next_observations[start:stop, 0] = pattern[: stop - start]
    buffer.full = True
    return model


def _workload(model: DQN, words: str) -> Workload:
    buffer: Any = model.replay_buffer
    views = tuple(getattr(buffer, name).reshape(-1).view(np.uint8) for name in ("observations", "next_observations"))
    return Workload(words, {}, {}, {}, views)


def _attached(model: DQN, callback: Checkpointing) -> Saver:
    """Return milepost as ``learn()`` sets it up: the engine is the callback's own, and is asked at a safe point."""
    _, root = model._setup_learn(1 << 30, callback)
    assert isinstance(root, BaseCallback)
    root.on_training_start({"total_timesteps": 1 << 30, "callback": root}, {})
    engine = callback._running
    steps = iter(range(1 << 40))

    def start() -> Any:
        engine.save(next(steps), counters=callback._now.marks.counters(model))
        return engine.wait

    start()()  # the arena is warm from here on
    return Saver("milepost", "milepost", start, close=engine.close)


def _own(model: DQN, place: Path) -> Saver:
    saved, replay = place / "model.zip", place / "replay.pkl"

    def start() -> Any:
        model.save(saved)
        model.save_replay_buffer(replay)
        return lambda: None

    def clean() -> None:
        saved.unlink(missing_ok=True)
        replay.unlink(missing_ok=True)

    return Saver(SB3_SAVE, "peer", start, synced=False, clean=clean)
