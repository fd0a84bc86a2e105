"""What every test of sick disks starts from: a place in memory, and a ballast as small as the runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from milepost.engine import relief
from milepost.testing.power import scratch
from tests.engine.training import with_logs, without_git


@pytest.fixture
def _logs() -> Iterator[None]:
    """Let the states have logs in them, too."""
    with with_logs():
        yield


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a directory in memory where there is one: hundreds of runs are written, and nothing depends on the medium."""
    without_git(monkeypatch)
    monkeypatch.setattr(relief, "BALLAST_BYTES", 16384)
    with scratch() as made:
        yield made
