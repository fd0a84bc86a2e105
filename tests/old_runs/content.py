"""Say what the committed runs hold. Never change this for a format that has been released: add to it for the next one."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import numpy as np

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
