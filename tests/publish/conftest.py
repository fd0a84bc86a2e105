"""Every protocol test runs on both stores: what holds only because a dictionary is quick holds nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from milepost.engine import provenance
from tests.publish.world import World


@pytest.fixture(params=["memory", "local"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Return an empty run root."""
    made = World(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no program at each claim."""
    monkeypatch.setattr(provenance, "git_commit", lambda: "")
