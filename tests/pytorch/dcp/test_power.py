"""The power is cut at every moment of a save of two ranks: what `dcp.save` had acknowledged loads whole. A10

DCP's own writer syncs its metadata before it has written them, and no directory at all.
"""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch

from milepost.engine import relief
from milepost.errors import NotFoundError
from milepost.lifecycle.retain import Keep
from milepost.publish.view import read
from milepost.pytorch.dcp import RunWriter, give_up, load, save
from milepost.testing.power import Cut, Recorder, replay
from tests.engine.training import local
from tests.power.drops import Dropping
from tests.pytorch.dcp.ranks import run
from tests.pytorch.dcp.states import differences
from tests.pytorch.dcp.test_several_ranks import small

CUTS = 40


def save_recorded(rank: int, place: str, journal: str, steps: tuple[int, ...], without: tuple[str, str] | None = None) -> None:
    recorder = Recorder(place, journal, Dropping(*without) if without else None)
    store = local(Path(place) / "run", recorder)
    with mock.patch.object(relief, "BALLAST_BYTES", 16384):
        for step in steps:
            saved = save(small(step), RunWriter(store, step=step, keep=Keep(last=2)))
            recorder.note("acknowledged", number=saved.number, step=step)


def check(cut: Cut, place: Path) -> None:
    root = place / "run"
    told = {facts["number"]: facts["step"] for facts in cut.noted("acknowledged")}
    wanted = {"model": {"w": torch.zeros((4, 3))}, "step": 0}
    try:
        restored = load(wanted, root, no_dist=True)
    except NotFoundError:
        assert not told
        restored = None
    else:
        assert restored.generation >= max(told, default=0)
        assert restored.skipped == ()
        rows = torch.full((4, 3), float(restored.step)) + torch.arange(4.0)[:, None]
        assert differences(wanted, {"model": {"w": rows}, "step": restored.step}) == []
        assert restored.step == told.get(restored.generation, restored.step)
    saved = save(wanted, RunWriter(root, step=9), no_dist=True)
    give_up(root)
    assert saved.number > (restored.generation if restored else 0)
    named = {blob.name for summary in read(local(root)).live.values() for blob in summary.blobs}
    assert {f"blobs/{path.name}" for path in (root / "blobs").iterdir()} == named


@pytest.mark.parametrize("seed", [1, 2])
def test_a_power_cut_anywhere_in_a_save_of_two_ranks_leaves_what_was_acknowledged(seed: int, tmp_path: Path) -> None:
    def act(place: Path, recorder: Recorder) -> None:
        run(2, save_recorded, tmp_path, str(place), recorder.journal, (1, 2, 3, 4))

    tally = replay(act, check, seed=seed, limit=CUTS)
    assert tally.lost == 0, tally.failures[0]
    assert (tally.cuts, tally.acknowledged > 6, tally.operations > 100) == (CUTS, True, True)


@pytest.mark.parametrize("sync", [("fsync", "commit"), ("sync_directory", "commit")])
def test_the_same_finds_blobs_of_a_rank_that_are_not_durable(sync: tuple[str, str], tmp_path: Path) -> None:
    def act(place: Path, recorder: Recorder) -> None:
        run(2, save_recorded, tmp_path, str(place), recorder.journal, (1, 2), sync)

    assert replay(act, check, seed=1, limit=400, lost_at_most=1).lost == 1
