"""Record what functions hold: variables of a closure, defaults, their own attributes, the object of a bound method.

A function is a part of the program, and its code is never saved. What it counts in a closure is state all the same. Of a
closure's variables those are taken that the function itself sets again, and those that hold something which can change.
Functions of libraries hold what their makers were given: settings.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
import weakref
from collections.abc import Iterator
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from milepost.envs.typed import ABSENT, KIND, class_name

if TYPE_CHECKING:
    from milepost.envs.plain import Recorder, Refiller

FUNCTION = "function"
_LIBRARIES = frozenset({"gymnasium", "stable_baselines3", "sb3_contrib", "torch", "numpy", "milepost", "ale_py", "mujoco"})
_FIXED = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    np.generic,
    type,
    types.ModuleType,
    np.dtype,
    np.ufunc,
    weakref.ref,
    PurePath,
    range,
    slice,
)


def record(function: Any, recorder: Recorder, path: str) -> dict[str, Any] | None:
    """Return what ``function`` holds, or None where it holds nothing; what of it is not plain is named by ``recorder``."""
    held = {name: tree for name, value in _held(function) if (tree := _recorded(value, recorder, f"{path}.{name}")) is not None}
    return {KIND: FUNCTION, "state": held} if held else None


def refill(saved: dict[str, Any], function: Any, refiller: Refiller, path: str) -> None:
    """Bring back what ``function`` holds. What a changed script does not hold any more is passed over."""
    live = dict(_held(function, every=True))
    for name, tree in saved["state"].items():
        if name not in live:
            continue
        here, value = f"{path}.{name}", live[name]
        if isinstance(tree, dict) and tree.get(KIND) == FUNCTION:
            refill(tree, value, refiller, here)
        else:
            _put(function, name, value, refiller.value(tree, value, here))


def is_function(saved: object) -> bool:
    """Return whether this is what `record` returned."""
    return isinstance(saved, dict) and saved.get(KIND) == FUNCTION


def _recorded(value: Any, recorder: Recorder, path: str) -> Any:
    if _is_callable_code(value):
        return record(value, recorder, path)
    found = recorder.value(value, path)
    return None if found is ABSENT else found


def _held(function: Any, *, every: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield what is state of it by names that `_put` knows; ``every`` closure variable, if that is asked for."""
    if isinstance(function, types.FunctionType):
        if _is_of_a_library(function):
            return
        yield from _variables(function, every)
        for index, value in enumerate(function.__defaults__ or ()):
            if may_change(value):
                yield f"default {index}", value
        yield from ((f"default {name}", value) for name, value in (function.__kwdefaults__ or {}).items() if may_change(value))
        yield from ((f"attribute {name}", value) for name, value in vars(function).items() if name != "__wrapped__")
    elif isinstance(function, (types.MethodType, types.BuiltinMethodType)):
        if may_change(function.__self__):
            yield "object", function.__self__
    elif isinstance(function, functools.partial):
        yield from (("function", function.func),) if may_change(function.func) else ()
        values = [*enumerate(function.args), *function.keywords.items()]
        yield from ((f"argument {name}", value) for name, value in values if may_change(value))


def _variables(function: types.FunctionType, every: bool) -> Iterator[tuple[str, Any]]:
    rebound = _rebound(function.__code__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not set yet
            continue
        if value is not function and (every or name in rebound or may_change(value)):
            yield f"variable {name}", value


@cache
def _rebound(code: types.CodeType) -> frozenset[str]:
    """Return the variables that the code, or a function which it makes, sets."""
    own = {step.argval for step in dis.get_instructions(code) if step.opname in ("STORE_DEREF", "DELETE_DEREF")}
    inner = (_rebound(found) for found in code.co_consts if isinstance(found, types.CodeType))
    return frozenset(own).union(*inner)


def _put(function: Any, name: str, live: Any, value: Any) -> None:
    if value is live:
        return
    arrays = isinstance(live, np.ndarray) and isinstance(value, np.ndarray) and live.flags.writeable
    if arrays and (live.shape, live.dtype) == (value.shape, value.dtype):
        live[...] = value  # the script may hold it, too
        return
    where, _, rest = name.partition(" ")
    if where == "variable":
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        cells[rest].cell_contents = value
    elif where == "attribute":
        vars(function)[rest] = value


def may_change(value: Any) -> bool:
    """Return whether it is data that can change, or an object that may hold some; what others save is not meant."""
    if _is_callable_code(value):
        return any(True for _ in _held(value))
    if isinstance(value, tuple):
        return any(map(may_change, value))
    return not isinstance(value, (*_FIXED, frozenset)) and not _is_saved_elsewhere(value)


def _is_callable_code(value: Any) -> bool:
    return isinstance(value, (types.FunctionType, types.MethodType, types.BuiltinMethodType, functools.partial))


def _is_of_a_library(function: types.FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] in _LIBRARIES


def _is_saved_elsewhere(value: Any) -> bool:
    """Return whether it is an env, a model, a callback or another object of theirs that stands in the state by itself."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, (torch.Tensor, torch.Generator, torch.nn.Module, torch.optim.Optimizer)):
        return False
    if class_name(value).startswith("numpy.random."):
        return False
    return (hasattr(value, "reset") and hasattr(value, "step")) or any(
        base.__module__.partition(".")[0] in _LIBRARIES for base in type(value).__mro__ if base.__module__ != "numpy"
    )
