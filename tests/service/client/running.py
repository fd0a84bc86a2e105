"""Run a real service in a process of its own: started, killed, and started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from milepost.service.client.client import Client, connect

_SCRIPT = """
import json, sys
from milepost.service.server.serving import serve
from milepost.service.settings import ServiceSettings
root, memory, settings = sys.argv[1:]
serve(root, ServiceSettings.of(json.loads(settings)), memory_base=memory, ready=lambda _: print("ready", flush=True))
"""


class Running:
    """Be a service that runs, or did."""

    def __init__(self, root: Path, memory: str, settings: str) -> None:
        self.root = root
        self.memory = memory
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-c", _SCRIPT, str(self.root), self.memory, self._settings]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        """Kill it, as the machine's out-of-memory killer would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        self.kill()
        self.start()

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=60)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def client(self, component: str, role: Any = "sampler", **settings: Any) -> Client:
        return connect(self.root, component=component, role=role, **settings)


@contextmanager
def running(root: Path, settings: str = "{}") -> Iterator[Running]:
    """Run a service below ``root`` until this is left; then nothing of it is in memory any more."""
    memory = tempfile.mkdtemp(prefix=f"milepost-test-{os.getpid()}-", dir="/dev/shm")
    service = Running(root, memory, settings)
    try:
        service.start()
        yield service
    finally:
        service.stop()
        shutil.rmtree(memory, ignore_errors=True)
