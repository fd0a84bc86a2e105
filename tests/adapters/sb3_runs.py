"""Run small Stable-Baselines3 scripts in child processes, kill them, and hash what they leave, knowing nothing of milepost."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
import random
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from exactness import strangers
from milepost.envs import register_plain

# The first step of an optimizer imports half of torch: once here, not once in every child.
torch.optim.Adam([torch.nn.Parameter(torch.ones(1))]).step()
KILLED = 9
NET = {"net_arch": [16]}


@register_plain
class Reach(strangers.Reach):
    """Reward by what the infos say, too, so that a resume which loses them is found out."""

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        seen, _, _, truncated, _ = super().step(action)
        info = {"distance": float(abs(self.state[0] - self.state[1])), "step": np.int64(self._elapsed_steps)}
        reward = float(self.compute_reward(seen["achieved_goal"], seen["desired_goal"], [info])[0])
        return seen, reward, reward == 0, truncated, info

    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> Any:
        seen = [info.get("distance", 0.0) for info in infos]
        return super().compute_reward(achieved, desired, infos) - np.float32(1e-3) * np.array(seen, np.float32)


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


def ppo_model(seed: int, folder: Path, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "n_steps": 64,
        "batch_size": 32,
        "n_epochs": 2,
        "policy_kwargs": dict(NET),
        "seed": seed,
        "device": "cpu",
    }
    env, policy = options.pop("env", None) or env_of("CartPole-v1"), options.pop("policy", "MlpPolicy")
    return PPO(policy, env, **{**settings, **options})


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


def her(cls: Any, seed: int, env: Any, copy_info_dict: bool = False, strategy: str = "future", **options: Any) -> Any:
    kwargs = {"copy_info_dict": copy_info_dict, "goal_selection_strategy": strategy, "n_sampled_goal": 2}
    return off_policy(cls, seed, env, replay_buffer_class=HerReplayBuffer, replay_buffer_kwargs=kwargs, **options)


def pieces(model: Any, callbacks: Sequence[BaseCallback] = ()) -> dict[str, str]:
    """Return a hash for each kind of state a run ends with."""
    modules = list(model.policy.modules())
    noise = [value for module in modules for value in vars(module).values() if hasattr(value, "exploration_mat")]
    parts: dict[str, Any] = {
        "policy": model.policy.state_dict(),
        "optimizers": [_data(value) for owner in (model, *modules) for value in vars(owner).values() if _is_optimizer(value)],
        "model": _attributes(model),
        "buffer": _attributes(getattr(model, "replay_buffer", None) or getattr(model, "rollout_buffer", None)),
        "global generators": [random.getstate(), np.random.get_state(), torch.get_rng_state()],
        "action space": _data(model.action_space._np_random),
        "envs": [_env(env) for env in _layers(model.env)[-1].envs],
        "venv": [_attributes(layer) for layer in _layers(model.env) if hasattr(layer, "venv")],
        "noise": [_data(getattr(model, "action_noise", None)), *([value.exploration_mat] for value in noise)],
        "callbacks": [_callback(callback) for callback in callbacks],
    }
    hashes = {}
    for name, value in parts.items():
        digest = hashlib.sha256()
        _feed(digest, name, value)
        hashes[name] = digest.hexdigest()[:16]
    return hashes


# What the clock says, and the seed, which each start of a script has another one of. Text is mostly a path of the run.
# A callback's locals are the variables of the loop, and of an idle one there are none.
_NO_STATE = {"t", "start_time", "t_start", "episode_times", "seed", "locals", "globals"}
_SMALL = ("RunningMeanStd", "StackedObservations", "Noise")


def _attributes(owner: Any) -> dict[str, Any]:
    named = dict(getattr(owner, "__dict__", {}))
    if dataclasses.is_dataclass(owner):
        named |= {field.name: getattr(owner, field.name) for field in dataclasses.fields(owner)}
    return {name: data for name, value in sorted(named.items()) if (data := _data(value, name)) is not None}


def _data(value: Any, name: str = "") -> Any:
    """Return what can be hashed of a value; None for what is no data."""
    if name in _NO_STATE or isinstance(value, str):
        return None
    if isinstance(value, (bool, int, float, np.generic, torch.Tensor)):
        return value
    if isinstance(value, np.ndarray):
        return _data(value.tolist()) if value.dtype.hasobject else value
    if isinstance(value, dict):
        return {str(key): _data(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [_data(item) for item in value]
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, torch.nn.Module) or _is_optimizer(value):
        return _data(dict(value.state_dict()))
    if isinstance(value, Enum):
        return [ord(letter) for letter in value.name]
    if type(value).__name__.endswith(_SMALL) or dataclasses.is_dataclass(value):
        return _attributes(value)
    return None


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, torch.optim.Optimizer)


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


def _env(env: Any) -> Any:
    layers = [env]
    while hasattr(layers[-1], "env"):
        layers.append(layers[-1].env)
    return [_data(env.unwrapped._np_random), *map(_attributes, layers)]


def _callback(callback: BaseCallback) -> Any:
    found = [_attributes(callback)]
    if isinstance(callback, EvalCallback):
        found.append([_env(env) for env in _layers(callback.eval_env)[-1].envs])
    children = (
        *getattr(callback, "callbacks", ()),
        getattr(callback, "callback", None),
        getattr(callback, "callback_on_new_best", None),
    )
    return found + [_callback(child) for child in children if isinstance(child, BaseCallback)]
