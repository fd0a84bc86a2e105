"""Read and write torch tensors as leaves, set torch's generators, and compare optimizers that have no state yet.

A tensor is seen through NumPy as plain integers of its element's size: every dtype travels bit for bit, bfloat16 and the
float8 family included. How tensors of a device are brought to the host and back is told in `milepost.pytorch.devices`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from milepost.errors import CorruptError, UsageError
from milepost.pytorch import shards
from milepost.pytorch.devices import Cuda, Transfers, register_device, transfers_of
from milepost.records import Difference, LeafSpec
from milepost.state import kinds
from milepost.state.arrays import as_bytes, checked_size, copy_array
from milepost.state.kinds import ObjectKind
from milepost.state.late import Arrived, Copies, register_late

_DTYPE_NAMES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
)
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _DTYPE_NAMES if hasattr(torch, name)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_NUMPY_KNOWS = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64}
    | {torch.complex64, torch.complex128}
)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# What torch's own optimizers keep in the shape of the parameter. Others are factored or flat (Adafactor, LBFGS), and free.
_MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg", "acc_delta"}
_MOMENTS |= {"sum", "prev", "step_size", "ax"}


def as_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a view of a CPU tensor's memory; of its bits where NumPy has no such dtype."""
    plain = tensor.detach()
    if plain.dtype not in _NUMPY_KNOWS:
        plain = plain.view(_BITS[plain.element_size()])
    return plain.numpy()


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's values in CPU memory, lazy conjugation and negation carried out."""
    return tensor.detach().resolve_conj().resolve_neg().cpu()


class TensorKind:
    """Save ``torch.Tensor`` and ``torch.nn.Parameter``; built anew, both are plain tensors on the CPU."""

    name = "torch"

    def describe(self, value: torch.Tensor, path: str) -> LeafSpec:
        name = _NAMES.get(value.dtype)
        if name is None or value.layout is not torch.strided or value.device.type == "meta":
            raise UsageError(
                "a tensor of this kind cannot be saved",
                kind="unsupported-dtype",
                hint="save a dense tensor with memory behind it",
                path=path,
                dtype=value.dtype,
                layout=value.layout,
                device=value.device,
            )
        return LeafSpec("torch", name, tuple(value.shape))

    def size_bytes(self, spec: LeafSpec) -> int:
        dtype = _DTYPES.get(spec.dtype)
        if dtype is None:
            raise CorruptError("a stored dtype is unknown here", kind="unknown-dtype", dtype=ascii(spec.dtype)[:80])
        return checked_size(spec, dtype.itemsize)

    def identity(self, value: torch.Tensor) -> Hashable | None:
        if value.layout is not torch.strided or not value.numel():
            return None
        return value.data_ptr(), value.device, value.dtype, value.shape, value.stride(), value.is_conj(), value.is_neg()

    def copy_into(self, value: torch.Tensor, into: memoryview) -> None:
        transfers = transfers_of(value)
        if transfers is not None:
            transfers.fetch(value, into)
        elif value.is_cpu and not value.is_neg() and not value.is_conj():
            copy_array(as_numpy(value), into)
        else:
            copy_array(as_numpy(_on_cpu(value)), into)

    def is_late(self, value: torch.Tensor) -> bool:
        return transfers_of(value) is not None

    def begin(self, copies: Copies) -> Arrived:
        by_device: dict[Transfers, Copies] = {}
        for value, into in copies:
            transfers = transfers_of(value)
            assert transfers is not None
            by_device.setdefault(transfers, []).append((value, into))
        waits = [transfers.begin(some) for transfers, some in by_device.items()]
        return lambda: [wait() for wait in waits].clear()

    def make(self, spec: LeafSpec) -> torch.Tensor:
        return torch.empty(spec.shape, dtype=_DTYPES[spec.dtype])

    def blank(self, spec: LeafSpec) -> torch.Tensor:
        # torch.zeros writes every byte. NumPy has them from the system; torch's own alignment is kept.
        size = self.size_bytes(spec)
        memory = torch.from_numpy(np.zeros(size + 64, np.uint8))
        start = -memory.data_ptr() % 64
        return memory[start : start + size].view(_DTYPES[spec.dtype]).view(spec.shape)

    def memory(self, value: torch.Tensor) -> memoryview | None:
        plain = value.is_cpu and value.is_contiguous() and not value.is_conj() and not value.is_neg()
        return as_bytes(as_numpy(value)) if plain and transfers_of(value) is None else None

    def is_writable(self, value: torch.Tensor) -> bool:
        if value.layout is not torch.strided or value.device.type == "meta":
            return False
        # An expanded tensor shows one element at several places: it can be replaced in its container, not written to.
        return not any(size > 1 and step == 0 for size, step in zip(value.shape, value.stride(), strict=True))

    def copy_from(self, value: torch.Tensor, source: torch.Tensor) -> None:
        transfers = transfers_of(value)
        if transfers is not None:
            transfers.put(value, source)
        else:
            # detach() shares memory and leaves the autograd graph, device and requires_grad of the live tensor alone.
            value.detach().copy_(source)


def module_scalars() -> tuple[tuple[type, ObjectKind], ...]:
    """Return the kinds of torch's small immutable values."""
    return (
        (torch.Size, ObjectKind("torch.Size", list, make=torch.Size)),
        (torch.dtype, ObjectKind("torch.dtype", lambda dtype: str(dtype).removeprefix("torch."), make=_dtype)),
        (torch.device, ObjectKind("torch.device", str, make=torch.device)),
    )


def _dtype(name: str) -> torch.dtype:
    found = vars(torch).get(name)  # not getattr: torch imports modules for names that it is asked for
    if not isinstance(found, torch.dtype):
        raise TypeError(name)
    return found


def _generator_state(generator: torch.Generator) -> dict[str, object]:
    return {"device": str(generator.device), "state": generator.get_state()}


def _set_generator_state(generator: torch.Generator, state: Mapping[str, Any]) -> None:
    generator.set_state(state["state"])


def _make_generator(state: Mapping[str, Any]) -> torch.Generator:
    made = torch.Generator(state["device"])
    made.set_state(state["state"])
    return made


def _generator_differences(live: torch.Generator, saved: Mapping[str, Any]) -> Iterator[Difference]:
    if saved["device"] != str(live.device):
        yield Difference("/device", saved["device"], str(live.device), "type")


def _cuda_states() -> list[torch.Tensor] | None:
    """Return the state of each GPU's generator; None where CUDA was not used, which asking must not change."""
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_rng_state_all() if in_use else None


def _set_cuda_states(states: list[torch.Tensor]) -> None:
    torch.cuda.set_rng_state_all(states)


def _cuda_differences(states: list[Any]) -> Iterator[Difference]:
    here = torch.cuda.device_count()
    if len(states) != here:
        yield Difference("", f"generators of {len(states)} GPUs", f"{here} GPUs", "missing")


def _free(_live: object, _saved: object) -> tuple[Difference, ...]:
    """Let a schedule take any state: it has counters only, and its configuration is compared elsewhere."""
    return ()


def optimizer_differences(live: torch.optim.Optimizer, saved: Mapping[str, Any]) -> Iterator[Difference]:
    """Compare groups, and each parameter's saved moments with the live parameter: a fresh optimizer has no moments yet."""
    groups = saved["param_groups"]
    if len(groups) != len(live.param_groups):
        yield Difference("/param_groups", f"{len(groups)} groups", f"{len(live.param_groups)} groups", "shape")
        return
    parameters: dict[object, torch.Tensor] = {}
    for index, (group, here) in enumerate(zip(groups, live.param_groups, strict=True)):
        if len(group["params"]) != len(here["params"]):
            counts = f"{len(group['params'])} parameters", f"{len(here['params'])} parameters"
            yield Difference(f"/param_groups[{index}]/params", *counts, "shape")
            continue
        parameters.update(zip(group["params"], here["params"], strict=True))
    for number, state in saved["state"].items():
        if number in parameters and isinstance(state, Mapping):
            yield from _moment_differences(f"/state[{number}]", state, parameters[number])


def _moment_differences(path: str, state: Mapping[str, Any], parameter: torch.Tensor) -> Iterator[Difference]:
    here = tuple(parameter.shape)
    for name, spec in state.items():
        if name in _MOMENTS and isinstance(spec, LeafSpec) and spec.shape != here:
            yield Difference(f"{path}/{name}", str(spec), f"a parameter of shape {list(here)}", "shape")


def add_device(transfers: Transfers) -> None:
    """Let tensors of a kind of device be saved and restored by its own transfers."""
    register_device(transfers)
    register_late(torch.Tensor, TensorKind())
    register_late(torch.nn.Parameter, TensorKind())


def register() -> None:
    """Register tensors, generators and small values; modules and optimizers need no more than their ``state_dict``."""
    kind = TensorKind()
    kinds.register_leaf(torch.Tensor, kind)
    kinds.register_leaf(torch.nn.Parameter, kind)
    if torch.version.cuda is not None or torch.version.hip is not None:
        # Not asked whether there is a GPU: to ask starts CUDA, and a process that forks later could not use it any more.
        add_device(Transfers(Cuda()))
    for type_, small in module_scalars():
        kinds.register_object(type_, small)
    shards.register()
    generator = ObjectKind("torch.Generator", _generator_state, _set_generator_state, _make_generator)
    kinds.register_object(torch.Generator, generator)
    kinds.register_comparison(torch.Generator, _generator_differences)
    kinds.register_comparison(torch.optim.Optimizer, optimizer_differences)
    kinds.register_comparison(torch.optim.lr_scheduler.LRScheduler, _free)
    kinds.register_in_place(torch.nn.Module)
    kinds.register_global_rng("torch", torch.get_rng_state, torch.set_rng_state)
    kinds.register_global_rng("torch.cuda", _cuda_states, _set_cuda_states, _cuda_differences)
