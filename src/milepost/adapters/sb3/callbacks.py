"""Find the callbacks of a ``learn()`` call, put ours first, and carry the others' counters through a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback, EventCallback

from milepost.errors import UsageError

_NOT_STATE = frozenset({"model", "locals", "globals", "parent", "verbose", "pbar", "_total_max_episodes"})
"""Attributes that lead elsewhere, show progress, or are computed anew by ``init_callback``."""


def not_state(callback: BaseCallback) -> frozenset[str]:
    """Return those attributes of ``callback`` that are saved elsewhere, or not at all."""
    named = {name for name, _ in _children(callback)}
    return _NOT_STATE | named | ({"eval_env"} if isinstance(callback, EvalCallback) else set())


def walk(callback: BaseCallback, path: str = "callback") -> Iterator[tuple[str, BaseCallback]]:
    """Yield every callback below and with ``callback``, each once, under a path that says where it sits and what it is.

    A callback of one's own may hold others, to call them, or only know one that sits elsewhere.
    """
    found = list(_nested(callback, path, _listed))
    seen = {id(each) for _, each in found}
    yield from found
    for here, holder in found:
        for name, child in _children(holder):
            for below, each in (pair for item in _items(child) for pair in _nested(item, f"{here}/{name}", _children)):
                if id(each) not in seen:
                    seen.add(id(each))
                    yield below, each


def _nested(
    callback: BaseCallback, path: str, within: Callable[[BaseCallback], Iterator[tuple[str, Any]]], above: tuple[int, ...] = ()
) -> Iterator[tuple[str, BaseCallback]]:
    here = f"{path}:{type(callback).__name__}"
    yield here, callback
    for name, child in within(callback):
        label = {"callback": "/event", "callback_on_new_best": "/best", "callbacks": ""}.get(name, f"/{name}")
        for index, item in enumerate(_items(child)):
            if id(item) not in (*above, id(callback)):
                place = f"{here}{label}/{index}" if isinstance(child, (list, tuple)) else f"{here}{label}"
                yield from _nested(item, place, within, (*above, id(callback)))


def _items(child: Any) -> list[BaseCallback]:
    return list(child) if isinstance(child, (list, tuple)) else [child]


def _listed(callback: BaseCallback) -> Iterator[tuple[str, Any]]:
    """Yield the children that Stable-Baselines3 itself calls, by their attributes."""
    if isinstance(callback, (CallbackList, EventCallback)):
        yield from (found for found in _children(callback) if found[0] in ("callbacks", "callback", "callback_on_new_best"))


def _children(callback: BaseCallback) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that are callbacks, or lists of some."""
    for name, value in vars(callback).items():
        inside = value if isinstance(value, (list, tuple)) and value else [value]
        if name != "parent" and all(isinstance(item, BaseCallback) for item in inside):
            yield name, value


def others(root: BaseCallback, ours: BaseCallback) -> list[tuple[str, BaseCallback]]:
    """Return all callbacks but lists and ``ours``, which comes first and so does not move the paths of the rest."""
    return [(path, callback) for path, callback in walk(root) if callback is not ours and not isinstance(callback, CallbackList)]


def lists(root: BaseCallback) -> list[tuple[str, BaseCallback]]:
    """Return the lists among the callbacks; they count, too."""
    return [(path, callback) for path, callback in walk(root) if isinstance(callback, CallbackList)]


def evaluations(root: BaseCallback) -> list[tuple[str, EvalCallback]]:
    """Return the callbacks that evaluate the policy."""
    return [(path, callback) for path, callback in walk(root) if isinstance(callback, EvalCallback)]


def move_to_front(root: BaseCallback, ours: BaseCallback) -> None:
    """Make ``ours`` the first callback of its list, and that list the first of its own.

    A restore then comes before every other callback's ``on_step``, and an evaluation due at the saved step is made
    exactly once. Called while each of these lists is being iterated at the very element that moves to the front, which
    leaves the rest of the iteration as it was.
    """
    if root is ours:
        return
    way = _way_to(root, ours)
    if way is None:
        hint = "pass it to learn(callback=[Checkpointing(...), ...]), not inside another callback"
        raise UsageError("Checkpointing does not see the rollouts from here", kind="callback-place", hint=hint)
    if sum(isinstance(callback, type(ours)) for _, callback in walk(root)) > 1:
        raise UsageError("there are two Checkpointing callbacks in one learn()", kind="callback-place", hint="use one")
    for parent, child in way:
        parent.callbacks.remove(child)
        parent.callbacks.insert(0, child)


def _way_to(root: BaseCallback, ours: BaseCallback) -> list[tuple[CallbackList, BaseCallback]] | None:
    if not isinstance(root, CallbackList):
        return None
    for child in root.callbacks:
        if child is ours:
            return [(root, child)]
        if (way := _way_to(child, ours)) is not None:
            return [(root, child), *way]
    return None


def last_evaluation(callback: EvalCallback) -> int:
    """Return how often ``callback`` has been called if its last call evaluated the policy, else 0."""
    calls = callback.n_calls
    return calls if callback.eval_freq > 0 and calls % callback.eval_freq == 0 else 0
