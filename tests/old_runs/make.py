"""Make the run of today's format, once, to be committed: ``python -m tests.old_runs.make``. It refuses to write over one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from milepost.clock import FakeClock
from milepost.engine import opening, provenance
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.lifecycle.retain import Keep
from milepost.publish import pins
from milepost.publish.term import Identity
from milepost.records import FORMAT_VERSION
from milepost.store.local import LocalStore
from tests.old_runs.content import STEPS, go_on, logs_at, state_at


def main() -> None:
    """Write ``tests/old_runs/<format version>``: two generations kept of three, a pin, a second claim."""
    root = Path(__file__).parent / str(FORMAT_VERSION)
    if root.exists():
        sys.exit(f"{root} exists; a committed run is never made anew")
    # Nothing of the machine it was made on belongs into a file that stays for good.
    sys.orig_argv = ["python", "-m", "tests.old_runs.make"]
    opening.identity = lambda: Identity("example", "", 1)
    provenance.git_commit = lambda: ""
    clock = FakeClock(prefix="01d0")
    store = LocalStore(root, clock)
    state: dict[str, Any] = state_at(0) | logs_at(0)
    for steps in (STEPS[:2], STEPS[2:]):
        engine = CheckpointEngine(store, state=state, keep=Keep(last=2, best=1, by="score"), writer="inline", clock=clock)
        with engine:
            engine.resume()
            for step in steps:
                for component, value in state_at(step).items():
                    state[component].update(value)
                go_on(state, step)
                engine.report(step, {"score": float(step)})
                engine.save(step, episodes=step // 10)
    pins.pin(store, 2, by="tests")
    for name in ("writer.lock", "ballast"):
        (root / name).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
