"""Build the algorithms of the matrix: small networks, few steps, every variant that has state of its own."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NET = 16
ON_POLICY = {"n_steps": 8, "n_epochs": 2, "batch_size": 8}
OFF_POLICY = {"learning_starts": 14, "batch_size": 8, "buffer_size": 60}
PICTURES = {"features_extractor_kwargs": {"features_dim": 16}}


@dataclass(frozen=True, slots=True)
class Algorithm:
    """Describe one algorithm with its settings."""

    where: str
    """``module:class``."""
    settings: Callable[[Any], dict[str, Any]] = lambda _: {}
    """Return the arguments beside policy and environment, given the vector environment."""
    actions: frozenset[str] = frozenset({"discrete", "box"})
    sees: frozenset[str] = frozenset({"vector", "number", "picture", "goal"})
    policies: Mapping[str, str] = field(default_factory=dict)
    """Names of policies that are not `MlpPolicy`, `CnnPolicy` and `MultiInputPolicy`, by what they see."""
    steps: int = 96
    """Of all environments together, about."""
    every: int = 24
    """Steps between saves."""
    seconds: float = 1.0
    masks: bool = False
    single: bool = False
    """Whether it can only have one environment."""

    @property
    def off_policy(self) -> bool:
        """Return whether it learns from a replay buffer."""
        return self.where.endswith(("DQN", "DDPG", "TD3", "SAC", "TQC", "CrossQ"))

    @property
    def missing(self) -> bool:
        """Return whether its package is not installed."""
        return importlib.util.find_spec(self.where.partition(":")[0]) is None


def _on(**more: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda _: {**ON_POLICY, **more}


def _off(**more: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda _: {**OFF_POLICY, **more}


def _noise(kind: str) -> Callable[[Any], dict[str, Any]]:
    from stable_baselines3.common import noise

    def settings(venv: Any) -> dict[str, Any]:
        size = int(np.prod(venv.action_space.shape))
        made = getattr(noise, kind)(np.zeros(size), 0.2 * np.ones(size))
        return {**OFF_POLICY, "action_noise": made}

    return settings


def _her(venv: Any) -> dict[str, Any]:
    from stable_baselines3 import HerReplayBuffer

    her = {"goal_selection_strategy": "future", "n_sampled_goal": 2}
    return {
        **OFF_POLICY,
        "learning_starts": 30 * venv.num_envs,
        "replay_buffer_class": HerReplayBuffer,
        "replay_buffer_kwargs": her,
    }


_DISCRETE, _BOX = frozenset({"discrete"}), frozenset({"box"})
_FLAT = frozenset({"vector"})
_SB3, _CONTRIB = "stable_baselines3:", "sb3_contrib:"
_LSTM = {"lstm_hidden_size": 8, "n_lstm_layers": 1}
_MEMORY_OPTIMIZED = {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}
_LSTM_POLICIES = {
    "vector": "MlpLstmPolicy",
    "number": "MlpLstmPolicy",
    "picture": "CnnLstmPolicy",
    "goal": "MultiInputLstmPolicy",
}
_NO_GOALS = frozenset({"vector", "number", "picture"})

ALGORITHMS: Mapping[str, Algorithm] = {
    "PPO": Algorithm(_SB3 + "PPO", lambda _: {**ON_POLICY, "learning_rate": lambda left: 1e-2 * left, "target_kl": 0.5}),
    "PPO, gSDE": Algorithm(_SB3 + "PPO", _on(use_sde=True, sde_sample_freq=3), _BOX, _FLAT),
    "A2C": Algorithm(_SB3 + "A2C", lambda _: {"n_steps": 5}, every=20),
    "DQN": Algorithm(_SB3 + "DQN", _off(target_update_interval=10, exploration_fraction=0.8, train_freq=1), _DISCRETE),
    "DQN, n-step": Algorithm(_SB3 + "DQN", _off(n_steps=3), _DISCRETE, _NO_GOALS),
    "DQN, memory": Algorithm(_SB3 + "DQN", _off(**_MEMORY_OPTIMIZED), _DISCRETE, _NO_GOALS),
    "DDPG": Algorithm(_SB3 + "DDPG", _noise("NormalActionNoise"), _BOX),
    "TD3": Algorithm(_SB3 + "TD3", _noise("OrnsteinUhlenbeckActionNoise"), _BOX),
    "SAC": Algorithm(_SB3 + "SAC", _off(), _BOX),
    "SAC, gSDE": Algorithm(_SB3 + "SAC", _off(use_sde=True, train_freq=4), _BOX, _FLAT),
    "DQN, HER": Algorithm(_SB3 + "DQN", _her, _DISCRETE, frozenset({"goal"}), steps=160, every=40),
    "SAC, HER": Algorithm(_SB3 + "SAC", _her, _BOX, frozenset({"goal"}), steps=160, every=40),
    "TD3, HER": Algorithm(_SB3 + "TD3", _her, _BOX, frozenset({"goal"}), steps=160, every=40),
    "TRPO": Algorithm(_CONTRIB + "TRPO", lambda _: {"n_steps": 8, "batch_size": 8, "cg_max_steps": 3, "n_critic_updates": 2}),
    "RecurrentPPO": Algorithm(_CONTRIB + "RecurrentPPO", _on(), policies=_LSTM_POLICIES),
    "MaskablePPO": Algorithm(_CONTRIB + "MaskablePPO", _on(), _DISCRETE, masks=True),
    "QR-DQN": Algorithm(_CONTRIB + "QRDQN", _off(target_update_interval=10), _DISCRETE),
    "TQC": Algorithm(_CONTRIB + "TQC", _off(), _BOX),
    "TQC, HER": Algorithm(_CONTRIB + "TQC", _her, _BOX, frozenset({"goal"}), steps=160, every=40),
    "CrossQ": Algorithm(_CONTRIB + "CrossQ", _off(), _BOX, _FLAT),
    "ARS": Algorithm(_CONTRIB + "ARS", lambda _: {"n_delta": 2, "n_top": 1}, sees=_FLAT, steps=900, every=150, seconds=1.5),
}


def make_model(name: str, sees: str, venv: Any, seed: int) -> Any:
    """Return the model."""
    algorithm = ALGORITHMS[name]
    module, _, cls = algorithm.where.partition(":")
    policy = {"vector": "MlpPolicy", "number": "MlpPolicy", "picture": "CnnPolicy", "goal": "MultiInputPolicy"} | dict(
        algorithm.policies
    )
    settings = algorithm.settings(venv)
    kwargs: dict[str, Any] = {
        "net_arch": [NET],
        **(_LSTM if algorithm.policies else {}),
        **(PICTURES if sees == "picture" else {}),
    }
    made = getattr(importlib.import_module(module), cls)
    return made(policy[sees], venv, policy_kwargs=kwargs, seed=seed, device="cpu", **settings)
