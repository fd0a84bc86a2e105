"""Life is decided from records: a store in memory will do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from milepost.engine import provenance
from tests.publish.world import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Return an empty run root."""
    monkeypatch.setattr(provenance, "git_commit", lambda: "")
    made = World("memory", tmp_path)
    yield made
    made.close()
