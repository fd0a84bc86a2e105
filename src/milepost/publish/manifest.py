"""Write and read JSON records: compact JSON that ends with a digest of itself."""

from __future__ import annotations

import math
from typing import TypeVar

import msgspec

from milepost.encode.digest import seal, unseal
from milepost.errors import CorruptError, MismatchError
from milepost.publish import layout
from milepost.records import FORMAT_VERSION, Difference, Manifest, RunRecord, Summary

T = TypeVar("T")
S = TypeVar("S", Summary, Manifest, RunRecord)

_FAR_NS = 1 << 63


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
    except (msgspec.DecodeError, RecursionError) as error:
        # A newer format may have other members altogether: then the version is what to tell.
        _refuse_newer(body, name)
        raise CorruptError(
            "a record is sealed but is not what its name promises", kind="damaged-record", name=name, cause=error
        ) from error


def decode_run(data: bytes, name: str) -> RunRecord:
    """Return the record that names a run."""
    return _versioned(data, RunRecord, name)


def decode_summary(data: bytes, name: str) -> Summary:
    """Return the part of a manifest that judging needs, without its trees and leaves."""
    return _versioned(data, Summary, name)


def decode_manifest(data: bytes, name: str) -> Manifest:
    """Return a whole manifest, its leaves known to lie within its blobs."""
    manifest = _versioned(data, Manifest, name)
    for component in manifest.components:
        for leaf in component.leaves:
            # Sealed does not mean sane: a reader takes memory by these numbers before it sees a byte.
            if not (
                0 <= leaf.blob < len(manifest.blobs) and 0 <= leaf.start <= leaf.stop <= manifest.blobs[leaf.blob].size_bytes
            ):
                raise CorruptError("a manifest places a leaf outside its blob", kind="damaged-record", name=name, leaf=leaf.path)
    return manifest


def _versioned(data: bytes, kind: type[S], name: str) -> S:
    record = decode(data, kind, name)
    check_format(record.format_version, name)
    if isinstance(record, Summary) and (what := _absurd(record)):
        raise CorruptError("a manifest is sealed but says what cannot be", kind="damaged-record", name=name, says=what)
    return record


def _absurd(record: Summary) -> str:
    """Return what in a manifest milepost never writes, though its seal fits; empty if there is nothing."""
    for blob in record.blobs:
        if layout.blob_term(blob.name) is None or blob.size_bytes < 0:
            return f"a blob called {blob.name!a} of {blob.size_bytes} bytes"
    if not -_FAR_NS < record.commit_timestamp < _FAR_NS:
        return f"commit_timestamp {record.commit_timestamp}"
    try:
        if not math.isfinite(float.fromhex(record.elapsed_s)):
            return f"elapsed_s {record.elapsed_s}"
        for metric in record.metrics.values():
            float.fromhex(metric.value)
    except (ValueError, OverflowError) as error:
        return str(error)
    return ""


def _refuse_newer(body: bytes, name: str) -> None:
    try:
        found = msgspec.json.decode(body, type=_Format).format_version
    except (msgspec.DecodeError, RecursionError):
        return
    check_format(found, name)


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
