"""Know under which keys people put what into a file that ``torch.save`` writes, and which component each is. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from milepost.engine.components import is_name
from milepost.errors import MilepostError, UsageError
from milepost.pytorch.importing.generators import as_process_generators
from milepost.pytorch.importing.given import Given

EXTRA = "extra"
_STEPS = (
    "global_step",
    "global_steps",
    "num_timesteps",
    "total_timesteps",
    "step",
    "total_steps",
    "env_steps",
    "timesteps",
    "steps",
)
_ROUNDS = ("iteration", "iter", "iter_num", "update", "updates", "num_updates", "n_updates", "epoch", "current_epoch", "epochs")
_COUNTERS = frozenset({*_STEPS, *_ROUNDS, "episode", "episodes", "num_episodes"})
_NAMES = {
    "policy": "model policy net network module actor agent weights q_network q_net qnet pi",
    "value": "critic value value_net value_function value_network vf qf qf1 qf2 critic1 critic2 critic_1 critic_2",
    "normalizer": "normalizer obs_rms ret_rms obs_normalizer running_mean_std",
    "replay": "replay replay_buffer buffer memory",
}
_BY_NAME = {name: component for component, names in _NAMES.items() for name in names.split()}
_BY_WORD = (
    ("optimizer", {"optimizer", "optimizers", "optim", "opt"}),
    ("lr_scheduler", {"scheduler", "schedulers", "sched"}),
    ("rng", {"rng", "random"}),
    ("target", {"target"}),
)
_LEARNED = ("policy", "value", "target")
_ENDING = re.compile(r"(_state_dicts?|_states?|_dict)$")
_MOST = 1 << 62


@dataclass(slots=True)
class Sorted:
    """Hold what a file has, by component."""

    state: dict[str, Any] = field(default_factory=dict)
    step: int | None = None
    """None where the file says none."""
    whole: bool = False
    """The file is one value that is none of the usual ones: all of it is `EXTRA`."""
    keys: dict[str, list[str]] = field(default_factory=dict)
    """By component, the keys that it was made of."""

    @property
    def counters(self) -> dict[str, int]:
        """Return what was counted."""
        return dict(self.state.get("counters", {}))


def sort_out(value: Any, chosen: Mapping[str, str]) -> Sorted:
    """Return the components of a file; ``chosen`` says of some keys which component they are.

    Raises `UsageError` for a chosen key that is not there, and for a component that there is not.
    """
    if isinstance(value, torch.nn.Module):
        return Sorted({"policy": Given(value.state_dict())})
    if not isinstance(value, Mapping) or not value or not all(isinstance(key, str) for key in value):
        _check_chosen({}, chosen)
        return Sorted({EXTRA: value}, whole=True)
    _check_chosen(value, chosen)
    alone = None if chosen else _component_alone(value)
    if alone is not None:
        return Sorted({alone: Given(value)}, keys={alone: [*value]})
    found = Sorted()
    for key, item in value.items():
        component = chosen.get(key) or component_of(key, item)
        found.keys.setdefault(component, []).append(key)
    for component, keys in found.keys.items():
        found.state[component] = _made_of(component, {key: value[key] for key in keys})
    _convert_generators(found)
    found.step = _step_of(found.counters)
    return found


def component_of(key: str, value: Any) -> str:
    """Return the component that a key of a file stands for, by its name and by what it holds."""
    name = re.sub(r"[^a-z0-9]+", "_", key.lower())
    if name in _COUNTERS and as_count(value) is not None:
        return "counters"
    if name == "state_dict":
        return "policy" if _holds_tensors(value) else EXTRA
    base = _ENDING.sub("", name)
    words = set(base.split("_"))
    found = next((component for component, some in _BY_WORD if words & some), None) or _BY_NAME.get(base)
    fits = {
        "optimizer": _is_each(_is_optimizer, value),
        "lr_scheduler": _is_each(_is_state, value),
        "rng": True,
        "replay": True,
        "normalizer": True,
    }
    return found if found and (fits[found] if found in fits else _holds_tensors(value)) else EXTRA


def as_count(value: Any) -> int | None:
    """Return a value as a count, or None if it is none."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_floating_point() and not value.is_complex():
        value = value.item()
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool) and -_MOST < int(value) < _MOST
    return int(value) if whole else None


def _component_alone(value: Mapping[str, Any]) -> str | None:
    """Return what a file is that holds nothing but one object's state."""
    if all(isinstance(item, torch.Tensor) for item in value.values()):
        return "policy"
    if _is_optimizer(value):
        return "optimizer"
    return "lr_scheduler" if value.keys() >= {"last_epoch", "_step_count"} else None


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping | torch.nn.Module)


def _holds_tensors(value: Any) -> bool:
    """Return whether a value is a state of something learned, and not a configuration of the same name."""
    if isinstance(value, Mapping):
        return any(isinstance(item, torch.Tensor) or _holds_tensors(item) for item in value.values())
    return isinstance(value, torch.nn.Module)


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() >= {"state", "param_groups"}


def _is_each(is_one: Any, value: Any) -> bool:
    return bool(is_one(value)) or (isinstance(value, list | tuple) and bool(value) and all(map(is_one, value)))


def _made_of(component: str, items: dict[str, Any]) -> Any:
    kind = component.rpartition("/")[2]
    if kind == "counters":
        return {key: _counted(key, item) for key, item in items.items()}
    if kind in (EXTRA, "rng"):
        return items
    objects = {key: _object(item, kind) for key, item in items.items()}
    return objects if len(objects) > 1 else next(iter(objects.values()))


def _object(value: Any, kind: str) -> Any:
    """Return what stands for one object, or for several in a list; a list of one is that one, as Lightning writes it."""
    if isinstance(value, list | tuple) and kind in ("optimizer", "lr_scheduler"):
        return _object(value[0], kind) if len(value) == 1 else [_object(item, kind) for item in value]
    if isinstance(value, torch.nn.Module):
        return Given(value.state_dict())
    return Given(value) if isinstance(value, Mapping) and kind not in ("replay", "normalizer") else value


def _counted(key: str, value: Any) -> int:
    count = as_count(value)
    if count is None:
        raise UsageError(
            "a counter is a whole number",
            kind="bad-setting",
            hint=f"--component {key}={EXTRA}",
            key=key,
            found=type(value).__name__,
        )
    return count


def _convert_generators(found: Sorted) -> None:
    """Bring states of generators into the form that `milepost.Rng` takes; what is no such state is extra."""
    given = found.state.pop("rng", None)
    if given is None:
        return
    process, rest = as_process_generators(given)
    if process:
        found.state["rng"] = Given({"process": process, "named": {}})
    if rest:
        found.state[EXTRA] = {**found.state.get(EXTRA, {}), **rest}


def _step_of(counters: Mapping[str, int]) -> int | None:
    names = {re.sub(r"[^a-z0-9]+", "_", name.lower()): count for name, count in counters.items()}
    return next((max(names[name], 0) for name in (*_STEPS, *_ROUNDS) if name in names), None)


def _check_chosen(value: Mapping[str, Any], chosen: Mapping[str, str]) -> None:
    for key, component in chosen.items():
        if key not in value:
            there = ", ".join(map(str, list(value)[:40])) or "none"
            raise UsageError("the file has no such key", kind="no-such-key", hint=f"its keys are {there}"[:500], key=key)
        if not is_name(component):
            hint = "policy, value, target, optimizer, lr_scheduler, counters, rng, normalizer, replay or extra"
            raise UsageError("this is not a component's name", kind="unknown-component", hint=hint, name=component)


def saveable(found: Sorted, check: Any) -> list[str]:
    """Take out of `EXTRA` what ``check`` cannot take, and return that with the reasons."""
    left_out = []
    for key, item in list(found.state.get(EXTRA, {}).items()) if not found.whole else ():
        try:
            check(item, key)
        except MilepostError as error:
            del found.state[EXTRA][key]
            kind = error.facts.get("type") or error.facts.get("path")
            left_out.append(f"{key}: {error.message} ({kind})")
    if not found.whole and found.state.get(EXTRA) == {}:
        del found.state[EXTRA]
    return left_out
