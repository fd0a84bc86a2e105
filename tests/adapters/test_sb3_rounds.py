"""An on-policy loop that goes on counts its rounds from where it was, and writes its logs where it would have written them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger, configure

from milepost import every
from milepost.adapters.sb3 import Checkpointing
from milepost.adapters.sb3.rounds import idle


class Stop(BaseCallback):
    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.at:
            raise KeyboardInterrupt
        return True


@pytest.fixture(autouse=True)
def _logs_are_closed() -> Iterator[None]:
    yield
    while _loggers:
        _loggers.pop().close()


_loggers: list[Logger] = []


def model(log: Path | None = None) -> PPO:
    made = PPO(
        "MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, n_epochs=1, policy_kwargs={"net_arch": [4]}, device="cpu", seed=1
    )
    if log is not None:
        _loggers.append(configure(str(log), ["json"]))
        made.set_logger(_loggers[-1])
    return made


def rounds_logged(log: Path) -> list[tuple[int, int]]:
    rows = [json.loads(line) for line in (log / "progress.json").read_text().splitlines()]
    return [(row["time/iterations"], row["time/total_timesteps"]) for row in rows]


def test_rows_of_the_log_are_written_at_the_rounds_of_the_run_that_was_not_stopped(tmp_path: Path) -> None:
    # B2: learn() keeps the number of its round in a local variable, which began again at 0.
    model(tmp_path / "alone").learn(72, log_interval=3)
    ours = Checkpointing(tmp_path / "run", when=every(steps=8), writer="inline")
    with pytest.raises(KeyboardInterrupt):
        model(tmp_path / "killed").learn(72, log_interval=3, callback=[ours, Stop(42)])
    again = Checkpointing(tmp_path / "run", when=every(steps=8), writer="inline")
    model(tmp_path / "killed").learn(72, log_interval=3, callback=again)
    assert rounds_logged(tmp_path / "killed") == rounds_logged(tmp_path / "alone") == [(3, 24), (6, 48), (9, 72)]


def test_idle_rounds_do_nothing_and_then_the_model_is_as_it_was() -> None:
    made = model()
    before = dict(vars(made))
    idle(made, 2)
    for _ in range(2):
        assert made.collect_rollouts(None, None, None, n_rollout_steps=8) is True  # type: ignore[arg-type]
        made._update_current_progress_remaining(8, 16)
        made.dump_logs(1)
        made.train()
    assert vars(made) == before


def test_what_somebody_has_put_in_the_place_of_a_method_is_there_again() -> None:
    made = model()
    mine: Any = lambda: None  # noqa: E731
    made.train = mine  # type: ignore[method-assign]
    idle(made, 1)
    assert made.train is not mine
    made.train()
    assert made.train is mine


def test_idle_rounds_that_were_interrupted_leave_nothing_behind_for_the_next_learn() -> None:
    made = model()
    before = dict(vars(made))
    idle(made, 5)
    made.train()
    idle(made, 0)
    assert vars(made) == before
