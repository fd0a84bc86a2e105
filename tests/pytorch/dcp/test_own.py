"""What each rank has by itself comes back to the rank that had it. A6"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import milepost
from milepost.errors import MismatchError, UsageError
from milepost.pytorch.dcp import RunWriter, load, save
from tests.pytorch.dcp.ranks import run
from tests.pytorch.dcp.test_several_ranks import small


class Loader:
    """Be a place in the data."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.seen = at, {3: "a key that is a number"}

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "seen": dict(self.seen), "order": np.arange(self.at)}

    def load_state_dict(self, state: Any) -> None:
        assert np.array_equal(state["order"], np.arange(state["at"]))
        self.at, self.seen = state["at"], state["seen"]


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def save_with_own(rank: int, root: str) -> list[float]:
    random.seed(rank), np.random.seed(rank), torch.manual_seed(rank)
    drawn()
    save(small(1), RunWriter(root, step=1), own={"rng": milepost.Rng(), "data": Loader(10 + rank)})
    return drawn()


def load_with_own(rank: int, root: str) -> Any:
    loader = Loader()
    restored = load(small(0), root, own={"rng": milepost.Rng(), "data": loader})
    return restored.inexact, loader.at, loader.seen, drawn()


def test_generators_and_places_in_the_data_come_back_to_their_rank_where_as_many_load_as_have_saved(tmp_path: Path) -> None:
    root = str(tmp_path / "run")
    went_on = run(2, save_with_own, tmp_path, root)
    assert went_on[0] != went_on[1]
    for rank, (inexact, at, seen, then) in enumerate(run(2, load_with_own, tmp_path, root)):
        assert (inexact, at, seen) == ((), 10 + rank, {3: "a key that is a number"})
        assert then == went_on[rank]
    for inexact, at, _, _ in run(1, load_with_own, tmp_path, root):
        assert at == 0
        assert "saved by 2 ranks and loaded by 1" in inexact[0]
        assert "rng, data" in inexact[1]


def test_what_was_saved_without_it_is_told(root: str) -> None:
    plain = {"model": {"w": torch.zeros(2)}}
    save(plain, RunWriter(root), no_dist=True)
    restored = load(plain, root, own={"data": Loader()}, no_dist=True)
    assert restored.inexact == ("what each rank has by itself was not brought back: data",)
    save(plain, RunWriter(root), own={"data": Loader(4)}, no_dist=True)
    assert load(plain, root, no_dist=True).exact
    with pytest.raises(MismatchError, match="own/other"):
        load(plain, root, own={"data": Loader(), "other": Loader()}, no_dist=True)


def test_what_gives_no_state_is_refused(root: str) -> None:
    for own in ({"data": 3}, {"data": Loader}):
        with pytest.raises(UsageError, match="state_dict"):
            save({"model": {}}, RunWriter(root), own=own, no_dist=True)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="rename"):
        save({"own": 1}, RunWriter(root), own={"data": Loader()}, no_dist=True)
