"""Whoever only connects takes nothing of what the service works with. C13, C14"""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from milepost.service.server import descriptors
from tests.service.server.conftest import Hall, until
from tests.service.server.test_calls import DATA


@pytest.fixture
def limit() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_connections_without_a_word_leave_files_for_those_that_are_served(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.service.server.listening.most_connections", lambda: 8)
    hall.serve()
    trainer = hall.trainer()
    with ExitStack() as held:
        host, _, port = hall.server.address.rpartition(":")
        flood = [held.enter_context(socket.create_connection((host, int(port)))) for _ in range(32)]
        # Those that are too many are ended; the others are greeted, and stay.
        until(lambda: sum(_has_ended(each) for each in flood) >= 24)
        assert trainer.commit("k1", 1, {"weights": DATA}, durable=True).durable
    assert hall.sampler().fetch().take.weights.step == 1  # there is a place again


def test_a_service_may_open_as_many_files_as_the_machine_lets_it(limit: tuple[int, int]) -> None:
    hard = limit[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    assert descriptors.most_connections() == 64
    descriptors.raise_limit()
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert soft == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536))
    assert descriptors.most_connections() == soft - 512


def _has_ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
