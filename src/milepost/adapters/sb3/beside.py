"""Read the pickles that lie beside a saved model: its replay buffer, and the statistics of its normalizer.

Those of Stable-Baselines3's own classes are read as data. Of what they are made, and what only their code can read (HER's
infos, classes of one's own), a pickle is run if it is trusted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

from milepost.adapters.sb3.fields import attributes_of, fields
from milepost.envs.plain import class_name
from milepost.pytorch.importing.base import damaged, is_plain_file, open_source, read_whole, size_of
from milepost.pytorch.importing.restricted import Record, read_pickle

REPLAY, NORMALIZER = "replay", "normalizer"
_SHOWN = {REPLAY: "replay_buffer", NORMALIZER: "vecnormalize"}
"""What `CheckpointCallback` calls them."""
_BUFFERS = {class_name(cls.__new__(cls)): cls for cls in (ReplayBuffer, DictReplayBuffer, NStepReplayBuffer)}
_ROWS = {"observations", "actions", "rewards", "dones"}
"""What every replay buffer has, a row for each transition."""
_STATISTICS = "stable_baselines3.common.running_mean_std.RunningMeanStd"
_NORMALIZERS = "stable_baselines3.common.vec_env.vec_normalize.VecNormalize"
_INERT = frozenset(
    {
        *_BUFFERS,
        _STATISTICS,
        _NORMALIZERS,
        "torch.device",
        *(f"gymnasium.spaces.{name.lower()}.{name}" for name in ("Box", "Dict", "Discrete", "Tuple")),
        "gymnasium.spaces.multi_binary.MultiBinary",
        "gymnasium.spaces.multi_discrete.MultiDiscrete",
        "numpy.random._pickle.__bit_generator_ctor",
        "numpy.random._pickle.__generator_ctor",
        "numpy.random._pcg64.PCG64",
        "numpy.random.bit_generator.SeedSequence",
        "numpy.random.bit_generator.__pyx_unpickle_SeedSequence",
    }
)
"""Classes and functions that may be named: none of them is called."""


def find_beside(path: Path, components: Mapping[str, str]) -> dict[str, Path]:
    """Return the files that belong to a model, by component: those named in ``components``, else those of the usual names."""
    found: dict[str, Path] = {}
    real = Path(os.path.realpath(path))
    usual = re.fullmatch(r"(.*)_(\d+)_steps", real.stem)
    for component, shown in _SHOWN.items():
        named = [name for name, chosen in components.items() if chosen == component]
        if named:
            found[component] = path.parent / named[-1]
        elif usual and is_plain_file(there := real.with_name(f"{usual[1]}_{shown}_{usual[2]}_steps.pkl")):
            found[component] = there
    return found


def read_replay(path: Path, *, trust: bool) -> Any:
    """Return a saved replay buffer. Raises `UsageError` (kind ``pickle-not-trusted``), `CorruptError`."""
    found = _read(path, "the replay buffer", trust=trust)
    buffer = found
    if isinstance(found, Record) and found.name in _BUFFERS:
        cls = _BUFFERS[found.name]
        buffer = cls.__new__(cls)
        vars(buffer).update(_fields(found, path))
    if not isinstance(buffer, ReplayBuffer):
        raise damaged("it is no replay buffer", path, found=str(getattr(found, "name", type(found).__name__))[:200])
    _check(buffer, path)
    return buffer


def read_normalizer(path: Path, *, trust: bool) -> VecNormalize:
    """Return a normalizer with the saved statistics and nothing else. Raises as `read_replay`."""
    found = _read(path, "the normalizer", trust=trust)
    if isinstance(found, Record) and found.name == _NORMALIZERS:
        held = _fields(found, path)
    elif isinstance(found, VecNormalize):
        held = vars(found)
    else:
        raise damaged("it is no VecNormalize", path, found=str(getattr(found, "name", type(found).__name__))[:200])
    made = VecNormalize.__new__(VecNormalize)
    vars(made).update({name: _statistics(held[name], path) for name in ("obs_rms", "ret_rms") if name in held})
    return made


def _read(path: Path, what: str, *, trust: bool) -> Any:
    with open_source(path) as file:
        data = read_whole(file, path, size_of(file))
    return read_pickle(data, path, trust=trust, what=what, records=_INERT)


def _fields(record: Record, path: Path) -> dict[str, Any]:
    if not isinstance(record.fields, dict) or not all(isinstance(name, str) for name in record.fields):
        raise damaged("an object in it has no attributes", path, object=record.name)
    return {name: _writable(value) for name, value in record.fields.items()}


def _writable(value: Any) -> Any:
    """Return arrays that can be written to: those of an older pickle lie over its own bytes."""
    if isinstance(value, dict):
        return {name: _writable(each) for name, each in value.items()}
    return value.copy() if isinstance(value, np.ndarray) and not value.flags.writeable else value


def _check(buffer: ReplayBuffer, path: Path) -> None:
    held = vars(buffer)
    size, at = held.get("buffer_size"), held.get("pos")
    sound = type(size) is int and type(at) is int and 0 <= at < size and type(held.get("full")) is bool
    if not sound or not attributes_of(fields(buffer)) >= _ROWS:
        raise damaged("the replay buffer's cursor and arrays do not go together", path, rows=size, at=at)


def _statistics(value: Any, path: Path) -> Any:
    if isinstance(value, dict):
        return {name: _statistics(each, path) for name, each in value.items()}
    held = value.fields if isinstance(value, Record) and value.name == _STATISTICS else getattr(value, "__dict__", None)
    numbers = [held.get(name) for name in ("mean", "var")] if isinstance(held, dict) else [None]
    if not isinstance(held, dict) or not all(isinstance(number, np.ndarray | np.floating) for number in numbers):
        raise damaged("a statistic in it is none", path)
    made = RunningMeanStd.__new__(RunningMeanStd)
    made.mean, made.var, made.count = held["mean"], held["var"], held.get("count", 0.0)
    return made
