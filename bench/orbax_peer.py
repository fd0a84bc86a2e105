"""Be asked to save by `bench.apart_orbax`: run by the Python of Orbax's own environment, which has neither torch nor milepost.

Arguments: a directory, a number of arrays, their bytes altogether. A line of standard input is ``async``, ``sync`` or
``load``; each is answered by a line of JSON with seconds.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp


def main() -> None:
    """Answer until the input ends."""
    folder, count, total_bytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    tree = state(count, total_bytes)
    answers = sys.stdout
    sys.stdout = sys.stderr  # what the library prints is not an answer
    savers: dict[str, Any] = {
        "async": ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler()),
        "sync": ocp.Checkpointer(ocp.PyTreeCheckpointHandler()),
    }
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        figures = load(folder, tree) if line.strip() == "load" else save(savers[line.strip()], folder, tree)
        print(json.dumps(figures), file=answers, flush=True)
    savers["async"].close()


def state(count: int, total_bytes: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return arrays as `bench.states.arrays` makes them."""
    numbers = max(1, total_bytes // count // 4)
    drawn = np.random.default_rng(0).standard_normal(max(numbers, min(numbers * count, 1 << 24)), np.float32)
    starts = [n * numbers % (len(drawn) - numbers + 1) for n in range(count)]
    return {f"layer{n:06d}.weight": drawn[s : s + numbers] * np.float32(1 + n / count) for n, s in enumerate(starts)}


def save(saver: Any, folder: Path, tree: dict[str, np.ndarray[Any, Any]]) -> dict[str, float]:
    """Change every array and save; return how long that kept the caller, and how long it took."""
    for array in tree.values():
        array.view(np.uint8)[:1] += 1
    shutil.rmtree(folder, ignore_errors=True)
    started = time.perf_counter()
    saver.save(folder, args=ocp.args.PyTreeSave(tree))
    stalled = time.perf_counter()
    if hasattr(saver, "wait_until_finished"):
        saver.wait_until_finished()
    return {"stall": stalled - started, "durable": time.perf_counter() - started}


def load(folder: Path, tree: dict[str, np.ndarray[Any, Any]]) -> dict[str, float]:
    """Read what was saved last into fresh arrays."""
    started = time.perf_counter()
    found = ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore(folder, args=ocp.args.PyTreeRestore())
    elapsed = time.perf_counter() - started
    if found.keys() != tree.keys():
        raise RuntimeError("Orbax brought back something else")
    return {"load": elapsed}


if __name__ == "__main__":
    main()
