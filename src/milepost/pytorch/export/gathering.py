"""Copy a model's tensors into host memory that is kept: sharded ones gathered one by one, on all ranks, for rank 0."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch.distributed.tensor import DTensor

from milepost.engine.arena import Arena, pages
from milepost.pytorch.export.contents import Contents, Tensors, dtype_of, stored_bytes


class Memory(Protocol):
    """Be bytes that stay where they are, and are asked for once where the model does not grow."""

    @property
    def memory(self) -> memoryview: ...

    @property
    def size_bytes(self) -> int: ...

    def reserve(self, size_bytes: int) -> None: ...

    def close(self) -> None: ...


class Pinned:
    """Hold page-locked memory, into which a GPU copies without a detour."""

    def __init__(self) -> None:
        self.memory = memoryview(b"")

    @property
    def size_bytes(self) -> int:
        return len(self.memory)

    def reserve(self, size_bytes: int) -> None:
        """Make room; where there is room already nothing happens."""
        if size_bytes > len(self.memory):
            self.close()
            self.memory = torch.empty(pages(size_bytes), dtype=torch.uint8, pin_memory=True).numpy().data

    def close(self) -> None:
        """Give the memory back."""
        self.memory = memoryview(b"")


def memory_for(tensors: Iterable[torch.Tensor]) -> Memory:
    """Return memory of the kind that these tensors are copied into fastest."""
    return Pinned() if any(tensor.device.type == "cuda" for tensor in tensors) else Arena()


def is_sharded(contents: Contents) -> bool:
    """Say whether other ranks have to help before a tensor is whole."""
    return any(isinstance(tensor, DTensor) for tensor in contents.tensors.values())


def room_for(contents: Contents, dtype: torch.dtype | None) -> int:
    """Return how many bytes of memory the staged copy takes."""
    return sum(pages(stored_bytes(tensor, dtype)) for _, tensor in _once(contents))


def stage(contents: Contents, dtype: torch.dtype | None, memory: Memory | None) -> Tensors:
    """Copy all tensors; sharded ones become whole by a collective each, so all ranks have to call this at once.

    Only a rank that gives ``memory`` (reserved: `room_for`) gets them; the others help, and get nothing. What one rank fails at
    is raised after the last collective: none is left waiting for it.
    """
    staged: dict[object, torch.Tensor] = {}
    failure: Exception | None = None
    start = 0
    for key, tensor in _once(contents):
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if memory is None or failure is not None:
            continue
        try:
            size = stored_bytes(tensor, dtype)
            staged[key] = place(memory.memory[start : start + size], whole, dtype_of(tensor, dtype))
            start += pages(size)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks are waiting in the next collective
            failure = error
    if failure is not None:
        raise failure
    if memory is None:
        return {}
    wait_for_copies(contents.tensors.values())
    return {name: staged[_key(contents, name)] for name in contents.tensors}


def _once(contents: Contents) -> Iterator[tuple[object, torch.Tensor]]:
    seen: set[object] = set()
    for name, tensor in contents.tensors.items():
        key = _key(contents, name)
        if key not in seen:
            seen.add(key)
            yield key, tensor.detach()


def _key(contents: Contents, name: str) -> object:
    return (True, contents.same[name]) if name in contents.same else (False, name)


def place(room: memoryview, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Copy a tensor to its place. Each has a storage of its own: that of the whole memory would make all look tied."""
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=dtype)
    placed = torch.frombuffer(room, dtype=dtype, count=math.prod(tensor.shape)).view(tensor.shape)
    placed.copy_(tensor, non_blocking=tensor.device.type == "cuda")
    return placed


def wait_for_copies(tensors: Iterable[torch.Tensor]) -> None:
    """Return once nothing is under way on the devices of these tensors."""
    for device in {tensor.device for tensor in tensors if tensor.device.type == "cuda"}:
        torch.cuda.synchronize(device)
