"""What every test of sick disks starts from: a place in memory, and a ballast as small as the runs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from milepost.engine import relief
from tests.engine.training import without_git


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a directory in memory where there is one: hundreds of runs are written, and nothing depends on the medium."""
    without_git(monkeypatch)
    monkeypatch.setattr(relief, "BALLAST_BYTES", 8192)
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="milepost-sick-", dir=memory))
    yield made
    shutil.rmtree(made, ignore_errors=True)
