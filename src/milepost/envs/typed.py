"""Record objects of classes that declare what they hold, or can say it: as kinds, whatever their names are.

Named tuples, enumerations and dataclasses declare it. Modules, optimizers, averages of weights say it by ``state_dict`` and
``load_state_dict``; a class of one's own by ``milepost_get_state`` and ``milepost_set_state``.

A checkpoint names classes. Nothing is imported because it does, and no code of theirs runs to make one: what this program
has not imported by itself cannot come back.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from milepost.envs.layout import values_of
from milepost.errors import MismatchError
from milepost.records import Difference, LeafSpec
from milepost.state.kinds import leaf_kind

if TYPE_CHECKING:
    from milepost.envs.plain import Recorder, Refiller

KIND = "$kind"
ABSENT: Any = object()
"""What `Recorder.value` returns for a value that is not plain; the reason is in ``left_out``."""


def class_name(value: object) -> str:
    """Return the full name of the class of ``value``."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def must_be(name: str, live: object, path: str) -> None:
    """Raise `MismatchError` unless ``live`` is of the class called ``name``."""
    if class_name(live) != name:
        difference = Difference(path, name, class_name(live), "type")
        raise MismatchError("the saved state belongs to another kind of object", [difference], kind="type")


def kind_of(value: object) -> str | None:
    """Return the kind by which ``value`` is recorded, or None."""
    return next((kind for kind, (fits, _, _) in _KINDS.items() if fits(value)), None)


def record(kind: str, value: Any, recorder: Recorder, path: str) -> Any:
    """Return ``value`` as a plain tree, or `ABSENT`."""
    state = _KINDS[kind][1](value, recorder, path)
    return ABSENT if state is ABSENT else {KIND: kind, "class": class_name(value), "state": state}


def refill(saved: dict[str, Any], live: Any, refiller: Refiller, path: str) -> Any:
    """Return what `record` took apart: ``live`` itself wherever it could be kept."""
    return _KINDS[saved[KIND]][2](saved, live, refiller, path)


def differences(saved: Any, live: Any, path: str) -> Iterator[Difference]:
    """Yield what of a recorded tree has no object to go back to in ``live``, recorded now; in ``saved`` arrays are `LeafSpec`.

    Values are data, and may come in any shape. Objects that are asked to take a state must be there, of the same class, and
    with arrays of the same shape.
    """
    kind = saved.get(KIND) if isinstance(saved, dict) else None
    if kind in _TAKE:
        if not isinstance(live, dict) or (live.get(KIND), live.get("class")) != (kind, saved["class"]):
            yield Difference(path, saved["class"], _described(live), "type")
        else:
            inside = _shape_differences if kind == "stateful" else differences
            yield from inside(saved["state"], live["state"], path)
        return
    for name, one, other in _common(saved, live):
        yield from differences(one, other, f"{path}.{name}")


def _shape_differences(saved: Any, live: Any, path: str) -> Iterator[Difference]:
    saved, live = values_of(saved), values_of(live)
    if isinstance(saved, LeafSpec):
        kind = leaf_kind(type(live))
        here = kind.describe(live, path) if kind is not None else None
        if here is None or here.shape != saved.shape:
            yield Difference(path, str(saved), _described(live) if here is None else str(here), "shape")
        return
    if (
        isinstance(saved, dict)
        and saved.get(KIND) == "OrderedDict"
        and isinstance(live, dict)
        and live.get("keys") != saved["keys"]
    ):
        yield Difference(path, f"keys {saved['keys']}", f"keys {live.get('keys')}", "type")
        return
    # What only one side has may be an optimizer's state, which is made at its first step.
    for name, one, other in _common(saved, live):
        yield from _shape_differences(one, other, f"{path}.{name}")


def _common(saved: Any, live: Any) -> list[tuple[Any, Any, Any]]:
    if isinstance(saved, dict) and isinstance(live, dict):
        return [(name, saved[name], live[name]) for name in saved if name in live]
    both = isinstance(saved, (list, tuple)) and isinstance(live, (list, tuple))
    return list(zip(range(len(saved)), saved, live, strict=False)) if both else []


def _described(live: Any) -> str:
    return str(live["class"]) if isinstance(live, dict) and "class" in live else type(live).__name__


def is_typed(kind: str) -> bool:
    """Return whether trees of this kind are `refill`'s."""
    return kind in _KINDS


def _record_tuple(value: Any, recorder: Recorder, path: str) -> Any:
    items = [recorder.value(item, f"{path}.{name}") for name, item in zip(value._fields, value, strict=True)]
    return ABSENT if any(item is ABSENT for item in items) else items


def _refill_tuple(saved: dict[str, Any], live: Any, refiller: Refiller, path: str) -> Any:
    cls = _class_for(saved["class"], live, path, _is_tuple_class)
    inside = live if type(live) is cls else [None] * len(cls._fields)
    if len(saved["state"]) != len(cls._fields):
        raise _unlike(path, f"{len(saved['state'])} fields", f"{len(cls._fields)} fields")
    items = zip(saved["state"], inside, cls._fields, strict=True)
    return tuple.__new__(cls, [refiller.value(item, old, f"{path}.{name}") for item, old, name in items])


def _record_enum(value: Any, recorder: Recorder, path: str) -> Any:
    if type(value).__members__.get(value.name) is value:
        return value.name
    return recorder.leave(path, "a combination of flags has no name")


def _refill_enum(saved: dict[str, Any], live: Any, _: Refiller, path: str) -> Any:
    members = _class_for(saved["class"], live, path, lambda cls: issubclass(cls, enum.Enum)).__members__
    if saved["state"] not in members:
        raise _unlike(path, f"`{saved['state']}`", ", ".join(members))
    return members[saved["state"]]


def _record_dataclass(value: Any, recorder: Recorder, path: str) -> Any:
    known = len(recorder.left_out)
    state = recorder.items(_attributes(value), path)
    # One that is made anew must be whole.
    return ABSENT if _is_frozen(type(value)) and len(recorder.left_out) > known else state


def _refill_dataclass(saved: dict[str, Any], live: Any, refiller: Refiller, path: str) -> Any:
    """Overwrite a dataclass in place; a frozen one, which may be a constant of the program, is made anew."""
    cls = _class_for(saved["class"], live, path, dataclasses.is_dataclass)
    if type(live) is cls and not _is_frozen(cls) and refiller.take(live):
        made, inside = live, _attributes(live)
    else:
        made, inside = object.__new__(cls), _attributes(live) if type(live) is cls and not _is_frozen(cls) else {}
    slots = {field.name for field in dataclasses.fields(cls)}
    for name, item in saved["state"].items():
        if name not in slots and not hasattr(made, "__dict__"):
            raise _unlike(f"{path}.{name}", "data", "no such field")
        object.__setattr__(made, name, refiller.value(item, inside.get(name), f"{path}.{name}"))
    return made


def _record_own(value: Any, recorder: Recorder, path: str) -> Any:
    return recorder.value(value.milepost_get_state(), path)


def _refill_own(saved: dict[str, Any], live: Any, refiller: Refiller, path: str) -> Any:
    must_be(saved["class"], live, path)
    live.milepost_set_state(refiller.value(saved["state"], None, path))
    return live


def _record_stateful(value: Any, recorder: Recorder, path: str) -> Any:
    return recorder.value(value.state_dict(), path)


def _refill_stateful(saved: dict[str, Any], live: Any, refiller: Refiller, path: str) -> Any:
    must_be(saved["class"], live, path)
    live.load_state_dict(refiller.value(saved["state"], None, path))
    return live


def _record_schedule(value: Any, recorder: Recorder, path: str) -> Any:
    if any(callable(inner) and class_name(inner) not in _SCHEDULES for inner in vars(value).values()):
        return recorder.leave(path, "a schedule that is a function is a part of the program")
    return recorder.items(vars(value), path)


def _refill_schedule(saved: dict[str, Any], live: Any, refiller: Refiller, path: str) -> Any:
    """Make it anew: training has put it in the place of one of another class, mostly."""
    cls = _class_for(saved["class"], live, path, lambda found: f"{found.__module__}.{found.__qualname__}" in _SCHEDULES)
    made = object.__new__(cls)
    if frozenset(saved["state"]) != _SCHEDULES[saved["class"]]:
        raise _unlike(path, ", ".join(saved["state"]), ", ".join(sorted(_SCHEDULES[saved["class"]])))
    vars(made).update({name: refiller.value(item, None, f"{path}.{name}") for name, item in saved["state"].items()})
    return made


def _attributes(value: Any) -> dict[str, Any]:
    named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}
    return {**named, **getattr(value, "__dict__", {})}


def _class_for(name: str, live: Any, path: str, fits: Callable[[Any], bool]) -> Any:
    cls = type(live) if class_name(live) == name else _imported(name)
    if cls is None or not fits(cls):
        must_be(name, live, path)
        raise _unlike(path, name, "a class of another kind")
    return cls


def _imported(name: str) -> Any:
    """Return a class that this program has imported, or None; asked for nothing, a module makes and imports nothing."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:cut]))
        if found is not None:
            for part in parts[cut:]:
                found = getattr(found, "__dict__", {}).get(part)
            return found if isinstance(found, type) else None
    return None


def _unlike(path: str, saved: str, here: str) -> MismatchError:
    return MismatchError("the saved state fits no object here", [Difference(path, saved, here, "type")], kind="type")


def _is_tuple_class(cls: Any) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def _is_frozen(cls: Any) -> bool:
    return bool(cls.__dataclass_params__.frozen)


def _speaks(*names: str) -> Callable[[object], bool]:
    return lambda value: all(callable(getattr(type(value), name, None)) for name in names)


_SCHEDULES = {
    "stable_baselines3.common.utils.FloatSchedule": frozenset({"value_schedule"}),
    "stable_baselines3.common.utils.ConstantSchedule": frozenset({"val"}),
    "stable_baselines3.common.utils.LinearSchedule": frozenset({"start", "end", "end_fraction"}),
}
_TAKE = ("own", "stateful", "object")
_KINDS: dict[str, tuple[Callable[[object], bool], Callable[[Any, Any, str], Any], Callable[[Any, Any, Any, str], Any]]] = {
    "own": (_speaks("milepost_get_state", "milepost_set_state"), _record_own, _refill_own),
    "stateful": (_speaks("state_dict", "load_state_dict"), _record_stateful, _refill_stateful),
    "schedule": (lambda value: class_name(value) in _SCHEDULES, _record_schedule, _refill_schedule),
    "named": (lambda value: _is_tuple_class(type(value)), _record_tuple, _refill_tuple),
    "enum": (lambda value: isinstance(value, enum.Enum), _record_enum, _refill_enum),
    "dataclass": (lambda value: dataclasses.is_dataclass(type(value)), _record_dataclass, _refill_dataclass),
}
