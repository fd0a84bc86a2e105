"""Run small Stable-Baselines3 scripts in child processes, kill them, and hash what they leave, knowing nothing of milepost."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, StopTrainingOnNoModelImprovement
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecMonitor, VecNormalize

from milepost.envs import register_plain

# The first step of an optimizer imports half of torch: once here, not once in every child.
torch.optim.Adam([torch.nn.Parameter(torch.ones(1))]).step()
KILLED = 9
NET = {"net_arch": [16]}


@register_plain
class Reach(gym.Env[Any, Any]):
    """Move a point on a line to where it is wanted: the smallest task with goals. Episodes end after 3 to 13 steps."""

    def __init__(self, discrete: bool = False) -> None:
        box = gym.spaces.Box(-10, 10, (1,), np.float32)
        self.observation_space = gym.spaces.Dict({"observation": box, "achieved_goal": box, "desired_goal": box})
        self.action_space = gym.spaces.Discrete(3) if discrete else gym.spaces.Box(-1, 1, (1,), np.float32)
        self.state = np.zeros(2, np.float32)
        self._elapsed_steps = self.longest = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.state = self.np_random.uniform(-3, 3, 2).astype(np.float32)
        self._elapsed_steps, self.longest = 0, int(self.np_random.integers(3, 14))
        return self._observed(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.state[0] += np.clip(np.float32(np.ravel(action)[0]), -1, 1) - np.float32(
            isinstance(self.action_space, gym.spaces.Discrete)
        )
        self._elapsed_steps += 1
        seen = self._observed()
        info = {"distance": float(abs(self.state[0] - self.state[1])), "step": np.int64(self._elapsed_steps)}
        reward = float(self.compute_reward(seen["achieved_goal"], seen["desired_goal"], [info])[0])
        return seen, reward, reward == 0, self._elapsed_steps >= self.longest, info

    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> Any:
        # What the infos say counts, so that a resume which loses them is found out.
        seen = [info.get("distance", 0.0) for info in infos]
        return -(np.abs(achieved - desired).reshape(-1) > 0.3).astype(np.float32) - np.float32(1e-3) * np.array(seen, np.float32)

    def _observed(self) -> dict[str, Any]:
        return {
            "observation": self.state[:1].copy(),
            "achieved_goal": self.state[:1].copy(),
            "desired_goal": self.state[1:].copy(),
        }


class KillAt(BaseCallback):
    """Die without a word at a step, as a killed process does."""

    def __init__(self, step: int | None) -> None:
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        if self.step is not None and self.num_timesteps >= self.step:
            os._exit(KILLED)
        return True


def in_child(work: Callable[[], Any]) -> Any:
    """Return what ``work`` returns in a forked child, or `KILLED`."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(receive)
            with os.fdopen(send, "wb") as pipe:
                pickle.dump(work(), pipe)
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the child must not go on as a second pytest
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        data = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == KILLED:
        return KILLED
    assert code == 0, f"the child failed with exit code {code}"
    return pickle.loads(data)


def env_of(name: str, count: int = 1, seed: int = 5, monitor: Path | None = None) -> DummyVecEnv:
    """Return ``count`` envs, each in a Monitor, with csv files if asked for."""

    def maker(index: int) -> Callable[[], gym.Env[Any, Any]]:
        made = {"Reach": Reach, "Reach, discrete": lambda: Reach(discrete=True)}.get(name, lambda: gym.make(name))
        return lambda: Monitor(made(), None if monitor is None else str(monitor / f"{index}"))

    venv = DummyVecEnv([maker(index) for index in range(count)])
    venv.seed(seed)
    return venv


def _evaluating(env: str, normalized: bool = False, **options: Any) -> EvalCallback:
    venv: Any = env_of(env, 1, seed=77)
    if normalized:
        venv = VecNormalize(venv, training=False)
    return EvalCallback(venv, eval_freq=70, n_eval_episodes=1, deterministic=False, verbose=0, warn=False, **options)


def _patience() -> StopTrainingOnNoModelImprovement:
    return StopTrainingOnNoModelImprovement(50)


def build(name: str, seed: int, folder: Path) -> tuple[Any, list[BaseCallback]]:
    """Return a model and the user's callbacks of one of the scenarios."""
    torch.set_num_threads(1)
    return SCENARIOS[name][0](seed, folder)


def ppo_model(seed: int, folder: Path, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "n_steps": 64,
        "batch_size": 32,
        "n_epochs": 2,
        "policy_kwargs": dict(NET),
        "seed": seed,
        "device": "cpu",
    }
    env = options.pop("env", None) or env_of("CartPole-v1")
    return PPO("MlpPolicy", env, **{**settings, **options})


def off_policy(cls: Any, seed: int, env: Any, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "buffer_size": 500,
        "learning_starts": 40,
        "batch_size": 16,
        "policy_kwargs": dict(NET),
        "seed": seed,
    }
    policy = "MultiInputPolicy" if isinstance(env.observation_space, gym.spaces.Dict) else "MlpPolicy"
    return cls(policy, env, device="cpu", **{**settings, **options})


def her(cls: Any, seed: int, env: Any, copy_info_dict: bool = False, **options: Any) -> Any:
    kwargs = {"copy_info_dict": copy_info_dict, "goal_selection_strategy": "future", "n_sampled_goal": 2}
    return off_policy(cls, seed, env, replay_buffer_class=HerReplayBuffer, replay_buffer_kwargs=kwargs, **options)


def ppo_stacked(seed: int, folder: Path) -> Any:
    env = VecNormalize(VecFrameStack(VecMonitor(DummyVecEnv([lambda: gym.make("CartPole-v1")] * 3)), 2))
    env.seed(3)
    return ppo_model(seed, folder, env=env, n_steps=24, batch_size=24), []


def _ou(size: int = 1) -> OrnsteinUhlenbeckActionNoise:
    return OrnsteinUhlenbeckActionNoise(np.zeros(size), 0.3 * np.ones(size))


def _normal() -> NormalActionNoise:
    return NormalActionNoise(np.zeros(1), 0.2 * np.ones(1))


# name: (build, total steps, save every, kills)
SCENARIOS: dict[str, tuple[Callable[[int, Path], tuple[Any, list[BaseCallback]]], int, int, tuple[int, ...]]] = {
    "ppo": (lambda s, f: (ppo_model(s, f), []), 384, 64, (200,)),
    "ppo, schedules, evaluation": (
        lambda s, f: (
            ppo_model(s, f, learning_rate=lambda left: 1e-2 * left, clip_range=lambda left: 0.2 * left),
            [_evaluating("CartPole-v1", callback_after_eval=_patience(), callback_on_new_best=_patience())],
        ),
        384,
        64,
        (150, 300),
    ),
    "ppo, 3 envs, VecNormalize, VecFrameStack, VecMonitor": (ppo_stacked, 360, 72, (250,)),
    "ppo, 2 envs, VecNormalize, evaluation": (
        lambda s, f: (
            ppo_model(s, f, env=VecNormalize(env_of("MountainCarContinuous-v0", 2)), n_steps=32),
            [_evaluating("MountainCarContinuous-v0", normalized=True)],
        ),
        256,
        64,
        (200,),
    ),
    "ppo, gSDE": (
        lambda s, f: (ppo_model(s, f, env=env_of("Pendulum-v1"), use_sde=True), []),
        256,
        64,
        (140,),
    ),
    "a2c": (
        lambda s, f: (A2C("MlpPolicy", env_of("Acrobot-v1", 2), seed=s, policy_kwargs=dict(NET), device="cpu"), []),
        300,
        50,
        (170,),
    ),
    "dqn": (
        lambda s, f: (off_policy(DQN, s, env_of("CartPole-v1"), target_update_interval=30, exploration_fraction=0.8), []),
        240,
        40,
        (90, 170),
    ),
    "dqn, 2 envs, VecNormalize, evaluation": (
        lambda s, f: (
            off_policy(DQN, s, VecNormalize(env_of("MountainCar-v0", 2)), target_update_interval=30),
            [_evaluating("MountainCar-v0", normalized=True)],
        ),
        240,
        40,
        (190,),
    ),
    "dqn, memory optimized": (
        lambda s, f: (
            off_policy(
                DQN,
                s,
                env_of("CartPole-v1"),
                buffer_size=60,
                optimize_memory_usage=True,
                replay_buffer_kwargs={"handle_timeout_termination": False},
            ),
            [],
        ),
        200,
        40,
        (130,),
    ),
    "dqn, memory optimized, 2 envs, twice around between saves": (
        lambda s, f: (
            off_policy(
                DQN,
                s,
                env_of("CartPole-v1", 2),
                buffer_size=20,
                learning_starts=10,
                optimize_memory_usage=True,
                replay_buffer_kwargs={"handle_timeout_termination": False},
            ),
            [],
        ),
        200,
        42,
        (70, 150),
    ),
    "sac, dict observations, 2 envs": (
        lambda s, f: (off_policy(SAC, s, env_of("Reach", 2), buffer_size=50), []),
        200,
        40,
        (130,),
    ),
    "td3, HER, 3 envs, around between saves": (
        lambda s, f: (her(TD3, s, env_of("Reach", 3), buffer_size=90), []),
        420,
        105,
        (120, 350),
    ),
    "sac, HER, normalized": (
        lambda s, f: (her(SAC, s, VecNormalize(env_of("Reach")), buffer_size=60), []),
        240,
        40,
        (130,),
    ),
    "dqn, HER, infos": (
        lambda s, f: (her(DQN, s, env_of("Reach, discrete", 2), copy_info_dict=True, buffer_size=70), []),
        240,
        40,
        (130,),
    ),
    "dqn, n-step, by episode": (
        lambda s, f: (off_policy(DQN, s, env_of("CartPole-v1"), n_steps=3, train_freq=(1, "episode")), []),
        200,
        40,
        (130,),
    ),
    "sac": (lambda s, f: (off_policy(SAC, s, env_of("Pendulum-v1")), []), 160, 40, (130,)),
    "sac, gSDE": (
        lambda s, f: (off_policy(SAC, s, env_of("Pendulum-v1"), use_sde=True, sde_sample_freq=4, train_freq=8), []),
        160,
        40,
        (130,),
    ),
    "sac, fixed entropy": (lambda s, f: (off_policy(SAC, s, env_of("Pendulum-v1"), ent_coef=0.1), []), 120, 40, (90,)),
    "td3, OU noise": (lambda s, f: (off_policy(TD3, s, env_of("Pendulum-v1"), action_noise=_ou()), []), 161, 41, (130,)),
    "td3, 2 envs, vectorized noise": (
        lambda s, f: (off_policy(TD3, s, env_of("Pendulum-v1", 2), action_noise=_ou(), train_freq=2), []),
        160,
        40,
        (130,),
    ),
    "ddpg, normal noise": (
        lambda s, f: (off_policy(DDPG, s, env_of("Pendulum-v1"), action_noise=_normal()), []),
        130,
        40,
        (100,),
    ),
}


def _feed(digest: Any, name: str, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, dict):
        for key in value:
            _feed(digest, f"{name}.{key}", value[key])
    elif isinstance(value, (list, tuple)) and not isinstance(value, str):
        for index, item in enumerate(value):
            _feed(digest, f"{name}[{index}]", item)
    elif isinstance(value, np.ndarray):
        digest.update(f"{name}:{value.dtype}{value.shape}".encode() + value.tobytes())
    else:
        digest.update(f"{name}={value!r};".encode())


def _layers(env: Any) -> list[Any]:
    found = [env]
    while hasattr(found[-1], "venv"):
        found.append(found[-1].venv)
    return found


def pieces(model: Any, callbacks: list[BaseCallback] = ()) -> dict[str, str]:  # type: ignore[assignment]
    """Return a hash for each kind of state a run ends with."""
    parts: dict[str, Any] = {"policy": model.policy.state_dict()}
    names = ("policy.optimizer", "actor.optimizer", "critic.optimizer", "ent_coef_optimizer")
    for name in names:
        owner: Any = model
        for step in name.split("."):
            owner = getattr(owner, step, None)
        parts[name] = owner.state_dict() if owner is not None else None
    plain = (
        "num_timesteps",
        "_n_updates",
        "_n_calls",
        "_episode_num",
        "exploration_rate",
        "_current_progress_remaining",
        "log_ent_coef",
    )
    parts["counters"] = {name: getattr(model, name, None) for name in plain}
    parts["observations"] = [model._last_obs, model._last_original_obs, model._last_episode_starts]
    parts["episodes"] = [(info["r"], info["l"]) for info in model.ep_info_buffer]
    buffer = getattr(model, "replay_buffer", None) or getattr(model, "rollout_buffer", None)
    kept = {name: value for name, value in sorted(vars(buffer).items()) if isinstance(value, (np.ndarray, int, bool, dict))}
    parts["buffer"] = {name: _untimed(value) if name == "infos" else value for name, value in kept.items()}
    parts["global generators"] = [random.getstate(), np.random.get_state(), torch.get_rng_state()]
    parts["action space"] = None if model.action_space._np_random is None else model.action_space._np_random.bit_generator.state
    parts["envs"] = [_env(env) for env in _layers(model.env)[-1].envs]
    parts["venv"] = [_venv(layer) for layer in _layers(model.env)]
    parts["noise"] = repr(vars(model.action_noise)) if "OrnsteinUhlenbeckActionNoise" in type(model.action_noise).__name__ else ""
    parts["callbacks"] = [_callback(callback) for callback in callbacks]
    hashes = {}
    for name, value in parts.items():
        digest = hashlib.sha256()
        _feed(digest, name, value)
        hashes[name] = digest.hexdigest()[:16]
    return hashes


def _untimed(infos: Any) -> str:
    """Return a HER buffer's infos without what `Monitor` says of the time it took."""
    return re.sub(r"'t': [0-9.e-]+", "", repr(infos.tolist()))


def _env(env: Any) -> Any:
    base = env.unwrapped
    return [base.state, base.np_random.bit_generator.state, getattr(env, "rewards", None), env.get_wrapper_attr("_elapsed_steps")]


def _venv(layer: Any) -> Any:
    found = {
        name: getattr(layer, name, None) for name in ("returns", "old_obs", "old_reward", "episode_returns", "episode_count")
    }
    for name in ("obs_rms", "ret_rms", "stacked_obs"):
        value = getattr(layer, name, None)
        parts = value if isinstance(value, dict) else {name: value}
        found[name] = {key: _plain_attributes(part) for key, part in parts.items() if part is not None}
    return found


def _plain_attributes(value: Any) -> Any:
    return {key: item for key, item in vars(value).items() if "space" not in key}


def _callback(callback: BaseCallback) -> Any:
    found = [callback.n_calls, callback.num_timesteps]
    if isinstance(callback, EvalCallback):
        found += [
            callback.best_mean_reward,
            callback.last_mean_reward,
            [_env(env) for env in _layers(callback.eval_env)[-1].envs],
        ]
    return found
