"""Write down what a process has done, a line at a time: for curves, and for whoever wants to check it afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor


class Diary:
    """Be a file of JSON lines. Each is one write, so that a process which is killed leaves whole lines, and those before."""

    def __init__(self, path: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.file = open(path, "ab", buffering=0)  # noqa: SIM115  (open until the process ends)
        self.attempt = int(os.environ.get("MILEPOST_ATTEMPT", "1"))

    def note(self, **facts: Any) -> None:
        """Add a line, with the time and which start of this process it is."""
        self.file.write(json.dumps({"time_s": time.time(), "attempt": self.attempt, **facts}).encode() + b"\n")


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of the very numbers that are trained or sampled with, whatever way they came."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
