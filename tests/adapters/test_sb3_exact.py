"""A killed and restarted run ends with the same bits as the run that was left alone."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

from milepost.adapters.sb3 import checkpointing
from milepost.adapters.sb3.subject import Subject
from milepost.lifecycle.triggers import every
from milepost.state.rng import Rng
from tests.adapters.sb3_runs import KILLED, KillAt, in_child, pieces
from tests.adapters.sb3_scenarios import SCENARIOS, build
from tests.adapters.sb3_watched import Watched

pytestmark = pytest.mark.slow


class NothingLeftOut(logging.Handler):
    """Fail where a checkpoint is not whole: equal bits could be a matter of luck then."""

    def emit(self, record: logging.LogRecord) -> None:
        assert "is saved without" not in record.getMessage(), record.getMessage()


def run(
    name: str, folder: Path, *, seed: int = 1, checkpoints: bool = True, kill_at: int | None = None, writer: str = "inline"
) -> Any:
    """Run a scenario's script once."""

    def script() -> Any:
        logging.getLogger("milepost").addHandler(NothingLeftOut())
        model, callbacks = build(name, seed, folder)
        ours = [Watched(folder / "run", when=every(steps=SCENARIOS[name][2]), writer=writer)] if checkpoints else []
        model.learn(SCENARIOS[name][1], callback=[*callbacks, *ours, KillAt(kill_at)])
        return pieces(model, callbacks)

    return in_child(script)


def forgetting(component: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a component be saved and compared, but not brought back."""
    whole = checkpointing.build

    def build_without(subject: Subject) -> dict[str, Any]:
        parts = whole(subject)
        if component == "rng":
            monkeypatch.setattr(Rng, "load_state_dict", lambda *_: None)
        else:
            parts[component] = dataclasses.replace(parts[component], restore=lambda *_: None)
        return parts

    monkeypatch.setattr(checkpointing, "build", build_without)


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("ppo", "counters"),
        ("ppo", "envs"),
        ("ppo", "rng"),
        ("ppo, gSDE", "extra"),
        ("ppo, schedules, evaluation", "evaluation"),
        ("ppo, 3 envs, VecNormalize, VecFrameStack, VecMonitor", "normalizer"),
        ("dqn", "replay"),
        ("dqn", "counters"),
        ("td3, OU noise", "extra"),
        ("ppo, curiosity", "extra"),
        ("recurrent ppo", "counters"),
        ("crossq", "counters"),
        ("maskable ppo", "envs"),
        ("ars", "rng"),
        ("ars, 2 envs, normalized, schedules, evaluation", "normalizer"),
    ],
)
def test_a_run_that_forgets_one_component_is_found_out(
    name: str, component: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without this the test above could pass for a component that nobody needs, or that nobody looks at.
    alone = run(name, tmp_path / "alone", checkpoints=False)
    assert run(name, tmp_path / "killed", kill_at=SCENARIOS[name][3][0]) == KILLED
    forgetting(component, monkeypatch)
    forgetful = run(name, tmp_path / "killed")
    assert forgetful["policy"] != alone["policy"]


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


EACH = ("ppo", "a2c", "dqn", "sac", "td3", "ddpg", "trpo", "recurrent ppo", "maskable ppo", "qr-dqn", "tqc", "crossq", "ars")


@pytest.mark.parametrize("algorithm", EACH)
def test_attaching_changes_no_bit_and_draws_no_number(algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # `Watched` has looked at the generators before and after each of our hooks.
    name = [name for name in SCENARIOS if name == algorithm or name.startswith(f"{algorithm},")][-1]
    alone = run(name, tmp_path / "alone", checkpoints=False)
    build_, total, steps, kills = SCENARIOS[name]
    monkeypatch.setitem(SCENARIOS, name, (build_, total, steps // 3, kills))
    assert run(name, tmp_path / "attached") == alone


@pytest.mark.parametrize(
    "name",
    [
        "ppo, 2 envs, VecNormalize, evaluation",
        "dqn",
        "dqn, memory optimized, 2 envs, twice around between saves",
        "td3, HER, 3 envs, around between saves",
    ],
)
def test_a_kill_while_the_writer_thread_works_changes_no_bit(name: str, tmp_path: Path) -> None:
    # Whichever generation was published by then: the run ends the same.
    alone = run(name, tmp_path / "alone", checkpoints=False)
    for kill_at in (85, 86, 150, 151, 152):
        assert run(name, tmp_path / "killed", kill_at=kill_at, writer="thread") == KILLED
    assert run(name, tmp_path / "killed", writer="thread") == alone
