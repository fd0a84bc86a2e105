"""Give up what a test has claimed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from milepost.pytorch.dcp import give_up, holding
from tests.engine.training import without_git


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"))


@pytest.fixture(autouse=True)
def _nothing_is_held_after_a_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    without_git(monkeypatch)
    yield
    for url in list(holding._held):
        give_up(url)
    holding._loads.clear()
    holding._half.clear()
