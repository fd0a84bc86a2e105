"""Run a checkpoint service in a process of its own, as a user does, and connect to it by one way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from milepost.service import connect
from milepost.service.client import Client

_SERVE = "from milepost.cli.main import main; main()"


class Service:
    """Be `milepost serve` on a new root."""

    def __init__(self, root: Path, *options: str) -> None:
        self.root = root
        self._log = (root.parent / f"{root.name}.log").open("w+", encoding="utf-8")
        command = [sys.executable, "-c", _SERVE, "serve", str(root), *options]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)

    def client(self, component: str, transport: str = "auto") -> Client:
        """Return a client that moves all bytes, and by this way alone. One that trains is called ``trainer...``."""
        role = "trainer" if component.startswith("trainer") else "sampler"
        return connect(self.root, component=component, role=role, transport=transport, incremental=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it, and say what it said if that is not in good order."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait()
        self._log.seek(0)
        said = self._log.read()
        self._log.close()
        if code:
            raise RuntimeError(f"the service ended with {code}\n{said[-2000:]}")


class Child:
    """Be a process that does what each line says, and answers each with figures or a word."""

    def __init__(self, *arguments: str, python: str = sys.executable, environment: Mapping[str, str] | None = None) -> None:
        command = [python, *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
        )
        self.greeting = self.answer()

    def tell(self, line: str) -> None:
        """Say what is to be done, and do not wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """Return the next line that it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        return line.rstrip("\n")

    def ask(self, line: str) -> str:
        """Say what is to be done, and return the answer."""
        self.tell(line)
        return self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        code = self._process.wait()
        self._process.stdout.close()
        if code:
            raise RuntimeError(f"{self._process.args!r} ended with {code}")
