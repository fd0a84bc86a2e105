"""Read and set the small objects that are neither data nor hold any that can be seen: generators, and the log of a Monitor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from milepost.envs.textlog import read_log, rewrite_log
from milepost.envs.typed import class_name, must_be
from milepost.state import rng


def _set_generator(live: Any, state: Any, _: str) -> Any:
    if type(live) is not np.random.Generator or live.bit_generator.state["bit_generator"] != state["bit_generator"]:
        return rng.make_generator(state)
    rng.set_numpy_state(live, state)
    return live


def _set_random_state(live: Any, state: Any, _: str) -> Any:
    if type(live) is not np.random.RandomState:
        return rng.make_random_state(state)
    rng.set_random_state(live, state)
    return live


def _set_python_random(live: Any, state: Any, _: str) -> Any:
    if class_name(live) != "random.Random":
        return rng.make_python_generator(state)
    rng.set_python_state(live, state)
    return live


def _set_torch_generator(live: Any, state: Any, path: str) -> Any:
    must_be("torch._C.Generator", live, path)
    live.set_state(state)
    return live


def _set_results_writer(live: Any, chunks: Any, _: str) -> Any:
    if live is not None:
        rewrite_log(live.file_handler, chunks)
    return live


SMALL: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any, str], Any]]] = {
    "numpy.random._generator.Generator": (rng.numpy_state, _set_generator),
    "numpy.random.mtrand.RandomState": (rng.numpy_state, _set_random_state),
    "random.Random": (rng.python_state, _set_python_random),
    "torch._C.Generator": (lambda live: live.get_state(), _set_torch_generator),
    "stable_baselines3.common.monitor.ResultsWriter": (lambda live: read_log(live.file_handler), _set_results_writer),
}
