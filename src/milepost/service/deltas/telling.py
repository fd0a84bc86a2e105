"""Tell a part against the same part of another version, and make it again of both: bytes in, bytes out, nothing remembered."""

from __future__ import annotations

from collections.abc import Iterator

from milepost.encode.digest import Buffer
from milepost.service.delta.applying import apply
from milepost.service.delta.checking import damaged
from milepost.service.delta.encoding import encode_within
from milepost.service.delta.records import Delta
from milepost.service.delta.settings import How
from milepost.service.delta.wire import pack, parse
from milepost.service.deltas.parts import tensors_of
from milepost.service.index import Chunks

_NS_A_BYTE = 2.0
"""About what a byte of the part costs who encodes it and who applies it, together, however little of it changed."""


def most_bytes(size_bytes: int, how: How) -> int:
    """Return how many bytes a delta of a part may have so that it is there before the part would be; 0: none is.

    >>> most_bytes(1_000_000, How(link_bytes_s=125e6)), most_bytes(1_000_000, How(link_bytes_s=10e9))
    (750000, 0)
    """
    if how.incremental_threshold != "auto":
        return size_bytes
    return max(0, int(size_bytes * (1 - _NS_A_BYTE * 1e-9 * how.link_bytes_s)))


def tell(base: Buffer, new: Buffer, how: How) -> list[Buffer] | None:
    """Return the bytes of a delta, in pieces; None if the part itself is less, or there sooner.

    It takes no more memory than such a delta has, and a few chunks. Nobody may write to either part meanwhile.
    """
    limit = most_bytes(memoryview(new).nbytes, how)
    delta = encode_within(tensors_of(base), tensors_of(new), how, limit) if limit else None
    if delta is None:
        return None
    pieces = list(pack(delta))
    return pieces if sum(map(len, pieces)) < limit else None


def make(told: Buffer, base: Buffer, into: memoryview, chunks: Chunks) -> None:
    """Fill ``into`` with the part that was told; ``chunks`` say what it must be. Neither ``told`` nor ``base`` is changed.

    What ``into`` holds after an error is no part. Raises `MismatchError` (kind ``wrong-base``) and `CorruptError` (kind
    ``damaged-delta``): then it is to be had whole.
    """
    delta = parse(told, limit_bytes=memoryview(into).nbytes)
    if delta.manifest.size_bytes != chunks.size_bytes or len(into) != chunks.size_bytes:
        raise damaged("it makes a part of another size", size_bytes=delta.manifest.size_bytes, wanted=chunks.size_bytes)
    apply(delta, tensors_of(base), dict(_rooms(delta, into)))
    wrong = next(chunks.wrong(into), None)
    if wrong is not None:
        raise damaged("it makes another part than the one wanted", chunk=wrong)


def _rooms(delta: Delta, into: memoryview) -> Iterator[tuple[str, memoryview]]:
    start = 0
    for tensor in delta.manifest.tensors:
        if tensor.tied_to is None:
            yield tensor.name, into[start : start + tensor.size_bytes]
            start += tensor.size_bytes
