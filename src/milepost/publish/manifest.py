"""Write and read JSON records: compact JSON that ends with a digest of itself."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from milepost.encode.digest import seal, unseal
from milepost.errors import CorruptError, MismatchError
from milepost.records import FORMAT_VERSION, Difference, Manifest, Summary

T = TypeVar("T")


class _Format(msgspec.Struct):
    format_version: int


def encode(record: object) -> bytes:
    """Return a record's sealed bytes."""
    return seal(msgspec.json.encode(record))


def decode(data: bytes, kind: type[T], name: str) -> T:
    """Return the record in ``data``, read from ``name``. Raises `CorruptError` unless it is exactly what was written."""
    body = unseal(data, name)
    try:
        return msgspec.json.decode(body, type=kind, strict=True)
    except msgspec.ValidationError as error:
        raise _not_a_record(name, error) from error
    except msgspec.DecodeError as error:
        raise _not_a_record(name, error) from error


def decode_summary(data: bytes, name: str) -> Summary:
    """Return the part of a manifest that judging needs, without its trees and leaves."""
    return _versioned(data, Summary, name)


def decode_manifest(data: bytes, name: str) -> Manifest:
    """Return a whole manifest, its leaves known to lie within its blobs."""
    manifest = _versioned(data, Manifest, name)
    for component in manifest.components:
        for leaf in component.leaves:
            # Sealed does not mean sane: a reader takes memory by these numbers before it sees a byte.
            if not (0 <= leaf.blob < len(manifest.blobs) and 0 <= leaf.start <= leaf.stop <= manifest.blobs[leaf.blob].size_bytes):
                raise CorruptError("a manifest places a leaf outside its blob", kind="damaged-record", name=name, leaf=leaf.path)
    return manifest


def _versioned(data: bytes, kind: type[T], name: str) -> T:
    body = unseal(data, name)
    try:
        found = msgspec.json.decode(body, type=_Format).format_version
        check_format(found, name)
        return msgspec.json.decode(body, type=kind, strict=True)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise _not_a_record(name, error) from error


def check_format(found: int, name: str) -> None:
    """Raise `MismatchError` (kind ``format``) if ``name`` was written by a newer milepost than this one."""
    if found > FORMAT_VERSION:
        raise MismatchError(
            "this run was written by a newer milepost",
            [Difference(name, f"format {found}", f"format {FORMAT_VERSION}", "format")],
            kind="format",
            hint="pip install --upgrade milepost",
            name=name,
        )


def _not_a_record(name: str, error: Exception) -> CorruptError:
    return CorruptError("a record is sealed but is not what its name promises", kind="damaged-record", name=name, cause=error)
