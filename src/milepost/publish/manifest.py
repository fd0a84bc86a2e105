"""Write and read JSON records: compact JSON that ends with a digest of itself.

A seal tells rot from what was written. It does not tell who wrote it: whoever can write to a run root can seal, too. So a
record is read with a bound on its size, and `milepost.publish.sane` looks at what it says before anybody acts on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec

from milepost.encode.digest import seal, unseal
from milepost.errors import CorruptError, MismatchError, UsageError
from milepost.publish import layout
from milepost.publish.sane import absurdity
from milepost.records import FORMAT_VERSION, Difference, Manifest, RunRecord, Scrubbed, Summary
from milepost.store.base import Store

T = TypeVar("T")


_MOST = {Manifest: layout.MOST_MANIFEST_BYTES, Scrubbed: layout.MOST_SCRUB_BYTES}

_LOOK = "milepost verify names all that is damaged; look who else can write to this directory"


class _Format(msgspec.Struct):
    format_version: int


def encode(record: object) -> bytes:
    """Return a record's sealed bytes.

    Raises `UsageError` (kind ``too-large``) if they are more than a reader takes, or (``not-text``) if it holds half characters.
    """
    try:
        data = seal(msgspec.json.encode(record))
    except UnicodeEncodeError as error:
        raise UsageError(
            "a name is no text that can be written down",
            kind="not-text",
            hint="decode it first: metrics, counters, reasons and fingerprints are Unicode text without lone surrogates",
            text=ascii(error.object[:80]),
        ) from error
    if len(data) > _MOST.get(type(record), layout.MOST_RECORD_BYTES):
        raise UsageError(
            "a record is larger than milepost reads",
            kind="too-large",
            hint="hold values in arrays: every element of a list or dict takes its place in the manifest",
            record=type(record).__name__,
            size_bytes=len(data),
        )
    return data


def read_record(store: Store, name: str) -> bytes:
    """Return the bytes of a record. Raises `NotFoundError`, and `CorruptError` if it is larger than any that was written.

    A file of a terabyte in the place of a record takes no more memory than the largest record.
    """
    most = layout.most_bytes(name)
    data = store.read(name, 0, most + 1)
    if len(data) > most:
        raise CorruptError("a record is too large to be one", kind="damaged-record", hint=_LOOK, name=name, most_bytes=most)
    return data


def load_record(store: Store, name: str, kind: type[T], decoded: Callable[[bytes, type[T], str], T] | None = None) -> T:
    """Read the record ``name`` and return what it says. Raises `NotFoundError`, and `CorruptError` as `decode` does.

    What looks damaged is read once more, from the medium: taken for damage, one flaky read of a manifest would have a claim
    settle on the generation before it, and make void for good what was acknowledged.
    """
    try:
        return (decoded or decode)(read_record(store, name), kind, name)
    except CorruptError:
        store.drop_cached(name)
        return decode(read_record(store, name), kind, name)


def decode(data: bytes, kind: type[T], name: str) -> T:
    """Return the record in ``data``, read from ``name``. Raises `CorruptError` unless it is exactly what was written."""
    body = unseal(data, name)
    try:
        record = msgspec.json.decode(body, type=kind, strict=True)
        _refuse_second_members(body, record)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        # A newer format may have other members altogether: then the version is what to tell.
        _refuse_newer(body, name)
        raise CorruptError(
            "a record is sealed but is not what its name promises", kind="damaged-record", hint=_LOOK, name=name, cause=error
        ) from error
    if isinstance(record, Summary | RunRecord):
        check_format(record.format_version, name)
    says = absurdity(record, name)
    if says:
        raise CorruptError("a record is sealed but says what cannot be", kind="damaged-record", hint=_LOOK, name=name, says=says)
    return record


def decode_manifest(data: bytes, name: str) -> Manifest:
    """Return a whole manifest, its leaves known to lie within its blobs and not over each other."""
    return decode(data, Manifest, name)


def _refuse_second_members(body: bytes, record: object) -> None:
    """Raise ValueError if an object in ``body`` has a member twice: two readers could each believe another one.

    A record that is written again as it was read has none, and nearly all are; only with members that we do not know of is
    the text gone through. A summary is the beginning of its manifest.
    """
    again = msgspec.json.encode(record)
    if body == again or (type(record) is Summary and body.startswith(again[:-1])):
        return
    json.loads(body, object_pairs_hook=_once, parse_int=str, parse_float=str, parse_constant=_no_number)


def _once(members: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in members}) != len(members):
        raise ValueError("a member is there twice")


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _refuse_newer(body: bytes, name: str) -> None:
    try:
        found = msgspec.json.decode(body, type=_Format).format_version
    except (msgspec.DecodeError, RecursionError, ValueError):
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
