"""The cells of the exactness matrix that are quick; `make exactness` runs them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactness.axes import Cell, subset
from exactness.judge import EXACT, TOLD, judge
from exactness.worlds import WORLDS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("cell", subset(), ids=str)
def test_a_killed_and_resumed_run_ends_like_one_left_alone_and_like_one_without_milepost(cell: Cell, tmp_path: Path) -> None:
    # B20, DESIGN 7.
    verdict = judge(cell, tmp_path)
    assert verdict.outcome == (TOLD if WORLDS[cell.world].not_exact else EXACT), verdict.detail
