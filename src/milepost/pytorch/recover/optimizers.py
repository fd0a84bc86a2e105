"""Take an optimizer's state by the names of parameters, and give it back.

torch's own ``get_optimizer_state_dict`` makes state that does not exist yet, by a step: one whose count then stays. What an
optimizer has not is not saved here; and what was not saved it has not, once it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor, Replicate

from milepost.errors import UsageError
from milepost.records import Difference

Names = Mapping[torch.Tensor, str]
STATE, GROUPS, PARAMS = "state", "param_groups", "params"


def optimizer_state(optimizer: torch.optim.Optimizer, names: Names, engine: str) -> dict[str, Any]:
    """Return ``state`` by parameter names, and ``param_groups`` with these. Tensors are the live ones.

    Raises `UsageError` (kind ``unnamed-parameter``) if the optimizer changes what is no parameter of the model.
    """
    state = optimizer.state_dict()
    named = _names_by_id(optimizer, state, names, engine)
    groups = [{**group, PARAMS: [named[number] for number in group[PARAMS]]} for group in state[GROUPS]]
    return {STATE: {named.get(key, key): value for key, value in state[STATE].items()}, GROUPS: groups}


def put_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any], names: Names, engine: str) -> None:
    """Have the optimizer take a whole state, by names. What was not saved it has not any more.

    ``load_state_dict`` makes of moments what the parameter is: bfloat16 of float32. They come back as they were saved.
    """
    plain = optimizer.state_dict()
    ids = {name: number for number, name in _names_by_id(optimizer, plain, names, engine).items()}
    state = {ids.get(name, name): value for name, value in saved.get(STATE, {}).items()}
    groups = [{**group, PARAMS: [ids[name] for name in group[PARAMS]]} for group in saved[GROUPS]]
    optimizer.load_state_dict({STATE: state, GROUPS: groups})
    parameters = {name: parameter for parameter, name in names.items()}
    for name, values in saved.get(STATE, {}).items():
        live = optimizer.state.get(parameters[name], {}) if name in parameters else {}
        for key, value in values.items() if isinstance(values, Mapping) else ():
            there = live.get(key)
            if isinstance(value, torch.Tensor) and isinstance(there, torch.Tensor) and there.dtype != value.dtype:
                live[key] = value.to(there.device)


def group_differences(path: str, saved: list[Any], optimizer: torch.optim.Optimizer, names: Names) -> Iterator[Difference]:
    """Compare which parameters are in which group."""
    live = [[names.get(parameter, "?") for parameter in group["params"]] for group in optimizer.param_groups]
    if len(saved) != len(live):
        yield Difference(f"{path}/param_groups", f"{len(saved)} groups", f"{len(live)} groups")
        return
    for index, (group, here) in enumerate(zip(saved, live, strict=True)):
        there = list(group[PARAMS])
        if there != here:
            only = ", ".join(sorted(set(there) ^ set(here))[:3]) or "their order"
            counts = f"{len(there)} parameters", f"{len(here)} parameters (differing: {only})"
            yield Difference(f"{path}/param_groups[{index}]", *counts)


def like(described: TensorStorageMetadata, parameter: torch.Tensor | None) -> torch.Tensor:
    """Return an empty tensor for one that was saved: sharded as the parameter is, where it has its shape."""
    size, dtype = described.size, described.properties.dtype
    if parameter is None or not size:
        return torch.empty(size, dtype=dtype)
    parameter = parameter.detach()
    if tuple(parameter.shape) == tuple(size):
        return torch.empty_like(parameter, dtype=dtype, memory_format=torch.contiguous_format)
    if not isinstance(parameter, DTensor):
        return torch.empty(size, dtype=dtype, device=parameter.device)
    mesh = parameter.device_mesh
    whole = torch.empty(size, dtype=dtype, device=parameter.to_local().device)
    return DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _names_by_id(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], names: Names, engine: str) -> dict[Any, str]:
    found: dict[Any, str] = {}
    for packed, group in zip(state[GROUPS], optimizer.param_groups, strict=True):
        for number, parameter in zip(packed[PARAMS], group[PARAMS], strict=True):
            name = names.get(parameter)
            if name is None:
                raise UsageError(
                    "an optimizer changes a tensor that is no parameter of its engine's model",
                    kind="unnamed-parameter",
                    hint="register it in the model (torch.nn.Parameter), or give it an engine of its own",
                    engine=engine,
                    shape=tuple(parameter.shape),
                )
            found[number] = name
    return found
