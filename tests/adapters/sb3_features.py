"""What else Stable-Baselines3's own algorithms can do: exploration, noise, goals, rollouts by episode, buffers, schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3 import A2C, DDPG, DQN, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise, VectorizedActionNoise
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

from tests.adapters.sb3_runs import NET, env_of, her, off_policy, ppo_model


def _ou() -> OrnsteinUhlenbeckActionNoise:
    # Its state begins as the very array that every reset() brings back.
    return OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.3 * np.ones(1), initial_noise=np.full(1, 0.2))


def _alone(make: Callable[[int], Any]) -> Callable[[int, Path], tuple[Any, list[Any]]]:
    return lambda seed, _: (make(seed), [])


def _off(cls: Any, env: str = "Pendulum-v1", count: int = 1, **options: Any) -> Callable[[int, Path], tuple[Any, list[Any]]]:
    """Build a model whose options are made anew each time: noise has a state."""
    made = {name: value for name, value in options.items() if not callable(value)}
    makers = {name: value for name, value in options.items() if callable(value)}
    return _alone(
        lambda seed: off_policy(cls, seed, env_of(env, count), **made, **{name: maker() for name, maker in makers.items()})
    )


def _her(
    cls: Any, count: int, strategy: str, discrete: bool = False, **options: Any
) -> Callable[[int, Path], tuple[Any, list[Any]]]:
    env = "Reach, discrete" if discrete else "Reach"
    return _alone(lambda seed: her(cls, seed, env_of(env, count), strategy=strategy, buffer_size=90, **options))


def _a2c(seed: int) -> Any:
    settings: dict[str, Any] = {"use_sde": True, "sde_sample_freq": 3, "normalize_advantage": True, "use_rms_prop": False}
    return A2C("MlpPolicy", env_of("Pendulum-v1", 2), seed=seed, policy_kwargs=dict(NET), device="cpu", n_steps=8, **settings)


def _ppo_of_dicts(seed: int) -> Any:
    env = VecNormalize(env_of("Reach", 2))
    settings: dict[str, Any] = {"n_steps": 16, "target_kl": 0.02, "clip_range_vf": LinearSchedule(0.4, 0.1, 0.5)}
    return ppo_model(seed, Path(), policy="MultiInputPolicy", env=env, stats_window_size=3, **settings)


_LEAN = {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}

FEATURES: Mapping[str, Any] = {
    "ppo, dict observations, normalized, a KL target, clipped values": (_alone(_ppo_of_dicts), 256, 32, (100, 190)),
    "ppo, gSDE, sampled often, squashed": (
        _alone(
            lambda seed: ppo_model(
                seed,
                Path(),
                env=env_of("Pendulum-v1"),
                use_sde=True,
                sde_sample_freq=5,
                policy_kwargs={**NET, "squash_output": True},
            )
        ),
        256,
        64,
        (140, 200),
    ),
    "a2c, gSDE, Adam": (_alone(_a2c), 240, 48, (100, 170)),
    "ddpg, noise vectorized by the script": (
        _off(DDPG, count=2, action_noise=lambda: VectorizedActionNoise(_ou(), 2), train_freq=2),
        160,
        40,
        (70, 130),
    ),
    "td3, normal noise, 2 envs, n-step": (
        _off(TD3, count=2, action_noise=lambda: NormalActionNoise(np.zeros(1), np.ones(1)), n_steps=3),
        160,
        40,
        (90, 130),
    ),
    "sac, OU noise, by step, as many updates": (
        _off(SAC, action_noise=_ou, train_freq=(5, "step"), gradient_steps=-1),
        160,
        40,
        (70, 130),
    ),
    "td3, OU noise, by episode, as many updates": (
        _off(TD3, env="Reach", action_noise=_ou, train_freq=(2, "episode"), gradient_steps=-1, policy_delay=3),
        160,
        30,
        (80, 130),
    ),
    "sac, gSDE at warm-up": (
        _off(SAC, use_sde=True, use_sde_at_warmup=True, sde_sample_freq=-1, train_freq=4, gradient_steps=2),
        120,
        20,
        (30, 90),
    ),
    "sac, schedule, entropy from 0.1, lean": (
        _off(
            SAC,
            ent_coef="auto_0.1",
            learning_rate=lambda: LinearSchedule(1e-2, 1e-3, 1.0),
            buffer_size=50,
            stats_window_size=2,
            **_LEAN,
        ),
        160,
        40,
        (70, 130),
    ),
    "td3, HER, final": (_her(TD3, 1, "final"), 200, 40, (90, 170)),
    "sac, HER, episode, 2 envs, gSDE": (_her(SAC, 2, "episode", use_sde=True, train_freq=4), 240, 40, (90, 170)),
    "dqn, HER, future, by episode": (_her(DQN, 1, "future", discrete=True, train_freq=(1, "episode")), 200, 40, (90, 170)),
}
