"""Make sharded states of every kind, the same numbers on any number of ranks, and compare them bit for bit."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64)
VALUES: dict[str, Any] = {
    "lr": 0.1,
    "betas": (0.9, 0.999),
    "not a number": float("nan"),
    "text": "hé",
    "long": "x" * 5000,
    "big": 1 << 200,
    "nothing": None,
    "mixed": {"a": [1, 2.5, "z"], "b": {"deep": (True, b"\x00\xff")}},
}


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64) * 100
    return drawn > 0 if dtype is torch.bool else drawn.to(dtype)


def whole(seed: int) -> dict[str, Any]:
    """Return the state as one rank has it that shards nothing."""
    model = {f"w.{index}": numbers((7, 5), dtype, seed + index) for index, dtype in enumerate(DTYPES)}
    model |= {
        "uneven": numbers((3,), torch.float32, seed + 20),
        "one row": numbers((1, 4), torch.float32, seed + 21),
        "columns": numbers((4, 6), torch.float32, seed + 22),
        "scalar": numbers((), torch.float32, seed + 23),
        "empty": torch.empty((0, 3)),
    }
    moments = {"w.0": {"exp_avg": numbers((7, 5), torch.float32, seed + 30), "step": torch.tensor(float(seed))}}
    optim = {"state": moments, "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.99), "params": ["w.0"]}]}
    return {
        "model": model,
        "optim": optim,
        "values": dict(VALUES, seed=seed),
        "plain": numbers((5, 2), torch.float32, seed + 40).t(),
    }


def sharded(seed: int, group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Return this rank's part of it, among all ranks or those of ``group``: rows, columns, whole copies."""
    state = whole(seed)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),)) if group is None else DeviceMesh.from_group(group, "cpu")
    model = state["model"]
    for name, tensor in model.items():
        if tensor.dim() and tensor.numel():
            model[name] = distribute_tensor(tensor, mesh, [Shard(1 if name == "columns" else 0)])
    model["copied"] = distribute_tensor(numbers((2, 2), torch.float32, seed + 50), mesh, [Replicate()])
    moments = state["optim"]["state"]["w.0"]
    moments["exp_avg"] = distribute_tensor(moments["exp_avg"], mesh, [Shard(0)])
    return state


def blank(state: Any) -> Any:
    """Return a state with nothing but its tensors and its shape."""
    if isinstance(state, dict):
        return {key: blank(value) for key, value in state.items()}
    if isinstance(state, list):
        return [blank(value) for value in state]
    return state if isinstance(state, torch.Tensor) else None


def differences(found: Any, wanted: Any, path: str = "") -> list[str]:
    """Name every place where two states are not the same, bit for bit."""
    if type(found) is not type(wanted):
        return [f"{path}: {type(found).__name__} for {type(wanted).__name__}"]
    if isinstance(wanted, dict):
        if found.keys() != wanted.keys():
            return [f"{path}: {found.keys() ^ wanted.keys()}"]
        return [each for key in wanted for each in differences(found[key], wanted[key], f"{path}/{key}")]
    if isinstance(wanted, list | tuple):
        if len(found) != len(wanted):
            return [f"{path}: {len(found)} for {len(wanted)}"]
        return [
            each for index, (a, b) in enumerate(zip(found, wanted, strict=True)) for each in differences(a, b, f"{path}/{index}")
        ]
    if isinstance(wanted, DTensor):
        return differences(found.to_local(), wanted.to_local(), path)
    if isinstance(wanted, torch.Tensor):
        return [] if same_bits(found, wanted) else [f"{path}: {found} for {wanted}"]
    return [] if found == wanted or (found != found and wanted != wanted) else [f"{path}: {found!r} for {wanted!r}"]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    flat = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor for tensor in (one, other)]
    return bool(torch.equal(*flat))
