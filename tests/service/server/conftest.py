"""A server on real sockets for each test, and processes that speak with it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from milepost.service.server.serving import Server
from milepost.service.settings import ServiceSettings
from tests.service.server.speaking import Speaker

SETTINGS = ServiceSettings(memory_bytes=1 << 20, retry_s=0.01)


class Hall:
    """Be where a server and those who speak with it are."""

    def __init__(self, path: Path, held: ExitStack) -> None:
        self.root = path / "run"
        self.shm = path / "shm"
        self.shm.mkdir()
        self._held = held
        self.server: Server

    def serve(self, settings: ServiceSettings = SETTINGS, **options: Any) -> Server:
        """Begin a server, which ends with the test unless it ended before."""
        self.server = Server(self.root, settings, memory_base=str(self.shm), **options)
        return self._held.enter_context(self.server)

    def speaker(self, component: str, incarnation: str = "1", **options: Any) -> Speaker:
        """Return one who speaks with the server."""
        options = {"token": self.server.token, **options}
        return self._held.enter_context(Speaker(self.server.address, options.pop("token"), component, incarnation, **options))

    def trainer(self, incarnation: str = "1", epoch: int = 1, **fields: Any) -> Speaker:
        """Return a trainer that has said hello."""
        speaker = self.speaker("trainer", incarnation)
        speaker.hello("trainer", epoch, **fields)
        return speaker

    def sampler(self, name: str = "sampler-0") -> Speaker:
        """Return a sampler that has said hello."""
        speaker = self.speaker(name)
        speaker.hello("sampler")
        return speaker

    @property
    def places_in_memory(self) -> list[str]:
        return sorted(path.name for path in self.shm.glob("milepost-*/*") if path.is_dir())


@pytest.fixture
def hall(tmp_path: Path) -> Iterator[Hall]:
    with ExitStack() as held:
        yield Hall(tmp_path, held)


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_open() -> Iterator[None]:
    yield
    gc.collect()  # a coroutine that nobody awaited, or a socket that nobody closed, warns here, and not in another's test


@pytest.fixture
def served(hall: Hall) -> Hall:
    hall.serve()
    return hall


def until(holds: Callable[[], bool], tries: int = 20_000) -> None:
    """Ask again and again, each time over a real connection, until it holds."""
    for _ in range(tries):
        if holds():
            return
    raise AssertionError("it never came to hold")
