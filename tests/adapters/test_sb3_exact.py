"""A killed and restarted run ends with the same bits as the run that was left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milepost.adapters.sb3 import Checkpointing
from milepost.lifecycle.triggers import every
from tests.adapters.sb3_runs import KILLED, SCENARIOS, KillAt, build, in_child, pieces

pytestmark = pytest.mark.slow


def run(
    name: str, folder: Path, *, seed: int = 1, checkpoints: bool = True, kill_at: int | None = None, total: int | None = None
) -> Any:
    """Run a scenario's script once."""

    def script() -> Any:
        model, callbacks = build(name, seed, folder)
        ours = [Checkpointing(folder / "run", when=every(steps=SCENARIOS[name][2]), writer="inline")] if checkpoints else []
        model.learn(total or SCENARIOS[name][1], callback=[*callbacks, *ours, KillAt(kill_at)])
        return pieces(model, callbacks)

    return in_child(script)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(name: str, tmp_path: Path) -> None:
    # B20, DESIGN 7: neither milepost nor a kill changes a bit, even where the script has another seed by then.
    _, _, _, kills = SCENARIOS[name]
    alone = run(name, tmp_path / "alone", checkpoints=False)
    for kill_at in kills:
        assert run(name, tmp_path / "killed", kill_at=kill_at, seed=1 if kill_at == kills[0] else 2) == KILLED
    assert run(name, tmp_path / "killed", seed=3) == alone
    # Run once more, it trains nothing: a step would die.
    assert run(name, tmp_path / "killed", seed=4, kill_at=0) == alone
