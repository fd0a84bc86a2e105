"""Run one function in a process of its own: for its memory, which is to be nobody else's, or for a clean start."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def run_apart(function: str, **arguments: object) -> Mapping[str, float]:
    """Call ``function`` (``module:name``) in a fresh interpreter and return its figures. What it prints besides is lost."""
    command = [sys.executable, "-m", "bench.apart", function, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{function} failed in its own process\n{done.stderr}")
    figures: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _main() -> None:
    from bench.measure import quiet

    quiet()
    module, _, name = sys.argv[1].partition(":")
    function: Any = getattr(importlib.import_module(module), name)
    print(json.dumps(function(**json.loads(sys.argv[2]))))


if __name__ == "__main__":
    _main()
