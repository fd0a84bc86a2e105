"""Compare the learning-rate schedule that was saved with the one that a run goes on with. A7

A scheduler's ``state_dict`` holds its settings beside its progress, and ``load_state_dict`` puts both over the live one: a run
that was given twice the steps goes on with the old number, and nobody is told. So what a schedule is made of is saved as text,
and every difference is listed before anything is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from milepost.errors import CorruptError
from milepost.pytorch.recover.settings import Found, describe, is_setting, name_of_class
from milepost.records import Difference

_VERSION = 1
_NOTHING = "nothing"
_DEEPEST = 8
_MOVING = frozenset(
    ("last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "verbose", "best", "num_bad_epochs")
) | {"cooldown_counter", "T_cur", "T_i"}
"""What of torch's own schedulers moves as training does."""
_DERIVED = frozenset(("optimizer", "optimizers", "mode_worse", "_scale_fn_ref", "anneal_func"))
"""What follows from the rest, or is no part of a schedule."""
_OF_GROUPS = ("initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum")
"""What schedulers put into the optimizer's groups."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Say where two schedules differ, and what of them could not be compared."""

    differences: tuple[Difference, ...] = ()
    """Of kind ``schedule``."""
    not_compared: tuple[str, ...] = ()
    """A sentence for each: why the run may not go on as it would have."""
    doubtful: tuple[str, ...] = ()
    """A sentence for each that differs and may be a setting, or a counter; it comes back with the scheduler's state."""


def fingerprint(scheduler: Any) -> dict[str, Any] | None:
    """Return what a scheduler is made of, as plain dicts of text to save; None where there is no scheduler.

    For those of ``torch.optim.lr_scheduler``, however nested, and for any other object by its attributes: what is named as a
    parameter of its constructor is a setting. Take it before a checkpoint is loaded over the scheduler or its optimizer.
    """
    if scheduler is None:
        return None
    found = Found()
    for name, one in _of_optimizer(scheduler):
        describe(found, name, one)
    _describe_scheduler(found, "", scheduler, 0)
    return {
        "version": _VERSION,
        "python": sys.implementation.cache_tag,
        "torch": torch.__version__.partition("+")[0],
        "settings": found.settings,
        "doubtful": found.doubtful,
        "opaque": found.opaque,
    }


def compare(path: str, saved: Mapping[str, Any] | None, live: Mapping[str, Any] | None) -> Compared:
    """Compare two fingerprints of an engine's schedule; ``path`` is what it is called, ``default/lr_scheduler``.

    Where none was saved (a checkpoint that was imported) that is said, and is no difference. Raises `CorruptError` (kind
    ``bad-schedule``) for what is no fingerprint.
    """
    if saved is None:
        return (
            Compared()
            if live is None
            else Compared((), (f"{path}: its settings were not saved apart: not compared, and loaded with its state",))
        )
    theirs = _checked(saved)
    if live is None:
        return Compared((Difference(path, theirs["settings"].get("class", "a schedule"), "none", "schedule"),))
    mine = _checked(live)
    same_code = theirs["python"] == mine["python"]
    settled, left = _differences(path, theirs["settings"], mine["settings"], same_code=same_code)
    if theirs["torch"] != mine["torch"]:  # a release of torch may give its schedulers attributes, and take some
        left += [one for one in settled if _NOTHING in (one.saved, one.live)]
        settled = [one for one in settled if _NOTHING not in (one.saved, one.live)]
    unsure, also_left = _differences(path, theirs["doubtful"], mine["doubtful"], same_code=same_code)
    opaque = {**theirs["opaque"], **mine["opaque"]}
    sentences = [
        *(f"{one}: Python or torch has another version, so this was not judged" for one in left + also_left),
        *(f"{_joined(path, name)}: not compared, {why}" for name, why in sorted(opaque.items())),
    ]
    doubtful = tuple(f"{one}: this may be a setting or a counter, and was not judged" for one in unsure)
    return Compared(tuple(settled), tuple(sentences), doubtful)


class Settings:
    """Hold a live schedule's settings, to put them back over those of a checkpoint.

    Make it before anything is loaded, and call `put_back` once scheduler and optimizer are: where a difference was let pass, it
    is the settings of now that hold, with the progress of then.
    """

    def __init__(self, scheduler: Any) -> None:
        self._attributes = [
            (one, {name: value for name, value in vars_of(one).items() if _is_setting(one, name)}) for one in _objects(scheduler)
        ]
        self._optimizer = _optimizer_of(scheduler)
        groups = getattr(self._optimizer, "param_groups", [])
        self._groups = [{name: group[name] for name in _OF_GROUPS if name in group} for group in groups]

    def put_back(self) -> None:
        """Overwrite the settings that a checkpoint has brought."""
        for one, attributes in self._attributes:
            vars_of(one).update(attributes)
        for group, settings in zip(getattr(self._optimizer, "param_groups", []), self._groups, strict=False):
            group.update(settings)


def _describe_scheduler(found: Found, path: str, scheduler: Any, depth: int) -> None:
    inner = f"{path}." if path else ""
    found.note(f"{inner}class", name_of_class(type(scheduler)), certain=True)
    if depth > _DEEPEST:
        found.opaque[path] = "too deep"
        return
    for name, one in vars_of(scheduler).items():
        if name in _DERIVED or name in _MOVING:
            continue
        if _is_scheduler(one):
            _describe_scheduler(found, f"{inner}{name}", one, depth + 1)
        elif isinstance(one, list | tuple) and one and all(map(_is_scheduler, one)):
            for index, each in enumerate(one):
                _describe_scheduler(found, f"{inner}{name}[{index}]", each, depth + 1)
        else:
            describe(found, f"{inner}{name}", one, certain=_is_setting(scheduler, name))


def _is_setting(scheduler: Any, name: str) -> bool:
    """Say whether an attribute is a setting: all of those of torch's own classes are, and what a constructor is given."""
    if name in _MOVING or name in _DERIVED:
        return False
    own = type(scheduler).__module__.startswith("torch.")
    return own or name == "base_lrs" or is_setting(type(scheduler), name)


def _is_scheduler(value: Any) -> bool:
    if isinstance(value, torch.optim.Optimizer | type):
        return False
    return hasattr(value, "state_dict") and hasattr(value, "step")


def _optimizer_of(scheduler: Any) -> Any:
    """Return the optimizer of a scheduler, or of the one that it wraps."""
    return next((one.optimizer for one in _objects(scheduler) if hasattr(one, "optimizer")), None)


def _of_optimizer(scheduler: Any) -> Iterator[tuple[str, Any]]:
    """Yield what schedulers keep with the optimizer; and of one that notes no rates, the rate that the optimizer was given."""
    optimizer = _optimizer_of(scheduler)
    for index, group in enumerate(getattr(optimizer, "param_groups", [])):
        yield from ((f"group[{index}].{name}", group[name]) for name in _OF_GROUPS[1:] if name in group)
    if not any("base_lrs" in vars_of(one) for one in _objects(scheduler)) and hasattr(optimizer, "defaults"):
        yield "optimizer.lr", optimizer.defaults.get("lr")


def _objects(scheduler: Any, depth: int = 0) -> Iterator[Any]:
    """Yield a scheduler, those within it, and objects that it calls."""
    yield scheduler
    if depth > _DEEPEST:
        return
    for name, one in vars_of(scheduler).items():
        for each in one if isinstance(one, list | tuple) else [one]:
            if name not in _DERIVED and _is_scheduler(each):
                yield from _objects(each, depth + 1)
            elif callable(each) and vars_of(each):
                yield each


def vars_of(value: Any) -> dict[str, Any]:
    """Return an object's attributes; none where it has no place for any."""
    return getattr(value, "__dict__", {})


def _differences(path: str, saved: Mapping[str, str], live: Mapping[str, str], *, same_code: bool) -> _Split:
    """Return the differences, and the paths of those that another Python or torch may have made."""
    found, left = [], []
    for name in sorted({*saved, *live}):
        one = Difference(_joined(path, name), saved.get(name, _NOTHING), live.get(name, _NOTHING), "schedule")
        if one.saved == one.live:
            continue
        if not same_code and name.endswith((":code", ":constants")):
            left.append(one)
        else:
            found.append(one)
    return found, left


_Split: TypeAlias = tuple[list[Difference], list[Difference]]


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}"


def _checked(fingerprint: Any) -> Mapping[str, Any]:
    """Return what was saved, once it is known to be a fingerprint."""
    try:
        if fingerprint["version"] != _VERSION:
            raise ValueError(f"version {fingerprint['version']}")
        for part in ("settings", "doubtful", "opaque"):
            if not all(isinstance(text, str) for pair in fingerprint[part].items() for text in pair):
                raise TypeError(f"{part} is no text")
        if not isinstance(fingerprint["python"], str) or not isinstance(fingerprint["torch"], str):
            raise TypeError("the versions are no text")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(
            "this is not what a learning-rate schedule was made of",
            kind="bad-schedule",
            hint="load an older one: handler.load(..., which=NUMBER)",
            cause=f"{type(error).__name__}: {error}",
        ) from error
    checked: Mapping[str, Any] = fingerprint
    return checked
