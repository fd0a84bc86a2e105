"""Read the zip that ``model.save`` of Stable-Baselines3 writes, as data: no pickle in it is run."""

from __future__ import annotations

import io
import json
import os
import zipfile
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from milepost.errors import MilepostError
from milepost.pytorch.importing.base import damaged, is_plain_file, open_source, size_of
from milepost.pytorch.importing.restricted import check_archive, read_pickle, read_torch
from milepost.pytorch.importing.torch_file import is_torchs

_SERIALIZED = ":serialized:"
_VARIABLES = ("pytorch_variables", "tensors")
"""What Stable-Baselines3 calls the entry of its learned tensors; the latter before 0.9."""
_OTHERS = ("data", "_stable_baselines3_version", "system_info.txt")
_MOST_DATA_BYTES = 256 << 20
_FIRST = b"PK\x03\x04"


@dataclass(frozen=True, slots=True)
class SavedModel:
    """Hold what a model's zip says."""

    settings: dict[str, Any]
    """The model's attributes that are plain values."""
    pickled: dict[str, str]
    """The model's other attributes, each as base64 of its pickle."""
    modules: dict[str, Any]
    """State dicts of modules: ``policy``."""
    optimizers: dict[str, Any]
    """State dicts of optimizers: ``policy.optimizer``, ``ent_coef_optimizer``."""
    tensors: dict[str, Any]
    """Tensors of the model's own: ``log_ent_coef``."""
    strange: tuple[str, ...]
    """Entries that Stable-Baselines3 does not write."""
    versions: dict[str, str]
    """Of the packages that it was written with."""
    kinds: dict[str, str]
    """For attributes that are classes, the modules which they come from."""

    def value(self, name: str, path: Path) -> Any:
        """Return a pickled attribute as data. Raises `UsageError` (kind ``pickle-not-trusted``), `CorruptError`."""
        try:
            data = b64decode(self.pickled[name], validate=True)
        except ValueError as error:
            raise damaged("a value in it is no base64", path, attribute=name) from error
        return read_pickle(data, path, trust=False, what=f"attribute {name}")


def is_model(path: Path) -> bool:
    """Return whether a model of Stable-Baselines3 seems to lie there, whole or not."""
    path = Path(os.path.realpath(path))
    if not is_plain_file(path):
        return False
    try:
        with path.open("rb") as file:
            head, names = file.read(34), _names(file)
    except OSError:
        return False
    if "data" in names:
        return any(name.endswith(".pth") for name in names)
    # Without its end it still says what it begins with; what looks like its end may be that of a file within it.
    return head[:4] == _FIRST and head[26:30] == b"\x04\0\0\0" and head[30:] == b"data"


def _names(file: BinaryIO) -> list[str]:
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (ValueError, NotImplementedError, zipfile.BadZipFile):
        return []


def read_model(path: Path) -> SavedModel:
    """Return what the zip says; every byte of it is checked against its checksum.

    Raises `CorruptError` (kind ``damaged-source``) for what is damaged or absurd, `UsageError` for what is no data.
    """
    with open_source(path) as file:
        entries = _entries(file, path)
    if "policy.pth" not in entries:
        raise damaged("it has no policy", path, has=", ".join(sorted(entries))[:500])
    settings, pickled, kinds = _attributes(entries["data"], path)
    modules, optimizers, tensors = _learned(entries, path)
    strange = tuple(name for name in entries if name not in _OTHERS and not name.endswith(".pth"))
    versions = _versions(entries.get("system_info.txt", b""))
    return SavedModel(settings, pickled, modules, optimizers, tensors, strange, versions, kinds)


def _entries(file: BinaryIO, path: Path) -> dict[str, bytes]:
    check_archive(file, path, size_of(file))
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(file) as archive:
            if "data" not in archive.namelist():
                raise damaged("its end is missing, or it has no data", path)
            for entry in archive.infolist():
                name = entry.filename
                if name in found or "/" in name or "\\" in name or name in ("", ".", ".."):
                    raise damaged("an entry has a name that no model has", path, entry=name[:200])
                found[name] = archive.read(entry)
    except MilepostError:
        raise
    except Exception as error:
        # zipfile raises half a dozen kinds of error for bytes that are not as they should be, its own for a checksum.
        raise damaged("an entry is not what was written", path, because=str(error)[:200]) from error
    return found


def _attributes(data: bytes, path: Path) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    if len(data) > _MOST_DATA_BYTES:
        raise damaged("its data are far larger than a model's", path, size_bytes=len(data), at_most=_MOST_DATA_BYTES)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged("its data are no JSON", path, because=str(error)[:200]) from error
    if not isinstance(found, dict):
        raise damaged("its data are no attributes", path, found=type(found).__name__)
    pickled = {name: value[_SERIALIZED] for name, value in found.items() if _is_pickled(value)}
    kinds = {name: str(found[name].get("__module__", "")) for name in pickled}
    return {name: value for name, value in found.items() if name not in pickled}, pickled, kinds


def _is_pickled(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get(_SERIALIZED), str)


def _learned(entries: dict[str, bytes], path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    modules: dict[str, Any] = {}
    optimizers: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for entry, data in entries.items():
        name, dot, ending = entry.rpartition(".")
        if not dot or ending != "pth":
            continue
        if not is_torchs(data):
            raise damaged("an entry is nothing that torch has written", path, entry=entry[:200])
        value = read_torch(io.BytesIO(data), path, trust=False, what=f"entry {entry}", size_bytes=len(data))
        if name in _VARIABLES and isinstance(value, dict):
            tensors |= value
        elif isinstance(value, dict) and value.keys() >= {"state", "param_groups"}:
            optimizers[name] = value
        else:
            modules[name] = value
    return modules, optimizers, tensors


def _versions(text: bytes) -> dict[str, str]:
    """Return the versions in a system info, by the names that a fingerprint has for them."""
    names = {"Python": "python", "Stable-Baselines3": "stable-baselines3", "PyTorch": "torch", "Numpy": "numpy"}
    names["Gymnasium"] = "gymnasium"
    lines = (line.lstrip("- ").partition(": ") for line in text.decode("utf-8", "replace")[:10_000].splitlines())
    return {names[name]: version.strip()[:80] for name, _, version in lines if name in names and version}
