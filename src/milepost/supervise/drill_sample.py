"""Train something small, for some seconds: what `milepost drill` is tried on where no command is given. Needs no torch.

It looks like a run of somebody's: weights, a replay log, a generator, a step that takes its time, a save every 25 steps. It
listens to signals if it is told to (MILEPOST_STOP).
"""

from __future__ import annotations

import threading

import milepost

STEPS = 200
ROOT = "runs/sample"
_STEP_S = 0.005


def train(steps: int) -> None:
    """Train until ``steps``, from where the run stands."""
    import numpy as np

    noise = np.random.default_rng(1)
    weights, counters = np.zeros((64, 64)), {"step": 0}
    replay = milepost.Rows({"observation": np.zeros((256, 64)), "reward": np.zeros(256)})
    state = {"policy": {"weights": weights}, "replay": replay, "counters": counters, "rng": milepost.Rng(noise=noise)}
    with milepost.CheckpointEngine(ROOT, state=state, when=milepost.every(steps=25), keep=milepost.Keep(last=3)) as engine:
        engine.resume()
        pace = threading.Event()
        while counters["step"] < steps:
            row = replay.position
            replay.arrays["observation"][row] = noise.normal(size=64)
            replay.arrays["reward"][row] = float(weights[0] @ replay.arrays["observation"][row])
            replay.advance()
            weights += 0.01 * np.outer(replay.arrays["observation"][row], noise.normal(size=64)) - 0.001 * weights
            counters["step"] += 1
            pace.wait(_STEP_S)  # the env's share
            engine.save_if_due(counters["step"])
        engine.save(counters["step"], reason="final")
        engine.wait()


if __name__ == "__main__":
    train(STEPS)
