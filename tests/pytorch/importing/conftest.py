"""Write payloads of one rank and of two, once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pytorch.dcp.ranks import run
from tests.pytorch.importing.trees import save_payloads

Bits = dict[str, dict[str, bytes]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"))


@dataclass(frozen=True)
class Payloads:
    """Hold what one and two ranks have saved: where, and the bits of it."""

    place: Path
    bits: dict[int, Bits]

    def of(self, ranks: int) -> Path:
        return self.place / str(ranks)


@pytest.fixture(scope="session")
def payloads(tmp_path_factory: pytest.TempPathFactory) -> Payloads:
    place = tmp_path_factory.mktemp("payloads")
    two = run(2, save_payloads, place, str(place / "2"))
    return Payloads(place, {1: save_payloads(0, str(place / "1")), 2: two[0]})
