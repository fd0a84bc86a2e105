"""Decide which tensor lies in which file, and lay a file out, as ``huggingface_hub`` and ``safetensors`` do. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from milepost.errors import UsageError

DTYPES: dict[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_OF_THE_FILE = "__metadata__"


@dataclass(frozen=True, slots=True)
class Spec:
    """Describe a tensor as it will be written."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Split:
    """Say which file holds which tensors."""

    files: Mapping[str, tuple[str, ...]]
    total_bytes: int

    def index(self) -> bytes | None:
        """Return the index that leads to the files; None where there is one file only."""
        if len(self.files) < 2:
            return None
        where = {name: file for file, names in self.files.items() for name in names}
        index = {"metadata": {"total_size": self.total_bytes}, "weight_map": where}
        return (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()


def split(sizes: Mapping[str, int], most_bytes: int | None, stem: str) -> Split:
    """Fill files in the order of the names, each with up to ``most_bytes`` of tensors; a larger tensor has a file of its own.

    >>> split({"a": 6, "b": 6, "c": 2}, 10, "model").files
    {'model-00001-of-00002.safetensors': ('a',), 'model-00002-of-00002.safetensors': ('b', 'c')}
    """
    shards: list[list[str]] = []
    filling: list[str] = []
    filled = 0
    for name, size in sizes.items():
        if most_bytes is not None and size > most_bytes:
            shards.append([name])
            continue
        if filling and most_bytes is not None and filled + size > most_bytes:
            shards.append(filling)
            filling, filled = [], 0
        filling.append(name)
        filled += size
    if filling or not shards:
        shards.append(filling)
    count = len(shards)
    named = (f"{stem}-{i:05d}-of-{count:05d}.safetensors" if count > 1 else f"{stem}.safetensors" for i in range(1, count + 1))
    return Split(dict(zip(named, map(tuple, shards), strict=True)), sum(sizes.values()))


def shares(sizes: Mapping[str, int], writers: Sequence[int]) -> dict[str, int]:
    """Return which of the ranks ``writers`` keeps and writes each file: the one that has least so far.

    So none has more than an equal share and one file besides.

    >>> shares({"a": 5, "b": 3, "c": 1, "d": 4}, [0, 1])
    {'a': 0, 'b': 1, 'c': 1, 'd': 1}
    """
    has = dict.fromkeys(writers, 0)
    owner = {}
    for file, size in sizes.items():
        rank = min(has, key=lambda rank: has[rank])
        has[rank] += size
        owner[file] = rank
    return owner


def check_specs(specs: Mapping[str, Spec]) -> None:
    """Raise `UsageError` for tensors that safetensors cannot hold: by their names (``bad-name``), or dtypes (``bad-dtype``)."""
    for name, spec in specs.items():
        stored_as(name, spec.dtype)
        # The first is where a file says things of itself: no reader could open it. The others are no text.
        if name == _OF_THE_FILE or (not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name)):
            raise UsageError(
                "safetensors cannot hold a tensor of this name",
                kind="bad-name",
                hint="give it another one: Contents.finish may do so",
                tensor=ascii(name),
            )


def layout(specs: Mapping[str, Spec]) -> tuple[bytes, tuple[str, ...]]:
    """Return a file's header, and the names in the order in which their bytes follow it: the widest first, so all are aligned."""
    order = sorted(specs, key=lambda name: (-specs[name].dtype.itemsize, name))
    header: dict[str, object] = {_OF_THE_FILE: {"format": "pt"}}
    start = 0
    for name in order:
        spec = specs[name]
        stop = start + spec.size_bytes
        header[name] = {"dtype": stored_as(name, spec.dtype), "shape": list(spec.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, tuple(order)


def stored_as(name: str, dtype: torch.dtype) -> str:
    """Return what safetensors calls a dtype; raise `UsageError` (kind ``bad-dtype``) if it has no word for it."""
    if dtype not in DTYPES:
        raise UsageError(
            "safetensors has no such dtype",
            kind="bad-dtype",
            hint="export it as another: Saver(dtype=torch.bfloat16)",
            tensor=name,
            dtype=str(dtype),
        )
    return DTYPES[dtype]
