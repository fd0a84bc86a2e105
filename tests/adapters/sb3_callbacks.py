"""Callbacks beside milepost's: those of Stable-Baselines3 in every arrangement, and one that holds all kinds of objects."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common import callbacks as sb3
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, CheckpointCallback, EvalCallback, EveryNTimesteps
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecNormalize
from torch.optim.swa_utils import AveragedModel

from tests.adapters.sb3_runs import env_of, off_policy, ppo_model


class Counting(BaseCallback):
    """Lower a coefficient of the loss with every call: what it counts is felt in the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def _on_step(self) -> bool:
        self.seen += 1
        self.model.vf_coef = 0.5 / (1 + self.seen)
        return True


class Reading(BaseCallback):
    """Keep the numbers that the logger has written, but for those of the clock."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.rows: list[list[float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        rows = [json.loads(line) for line in self.file.read_text().splitlines()]
        clocked = ("time/fps", "time/time_elapsed")
        self.rows = [[float(row[name]) for name in sorted(row) if name not in clocked] for row in rows]


class Phase(Enum):
    """Say how far the curriculum is."""

    WARM = 1
    HOT = 2


class Seen(NamedTuple):
    """Hold what was seen."""

    mean: np.ndarray[Any, Any]
    count: int
    phases: tuple[Phase, ...]


@dataclass
class Plan:
    """Hold a curriculum."""

    phase: Phase = Phase.WARM
    bonus: float = 0.5
    last: deque[float] = field(default_factory=lambda: deque(maxlen=3))


@dataclass(frozen=True, slots=True)
class Best:
    """Hold a constant until there is a better one."""

    error: float
    seen: Seen | None = None


NOTHING = Best(np.inf)


class Curiosity(BaseCallback):
    """Give a bonus for what a network of its own, learning and averaged, does not know yet."""

    def __init__(self) -> None:
        super().__init__()
        self.target, self.net = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
        self.averaged = AveragedModel(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.02)
        self.rate = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.7)
        self.plan, self.best = Plan(), NOTHING
        self.seen = Seen(np.zeros(4), 0, ())

    def _init_callback(self) -> None:
        # Held by the model, and saved with it: once.
        self.policy, self.nets = self.model.policy, [self.model.policy.value_net, self.model.policy.action_net]

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        buffer: Any = self.model.rollout_buffer  # type: ignore[attr-defined]
        rows = torch.as_tensor(buffer.observations.reshape(-1, 4))
        error = ((self.averaged(rows) - self.target(rows)) ** 2).mean(1).detach()
        buffer.advantages += self.plan.bonus * error.numpy().reshape(buffer.advantages.shape)
        self.optimizer.zero_grad()
        ((self.net(rows) - self.target(rows)) ** 2).mean().backward()
        self.optimizer.step()
        self.rate.step()
        self.averaged.update_parameters(self.net)
        self._plan(float(error.mean()), rows.numpy().mean(0))

    def _plan(self, error: float, mean: Any) -> None:
        self.plan.last.append(error)
        self.plan.phase = Phase.HOT if self.plan.phase is Phase.WARM else Phase.WARM
        self.plan.bonus *= 0.9 if self.plan.phase is Phase.HOT else 1.05
        self.plan.bonus += float(np.mean(self.plan.last)) / 10
        self.seen = Seen(mean, self.seen.count + 1, (*self.seen.phases, self.plan.phase)[-2:])
        if error < self.best.error:
            self.best = Best(error, self.seen)
        assert Best(np.inf) == NOTHING, "a constant of the program is not where a checkpoint is written to"


class Bar:
    """Stand in for a progress bar."""

    def __init__(self, total: int) -> None:
        self.left = total

    def update(self, steps: int) -> None:
        self.left -= steps

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        pass


def _stopped(seed: int, folder: Path) -> tuple[Any, list[BaseCallback]]:
    model = ppo_model(seed, folder, env=VecNormalize(env_of("CartPole-v1", 2)), n_steps=32)
    own = CheckpointCallback(40, str(folder / "own"), save_vecnormalize=True)
    nested = CallbackList([Counting(), CallbackList([EveryNTimesteps(50, Counting()), own])])
    return model, [nested, sb3.StopTrainingOnMaxEpisodes(9), sb3.LogEveryNTimesteps(40)]


def _threshold(seed: int, folder: Path) -> tuple[Any, list[BaseCallback]]:
    model = off_policy(DQN, seed, env_of("CartPole-v1"), target_update_interval=30)
    stop, after = sb3.StopTrainingOnRewardThreshold(10_000), EveryNTimesteps(100, CheckpointCallback(1, str(folder / "own")))
    where = {"best_model_save_path": str(folder / "best"), "log_path": str(folder / "log")}
    options: dict[str, Any] = {"n_eval_episodes": 2, "deterministic": False, "verbose": 0, "warn": False}
    env = env_of("CartPole-v1", 2, seed=77)
    return model, [EvalCallback(env, stop, after, eval_freq=35, **where, **options)]


def _logged(seed: int, folder: Path) -> tuple[Any, list[BaseCallback]]:
    sb3.tqdm = Bar
    model = ppo_model(seed, folder)
    model.set_logger(configure(str(folder / "log"), ["json", "csv", "log"]))
    return model, [sb3.ProgressBarCallback(), Reading(folder / "log" / "progress.json")]


CALLBACKS: Mapping[str, Any] = {
    "ppo, stopped by episodes, nested callbacks, checkpoints of its own": (_stopped, 2000, 64, (150, 250)),
    "dqn, evaluation, threshold, checkpoints of its own": (_threshold, 240, 40, (90, 170)),
    "ppo, custom logger, progress bar": (_logged, 384, 64, (150, 300)),
    "ppo, curiosity": (lambda seed, folder: (ppo_model(seed, folder), [Curiosity()]), 384, 64, (150, 300)),
}
