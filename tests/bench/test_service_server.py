"""What the figures of the service are measured with leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.service_server import Service
from milepost.clock import SystemClock
from milepost.service.resting import read_rest
from tests.service.leftovers import nothing_outlives_the_tests

__all__ = ["nothing_outlives_the_tests"]  # a fixture, found by its name


def test_a_service_that_was_measured_gives_its_memory_back(tmp_path: Path) -> None:
    with Service(tmp_path / "run") as service:
        with service.client("trainer") as trainer:
            trainer.commit(1, {"w": np.ones(3, np.float32)})
        memory = Path(read_rest(str(service.root), SystemClock()).memory.directory)
        assert memory.is_dir()
    assert not memory.exists()
