"""See the arrays of a part as torch tensors, where they lie. Whoever asks has torch; it is imported here, and only then."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from typing import Any

import numpy as np

from milepost.errors import MissingExtraError, UsageError
from milepost.service.packing import flat_keys
from milepost.service.transports.private_map import PrivateMap
from milepost.service.unpacking import Entry, Part
from milepost.state.inflate import skeleton


def tensors_of(part: Part, *, copy: bool = False) -> OrderedDict[str, Any]:
    """Return all arrays of a part, by name: what a module's ``load_state_dict`` takes.

    Without ``copy`` they are the memory of the part where torch may write to it without harm to others; else they are copied.
    Names that were tied are tensors over the same memory.
    """
    torch = _torch()
    memory = part.data if copy else writable(part.data)
    made: dict[Entry, Any] = {}
    found: OrderedDict[str, Any] = OrderedDict()
    for name, entry in part.entries.items():
        if entry not in made or not entry.size_bytes:
            made[entry] = _tensor(torch, part, name, part.data if memory is None else memory, copy=copy or memory is None)
        found[name] = made[entry]
    _set_attributes(found, part)
    return found


def writable(data: memoryview) -> memoryview | None:
    """Return the same memory to be written to, if that changes nothing that others see; else None."""
    if not data.readonly:
        return data
    if not isinstance(data.obj, PrivateMap | bytearray):
        return None
    whole = memoryview(data.obj)
    if whole.readonly or not data.nbytes:
        return None
    start = _address(data) - _address(whole)
    return whole[start : start + data.nbytes]


def _address(data: memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise MissingExtraError("torch", "torch") from error


def _tensor(torch: Any, part: Part, name: str, memory: memoryview, *, copy: bool) -> Any:
    entry = part.entry(name)
    dtype = getattr(torch, entry.dtype, None)
    if not isinstance(dtype, torch.dtype):
        hint = "read it as an array: weights[name]"
        raise UsageError("torch has no such dtype", kind="not-in-torch", hint=hint, name=name, dtype=entry.dtype)
    part.check_size(name, dtype.itemsize)
    if not entry.size_bytes:
        return torch.empty(entry.shape, dtype=dtype)
    if copy or entry.start % dtype.itemsize:
        made = torch.empty(entry.shape, dtype=dtype)
        room = np.frombuffer(made.view(-1).view(torch.uint8).numpy(), np.uint8)
        room[:] = np.frombuffer(memory[entry.start : entry.stop], np.uint8)
        return made
    return torch.frombuffer(memory, dtype=torch.uint8, count=entry.size_bytes, offset=entry.start).view(dtype).view(entry.shape)


def _set_attributes(found: OrderedDict[str, Any], part: Part) -> None:
    # torch keeps the versions of a module's layout in an attribute of its state dict: load_state_dict converts by them.
    tree = part.notes.tree
    if tree is not None and tree[0] == "ordered-dict" and len(tree) == 3 and flat_keys(tree) is not None:
        vars(found).update(skeleton(["dict", tree[2]], ()))
