"""Start processes that look at a run: whole ones, from the interpreter's first instruction to its last."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.goals import GOALS
from bench.measure import Contender, Outcome, Setting, interleave, timed
from milepost import CheckpointEngine, Keep
from milepost.clock import SystemClock
from milepost.store.local import LocalStore
from milepost.store.posix import Posix

_READ = """
import sys, click, msgspec
from pathlib import Path
for path in sorted(Path(sys.argv[1], "generations").glob("*.json")):
    path.read_bytes()
"""
_LS = "from milepost.cli.main import main; main()"


def importing(setting: Setting) -> Outcome:
    """Import milepost, in every environment worker of a training script that does."""
    floor = "import numpy, msgspec, xxhash"
    rows = _pairs(setting, {floor: ["-c", floor], "milepost": ["-c", "import milepost"]})
    return Outcome("import", "python -c", rows)


def listing(setting: Setting) -> Outcome:
    """List a run of 1,000 generations."""
    count = setting.scaled(1000, 200)
    root = setting.place / "run"
    _publish(root, count)
    floor = next(goal.against for goal in GOALS if goal.benchmark == "ls")
    rows = _pairs(setting, {floor: ["-c", _READ, str(root)], "milepost": ["-c", _LS, "ls", str(root)]})
    return Outcome("ls", f"milepost ls on a run of {count:,} generations", rows)


def _pairs(setting: Setting, commands: Mapping[str, Sequence[str]]) -> tuple[Any, ...]:
    contenders = [
        Contender(name, "milepost" if name == "milepost" else "floor", _process(arguments))
        for name, arguments in commands.items()
    ]
    rounds, budget_s = setting.scaled(31, 7), setting.scaled(30, 4)
    for contender in contenders:
        contender.sample()  # compiles what is not compiled yet
    return interleave(contenders, setting, rounds=rounds, budget_s=budget_s, settle=lambda: None)


def _process(arguments: Sequence[str]) -> Callable[[], Mapping[str, float]]:
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}

    def sample() -> Mapping[str, float]:
        return {"process": timed(lambda: subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True))}

    return sample


class _Hasty(Posix):
    """Wait for no disk: these files are only to be there."""

    def perform(self, name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Make the call, unless it would wait."""
        return None if name in ("fsync", "sync_directory") else function(*args, **kwargs)


def _publish(root: Path, count: int) -> None:
    """Publish ``count`` generations of twenty numbers each."""
    state = {"policy": {f"layer{n}": [float(n)] for n in range(20)}}
    store = LocalStore(root, SystemClock(), posix=_Hasty())
    with CheckpointEngine(store, state=state, keep=Keep(last=count), writer="inline") as engine:
        for step in range(count):
            engine.report(step, {"eval/return": float(step)})
            engine.save(step)
