"""Drill the built-in sample with every verb, again and again, as a user does; the kernel decides what a full disk is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

_RUN = "import sys; from milepost.cli.main import main; main()"
VERBS = ("kill9", "term", "stop", "bitflip", "diskfull")
_NO_MOUNTS = "no-name-spaces"


def drills(verb: str, runs: int) -> Iterator[str]:
    """Yield what a drill has found wrong, and nothing where all runs recovered. Where nobody may mount, none is full."""
    command = [sys.executable, "-c", _RUN, "drill", verb, "--json", "--runs", str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = json.loads(done.stdout or done.stderr.splitlines()[-1])
    if said.get("kind") == _NO_MOUNTS:
        return
    if said.get("outcome") != "recovered":
        wrong = [run for run in said.get("runs", ()) if not run["recovered"]] or said
        yield f"drill {verb}: exit code {done.returncode}: {json.dumps(wrong)}"
