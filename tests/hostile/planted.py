"""Make run roots that an attacker has had: any byte may be any other, and every seal fits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from milepost.encode.digest import seal, unseal
from milepost.records import Restored
from tests.engine.training import local
from tests.old_runs.content import state_at

BASE = Path(__file__).resolve().parents[1] / "old_runs" / "1"
HEAD = "generations/000003.json"
BLOB = "blobs/000003-t2-01d0000000000019.safetensors"
Change = Callable[[Any], object]


def run_in(root: Path) -> Path:
    """Return a small sound run of two generations."""
    shutil.copytree(BASE, root)
    return root


def body_of(path: Path) -> Any:
    return json.loads(unseal(path.read_bytes(), path.name))


def reseal(path: Path, change: Change) -> None:
    """Change what a record says, and seal it as its writer would have."""
    body = body_of(path)
    changed = change(body)
    write(path, body if changed is None else changed)


def write(path: Path, body: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(seal(json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()))


def at(*keys: str | int, value: Any) -> Change:
    """Return a change of one place."""

    def change(body: Any) -> None:
        for key in keys[:-1]:
            body = body[key]
        body[keys[-1]] = value

    return change


def live_state() -> dict[str, Any]:
    """Return what a training script has before it resumes."""
    return state_at(0) | {"extra": {}}


def resume(root: Path) -> tuple[Restored | None, dict[str, Any]]:
    """Resume into a fresh state, and return both."""
    import milepost

    state = live_state()
    with milepost.CheckpointEngine(local(root), state=state) as engine:
        return engine.resume(), state


def same_state(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(one[part][name], other[part][name]) for part in ("policy", "replay") for name in one[part])
