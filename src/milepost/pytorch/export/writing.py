"""Write one export: all files beside, each durable, then the name. The story of it in one function."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from milepost.errors import UsageError
from milepost.pytorch.export.contents import Contents, Tensors, dtype_of, stored_bytes
from milepost.pytorch.export.sharding import Spec, layout, split
from milepost.pytorch.export.shelf import Shelf
from milepost.store.base import is_name


def write_export(
    shelf: Shelf, export: str, contents: Contents, tensors: Tensors, *, most_bytes: int | None, dtype: torch.dtype | None
) -> str:
    """Write an export durably and return its path: a kill or a power cut at any line leaves all of it, or none.

    ``tensors`` are the contents' own, whole by now. One at a time is converted, or copied from its device: what this takes is
    the memory of the largest, and what ``contents.finish`` takes.
    """
    finished = contents.finish(tensors)
    sizes = {name: stored_bytes(tensor, dtype) for name, tensor in finished.items()}
    shards = split(sizes, most_bytes if contents.split else None, contents.stem)
    files = dict(contents.files)
    index = shards.index()
    if index is not None:
        files[f"{contents.stem}.safetensors.index.json"] = index
    _check(files, shards.files)
    with shelf.making(export) as beside:
        for file, names in shards.files.items():
            _write_shard(shelf, f"{beside}/{file}", {name: finished[name] for name in names}, dtype)
        for file, data in files.items():
            with shelf.store.open_blob(f"{beside}/{file}", size_bytes=len(data)) as blob:
                blob.write(data)
                blob.commit()
        # Only now is there anything under the name that readers look for, and it is whole.
        return shelf.publish(beside, export)


def _write_shard(shelf: Shelf, name: str, tensors: Tensors, dtype: torch.dtype | None) -> None:
    specs = {
        key: Spec(dtype_of(tensor, dtype), tuple(tensor.shape), stored_bytes(tensor, dtype)) for key, tensor in tensors.items()
    }
    header, order = layout(specs)
    size_bytes = len(header) + sum(spec.size_bytes for spec in specs.values())
    with shelf.store.open_blob(name, size_bytes=size_bytes) as blob:
        blob.write(header)
        for key in order:
            data = bytes_of(tensors[key], specs[key].dtype)
            if data:
                blob.write(data)
        blob.commit()


def bytes_of(tensor: torch.Tensor, dtype: torch.dtype) -> memoryview:
    """Return a tensor's bytes in order, little-endian, of ``dtype``. Of the tensor's own memory where that is possible."""
    plain = tensor.detach().to(device="cpu", dtype=dtype).resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else memoryview(b"")


def _check(files: Mapping[str, bytes], shards: Mapping[str, tuple[str, ...]]) -> None:
    for file in files:
        if not is_name(file) or file in shards:
            raise UsageError(
                "not a name for a small file of an export",
                kind="bad-name",
                hint="choose printable ASCII, and none of the tensors' own files",
                file=ascii(file),
            )
