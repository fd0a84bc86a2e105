"""Train something tiny for `make chaos`, whose crash points come from a tool that knows nothing of milepost."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np

import milepost
from milepost import Keep

STEPS = 6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    random.seed(1)
    np.random.seed(1)
    weights, counters = np.zeros(64), {"step": 0}
    replay = milepost.Rows({"weights": np.zeros((4, 64)), "scale": np.zeros(4)})
    state = {"policy": weights, "replay": replay, "rng": milepost.Rng(), "counters": counters}
    # Every generation is kept, since the tool takes a checkpoint that was retired for one that was lost.
    with milepost.CheckpointEngine(out / "run", state=state, keep=Keep(last=STEPS)) as engine:
        restored = engine.resume()
        if restored is not None:
            print(f"resumed from step {restored.generation}", flush=True)
        while counters["step"] < STEPS:
            scale = random.random()
            weights += np.random.normal(size=64) * scale
            replay.arrays["weights"][replay.position], replay.arrays["scale"][replay.position] = weights, scale
            replay.advance()
            counters["step"] += 1
            engine.save(counters["step"])
            engine.wait()
    (out / "final.txt").write_text(" ".join(value.hex() for value in (weights + replay.arrays["weights"].sum(0)).tolist()))


if __name__ == "__main__":
    main()
