"""Save a Stable-Baselines3 model with an Atari-shaped replay buffer, by its own means and by milepost's callback."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from bench.atari import Played, Saving, state_arrays
from bench.floors import Touched, allowance_s
from bench.goals import MEMCPY, SB3_SAVE
from bench.measure import Contender, Outcome, Setting, interleave, timed
from bench.savers import phases

STACKED = 4


def measure(setting: Setting) -> Outcome:
    """Save a DQN with a full replay buffer of 4 GB, 1% of it new, as the callback does at a safe point."""
    size = setting.scaled(4_000_000_000, 400_000_000)
    played = Played(size, policy="CnnPolicy", stacked=STACKED, lean=False)
    new = played.buffer.buffer_size // 100
    ours = Saving(played.model, setting.place / "milepost")
    # What training has to wait for at least: the copy of the new rows, and of all that is not replay.
    dense = [array.reshape(-1).view(np.uint8) for array in state_arrays(played.model)]
    rows = [array[:new].reshape(-1).view(np.uint8) for array in (played.buffer.observations, played.buffer.next_observations)]
    touched = Touched([*dense, *rows])

    def save() -> Mapping[str, float]:
        played.play(new)
        started = time.perf_counter()
        finish = ours.start()
        stalled = time.perf_counter()
        finish()
        return {"stall": stalled - started, "durable": time.perf_counter() - started}

    def save_its_way() -> Mapping[str, float]:
        model, replay = setting.place / "model.zip", setting.place / "replay.pkl"
        started = time.perf_counter()
        played.model.save(model)
        played.model.save_replay_buffer(replay)
        stalled = time.perf_counter() - started
        model.unlink()
        replay.unlink()
        return {"stall": stalled}

    contenders = [
        Contender(MEMCPY, "floor", lambda: {"stall": timed(touched.copy) + allowance_s(len(dense) + len(rows))}),
        Contender("milepost", "milepost", save),
        Contender(SB3_SAVE, "peer", save_its_way),
    ]
    try:
        found = interleave(contenders, setting, rounds=setting.scaled(7, 3), budget_s=setting.scaled(60, 8))
    finally:
        ours.close()
    words = f"DQN with a full replay buffer of {size / 1e9:g} GB uint8; 1% of its rows are new since the save before"
    return Outcome("sb3-replay", words, found, (phases(setting.place / "milepost"),))
