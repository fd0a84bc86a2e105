"""Hash what a run ends with, part by part. Knows nothing of milepost: it looks at what Stable-Baselines3 holds, and acts.

What the clock says can't be equal in two runs, and is left out: `CLOCKED`. All else must be equal to the bit.
"""

from __future__ import annotations

import csv
import hashlib
import json
import random
from collections import OrderedDict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from exactness.worlds import first_actions

CLOCKED = frozenset({"t", "start_time", "t_start", "time/fps", "time/time_elapsed"})
"""Names whose values come from a clock: an attribute, a column of a log, a key of an episode's summary."""
OF_THE_SCRIPT = frozenset({"seed"})
"""What the constructor was given, and each start gives otherwise on purpose."""
PROBED = 12
"""How many steps an environment is asked for before and after a reset, to tell two states of it apart."""
_SMALL = ("RunningMeanStd", "StackedObservations", "NormalActionNoise", "OrnsteinUhlenbeckActionNoise", "VectorizedActionNoise")


def hashes_of(parts: dict[str, Any]) -> dict[str, str]:
    """Return a hash for each part."""
    return {name: digest(value) for name, value in parts.items()}


def digest(value: Any) -> str:
    """Return a hash of the bits of plain data, arrays, tensors, generators and what is made of them."""
    state = hashlib.sha256()
    for piece in _bits(value):
        state.update(piece)
    return state.hexdigest()[:16]


def parts_of(model: Any, callbacks: list[Any], logs: Path) -> dict[str, Any]:
    """Return what a run has ended with, as plain data and arrays; the environments last, since they are stepped."""
    modules = {name: value for name, value in vars(model).items() if isinstance(value, torch.nn.Module)}
    tensors = {name: value for name, value in vars(model).items() if isinstance(value, torch.Tensor)}
    return {
        "parameters": [{name: module.state_dict() for name, module in modules.items()}, tensors],
        "optimizers": [optimizer.state_dict() for optimizer in _optimizers(model)],
        "generators": [random.getstate(), np.random.get_state(), torch.get_rng_state(), _space(model.action_space)],
        "buffer": _plain(getattr(model, "replay_buffer", None) or getattr(model, "rollout_buffer", None)),
        "counters": _plain(model),
        "noise": [_plain(model.action_noise), list(_matrices(model))] if hasattr(model, "action_noise") else None,
        "callbacks": [_plain(callback) for callback in callbacks],
        "wrappers": [_plain(layer) for layer in _layers(model.env)],
        "metrics": metrics_in(logs),
        "envs": envs_of(model.env),
    }


def metrics_in(logs: Path) -> dict[str, Any]:
    """Return the rows of every csv and json log below a folder, without what the clock says."""
    found: dict[str, Any] = {}
    for path in sorted(logs.rglob("*.csv")):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        found[path.relative_to(logs).as_posix()] = [_untimed(row) for row in csv.DictReader(lines)]
    for path in sorted(logs.rglob("*.json")):
        found[path.relative_to(logs).as_posix()] = [_untimed(json.loads(line)) for line in path.read_text().splitlines()]
    return found


def envs_of(venv: Any) -> Any:
    """Return the generators of the environments, and what they answer from here on: to some steps, a reset, and more."""
    generators = [generator.bit_generator.state for generator in venv.get_attr("np_random")]
    actions = first_actions(venv.action_space, venv.num_envs, 2 * PROBED)
    seen = [_answered(venv.step(action)) for action in actions[:PROBED]]
    seen.append(venv.reset())
    return [generators, seen, [_answered(venv.step(action)) for action in actions[PROBED:]]]


def _answered(answer: Any) -> Any:
    observations, rewards, dones, infos = answer
    return [_copied(observations), rewards.copy(), dones.copy(), [_untimed(info) for info in infos]]


def _copied(value: Any) -> Any:
    return {key: item.copy() for key, item in value.items()} if isinstance(value, dict) else value.copy()


def _untimed(row: Any) -> Any:
    return {key: _untimed(value) if isinstance(value, dict) else value for key, value in row.items() if key not in CLOCKED}


def _layers(venv: Any) -> list[Any]:
    found = [venv]
    while hasattr(found[-1], "venv"):
        found.append(found[-1].venv)
    return [layer for layer in found if hasattr(layer, "venv")]


def _optimizers(model: Any) -> Iterator[Any]:
    met: set[int] = set()
    for owner in (model, *model.policy.modules()):
        for value in vars(owner).values():
            if isinstance(value, torch.optim.Optimizer) and id(value) not in met:
                met.add(id(value))
                yield value


def _matrices(model: Any) -> Iterator[Any]:
    """Yield the noise matrices of gSDE, which no ``state_dict`` holds."""
    for module in model.policy.modules():
        for value in vars(module).values():
            if hasattr(value, "exploration_mat"):
                yield [value.exploration_mat, value.exploration_matrices]


def _space(space: Any) -> Any:
    inner = getattr(space, "spaces", ())
    parts = inner.values() if isinstance(inner, dict) else inner
    generator = space._np_random
    return [None if generator is None else generator.bit_generator.state, *(_space(part) for part in parts)]


def _plain(owner: Any) -> dict[str, Any]:
    """Return the attributes of an object that are data, and those of the small objects in it."""
    found = {}
    for name, value in sorted(vars(owner).items()) if owner is not None else ():
        data = _data(value)
        if data is not None and name not in CLOCKED | OF_THE_SCRIPT:
            found[name] = data
    return found


def _data(value: Any) -> Any:
    """Return a value as data in a list of one; None if it is something else, or nothing."""
    if type(value).__name__ in _SMALL:
        return [_plain(value)]
    if isinstance(value, (dict, OrderedDict)):
        items = {str(key): _data(item) for key, item in value.items() if key not in CLOCKED}
        return [items] if None not in items.values() else None
    if isinstance(value, (list, tuple, deque)):
        items = [_data(item) for item in value]
        return [items] if None not in items else None
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return [_data(value.tolist())]
    return [value] if isinstance(value, (bool, int, float, str, np.generic, np.ndarray, torch.Tensor)) else None


def _bits(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, dict):
        yield b"{"
        for key, item in value.items():
            yield f"{key!r}:".encode()
            yield from _bits(item)
        yield b"}"
    elif isinstance(value, (list, tuple, deque)):
        yield b"["
        for item in value:
            yield from _bits(item)
            yield b","
        yield b"]"
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    else:
        yield f"{value!r};".encode()


def flat(observations: Any, venv: Any) -> Any:
    """Return the observations of Gymnasium's vector environments as rows; a number as a one among zeros."""
    space = venv.single_observation_space
    if isinstance(space, gym.spaces.Discrete):
        return np.eye(int(space.n), dtype=np.float32)[observations]
    return np.array(observations, np.float32).reshape(len(observations), -1)


def answered(answer: Any) -> Any:
    """Return what a step of Gymnasium's vector environments says, without what the clock says."""
    *told, infos = answer
    return [*(np.array(part) for part in told), _untimed(infos)]
