"""Run a server as a process of its own: ``python -m tests.service.server.process ROOT SHM SETTINGS``."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from milepost.errors import MilepostError
from milepost.service.endpoint import Endpoint, read_token
from milepost.service.server.serving import Server, serve
from milepost.service.settings import ServiceSettings
from tests.service.server.speaking import Speaker

ROOT = Path(__file__).resolve().parents[3]


class Process:
    """Be a server in a process of its own. What it says of itself is read from its output; leaving the context kills it."""

    def __init__(self, root: Path, shm: Path, **settings: Any) -> None:
        shm.mkdir(exist_ok=True)
        self.root = root
        command = [sys.executable, "-W", "error", "-m", "tests.service.server.process"]
        given = msgspec.json.encode({"memory_bytes": 1 << 20, **settings}).decode()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        self.popen = subprocess.Popen(
            [*command, str(root), str(shm), given], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        self.endpoint = msgspec.json.decode(line, type=Endpoint) if line.startswith("{") else None
        self.said = line

    def speaker(self, component: str, incarnation: str = "1") -> Speaker:
        assert self.endpoint is not None
        return Speaker(self.endpoint.address, read_token(self.root), component, incarnation)

    def wait(self) -> int:
        """Return its exit status once it has ended."""
        return self.popen.wait(timeout=120)

    def kill(self) -> None:
        self.popen.kill()
        self.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.kill()
        self.popen.wait(timeout=120)
        assert self.popen.stdout is not None
        self.popen.stdout.close()


def main() -> int:
    root, shm, settings = sys.argv[1:]

    def ready(server: Server) -> None:
        with suppress(BrokenPipeError):
            print(msgspec.json.encode(server.endpoint).decode(), flush=True)

    try:
        serve(root, ServiceSettings.of(msgspec.json.decode(settings)), memory_base=shm, ready=ready)
    except MilepostError as error:
        print(f"{error.kind}: {error}", flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
