"""Read a directory that ``torch.distributed.checkpoint`` has written: what it says, checked against what lies there.

What DCP says of itself is a pickle, ``.metadata``, that names files, offsets and sizes. Nothing of it is believed: no name
leads out of the directory, no range beyond its file, the ranges in a file are no more than the file, and the chunks of a
tensor are all of it, once. DCP keeps no digests; but ``torch.save``, with which it writes each tensor, keeps a CRC-32 of it.
Neither of them compares it; here it is compared.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from milepost.errors import MilepostError, UsageError
from milepost.pytorch.importing.base import damaged, is_plain_file, open_within, read_whole, size_of, stamp_of
from milepost.pytorch.importing.dcp_spans import Chunk, DcpSource, SavedTensor, Span, check
from milepost.pytorch.importing.restricted import Record, check_archive, read_pickle, read_torch
from milepost.pytorch.leaves import TensorKind

METADATA = ".metadata"
MOST_METADATA_BYTES = 1 << 30
MOST_HEADER_BYTES = 100 << 20
"""How large the header of a safetensors file may be: the same as its own readers say."""

_AT = "torch.distributed.checkpoint.metadata."
_STORED_IN = "torch.distributed.checkpoint.filesystem._StorageInfo"
_OF_DCP = (
    *("Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
    *("TensorProperties", "_MEM_FORMAT_ENCODING", "StorageMeta"),
)
_RECORDS = frozenset({*(f"{_AT}{name}" for name in _OF_DCP), _STORED_IN, "torch.serialization._get_layout"})
_SAFETENSORS = {
    name: getattr(torch, dtype)
    for name, dtype in (
        *(("F64", "float64"), ("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"), ("BOOL", "bool")),
        *(("I64", "int64"), ("I32", "int32"), ("I16", "int16"), ("I8", "int8"), ("U8", "uint8"), ("U16", "uint16")),
        *(("U32", "uint32"), ("U64", "uint64"), ("C64", "complex64"), ("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2")),
    )
}
_TENSORS = TensorKind()


def is_dcp(path: Path) -> bool:
    """Return whether a directory looks like one that DCP has written."""
    if not path.is_dir():
        return False
    return is_plain_file(path / METADATA) or bool(_shard_names(path))


def read_source(path: Path) -> DcpSource:
    """Read what a directory says, and check it.

    Raises `CorruptError` (kind ``damaged-source``), and `UsageError` for what is not readable here, or not without running it.
    """
    if is_plain_file(path / "metadata.json") or is_plain_file(path / "common.pt"):
        raise megatron(path)
    found = _of_metadata(path) if os.path.lexists(path / METADATA) else _of_safetensors(path)
    check(found)
    return found


def megatron(path: Path) -> UsageError:
    """Return the error for a checkpoint of Megatron's own format."""
    return UsageError(
        "this is Megatron's own format (torch_dist), which only Megatron can read: what is in it depends on its parallel layout",
        kind="megatron",
        hint="load it in Megatron or AReaL, save it in Hugging Face format or through torch.distributed.checkpoint, import that",
        path=str(path),
    )


def read_chunk(source: DcpSource, fqn: str, chunk: Chunk) -> torch.Tensor:
    """Return one chunk of a tensor. Raises `CorruptError` if it is not what it is said to be."""
    tensor, span = source.tensors[fqn], chunk.span
    with open_within(source.directory, span.file) as file:
        if span.is_raw:
            source.unchecked.add(fqn)
            found = torch.empty(chunk.sizes, dtype=tensor.dtype)
            memory = _TENSORS.memory(found)
            file.seek(span.start)
            if memory is None or (memory and file.readinto(memory) != span.length):  # type: ignore[attr-defined]
                raise damaged("a file has become shorter", source.directory, file=span.file)
            return found
        with View(file, span.start, span.length) as view:
            _compare(source, fqn, view)
            value = _tensor_there(source, fqn, view, span)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        raise damaged("what is said to be a tensor is none", source.directory, name=fqn)
    if value.dtype != tensor.dtype or tuple(value.shape) != chunk.sizes:
        raise damaged("a tensor is not what it is said to be", source.directory, name=fqn, file=span.file)
    return value.detach()


def _tensor_there(source: DcpSource, fqn: str, view: View, span: Span) -> Any:
    try:
        return read_torch(view, source.directory / span.file, trust=False, what=fqn, size_bytes=span.length)
    except UsageError as error:
        if error.kind != "pickle-not-trusted":
            raise
        # A tensor is never more than data, whomever one trusts.
        raise damaged("what is said to be a tensor is none", source.directory, name=fqn) from error


def read_value(source: DcpSource, fqn: str, *, trust: bool) -> Any:
    """Return a value that is no tensor. Raises `UsageError` (kind ``pickle-not-trusted``), `CorruptError`."""
    span = source.values[fqn]
    with open_within(source.directory, span.file) as file, View(file, span.start, span.length) as view:
        _compare(source, fqn, view)
        return read_torch(view, source.directory / span.file, trust=trust, what=f"the value {fqn!r}", size_bytes=span.length)


def _compare(source: DcpSource, fqn: str, view: View) -> None:
    """Compare what ``torch.save`` has written with its checksums. Raises `CorruptError`."""
    path = source.directory / source.values[fqn].file if fqn in source.values else source.directory
    view.seek(0, io.SEEK_END)
    check_archive(view, path, view.tell())
    try:
        with zipfile.ZipFile(view) as archive:
            bad = archive.testzip()
            has_sums = any(entry.CRC for entry in archive.infolist())
    except Exception as error:  # zipfile raises whatever it comes across in bytes that are bent
        raise damaged("the archive of a tensor or value is bent", path, name=fqn, because=type(error).__name__) from error
    if not has_sums:
        source.unchecked.add(fqn)
    elif bad is not None:
        raise damaged("bytes are not those that were written", path, name=fqn, record=bad)


class View(io.BufferedReader):
    """Show a part of a file as a file."""

    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        super().__init__(_Part(file, start, length))


class _Part(io.RawIOBase):
    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        self._descriptor, self._start, self._length, self._at = file.fileno(), start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, into: Any) -> int:
        room = memoryview(into).cast("B")[: max(0, self._length - self._at)]
        count = os.preadv(self._descriptor, [room], self._start + self._at) if len(room) else 0
        self._at += count
        return count


# --- what DCP says of itself ---


def _of_metadata(path: Path) -> DcpSource:
    with open_within(path, METADATA) as file:
        stamp = stamp_of(file)
        data = read_whole(file, path / METADATA, MOST_METADATA_BYTES)
    said = read_pickle(data, path / METADATA, trust=False, what="what DCP says of itself (.metadata)", records=_RECORDS)
    try:
        source = _checked_metadata(path, said)
        source.stamps[METADATA] = stamp
        return source
    except MilepostError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise damaged("what DCP says of itself (.metadata) is not what DCP writes", path, because=type(error).__name__) from error


def _checked_metadata(path: Path, said: Any) -> DcpSource:
    spans = {_key(index): _span(path, place) for index, place in said["storage_data"].items()}
    tensors: dict[str, SavedTensor] = {}
    values: dict[str, Span] = {}
    for fqn, entry in said["state_dict_metadata"].items():
        if not isinstance(fqn, str):
            raise TypeError(fqn)
        if entry.name == f"{_AT}BytesStorageMetadata":
            values[fqn] = spans[(fqn, None)]
            continue
        chunks = [(_whole_numbers(chunk["offsets"]), _whole_numbers(chunk["sizes"])) for chunk in entry["chunks"]]
        placed = tuple(Chunk(offsets, sizes, spans[(fqn, offsets)]) for offsets, sizes in chunks)
        dtype = entry["properties"].fields[0]
        if not isinstance(dtype, torch.dtype):
            raise TypeError("dtype")
        tensors[fqn] = SavedTensor(dtype, _whole_numbers(entry["size"]), placed)
    return DcpSource(path, tensors, values, _paths(said.fields.get("planner_data"), [*tensors, *values]), _ranks(path))


def _key(index: Record) -> tuple[str, tuple[int, ...] | None]:
    offset = index.fields.get("offset")  # it is left out where there is none
    return str(index["fqn"]), None if offset is None else _whole_numbers(offset)


def _span(path: Path, place: Record) -> Span:
    file, start, length = place["relative_path"], place["offset"], place["length"]
    if place.fields.get("transform_descriptors"):
        raise UsageError(
            "this checkpoint was written through an extension of DCP, compressed perhaps, and is not readable here",
            kind="dcp-extension",
            hint="load it with torch.distributed.checkpoint, save it without extensions, and import that",
            path=str(path),
            extensions=", ".join(map(str, place["transform_descriptors"])),
        )
    if not isinstance(file, str):
        raise TypeError("relative_path")
    start, length = _whole_numbers((start, length))
    return Span(file, start, length)


def _whole_numbers(values: Any) -> tuple[int, ...]:
    numbers = tuple(values)
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        raise ValueError("no sizes")
    return numbers


def _paths(planner_data: Any, fqns: Sequence[str]) -> dict[str, tuple[str | int, ...]]:
    said = planner_data if isinstance(planner_data, dict) else {}
    found: dict[str, tuple[str | int, ...]] = {}
    for fqn in fqns:
        path = said.get(fqn)
        if isinstance(path, tuple) and path and all(type(part) in (str, int) for part in path):
            found[fqn] = path
    return found


def _ranks(path: Path) -> int:
    heads = (name.removeprefix("__").partition("_")[0] for name in os.listdir(path) if name.endswith(".distcp"))
    return 1 + max((int(head) for head in heads if head.isascii() and head.isdecimal() and len(head) < 7), default=0)


# --- the same in safetensors, as DCP's writer for Hugging Face leaves it ---


def _shard_names(path: Path) -> list[str]:
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return []
    return [name for name in names if name.startswith("shard-") and name.endswith(".safetensors")]


def _of_safetensors(path: Path) -> DcpSource:
    parts: dict[str, list[tuple[torch.dtype, Chunk]]] = {}
    names = _shard_names(path)
    if not names:
        raise damaged(f"{METADATA} is missing: DCP writes it last, so the save had not ended", path)
    for name in names:
        for fqn, dtype, chunk in _safetensors_chunks(path, name):
            parts.setdefault(fqn, []).append((dtype, chunk))
    tensors = {}
    for fqn, some in parts.items():
        if len({(dtype, len(chunk.sizes)) for dtype, chunk in some}) > 1:
            raise damaged("the chunks of a tensor are not of one kind", path, name=fqn)
        ends = [[start + length for start, length in zip(one.offsets, one.sizes, strict=True)] for _, one in some]
        size = tuple(max(axis) for axis in zip(*ends, strict=True))
        tensors[fqn] = SavedTensor(some[0][0], size, tuple(chunk for _, chunk in some))
    return DcpSource(path, tensors, {}, {}, len(names))


def _safetensors_chunks(path: Path, name: str) -> Iterator[tuple[str, torch.dtype, Chunk]]:
    with open_within(path, name) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(MOST_HEADER_BYTES, size_of(file) - 8):
            raise damaged("the header of a file is longer than the file", path, file=name)
        text = file.read(length)
    try:
        header = json.loads(text)
        saved_offsets = json.loads(header.pop("__metadata__", {}).get("DCP_SHARDING_INFO", "{}"))
        for fqn, said in header.items():
            sizes = _whole_numbers(said["shape"])
            start, stop = _whole_numbers(said["data_offsets"])
            offsets = _whole_numbers(saved_offsets[fqn]["saved_offsets"]) if fqn in saved_offsets else (0,) * len(sizes)
            dtype = _SAFETENSORS[said["dtype"]]
            if len(offsets) != len(sizes) or stop - start != math.prod(sizes) * dtype.itemsize:
                raise ValueError(fqn)
            yield fqn, dtype, Chunk(offsets, sizes, Span(name, 8 + length + start, stop - start, is_raw=True))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise damaged("the header of a file is not one of safetensors", path, file=name) from error
