"""State in places where nobody looks for it comes back, or is named: functions, names, buffers, schedules, settings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import TransformReward
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, EvalCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from milepost import every
from milepost.adapters.sb3 import Checkpointing
from milepost.envs import register_plain
from tests.adapters.sb3_runs import KILLED, KillAt, env_of, in_child, off_policy, pieces, ppo_model


@register_plain
class Doors(gym.Env[Any, Any]):
    """Have state under names that mean something else in a vector env."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (4,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.keys, self.waiting, self.closed, self.P, self.elapsed = 0, 0, True, float(self.np_random.random()), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.elapsed, self.keys, self.waiting = self.elapsed + 1, self.keys + int(action), self.waiting + 2
        self.closed, self.P = self.keys % 2 == 0, (self.P * 1.7 + 0.1) % 1
        return self._seen(), self.P + self.keys % 3, self.elapsed >= 45, False, {}

    def _seen(self) -> Any:
        return np.array([self.keys % 5, self.waiting % 7, self.closed, self.P], np.float32)


class Meter:
    """Be of a class that nobody knows."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, reward: Any) -> Any:
        self.count += 1
        return float(reward) + self.count * 0.01


def counts_by_rebinding() -> Callable[[Any], Any]:
    count = 0

    def counted(reward: Any) -> Any:
        nonlocal count
        count += 1
        return float(reward) + count * 0.01

    return counted


def counts_in_a_list() -> Callable[[Any], Any]:
    count = [0]

    def counted(reward: Any) -> Any:
        count[0] += 1
        return float(reward) + count[0] * 0.01

    return counted


class Forgotten(FlattenExtractor):
    """Count in a buffer that no ``state_dict`` holds."""

    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        self.seen += 0.001
        return super().forward(observations) + self.seen


class Once(BaseCallback):
    """Do something at step 20."""

    def __init__(self, act: Callable[[Any], object]) -> None:
        super().__init__()
        self.act = act

    def _on_step(self) -> bool:
        if self.num_timesteps == 20:
            self.act(self.model)
        return True


Made = tuple[Any, list[BaseCallback]]


class Settings:
    """Hold what a script was told, and never change."""

    def __init__(self) -> None:
        self.rates = [0.1, 0.2]


class Configured(BaseCallback):
    def __init__(self, settings: Settings, folder: Path) -> None:
        super().__init__()
        self.settings, self.folder = settings, folder

    def _on_step(self) -> bool:
        return True


class Counting(BaseCallback):
    calls = 0

    def _on_step(self) -> bool:
        self.calls += 1
        self.model.ent_coef = (self.calls // 16) * 0.3  # type: ignore[attr-defined]
        return True


class Around(BaseCallback):
    """Hold another callback by a name that is a list's or an event's elsewhere."""

    def __init__(self, callback: BaseCallback) -> None:
        super().__init__()
        self.callback = callback

    def _init_callback(self) -> None:
        self.callback.init_callback(self.model)

    def _on_step(self) -> bool:
        return self.callback.on_step()


def counting_function() -> Callable[[Any, Any], bool]:
    calls = 0

    def count(names: Any, _: Any) -> bool:
        nonlocal calls
        calls += 1
        names["self"].ent_coef = (calls // 16) * 0.3
        return True

    return count


def rewarded(function: Callable[[], Callable[[Any], Any]]) -> DummyVecEnv:
    return DummyVecEnv([lambda: Monitor(TransformReward(gym.make("CartPole-v1"), function()))])


def shares_statistics(at: Path) -> Made:
    env, other = VecNormalize(env_of("CartPole-v1")), VecNormalize(env_of("CartPole-v1", seed=9), training=False)
    other.obs_rms = env.obs_rms
    return small(at, env=env), [EvalCallback(other, eval_freq=10, n_eval_episodes=1, verbose=0, warn=False)]


def set_rate(model: Any) -> None:
    model.learning_rate = 0.02
    model._setup_lr_schedule()


SCENARIOS: dict[str, Callable[[Path], Made]] = {
    "a closure that sets its variable": lambda at: (small(at, env=rewarded(counts_by_rebinding)), []),
    "a closure with a list": lambda at: (small(at, env=rewarded(counts_in_a_list)), []),
    "names of a vector env": lambda at: (small(at, env=DummyVecEnv([Doors])), []),
    "a buffer that is not persistent": lambda at: (
        small(at, policy_kwargs={"net_arch": [8], "features_extractor_class": Forgotten}),
        [],
    ),
    "a rate set once": lambda at: (small(at), [Once(set_rate)]),
    "a schedule set once": lambda at: (small(at), [Once(lambda model: setattr(model, "clip_range", FloatSchedule(0.001)))]),
    "an entropy coefficient set once": lambda at: (
        off_policy(SAC, 1, env_of("Pendulum-v1"), ent_coef=0.1),
        [Once(lambda model: setattr(model, "ent_coef_tensor", torch.tensor(0.9)))],
    ),
    "an env's setting set once": lambda at: (
        small(at, env=env_of("Pendulum-v1")),
        [Once(lambda model: model.env.env_method("set_wrapper_attr", "g", 3.0))],
    ),
    "a wrapper's setting set once": lambda at: (
        small(at),
        [Once(lambda model: model.env.env_method("set_wrapper_attr", "_max_episode_steps", 5))],
    ),
    "a callback within one of one's own": lambda at: (small(at), [Around(Counting())]),
    "an evaluation that shares the statistics of training": shares_statistics,
    "weights frozen meanwhile": lambda at: (
        small(at),
        [Once(lambda model: model.policy.mlp_extractor.requires_grad_(False))],
    ),
    "an object that holds settings": lambda at: (small(at), [Configured(Settings(), at)]),
    "a function as a callback": lambda at: (small(at), [ConvertCallback(counting_function())]),
}


def small(at: Path, **options: Any) -> Any:
    return ppo_model(1, at, **{"n_steps": 16, "batch_size": 16, "n_epochs": 3, "policy_kwargs": {"net_arch": [8]}, **options})


def train(make: Callable[[Path], Made], at: Path, kill: int | None, *, said: list[str] | None = None) -> Any:
    def work() -> Any:
        torch.set_num_threads(1)
        model, callbacks = make(at)
        ours = Checkpointing(at / "run", when=every(steps=32), writer="inline")
        model.learn(128, callback=CallbackList([ours, *callbacks, KillAt(kill)]))
        return pieces(model, callbacks), messages

    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("milepost")
    log.addHandler(handler)
    try:
        result = in_child(work)
    finally:
        log.removeHandler(handler)
    if result == KILLED:
        return KILLED
    if said is not None:
        said += result[1]
    return result[0]


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_held_where_nobody_looks_comes_back(name: str, tmp_path: Path) -> None:
    said: list[str] = []
    alone = train(SCENARIOS[name], tmp_path / "alone", None, said=said)
    assert train(SCENARIOS[name], tmp_path / "killed", 70) == KILLED
    assert train(SCENARIOS[name], tmp_path / "killed", None) == alone
    assert not [text for text in said if "is saved without" in text]


class Held(BaseCallback):
    """Hold an object that its constructor was given."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.meter = meter

    def _on_step(self) -> bool:
        self.meter.count += 1
        return True


class Watching(FlattenExtractor):
    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.meter = Meter()

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        self.meter.count += 1
        return super().forward(observations)


class Overlapping(BaseCallback):
    """Look at one memory as an array and as a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.array = np.zeros(3)
        self.tensor = torch.from_numpy(self.array)[:1]

    def _on_step(self) -> bool:
        return True


NAMED: dict[str, tuple[Callable[[Path], Made], str]] = {
    "a method of an object": (lambda at: (small(at, env=rewarded(lambda: Meter().add)), []), "TransformReward.func.object"),
    "two views of one memory": (lambda at: (small(at), [Overlapping()]), "Overlapping.tensor"),
    "another optimizer": (
        lambda at: (
            small(at),
            [Once(lambda model: setattr(model.policy, "optimizer", torch.optim.SGD(model.policy.parameters())))],
        ),
        "optimizer.policy.optimizer",
    ),
    "a callback's argument": (lambda at: (small(at), [Held(Meter())]), "Held.meter"),
    "what a module holds": (
        lambda at: (small(at, policy_kwargs={"net_arch": [8], "features_extractor_class": Watching}), []),
        "features_extractor.meter",
    ),
    "a function that was set meanwhile": (
        lambda at: (small(at), [Once(lambda model: setattr(model, "lr_schedule", lambda _: 0.02))]),
        "model.lr_schedule",
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_cannot_be_saved_there_is_named(name: str, tmp_path: Path) -> None:
    said: list[str] = []
    make, path = NAMED[name]
    train(make, tmp_path, None, said=said)
    assert [text for text in said if "is saved without" in text and path in text]


def test_a_changed_script_still_wins_over_what_training_did_not_change(tmp_path: Path) -> None:
    def gravity(value: float) -> Callable[[Path], Made]:
        return lambda at: (
            small(at, env=DummyVecEnv([lambda: Monitor(gym.make("Pendulum-v1", g=value))])),
            [Once(lambda model: None)],
        )

    assert train(gravity(10.0), tmp_path / "killed", 70) == KILLED
    changed = train(gravity(3.0), tmp_path / "killed", None)
    assert train(gravity(10.0), tmp_path / "other", 70) == KILLED
    assert train(gravity(10.0), tmp_path / "other", None) != changed
