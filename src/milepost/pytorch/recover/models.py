"""Take a model's weights and buffers by their names, and find out which of its parameters an optimizer changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from milepost.errors import UsageError

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""What torch.compile and activation checkpointing put into the names of parameters."""


def plain_model(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model within DistributedDataParallel and torch.compile: its names are those of a run without these.

    Raises `UsageError` (kind ``unsupported-model``) for FullyShardedDataParallel, whose parameters are not the model's own.
    """
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise UsageError(
            "a model in FullyShardedDataParallel cannot be saved",
            kind="unsupported-model",
            hint="shard it with torch.distributed.fsdp.fully_shard",
        )
    while True:
        within = getattr(model, "_orig_mod", None)
        if within is None and isinstance(model, torch.nn.parallel.DistributedDataParallel):
            within = model.module
        if not isinstance(within, torch.nn.Module):
            return model
        model = within


def model_state(model: torch.nn.Module) -> dict[str, Any]:
    """Return parameters and persistent buffers by name: the live tensors, and what a module keeps beside (``extra_state``)."""
    # As `get_model_state_dict` gives it, which asks for the name of each tensor anew: training waits for this.
    return {_plain(name): value for name, value in plain_model(model).state_dict().items()}


def put_model(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Have the model take a whole state: most of it is there already, but modules may want to be told."""
    set_model_state_dict(plain_model(model), {**state}, options=StateDictOptions(strict=True))


def names_of(model: torch.nn.Module) -> dict[torch.Tensor, str]:
    """Return the name of each parameter; of tied ones the first."""
    return {parameter: _plain(name) for name, parameter in plain_model(model).named_parameters()}


def all_names_of(model: torch.nn.Module) -> frozenset[str]:
    """Return every name of every parameter: all of tied ones."""
    return frozenset(_plain(name) for name, _ in plain_model(model).named_parameters(remove_duplicate=False))


def _plain(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
