"""Give up what a test has claimed: a claim belongs to the process, and the next test is in the same one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from milepost.pytorch.dcp import give_up, holding
from tests.engine.training import without_git


@pytest.fixture(autouse=True)
def _nothing_is_held_after_a_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    without_git(monkeypatch)
    yield
    for url in list(holding._held):
        give_up(url)
    holding._loads.clear()
    holding._half.clear()
