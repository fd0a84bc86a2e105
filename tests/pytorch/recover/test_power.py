"""The power is cut at every moment of saves beside training: what had ended loads whole, all engines of one step. A9, A10"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import milepost
from milepost.engine import relief
from milepost.pytorch.recover import handler as module
from milepost.testing.power import Cut, Recorder, replay
from tests.engine.training import local
from tests.pytorch.recover.test_round_trips import handler
from tests.pytorch.recover.training import Loader, at, digest, engines, train

CUTS = 40
MODES = {"default": "async", "critic": "sync", "ref": "async"}


# Forty moments, with a load and a save after each.
def test_a_power_cut_anywhere_loses_nothing_that_had_ended(tmp_path: Path) -> None:
    was: dict[int, str] = {}

    def act(place: Path, recorder: Recorder) -> None:
        trained, loader = engines(modes=MODES), Loader()

        def opened(root: Any, *_: Any, **__: Any) -> Any:
            return local(Path(root), recorder)

        small = mock.patch.object(relief, "BALLAST_BYTES", 16384)
        with mock.patch.object(module, "open_root", opened), small, handler(place, keep=milepost.Keep(last=2)) as each:
            for step in range(4):
                train(trained, loader)
                was[step] = digest(trained, loader)
                each.dump(trained, at(step), dataloader=loader, force=True)
                train(trained, loader)
                each.wait()
                recorder.note("acknowledged", step=step)

    def check(cut: Cut, place: Path) -> None:
        told = [int(str(facts["step"])) for facts in cut.noted("acknowledged")]
        again, loader = engines(seed=5), Loader()
        with handler(place, keep=milepost.Keep(last=2)) as each:
            info = each.load(again, dataloader=loader)
            assert (info is None) <= (not told)
            if info is not None:
                assert info.step >= max(told, default=0)
                assert info.skipped == ()
                assert digest(again, loader) == was[info.step]
                assert each.dump(again, at(9), dataloader=loader, force=True)

    tally = replay(act, check, seed=1, limit=CUTS)
    assert tally.lost == 0, tally.failures[0]
    assert (tally.cuts, tally.acknowledged) == (CUTS, 4)
