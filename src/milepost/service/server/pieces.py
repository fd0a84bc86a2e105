"""Take bytes from a call, and give bytes to one, in pieces: the compatible way, where no other is open."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

from milepost.errors import NotFoundError
from milepost.service import wire
from milepost.service.proto import service_pb2 as pb
from milepost.service.server.refusing import Refusal
from milepost.service.server.shelf import Shelf
from milepost.service.server.shell import Shell
from milepost.service.transports.base import Blob
from milepost.store.posix import failures_of


async def receive(shell: Shell, pieces: AsyncIterator[pb.Piece]) -> None:
    """Write what comes to where it belongs. The first piece says who brings it, and which blob it is of."""
    caller, blob, start = None, Blob("", ""), 0
    async for piece in pieces:
        if caller is None:
            caller, blob, start = wire.unpack_caller(piece.caller), Blob(piece.place, piece.blob), piece.offset
            refused = shell.core.refusal(caller)
            if refused is not None:
                raise Refusal(refused)
        if len(piece.data) > wire.MAX_PIECE_BYTES:
            raise wire.bad_message(f"a piece has at most {wire.MAX_PIECE_BYTES} bytes", size_bytes=len(piece.data))
        if piece.place not in ("", blob.place) or piece.blob not in ("", blob.name) or piece.offset not in (0, start):
            raise wire.bad_message("one call brings the bytes of one blob, in order", blob=str(blob)[: wire.MAX_NAME])
        data, at, by = piece.data, start, caller
        await shell.work(lambda: shell.shelf.write(blob, at, data, by))  # noqa: B023 - awaited within the turn
        start += len(data)
        shell.counts["bytes.grpc"] += len(data)


async def send(shell: Shell, request: pb.DownloadRequest) -> AsyncIterator[pb.Piece]:
    """Yield bytes ``[offset, offset + size_bytes)`` of a blob. What is erased meanwhile is read to its end where it is a file."""
    blob = Blob(request.place, request.blob)
    descriptor = await shell.work(lambda: shell.shelf.open_file(blob))
    try:
        size_bytes = await shell.work(lambda: _size(shell.shelf, descriptor, blob))
        start, stop = request.offset, request.offset + request.size_bytes
        if stop > size_bytes:
            raise _ends_early(blob)
        while start < stop:
            until = min(start + wire.MAX_PIECE_BYTES, stop)
            data = await shell.work(lambda: _read(shell.shelf, descriptor, start, until, blob))  # noqa: B023 - awaited within the turn
            yield pb.Piece(offset=start, data=data)
            shell.counts["bytes.grpc"] += len(data)
            start = until
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _size(shelf: Shelf, descriptor: int | None, blob: Blob) -> int:
    return shelf.size(blob) if descriptor is None else os.fstat(descriptor).st_size


def _read(shelf: Shelf, descriptor: int | None, start: int, stop: int, blob: Blob) -> bytes:
    if descriptor is None:
        into = bytearray(stop - start)
        shelf.read_into(blob, start, memoryview(into))
        return bytes(into)
    with failures_of("read", str(blob)):
        data = os.pread(descriptor, stop - start, start)
    if len(data) < stop - start:
        raise _ends_early(blob)
    return data


def _ends_early(blob: Blob) -> NotFoundError:
    return NotFoundError("this blob ends before that", kind="no-such-blob", hint="fetch again", blob=str(blob))
