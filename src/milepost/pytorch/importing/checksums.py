"""Compare the records of torch's archives with their checksums, which torch never does, and say which tensor is damaged."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from milepost.errors import MilepostError
from milepost.pytorch.importing.base import damaged, size_of
from milepost.pytorch.importing.restricted import read_torch

PICKLE = "/data.pkl"
"""How the record is called that says what is in an archive."""
_CHUNK_BYTES = 1 << 20
_MOST_NAMED = 20


def check_sums(file: BinaryIO, path: Path) -> bool:
    """Read every record of an archive, a little at a time, and return whether there are checksums to compare it with.

    Raises `CorruptError` (kind ``damaged-source``) that names what is damaged: tensors where they can be told, else records.
    """
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        names = {entry.filename for entry in entries}
        if not any(name.endswith(PICKLE) for name in names):
            raise damaged("the archive has no data.pkl", path)
        if any("/code/" in f"/{name}" or name.endswith("constants.pkl") for name in names):
            raise damaged("it is a program of TorchScript, and no state", path)
        if not any(entry.CRC for entry in entries):
            return False
        bad = [entry for entry in entries if not _is_sound(archive, entry)]
    if bad:
        records = ", ".join(entry.filename for entry in bad[:_MOST_NAMED])
        tensors = ", ".join(dict.fromkeys(_tensors_of(bad, file, path))) or None
        raise damaged(
            "records are not what was written", path, records=records, tensors=tensors, damaged=len(bad), of=len(entries)
        )
    return True


def _is_sound(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bool:
    try:
        with archive.open(entry) as record:
            while record.read(_CHUNK_BYTES):
                pass
    except Exception:  # noqa: BLE001 - zipfile raises whatever it comes across in bytes that are bent
        return False
    return True


def _tensors_of(bad: list[zipfile.ZipInfo], file: BinaryIO, path: Path) -> Iterator[str]:
    """Yield the tensors that lie in damaged records, told by their bytes."""
    if any(entry.filename.endswith(PICKLE) for entry in bad):
        return
    try:
        value = read_torch(file, path, trust=False, what="the file", size_bytes=size_of(file), mapped=True)
    except MilepostError:
        return
    for entry in bad[:_MOST_NAMED]:
        yield from (at for at, tensor in _tensors(value, "") if _lies_in(tensor, entry, file))


def _tensors(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping | list | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _tensors(item, f"{path}/{key}" if path else str(key))


def _lies_in(tensor: torch.Tensor, entry: zipfile.ZipInfo, file: BinaryIO) -> bool:
    storage = tensor.untyped_storage()
    if storage.nbytes() != entry.file_size or not entry.file_size:
        return False
    file.seek(entry.header_offset + 26)
    names = file.read(4)
    file.seek(int.from_bytes(names[:2], "little") + int.from_bytes(names[2:], "little"), 1)
    there = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    chunks = range(0, entry.file_size, _CHUNK_BYTES)
    return all(_same(there[at : at + _CHUNK_BYTES], file.read(min(_CHUNK_BYTES, entry.file_size - at))) for at in chunks)


def _same(there: np.ndarray[Any, Any], read: bytes) -> bool:
    return there.tobytes() == read
