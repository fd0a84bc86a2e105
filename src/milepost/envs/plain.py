"""Turn an object's attributes into a plain tree and back, by an allow-list: what is not known to be data is reported.

Atoms (numbers, text, bytes, arrays, tensors), lists, tuples and dicts stand for themselves. All else is a dict with a
``$kind``: ordered containers, generators, spaces, the few small classes of `WALKED`, and ``same`` for an object that was
met before, so that what is shared stays shared.
"""

from __future__ import annotations

import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from milepost.envs import functions, layout, typed
from milepost.envs.small import SMALL
from milepost.envs.typed import ABSENT as ABSENT
from milepost.envs.typed import KIND as KIND
from milepost.envs.typed import class_name as class_name
from milepost.envs.typed import must_be
from milepost.errors import MismatchError
from milepost.records import Difference

_ATOMS = (type(None), bool, int, float, complex, str, bytes, bytearray)
_CODE = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, np.ufunc, np.dtype)

WALKED = {
    "stable_baselines3.common.running_mean_std.RunningMeanStd",
    "stable_baselines3.common.vec_env.stacked_observations.StackedObservations",
    "stable_baselines3.common.noise.NormalActionNoise",
    "stable_baselines3.common.noise.OrnsteinUhlenbeckActionNoise",
    "stable_baselines3.common.noise.VectorizedActionNoise",
    "gymnasium.wrappers.utils.RunningMeanStd",
}
"""Small classes, read through, whose whole state is their attributes."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Name one thing that a checkpoint does not hold, and say why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} ({self.reason})"


def is_atom(value: object) -> bool:
    """Return whether ``value`` stands for itself and cannot change, but for a ``bytearray``."""
    return type(value) in _ATOMS or isinstance(value, np.generic)


def is_small(value: object) -> bool:
    """Return whether ``value`` is of one of the few small classes that are known by their states: generators, mostly."""
    return class_name(value) in SMALL


def is_code(value: object) -> bool:
    """Return whether ``value`` is a part of the program or a picture of it, which the user's script makes again."""
    return (
        isinstance(value, _CODE)
        or type(value).__module__.partition(".")[0] in {"pygame", "functools"}
        or _is_torch_setting(value)
    )


def _is_torch_setting(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, (torch.device, torch.dtype))


def is_tensor(value: object) -> bool:
    """Return whether ``value`` is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_space(value: object) -> bool:
    """Return whether ``value`` is a Gymnasium space."""
    gymnasium = sys.modules.get("gymnasium")
    return gymnasium is not None and isinstance(value, gymnasium.Space)


@dataclass(slots=True)
class Recorder:
    """Read values into one tree; remember what was met and what had to be left out."""

    left_out: list[LeftOut] = field(default_factory=list)
    _met: dict[int, tuple[str | None, object]] = field(default_factory=dict)
    _over: dict[int, list[tuple[str, Any, bool]]] = field(default_factory=dict)
    """The arrays that were met, by whose memory they lie over."""

    def attributes(self, owner: object, path: str, *, skip: Container[str] = (), optional: Container[str] = ()) -> dict[str, Any]:
        """Return the attributes of ``owner`` that are data. ``optional`` ones are not reported when they are not plain."""
        return self.items(vars(owner), path, skip=skip, optional=optional)

    def items(
        self, named: dict[str, Any], path: str, *, skip: Container[str] = (), optional: Container[str] = ()
    ) -> dict[str, Any]:
        """Return the named values that are data, as `attributes` does those of an object."""
        state = {}
        for name, value in named.items():
            if name in skip:
                continue
            known = len(self.left_out)
            found = functions.record(value, self, f"{path}.{name}") if is_code(value) else self.value(value, f"{path}.{name}")
            if found is not ABSENT and (found is not None or value is None):
                state[name] = found
            if name in optional:
                del self.left_out[known:]
        return state

    def value(self, value: Any, path: str) -> Any:
        """Return ``value`` as a plain tree (arrays by reference), or `ABSENT`."""
        if is_atom(value):
            return value
        if id(value) in self._met:
            return self._again(self._met[id(value)][0], path)
        read = self._reader(value)
        if read is None:
            return self.leave(path, f"a `{type(value).__name__}` is not plain data")
        known = len(self._met)
        self._met[id(value)] = (None, value)
        found = read(value, path)
        self._met[id(value)] = (path, value)
        if found is ABSENT:
            # What lies inside was met, but is in no tree: nothing may refer to it.
            for met in list(self._met)[known:]:
                del self._met[met]
        return found

    def has_met(self, value: object) -> bool:
        """Return whether ``value`` itself is in the tree by now."""
        return id(value) in self._met

    def _again(self, first: str | None, path: str) -> Any:
        return self.leave(path, "it contains itself") if first is None else {KIND: "same", "as": first}

    def leave(self, path: str, reason: str) -> Any:
        """Note that the value at ``path`` is not in the tree, and return `ABSENT`."""
        self.left_out.append(LeftOut(path, reason))
        return ABSENT

    def _reader(self, value: Any) -> Callable[[Any, str], Any] | None:
        kind = type(value)
        if (kind is np.ndarray and not value.dtype.hasobject) or is_tensor(value):
            return self._array
        if kind in _CONTAINERS:
            return self._container
        if is_space(value):
            return self._space
        if class_name(value) in WALKED:
            return lambda owner, path: {KIND: "object", "class": class_name(owner), "state": self.attributes(owner, path)}
        small = SMALL.get(class_name(value))
        typed_kind = typed.kind_of(value) if small is None else None
        if typed_kind is not None:
            return lambda owner, path: typed.record(typed_kind, owner, self, path)
        return None if small is None else lambda owner, _: {KIND: class_name(owner), "state": small[0](owner)}

    def _array(self, array: Any, path: str) -> Any:
        """Return the array or tensor; where another that was met lies over the same memory, say that they will come apart."""
        array = array.detach() if is_tensor(array) else array
        memory, span = layout.memory_of(array)
        others = self._over.setdefault(memory, [])
        # Two tensors over one memory are mostly one result, held twice, and never written: recurrent states.
        others = [found for found in others if not (found[2] and is_tensor(array))]
        if first := next((known for known, other, _ in others if np.may_share_memory(other, span)), None):
            self.left_out.append(LeftOut(path, f"it shares its memory with {first}, and after a resume it would not"))
        self._over[memory].append((path, span, is_tensor(array)))
        return _with_layout(array)

    def _container(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            return self._mapping(value, path)
        items = [self.value(item, f"{path}[{index}]") for index, item in enumerate(value)]
        if any(item is ABSENT for item in items):
            return ABSENT
        if isinstance(value, (list, tuple)):
            return type(value)(items)
        return {KIND: type(value).__name__, "items": items, "maxlen": getattr(value, "maxlen", None)}

    def _mapping(self, value: dict[Any, Any], path: str) -> Any:
        items = [(key, self.value(item, f"{path}[{key!r}]")) for key, item in value.items()]
        if any(item is ABSENT for _, item in items):
            return ABSENT
        if type(value) is dict and all(type(key) in (str, int) and key != KIND for key in value):
            return dict(items)
        keys = [self.value(key, f"{path} key {key!r}") for key in value]
        if any(key is ABSENT for key in keys):
            return ABSENT
        return {KIND: type(value).__name__, "keys": keys, "items": [item for _, item in items]}

    def _space(self, space: Any, path: str) -> Any:
        """Return the generators of a space and of the spaces in it; a generator that was not made yet stays None."""
        inner = {name: self._inner_spaces(value, f"{path}.{name}") for name, value in vars(space).items() if _holds_spaces(value)}
        generator = None if space._np_random is None else self.value(space._np_random, f"{path}.np_random")
        return {KIND: "space", "np_random": generator, "inner": inner}

    def _inner_spaces(self, value: Any, path: str) -> Any:
        if is_space(value):
            return self.value(value, path)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [self.value(space, f"{path}[{key!r}]") for key, space in items]


def _with_layout(array: Any) -> Any:
    strides = layout.strides_of(array)
    return array if strides is None else {KIND: "strided", "strides": list(strides), "state": array}


def _holds_spaces(value: object) -> bool:
    if isinstance(value, dict):
        value = tuple(value.values())
    return is_space(value) or (isinstance(value, (list, tuple)) and bool(value) and all(is_space(item) for item in value))


@dataclass(slots=True)
class Refiller:
    """Bring live values back to a recorded tree. Containers and objects are kept and refilled, arrays are replaced.

    A live container that two places share while the saved ones did not, is refilled once; the other place gets its own.
    """

    _taken: dict[int, object] = field(default_factory=dict)
    _made: dict[str, object] = field(default_factory=dict)

    def attributes(self, owner: object, state: dict[str, Any], path: str) -> None:
        """Overwrite the attributes of ``owner`` that ``state`` holds."""
        for name, saved in state.items():
            if functions.is_function(saved):
                functions.refill(saved, vars(owner).get(name), self, f"{path}.{name}")
                continue
            if _is_part_of_the_program(owner, name):
                # A recorder never takes code: whoever wrote this would put data in the place of a method.
                difference = Difference(f"{path}.{name}", "data", "a part of the program", "type")
                raise MismatchError("a saved attribute is a part of the program here", [difference], kind="type")
            vars(owner)[name] = self.value(saved, vars(owner).get(name), f"{path}.{name}")

    def value(self, saved: Any, live: Any, path: str) -> Any:
        """Return the value to store where ``live`` was: ``live`` itself wherever it could be kept."""
        if isinstance(saved, dict) and KIND in saved:
            made = self._special(saved, live, path)
        elif isinstance(saved, (dict, list)):
            made = self._refilled(type(saved), saved.items() if isinstance(saved, dict) else enumerate(saved), live, path)
        elif isinstance(saved, tuple):
            made = tuple(self.value(item, _at(live, index), f"{path}[{index}]") for index, item in enumerate(saved))
        elif is_tensor(saved):
            made = self._tensor(saved, live)
        else:
            made = saved
        self._made[path] = made
        return made

    def _special(self, saved: dict[str, Any], live: Any, path: str) -> Any:
        kind = saved[KIND]
        if kind == "same":
            return self._made[saved["as"]]
        if kind == "space":
            return self._space(saved, live, path)
        if kind == "object":
            must_be(saved["class"], live, path)
            self.attributes(live, saved["state"], path)
            return live
        if kind == "strided":
            return self._tensor(saved["state"], live, tuple(saved["strides"]))
        if typed.is_typed(kind):
            return typed.refill(saved, live, self, path)
        if kind in SMALL:
            return SMALL[kind][1](live, saved["state"], path)
        keys = saved.get("keys")
        items = enumerate(saved["items"]) if keys is None else zip(keys, saved["items"], strict=True)
        return self._refilled(_NAMED[kind], items, live, path, saved.get("maxlen"))

    def _refilled(self, kind: type, items: Any, live: Any, path: str, maxlen: int | None = None) -> Any:
        fresh = [(key, self.value(item, _at(live, key), f"{path}[{key!r}]")) for key, item in items]
        content: Any = dict(fresh) if issubclass(kind, dict) else [item for _, item in fresh]
        if not self._may_refill(live, kind, maxlen):
            return _made(kind, content, maxlen)
        self.take(live)
        live.clear()
        (live.extend if kind in (list, deque) else live.update)(content)
        return live

    def _may_refill(self, live: Any, kind: type, maxlen: int | None) -> bool:
        fits = type(live) is kind and kind is not frozenset and getattr(live, "maxlen", None) == maxlen
        return fits and id(live) not in self._taken

    def _space(self, saved: dict[str, Any], live: Any, path: str) -> Any:
        if not is_space(live):
            return live
        live._np_random = self.value(saved["np_random"], live._np_random, f"{path}.np_random")
        for name, inner in saved["inner"].items():
            parts = vars(live)[name]
            if is_space(parts):
                self.value(inner, parts, f"{path}.{name}")
                continue
            for (key, part), item in zip(parts.items() if isinstance(parts, dict) else enumerate(parts), inner, strict=True):
                self.value(item, part, f"{path}.{name}[{key!r}]")
        return live

    def _tensor(self, saved: Any, live: Any, strides: tuple[int, ...] | None = None) -> Any:
        """Return an array or a tensor that lies in memory as the saved one did; a tensor in place if the live one does."""
        if not is_tensor(saved) or not is_tensor(live):
            return saved if strides is None else layout.laid_out(saved, strides)
        fits = live.shape == saved.shape and live.dtype == saved.dtype and layout.strides_of(live) == strides
        if not fits or not self.take(live):
            return (saved if strides is None else layout.laid_out(saved, strides)).to(live.device)
        live.data.copy_(saved)
        return live

    def take(self, live: object) -> bool:
        """Claim a live object for the place that is being refilled; return whether it was still to be had."""
        free = id(live) not in self._taken
        self._taken[id(live)] = live
        return free


def _is_part_of_the_program(owner: object, name: str) -> bool:
    inherited = next((vars(base)[name] for base in type(owner).__mro__ if name in vars(base)), None)
    return is_code(vars(owner).get(name)) or callable(inherited) or isinstance(inherited, (property, classmethod, staticmethod))


def _made(kind: type, content: Any, maxlen: int | None) -> Any:
    if kind is deque:
        return deque(content, maxlen)
    return defaultdict(None, content) if kind is defaultdict else kind(content)


def _at(live: Any, key: Any) -> Any:
    try:
        return live[key]
    except (TypeError, LookupError):
        return None


def same(one: Any, other: Any) -> bool:
    """Return whether two recorded trees hold the same bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if is_tensor(one):
        return same(one.detach().cpu().numpy(), other.detach().cpu().numpy()) if one.shape == other.shape else False
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype) and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, (float, complex, np.generic)):
        return np.asarray(one).tobytes() == np.asarray(other).tobytes()  # 0.0 is not -0.0, and a NaN is what it is
    return bool(one == other)


_CONTAINERS = (dict, list, tuple, deque, set, frozenset, OrderedDict, defaultdict)
_NAMED = {kind.__name__: kind for kind in _CONTAINERS}
