"""The algorithms of sb3-contrib, with what each of them alone holds: recurrent states, masks, batch statistics, candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from sb3_contrib import ARS, QRDQN, TQC, TRPO, CrossQ, MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete, InvalidActionEnvMultiDiscrete
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.wrappers import ActionMasker, TimeFeatureWrapper
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from milepost.envs import register_plain
from tests.adapters.sb3_runs import NET, Reach, env_of, her, off_policy

Build = Callable[[int, Path], tuple[Any, list[BaseCallback]]]


@register_plain
class Pixels(gym.Env[Any, Any]):
    """Show a bright column that moves as it is told; it has to be kept in the middle."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.action_space = gym.spaces.Discrete(2)
        self.column = self._elapsed_steps = self.longest = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.column, self.longest = int(self.np_random.integers(36)), int(self.np_random.integers(3, 14))
        self._elapsed_steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.column = (self.column + 3 * (2 * int(action) - 1)) % 36
        self._elapsed_steps += 1
        return self._seen(), -abs(self.column - 18) / 18, False, self._elapsed_steps >= self.longest, {}

    def _seen(self) -> Any:
        seen = self.np_random.integers(0, 50, (36, 36, 1), np.uint8)
        seen[:, self.column] = 255
        return seen


def venv(make: Callable[[], gym.Env[Any, Any]], count: int = 1, seed: int = 5) -> DummyVecEnv:
    """Return ``count`` envs, each in a Monitor."""
    made = DummyVecEnv([lambda: Monitor(make())] * count)
    made.seed(seed)
    return made


def third_is_forced(env: Any) -> Any:
    """Allow one action alone at each third step."""
    return np.array([True, env.get_wrapper_attr("_elapsed_steps") % 3 != 0, *[True] * (env.action_space.n - 2)])


def _on(cls: Any, policy: str, env: Callable[[], Any], **options: Any) -> Build:
    settings = {"n_steps": 32, "batch_size": 32, **options}
    kwargs = {**NET, **settings.pop("policy_kwargs", {})}
    return lambda seed, _: (cls(policy, env(), seed=seed, device="cpu", policy_kwargs=dict(kwargs), **settings), [])


def _off(cls: Any, env: Callable[[], Any], **options: Any) -> Build:
    return lambda seed, _: (off_policy(cls, seed, env(), **options), [])


def _lstm(**options: Any) -> dict[str, Any]:
    return {"n_epochs": 2, "policy_kwargs": {"lstm_hidden_size": 8, **options}}


def _masked(seed: int, _: Path) -> tuple[Any, list[BaseCallback]]:
    def make() -> gym.Env[Any, Any]:
        return ActionMasker(gym.make("CartPole-v1"), third_is_forced)

    model = MaskablePPO("MlpPolicy", venv(make, 2), n_steps=16, batch_size=32, n_epochs=2, seed=seed, policy_kwargs=dict(NET))
    options: dict[str, Any] = {"eval_freq": 35, "n_eval_episodes": 2, "deterministic": False, "verbose": 0, "warn": False}
    return model, [MaskableEvalCallback(venv(make, 1, 77), **options)]


def short_pendulum() -> gym.Env[Any, Any]:
    """Return a pendulum whose episodes end after 20 steps."""
    return gym.make("Pendulum-v1", max_episode_steps=20)


def _ars(seed: int, _: Path) -> tuple[Any, list[BaseCallback]]:
    schedules: dict[str, Any] = {"delta_std": LinearSchedule(0.1, 0.01, 1.0), "learning_rate": lambda left: 0.05 * left}
    env = VecNormalize(venv(short_pendulum, 2))
    kwargs: dict[str, Any] = {
        "n_delta": 2,
        "n_top": 1,
        "zero_policy": False,
        "n_eval_episodes": 2,
        "policy_kwargs": {"net_arch": [4]},
    }
    evaluation = VecNormalize(venv(short_pendulum, 1, 77), training=False)
    options: dict[str, Any] = {"eval_freq": 90, "n_eval_episodes": 1, "deterministic": False, "verbose": 0, "warn": False}
    return ARS("MlpPolicy", env, seed=seed, device="cpu", **schedules, **kwargs), [EvalCallback(evaluation, **options)]


def _masked_goals() -> Any:
    return venv(lambda: ActionMasker(Reach(discrete=True), third_is_forced), 2)


CONTRIB: Mapping[str, Any] = {
    "trpo": (_on(TRPO, "MlpPolicy", lambda: env_of("CartPole-v1", 2), n_critic_updates=2), 320, 64, (150, 250)),
    "trpo, gSDE, time feature": (
        _on(
            TRPO, "MlpPolicy", lambda: venv(lambda: TimeFeatureWrapper(gym.make("Pendulum-v1"))), use_sde=True, sde_sample_freq=4
        ),
        160,
        32,
        (70, 120),
    ),
    "recurrent ppo": (_on(RecurrentPPO, "MlpLstmPolicy", lambda: env_of("CartPole-v1", 2), **_lstm()), 320, 64, (150, 250)),
    "recurrent ppo, shared LSTM of two layers, gSDE": (
        _on(
            RecurrentPPO,
            "MlpLstmPolicy",
            lambda: VecNormalize(env_of("Pendulum-v1")),
            use_sde=True,
            **_lstm(n_lstm_layers=2, shared_lstm=True, enable_critic_lstm=False),
        ),
        160,
        32,
        (70, 120),
    ),
    "recurrent ppo, dict observations": (
        _on(RecurrentPPO, "MultiInputLstmPolicy", lambda: env_of("Reach", 3), **_lstm()),
        384,
        96,
        (200, 300),
    ),
    "recurrent ppo, pictures": (
        _on(
            RecurrentPPO,
            "CnnLstmPolicy",
            lambda: venv(Pixels),
            **{**_lstm(features_extractor_kwargs={"features_dim": 8}), "n_steps": 16},
        ),
        64,
        16,
        (25, 50),
    ),
    "maskable ppo": (_on(MaskablePPO, "MlpPolicy", lambda: venv(lambda: InvalidActionEnvDiscrete(4, 2))), 160, 32, (70, 120)),
    "maskable ppo, several choices": (
        _on(MaskablePPO, "MlpPolicy", lambda: venv(lambda: InvalidActionEnvMultiDiscrete([3, 2], 2))),
        160,
        32,
        (70, 120),
    ),
    "maskable ppo, ActionMasker, evaluation": (_masked, 320, 64, (150, 250)),
    "maskable ppo, dict observations": (_on(MaskablePPO, "MultiInputPolicy", _masked_goals), 320, 64, (150, 250)),
    "qr-dqn, 2 envs, normalized": (
        _off(QRDQN, lambda: VecNormalize(env_of("CartPole-v1", 2)), target_update_interval=30, exploration_fraction=0.8),
        240,
        40,
        (90, 170),
    ),
    "tqc, noise": (
        _off(
            TQC,
            lambda: env_of("Pendulum-v1", 2),
            action_noise=NormalActionNoise(np.zeros(1), np.ones(1)),
            top_quantiles_to_drop_per_net=1,
            n_steps=2,
        ),
        160,
        40,
        (70, 130),
    ),
    "tqc, gSDE": (_off(TQC, lambda: env_of("Pendulum-v1"), use_sde=True, train_freq=8), 160, 40, (70, 130)),
    "tqc, HER": (lambda seed, _: (her(TQC, seed, env_of("Reach", 2), buffer_size=70), []), 240, 40, (90, 170)),
    "crossq": (_off(CrossQ, lambda: env_of("Pendulum-v1"), policy_delay=3), 160, 40, (70, 130)),
    "crossq, gSDE, fixed entropy": (
        _off(CrossQ, lambda: VecNormalize(env_of("Pendulum-v1", 2)), use_sde=True, train_freq=4, ent_coef=0.1),
        160,
        40,
        (70, 130),
    ),
    "ars": (
        lambda seed, _: (ARS("LinearPolicy", env_of("CartPole-v1"), n_delta=3, n_top=2, seed=seed, device="cpu"), []),
        1200,
        60,
        (300, 800),
    ),
    "ars, 2 envs, normalized, schedules, evaluation": (_ars, 1200, 60, (400, 800)),
}
