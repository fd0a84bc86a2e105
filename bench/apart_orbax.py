"""Ask Orbax to save the same bytes. It lives in an environment of its own, with jax: ``make bench-peers`` installs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from bench.goals import ORBAX, ORBAX_ASYNC
from bench.machine import files_below
from bench.measure import Contender
from bench.states import Workload

PYTHON = Path(__file__).resolve().parents[1] / ".venvs" / "peers" / "bin" / "python"
MISSING = "Orbax: not installed: make bench-peers installs it"


ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": ""}
SAYS = "Orbax: with NumPy arrays and OCDBT, as it comes, in a process of its own that holds the state"


def installed() -> bool:
    """Return whether there is such an environment."""
    return PYTHON.exists()


class Orbax:
    """Run Orbax in a process of its own, which holds the state; it says itself how long things took."""

    def __init__(self, workload: Workload, place: Path) -> None:
        self.folder = place / "orbax"
        arguments = [str(self.folder), str(len(workload.views)), str(workload.size_bytes)]
        command = [str(PYTHON), str(Path(__file__).with_name("orbax_peer.py")), *arguments]
        self._errors = (place / "orbax.log").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        )
        self._answer()

    def ask(self, what: str) -> Mapping[str, float]:
        """Have it ``async``, ``sync`` or ``load``, and return its figures."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._answer()

    def contenders(self) -> list[Contender]:
        """Return it as two of those that are measured."""
        return [
            Contender(name, "peer", lambda how=how: self._saved(how)) for name, how in ((ORBAX, "sync"), (ORBAX_ASYNC, "async"))
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _saved(self, how: str) -> Mapping[str, float]:
        figures = self.ask(how)
        figures = {**figures, "written": float(sum(path.stat().st_size for path in files_below(self.folder)))}
        shutil.rmtree(self.folder, ignore_errors=True)
        return figures

    def _answer(self) -> Mapping[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            said = self._errors.read()
            self.__exit__()
            raise RuntimeError(f"Orbax ended\n{said[-2000:]}")
        figures: Mapping[str, float] = json.loads(line)
        return figures
