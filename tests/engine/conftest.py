"""What every test of the engine starts from."""

from __future__ import annotations

import pytest

from tests.engine.training import without_git


@pytest.fixture(autouse=True)
def _no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    without_git(monkeypatch)
