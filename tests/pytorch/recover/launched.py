"""Start `trained.py` on two ranks under `milepost run`, as a program beside the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.supervise.runs import MILEPOST, QUICK, Started

TRAINED = str(Path(__file__).with_name("trained.py"))
AGENT = (sys.executable, TRAINED, ".", "agent")
"""torchrun's own agent, with ranks that are forked from it."""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", TRAINED, ".")
PATIENT = (*QUICK, "--max-infrastructure", "-1", "--grace", "5m")
ROOT = Path("root", "checkpoints", "u", "e", "t")
PATIENCE_S = 600.0
"""How long a run may take before the test fails: it only ever fails."""


@contextmanager
def launched(
    folder: Path,
    orders: Sequence[Mapping[str, Any] | None],
    command: Sequence[str] = AGENT,
    *options: str,
    env: Mapping[str, str] | None = None,
) -> Iterator[Started]:
    """Start it. It is ended with the test, and all that it has started."""
    (folder / "orders.json").write_text(json.dumps(orders))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MILEPOST_")}
    environment |= {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"OMP_NUM_THREADS": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "300", **(env or {})}
    words = [*MILEPOST, "run", "--log", "log", *PATIENT, *options, "--", *command]
    with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    try:
        yield Started(process, folder)
    finally:
        for number in (signal.SIGCONT, signal.SIGTERM, *[signal.SIGINT] * 20, signal.SIGKILL):
            # One signal and another a second later kill all of it.
            if process.poll() is None:
                process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        process.wait()


def ran(folder: Path, orders: Sequence[Mapping[str, Any] | None], command: Sequence[str] = AGENT, *options: str) -> Started:
    """Run it to its end."""
    with launched(folder, orders, command, *options) as started:
        started.process.wait(PATIENCE_S)
        return started


def ends_of(folder: Path) -> list[str]:
    """Return what each rank was at the end."""
    return [(folder / f"end-{rank}").read_text() for rank in range(2)]


def resumed(folder: Path) -> dict[int, list[int]]:
    """Return by attempt which generations its ranks went on from, of those that came so far."""
    found: dict[int, list[int]] = {}
    for path in sorted(folder.glob("resumed-*")):
        _, attempt, _ = path.name.split("-")
        found.setdefault(int(attempt), []).append(int(path.read_text()))
    return found
