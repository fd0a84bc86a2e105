"""Write one export: all files beside, each durable, then the name. The story of it in one function."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from milepost.errors import UsageError
from milepost.pytorch.export.contents import Contents, Tensors
from milepost.pytorch.export.planning import Plan
from milepost.pytorch.export.sharding import Spec, layout
from milepost.pytorch.export.shelf import Shelf
from milepost.pytorch.ranks import Ranks
from milepost.store.base import is_name

_INDEX = ".safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Draft:
    """Be an export that has no name yet."""

    export: str
    """The name that it will have."""
    beside: str
    """The hidden directory in which its files are written."""
    contents: Contents
    plan: Plan


def write_export(shelf: Shelf, draft: Draft, staged: Tensors | None, ranks: Ranks, making: ExitStack) -> bool:
    """Write this rank's files durably, and where it is the first publish the export when all have; return whether it did.

    A kill, of whichever rank, or a power cut at any line leaves all of the export, or none. ``making`` is open on the first rank,
    and removes the directory unless it was published. ``staged`` holds this rank's tensors; None: those of the contents are
    taken, which are whole. One at a time is converted, or copied from its device: what this takes is the memory of the largest,
    and what ``contents.finish`` takes.
    """
    with making:
        ranks.together(_write_mine, shelf, draft, staged, ranks)
        if not ranks.is_first:
            return False
        shelf.check_there(draft.beside, _sizes_of_others(draft.plan))
        # Only now is there anything under the name that readers look for, and it is whole.
        shelf.publish(draft.beside, draft.export)
        return True


def check_files(contents: Contents) -> None:
    """Raise `UsageError` (kind ``bad-name``) if a small file cannot lie beside the tensors."""
    for file in contents.files:
        if not is_name(file) or (file.startswith(contents.stem) and file.endswith((".safetensors", _INDEX))):
            raise UsageError(
                "not a name for a small file of an export",
                kind="bad-name",
                hint="choose printable ASCII, and none of the tensors' own files",
                file=ascii(file),
            )


def _write_mine(shelf: Shelf, draft: Draft, staged: Tensors | None, ranks: Ranks) -> None:
    tensors = draft.contents.finish(draft.contents.tensors) if staged is None else staged
    for file, names in draft.plan.files_of(ranks.rank).items():
        _write_shard(shelf, f"{draft.beside}/{file}", {name: tensors[name] for name in names}, draft.plan.specs(names))
    if ranks.is_first:
        for file, data in _small_files(draft).items():
            with shelf.store.open_blob(f"{draft.beside}/{file}", size_bytes=len(data)) as blob:
                blob.write(data)
                blob.commit()


def _small_files(draft: Draft) -> dict[str, bytes]:
    index = draft.plan.split.index()
    return {**draft.contents.files, **({} if index is None else {draft.contents.stem + _INDEX: index})}


def _write_shard(shelf: Shelf, name: str, tensors: Tensors, specs: Mapping[str, Spec]) -> None:
    header, order = layout(specs)
    with shelf.store.open_blob(name, size_bytes=_size(header, specs)) as blob:
        blob.write(header)
        for key in order:
            data = bytes_of(tensors[key], specs[key].dtype)
            if data:
                blob.write(data)
        blob.commit()


def _sizes_of_others(plan: Plan) -> dict[str, int]:
    """Return how long the files are that other ranks than the first have written."""
    others = {file: plan.specs(plan.split.files[file]) for file, rank in plan.owners.items() if rank != 0}
    return {file: _size(layout(specs)[0], specs) for file, specs in others.items()}


def _size(header: bytes, specs: Mapping[str, Spec]) -> int:
    return len(header) + sum(spec.size_bytes for spec in specs.values())


def bytes_of(tensor: torch.Tensor, dtype: torch.dtype) -> memoryview:
    """Return a tensor's bytes in order, little-endian, of ``dtype``. Of the tensor's own memory where that is possible."""
    plain = tensor.detach().to(device="cpu", dtype=dtype).resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else memoryview(b"")
