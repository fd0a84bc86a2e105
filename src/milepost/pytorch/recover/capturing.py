"""Capture a whole training at a safe point: the live tensors, and a copy of everything else."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from milepost.pytorch.dcp.own import KEY as OWN
from milepost.pytorch.dcp.own import key_of_rank
from milepost.pytorch.recover import payload
from milepost.pytorch.recover.beside import Beside
from milepost.pytorch.recover.engines import TrainEngine
from milepost.pytorch.recover.models import all_names_of, model_state, names_of
from milepost.pytorch.recover.optimizers import GROUPS, PARAMS, STATE, optimizer_state
from milepost.pytorch.recover.payload import LR_SCHEDULER, MODEL, OPTIM
from milepost.pytorch.recover.schedule import fingerprint
from milepost.pytorch.shards import Own
from milepost.pytorch.steps import StepInfo
from milepost.state.rng import Rng


def capture(
    engines: Mapping[str, TrainEngine], step: StepInfo, beside: Beside, rng: Rng, rank: int, **more: Any
) -> dict[str, Any]:
    """Return the state dict for `milepost.pytorch.dcp`. Tensors of models and optimizers are the live ones; all else is copied.

    What is no parameter, and the same on all ranks, is in that of rank 0 alone: what is saved of it is then rank 0's.
    """
    parts = {name: _engine_state(name, engine, is_first=rank == 0) for name, engine in engines.items()}
    own = {OWN: {key_of_rank(rank): Own(copied(beside.own(rng)))}}
    if rank:
        return {**parts, **own}
    schedules = {name: fingerprint(engine.lr_scheduler) for name, engine in engines.items() if engine.lr_scheduler is not None}
    progress = payload.progress_of(step, engines, schedules=schedules, **copied({**beside.states(), **more}))
    return {**payload.state_of(parts, progress), **own}


def _engine_state(name: str, engine: TrainEngine, *, is_first: bool) -> dict[str, Any]:
    weights, names = model_state(engine.model), names_of(engine.model)
    if not is_first:
        # DDP hands out rank 0's buffers before each forward: those of another rank would be the wrong ones to come back.
        parameters = all_names_of(engine.model)
        weights = {fqn: value for fqn, value in weights.items() if isinstance(value, DTensor) or fqn in parameters}
    state: dict[str, Any] = {MODEL: _plain(weights)}
    if engine.optimizer is not None:
        found = optimizer_state(engine.optimizer, names, name)
        moments = {fqn: _plain(value) if isinstance(value, Mapping) else _kept(value) for fqn, value in found[STATE].items()}
        groups = [{key: value if key == PARAMS else _kept(value) for key, value in group.items()} for group in found[GROUPS]]
        state[OPTIM] = {STATE: moments, GROUPS: groups}
    if engine.lr_scheduler is not None and is_first:
        state[LR_SCHEDULER] = Own(copied(engine.lr_scheduler.state_dict()))
    return state


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _kept(value) for name, value in values.items()}


def _kept(value: Any) -> Any:
    """Return a tensor as it is, anything else as a copy; what DCP would take apart, and not put together again, as one."""
    if isinstance(value, torch.Tensor):
        return value
    return Own(copied(value)) if isinstance(value, Mapping | list) else copied(value)


def copied(value: Any) -> Any:
    """Return a copy that training does not change: a scheduler's ``state_dict`` holds its own lists."""
    with torch.no_grad():
        return copy.deepcopy(value)
