"""Read the states of random generators as people save them: ``torch.get_rng_state()``, ``random.getstate()`` and so on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from milepost.state.rng import make_python_generator, make_random_state

_WORDS_OF_PYTHON = 625


def as_process_generators(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the generators of the process as `milepost.Rng` keeps them, and what is no such state, by its key.

    Several may be in one dict: ``{"rng_state": {"torch": ..., "numpy": ...}}``.
    """
    process: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for key, value in given.items():
        inside = value if isinstance(value, Mapping) and not _is_numpys(value) else {key: value}
        found = {name: state for name, state in (_generator(f"{key} {inner}", item) for inner, item in inside.items()) if name}
        if len(found) == len(inside) and not found.keys() & process.keys():
            process |= found
        else:
            rest[key] = value
    return process, rest


def _generator(key: str, value: Any) -> tuple[str, Any]:
    """Return which generator of the process a state is of, and the state; no name if it is of none."""
    try:
        return _torchs(key, value) or _numpys(value) or _pythons(value) or ("", None)
    except Exception:  # noqa: BLE001 - anything may lie there that only looks like a state; then it is data
        return "", None


def _torchs(key: str, value: Any) -> tuple[str, Any] | None:
    states = list(value) if isinstance(value, list | tuple) else [value]
    if not states or not all(isinstance(state, torch.Tensor) and state.dtype == torch.uint8 for state in states):
        return None
    if "cuda" in key.lower() or len(states) > 1:
        return "torch.cuda", states
    torch.Generator().set_state(states[0])  # raises for what is none
    return "torch", states[0]


def _is_numpys(value: Mapping[str, Any]) -> bool:
    return "bit_generator" in value


def _numpys(value: Any) -> tuple[str, Any] | None:
    if isinstance(value, tuple | list) and len(value) == 5 and value[0] == "MT19937":
        _, words, at, has_gauss, gauss = value
        key = np.array(words, np.uint32)
        state = {"key": key, "pos": int(at)}
        value = {"bit_generator": "MT19937", "state": state, "has_gauss": int(has_gauss), "gauss": float(gauss)}
    if not isinstance(value, Mapping) or value.get("bit_generator") != "MT19937":
        return None
    make_random_state(value)
    return "numpy", dict(value)


def _pythons(value: Any) -> tuple[str, Any] | None:
    if not isinstance(value, tuple | list) or len(value) != 3 or len(value[1]) != _WORDS_OF_PYTHON:
        return None
    version, words, gauss = value
    state = {"version": int(version), "words": np.array(words, np.uint32), "gauss": gauss}
    make_python_generator(state)
    return "python", state
