"""Say what the committed runs hold. Never change this for a format that has been released: add to it for the next one."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import numpy as np

import milepost

STEPS = (10, 20, 30)


def state_at(step: int) -> dict[str, Any]:
    """Return the state of every component at ``step``."""
    return {
        "policy": OrderedDict(
            weight=np.arange(6, dtype=np.float32).reshape(2, 3) + step,
            bias=np.array(step, dtype=np.float64),
            frozen=np.linspace(0.0, 1.0, 300),
        ),
        "replay": {"rows": np.full((4, 5), step, np.uint8), "position": step % 4, "full": False},
        "extra": {
            "none": None,
            "numbers": (True, -3, 2**100, 0.1, float("inf"), -0.0, 1 + 2j, np.float16(0.5), np.int64(7)),
            "text": ["plain", "ünïcode", "\ud800 alone", b"bytes"],
            "long text": "x" * 2000,
            "keys": {1: "int", (2, "b"): "tuple", None: "none"},
            "sets": {frozenset({1}), frozenset({2})},
            "recent": deque([1.0, 2.0], maxlen=5),
            "complex": np.array([1 + 2j]),
            "dates": np.array(["2026-11-29"], "datetime64[D]"),
            "words": np.array(["a", "bcd"]),
            "big endian": np.array([1, 2], ">i4"),
            "empty": np.zeros((0, 3), np.int16),
        },
        "counters": {"step": step, "episodes": step // 10},
    }


def logs_at(step: int) -> dict[str, Any]:
    """Return the components that came with format 2: a ring, a queue, and what shrinks."""
    state = {
        "logs/replay": {"rows": milepost.Rows({"obs": np.zeros((16, 3), np.uint8), "reward": np.zeros(16, np.float32)})},
        "logs/queue": {"episodes": milepost.Items(deque(maxlen=4))},
        "logs/extra": {"seen": np.zeros(1 << 21, np.bool_)},
    }
    for each in STEPS:
        if each <= step:
            go_on(state, each)
    return state


def go_on(state: dict[str, Any], step: int) -> None:
    """Train ``state`` on to ``step``: ten more rows, two older ones changed, two more episodes."""
    rows, episodes = state["logs/replay"]["rows"], state["logs/queue"]["episodes"]
    for row in range(step - 10, step):
        rows.arrays["obs"][rows.position], rows.arrays["reward"][rows.position] = row, row / 2
        rows.advance()
    if step > STEPS[0]:
        rows.arrays["reward"][[(step - 12) % 16, (step - 11) % 16]] = -1
        rows.touch(step - 12, step - 10)
    for length in (2, 3):
        episodes.append({"return": float(step), "actions": np.arange(length) + step})
    state["logs/extra"]["seen"][step] = True
