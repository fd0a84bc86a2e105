"""Let DCP say that there is one process only."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"))


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "run")
