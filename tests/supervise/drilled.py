"""Training scripts that are drilled, and what it takes to drill them without a terminal."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from milepost.clock import SystemClock
from milepost.supervise.drill import Request, Verdict, drill
from milepost.supervise.drill_run import Bench
from tests.supervise.scripts import SCRIPTS

HOLD = """
import os, signal, sys, threading

start = int(os.environ.get("MILEPOST_ATTEMPT", "1"))
went_on = []
signal.signal(signal.SIGCONT, lambda *_: went_on.append(1))

def hold(at):
    # Stand still where a run is to be struck, so that it is, however busy the machine; until it is let go on after a stop.
    if "/run-" in os.environ.get("MILEPOST_ROOT", "") and {stops}.get(start) == at:
        while not went_on:
            threading.Event().wait(0.01)
"""
MORE = {
    "ends at once when it is not alone": "import os, sys\n"
    "if '/run-' in os.environ['MILEPOST_ROOT']:\n    sys.exit()\n" + SCRIPTS["exact"],
    "takes over": SCRIPTS["exact"].replace("Keep(last=5)", "Keep(last=5), take_over=True"),
    "waits for the other": SCRIPTS["exact"].replace("Keep(last=5)", "Keep(last=5), lease_wait=1000.0"),
    "never ends, and saves": SCRIPTS["exact"]
    .replace("< 40", "< 10**9")
    .replace("hold(counters", "threading.Event().wait(0.002); hold(counters"),
    "takes its time to begin, and waits for the other": "import threading\nthreading.Event().wait(4.0 * (start > 1))\n"
    + SCRIPTS["exact"].replace("Keep(last=5)", "Keep(last=5), lease_wait=1000.0"),
    "does not listen": SCRIPTS["exact"].replace("Keep(last=5)", "Keep(last=5), stop=False"),
    "ends by a signal without a name": "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), 40))\n"
    + SCRIPTS["exact"].replace("Keep(last=5)", "Keep(last=5), stop=False"),
    "keeps one": SCRIPTS["exact"].replace("Keep(last=5)", "Keep(last=1)"),
    "trains to 80": SCRIPTS["exact"].replace("< 40", "< 80"),
    "ends with 75 and has not saved": "told = []\n"
    "signal.signal(signal.SIGTERM, lambda *_: os._exit(75) if counters['step'] % 10 == 5 else told.append(1))\n"
    + SCRIPTS["exact"]
    .replace("Keep(last=5)", "Keep(last=5), stop=False")
    .replace("hold(counters", "told and counters['step'] % 10 == 5 and os._exit(75); hold(counters"),
    "under milepost run": "import sys\nif 'INNER' not in os.environ:\n    os.environ['INNER'] = '1'\n"
    "    os.execv(sys.executable, [sys.executable, '-c', 'from milepost.cli.main import main; main()', 'run', '--', "
    "sys.executable, *sys.argv])\n" + SCRIPTS["exact"],
    "goes by its whole path": SCRIPTS["exact"].replace("'runs/mine'", "HERE + '/runs/mine'").replace("< 40", "< 80"),
}
MORE["ends at once when it is started again, and would never"] = MORE["never ends, and saves"].replace(
    "    while", "    if start > 1:\n        sys.exit()\n    while"
)
MORE["saves at other steps when it is started again"] = (
    MORE["never ends, and saves"]
    .replace("every(steps=10)", "every(steps=[10, 10**6][start > 1])")
    .replace("hold(counters", "start > 1 and counters['step'] % 10 == 3 and engine.save(counters['step']); hold(counters")
)


def written(name: str, folder: Path, stops: dict[int, int | str] | None = None) -> Path:
    """Write a script, and return where it is. ``stops``: by start of a run that is struck, the step where it waits for that."""
    path = folder / "train.py"
    text = HOLD.replace("{stops}", repr({1: 35} if stops is None else stops)) + (MORE | SCRIPTS)[name]
    path.write_text(f"HERE = {str(folder)!r}\n{text}")
    return path


def drilled(name: str, folder: Path, verb: Any = "kill9", stops: dict[int, int | str] | None = None, **settings: Any) -> Verdict:
    """Drill a script, struck as soon as it has saved what it needs to; with ``draw=`` somewhere later."""
    scratch = folder / "scratch"
    scratch.mkdir()
    command = (sys.executable, str(written(name, folder, stops)))
    request = Request(verb, command, **{"runs": 1, "timeout_s": 60.0} | settings)
    return drill(request, bench(scratch))


def bench(scratch: Path, draw: Callable[[], float] = lambda: 0.0) -> Bench:
    return Bench(scratch, SystemClock(), threading.Event().wait, lambda _: None, draw)


def fingerprint(root: Path) -> dict[str, tuple[object, ...]]:
    """Return of each file and directory of a root all that a drill may not change."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, _, files in os.walk(root):
        for path in (Path(folder), *(Path(folder, file) for file in files)):
            status = path.lstat()
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            facts = (status.st_ino, status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns, digest)
            found[str(path.relative_to(root))] = facts
    return found
