"""Fetch versions of a real service by the transfer engine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from milepost.errors import UsageError
from milepost.service import connect
from milepost.service.server.serving import Server
from milepost.service.settings import ServiceSettings


def children() -> list[int]:
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def test_a_reader_reads_the_memory_of_the_service_and_goes_another_way_once_the_engine_has_fallen(tmp_path: Path) -> None:
    root, base = tmp_path / "run", tmp_path / "memory"
    base.mkdir()
    first, second = ({"w": np.frombuffer(os.urandom(3 << 20), np.uint8)} for _ in range(2))
    with (
        Server(root, ServiceSettings(transport="rdma", insecure=True), run_id="run", memory_base=str(base)),
        connect(root, component="trainer", role="trainer") as trainer,
        connect(root, component="engine", role="sampler", transport="rdma", incremental=False) as by_engine,
        connect(root, component="port", role="sampler", transport="bulk", incremental=False) as by_port,
    ):
        trainer.commit(1, first)
        weights = by_engine.fetch()
        assert weights is not None
        assert weights["w"].tobytes() == first["w"].tobytes()
        assert trainer.status().counts["bytes.bulk"] == 0
        [engine] = [pid for pid in children() if b"rdma_serving" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(engine, signal.SIGKILL)
        trainer.commit(2, second)
        weights = by_port.fetch()
        assert weights is not None
        assert weights["w"].tobytes() == second["w"].tobytes()


def test_what_hands_weights_to_everybody_is_asked_for_twice() -> None:
    with pytest.raises(UsageError) as caught:
        ServiceSettings(transport="rdma")
    assert caught.value.kind == "insecure"
    with pytest.raises(UsageError) as caught:
        ServiceSettings(transport="rdma", insecure=True, host="0.0.0.0")
    assert caught.value.kind == "bad-setting"
