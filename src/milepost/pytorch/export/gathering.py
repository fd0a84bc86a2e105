"""Copy an export's tensors into host memory that is kept: sharded ones gathered one by one, for the rank that writes them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch.distributed.tensor import DTensor

from milepost.engine.arena import Arena, pages
from milepost.pytorch.export.contents import Contents, Tensors
from milepost.pytorch.export.forming import Part, keys_of
from milepost.pytorch.ranks import late_interrupt


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


def stage(contents: Contents, parts: Sequence[Part], mine: Collection[str], memory: Memory) -> Tensors:
    """Copy the tensors ``mine``, by their names in the files, and return them in the form of the files.

    Sharded ones become whole by a collective each, so all ranks call this at once, with the same parts; what a rank does not
    keep it forgets at once. What one rank fails at, a Ctrl-C too, is raised after the last collective: none is left waiting.
    """
    staged: dict[str, torch.Tensor] = {}
    failure: Exception | None = None
    start = 0
    keys = keys_of(contents)
    copies = [part.copies(mine) for part in parts]
    with late_interrupt():
        try:
            sizes = (part.specs[name].size_bytes for part, names in zip(parts, copies, strict=True) for name in names)
            memory.reserve(sum(map(pages, sizes)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks are in the first collective already
            failure = error
        for part, kept in zip(parts, copies, strict=True):
            whole = _whole(contents, part, keys)
            if kept and failure is None:
                try:
                    start = _keep(part, kept, part.formed(contents, whole), memory, start, staged)
                except Exception as error:  # noqa: BLE001 - as above: in the next collective
                    failure = error
            del whole  # before the next one is gathered beside it
        if failure is not None:
            raise failure
        wait_for_copies(contents.tensors.values())
    return staged


def _whole(contents: Contents, part: Part, keys: Mapping[str, str]) -> Tensors:
    """Gather a part's tensors; those that are tied once."""
    whole: dict[str, torch.Tensor] = {}
    for name in part.names:
        tensor = contents.tensors[name].detach()
        if keys[name] in whole:
            whole[name] = whole[keys[name]]
        else:
            whole[name] = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole


def _keep(
    part: Part, kept: Mapping[str, Sequence[str]], formed: Tensors, memory: Memory, start: int, staged: dict[str, torch.Tensor]
) -> int:
    """Copy what is kept of a part to the memory from ``start`` on; return where the next one goes."""
    for first, names in kept.items():
        spec = part.specs[first]
        placed = place(memory.memory[start : start + spec.size_bytes], formed[first], spec.dtype)
        staged.update(dict.fromkeys(names, placed))
        start += pages(spec.size_bytes)
    return start


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
