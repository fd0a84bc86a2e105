"""The power is cut at every moment of a first save into a directory with somebody else's LATEST: that is never lost. A8"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import milepost
from milepost.testing.power import Cut, Recorder, replay
from tests.engine.training import local

THEIRS = b'{"generation": "generation_step00000007", "global_step": 7}'


def act(place: Path, recorder: Recorder) -> None:
    store = local(place / "run", recorder)
    store.replace("LATEST", THEIRS)
    recorder.note("theirs")
    milepost.save(store, {"w": np.zeros(3)}, step=1)
    recorder.note("acknowledged")


def check(cut: Cut, place: Path) -> None:
    if cut.noted("theirs"):
        assert THEIRS in [path.read_bytes() for path in (place / "run").glob("LATEST*")]


def test_a_power_cut_anywhere_leaves_somebody_elses_latest() -> None:
    tally = replay(act, check, seed=1)
    assert tally.lost == 0, tally.failures[0]
    assert tally.operations > 10
