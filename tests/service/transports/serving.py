"""Serve a directory in a process of its own: ``python -m tests.service.transports.serving bulk DIRECTORY [TOKEN]``.

Says its address in a line, and goes on until its input ends.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from milepost.service.transports.bulk_server import BulkServer
from milepost.service.transports.folder import Folder

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def serving(kind: str, directory: Path, *args: str) -> Iterator[tuple[str, int]]:
    """Serve in a process of its own; yield the address and the process."""
    command = [sys.executable, "-m", "tests.service.transports.serving", kind, str(directory), *args]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip(), server.pid
        finally:
            server.kill()


def serve_bulk(directory: str, token: str = "") -> None:
    with BulkServer(Folder(directory), token) as server:
        print(server.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    {"bulk": serve_bulk}[sys.argv[1]](*sys.argv[2:])
