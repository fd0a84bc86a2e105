"""Build the simulators' environments, and tell every bit of what they give."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import ale_py
import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, NormalizeObservation, RecordEpisodeStatistics
from stable_baselines3.common.atari_wrappers import AtariWrapper, StickyActionEnv

from milepost import envs

gym.register_envs(ale_py)
mujoco.set_mju_user_warning(lambda text: None)  # it would write them to a file beside the tests

MUJOCO = (
    *("Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v5", "InvertedDoublePendulum-v5"),
    *("InvertedPendulum-v5", "Pusher-v5", "Reacher-v5", "Swimmer-v5", "Walker2d-v5"),
)


def stacked(game: str) -> gym.Env[Any, Any]:
    env = gym.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.25, max_num_frames_per_episode=450)
    env = AtariPreprocessing(env, noop_max=30, frame_skip=4, terminal_on_life_loss=True)
    return FrameStackObservation(RecordEpisodeStatistics(env), 4)


def as_sb3_does(game: str) -> gym.Env[Any, Any]:
    env = StickyActionEnv(gym.make(f"ALE/{game}-v5", frameskip=1, max_num_frames_per_episode=450), 0.25)
    return AtariWrapper(env, noop_max=30, frame_skip=4, terminal_on_life_loss=True, clip_reward=True)


ATARI: dict[str, Callable[[], gym.Env[Any, Any]]] = {
    "Pong": lambda: gym.make("ALE/Pong-v5", max_num_frames_per_episode=450),
    "Breakout": lambda: gym.make("ALE/Breakout-v5", max_num_frames_per_episode=450),
    "Breakout, memory, any skip": lambda: gym.make("ALE/Breakout-v5", obs_type="ram", frameskip=(2, 5)),
    "Pong, stacked": lambda: stacked("Pong"),
    "Breakout, stacked": lambda: stacked("Breakout"),
    "Pong, as SB3 does": lambda: as_sb3_does("Pong"),
    "Breakout, as SB3 does": lambda: as_sb3_does("Breakout"),
}
WRAPPED: dict[str, Callable[[], gym.Env[Any, Any]]] = {
    "Ant, wrapped": lambda: NormalizeObservation(RecordEpisodeStatistics(gym.make("Ant-v5", max_episode_steps=80))),
    "Humanoid, short": lambda: FrameStackObservation(gym.make("Humanoid-v5", max_episode_steps=25), 2),
}
FACTORIES: dict[str, Callable[[], gym.Env[Any, Any]]] = {
    **{name: (lambda name=name: gym.make(name, max_episode_steps=110)) for name in MUJOCO},
    **WRAPPED,
    **ATARI,
}


def bits(value: Any) -> bytes:
    """Return every bit of what an env has given."""
    if isinstance(value, dict):
        return b"".join(bits(key) + bits(item) for key, item in value.items() if key not in ("episode", "seeds"))
    if isinstance(value, (list, tuple)):
        return b"".join(map(bits, value))
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.str.encode() + np.ascontiguousarray(value).tobytes()
    return repr(value).encode()


def play(env: gym.Env[Any, Any], steps: int) -> list[str]:
    """Return a digest of everything that each of these steps has given, resets included."""
    given = []
    for _ in range(steps):
        seen: list[Any] = [env.step(env.action_space.sample())]
        if seen[0][2] or seen[0][3]:
            seen.append(env.reset())
        given.append(hashlib.blake2b(bits(seen), digest_size=8).hexdigest())
    return given


def started(env: gym.Env[Any, Any], seed: int, steps: int) -> gym.Env[Any, Any]:
    """Return the env after so many steps."""
    envs.attach(env)
    env.action_space.seed(seed)
    env.reset(seed=seed)
    play(env, steps)
    return env
