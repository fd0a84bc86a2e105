"""Save a prioritized replay buffer: new rows, and two trees that change anywhere and are written whole."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from bench.atari import Played, Saving
from bench.floors import Counting
from bench.goals import SB3_SAVE
from bench.machine import files_below
from bench.measure import Contender, Outcome, Setting, interleave
from bench.savers import phases
from examples.prioritized_replay import PrioritizedReplayBuffer

BATCH = 32
NEEDED = "the new rows and both trees"


def measure(setting: Setting) -> Outcome:
    """Add 1% of the rows of a buffer of 1 GB, drawing and updating a batch for every fourth."""
    size = setting.scaled(1_000_000_000, 100_000_000)
    played = Played(size, policy="MlpPolicy", stacked=1, lean=False, replay_buffer_class=PrioritizedReplayBuffer)
    buffer = played.buffer
    buffer._set(np.arange(buffer.buffer_size), np.ones(buffer.buffer_size))
    new, counting = buffer.buffer_size // 100, Counting()
    ours = Saving(played.model, setting.place / "milepost", counting)
    trees = buffer.sums.nbytes + buffer.minima.nbytes
    needed = float(new * 2 * buffer.observations[0].nbytes + trees)

    def train() -> None:
        for _ in range(new // 4):
            played.play(4)
            buffer.sample(BATCH)
            buffer.update(np.random.random(BATCH))

    def save() -> Mapping[str, float]:
        train()
        counting.take()
        started = time.perf_counter()
        finish = ours.start()
        stalled = time.perf_counter()
        finish()
        durable = time.perf_counter() - started
        return {"stall": stalled - started, "durable": durable, "written": float(counting.take())}

    def save_its_way() -> Mapping[str, float]:
        model, replay = setting.place / "model.zip", setting.place / "replay.pkl"
        started = time.perf_counter()
        played.model.save(model)
        played.model.save_replay_buffer(replay)
        stalled = time.perf_counter() - started
        written = sum(path.stat().st_size for file in (model, replay) for path in files_below(file))
        model.unlink()
        replay.unlink()
        return {"stall": stalled, "written": float(written)}

    contenders = [
        Contender(NEEDED, "floor", lambda: {"written": needed}),
        Contender("milepost", "milepost", save),
        Contender(SB3_SAVE, "peer", save_its_way),
    ]
    try:
        rows = interleave(
            contenders, setting, rounds=setting.scaled(7, 3), budget_s=setting.scaled(40, 8), units={"written": "bytes"}
        )
    finally:
        ours.close()
    words = f"prioritized replay buffer of {size / 1e9:g} GB uint8, 1% of its rows new; {trees / 1e6:.3g} MB of trees"
    return Outcome("prioritized", words, rows, (phases(setting.place / "milepost"),))
