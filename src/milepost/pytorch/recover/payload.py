"""Name what one generation of a training holds: the keys of its state dict, and which component each of them is.

The state dict is ``{engine: {"model": {fqn: tensor}, "optim": ..., "lr_scheduler": Own(state)}, "recover": Own(progress)}`` with
an entry for each engine; the actor is ``default``. What each rank has by itself (``rng``, ``data``, ``extra``) stands under
``own``, as in `milepost.pytorch.dcp.save`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from milepost.errors import CorruptError, UsageError
from milepost.pytorch.dcp.own import KEY as OWN
from milepost.pytorch.export.naming import check_engine
from milepost.pytorch.shards import Own
from milepost.pytorch.steps import StepInfo

ACTOR = "default"
MODEL, OPTIM, LR_SCHEDULER = "model", "optim", "lr_scheduler"
RECOVER = "recover"
RNG, DATA, EXTRA = "rng", "data", "extra"
"""What each rank has by itself, by name."""
_PARTS = {MODEL: "policy", OPTIM: "optimizer", LR_SCHEDULER: "lr_scheduler"}
_STEP = ("epoch", "epoch_step", "global_step", "steps_per_epoch")


def components_of(engines: Iterable[str]) -> dict[str, str]:
    """Return which key of the state dict is which component, for `milepost.pytorch.dcp.RunWriter`.

    >>> components_of(["critic"])["critic.optim"]
    'critic/optimizer'
    """
    named = {f"{engine}.{part}": f"{engine}/{component}" for engine in engines for part, component in _PARTS.items()}
    return {**named, RECOVER: "counters", OWN: "extra"}


def check_engines(engines: Iterable[str]) -> tuple[str, ...]:
    """Return the engines' names in order. Raises `UsageError` (kind ``bad-name``) for what cannot be a key and a directory."""
    names = tuple(engines)
    for name in names:
        if check_engine(name) in (RECOVER, OWN) or not name.replace("_", "").replace("-", "").isalnum() or not name.isascii():
            raise UsageError(
                "this cannot be an engine's name",
                kind="bad-name",
                hint="use letters, digits, - and _; name the engine after what it trains: default, critic, ref",
                engine=name,
            )
    if not names:
        raise UsageError("there is no engine to save", kind="no-engines", hint='{"default": TrainEngine(model, optimizer)}')
    return names


def state_of(engines: Mapping[str, Mapping[str, Any]], progress: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state dict; ``engines`` is by engine what it has of ``model``, ``optim`` and ``lr_scheduler``."""
    state: dict[str, Any] = {name: {**parts} for name, parts in engines.items()}
    for parts in state.values():
        if LR_SCHEDULER in parts and not isinstance(parts[LR_SCHEDULER], Own):
            parts[LR_SCHEDULER] = Own(parts[LR_SCHEDULER])
    return {**state, RECOVER: Own({**progress})}


def progress_of(step: StepInfo, engines: Iterable[str], **rest: Any) -> dict[str, Any]:
    """Return what stands under ``recover``: the step that was trained last, the engines, and the states in ``rest``.

    ``rest``: ``handler``, ``saver``, ``evaluator``, ``stats_logger``, ``schedules`` by engine. One that is None is left out.
    """
    info = {name: getattr(step, name) for name in _STEP}
    return {"step_info": info, "engines": [*engines], **{name: value for name, value in rest.items() if value is not None}}


def step_of(progress: Mapping[str, Any]) -> StepInfo:
    """Return the step that was trained last. Raises `CorruptError` (kind ``damaged-progress``)."""
    try:
        return StepInfo(**{name: int(progress["step_info"][name]) for name in _STEP})
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise CorruptError(
            "what a generation says of its step is no step",
            kind="damaged-progress",
            hint="load an older one: handler.load(..., which=NUMBER)",
            cause=f"{type(error).__name__}: {error}",
        ) from error
