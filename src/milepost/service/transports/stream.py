"""Get and bring bytes over the control connection itself: the compatible way, where no other is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from milepost.encode.digest import Buffer
from milepost.errors import MilepostError, ServiceError
from milepost.service.proto import service_pb2 as pb
from milepost.service.proto.service_pb2_grpc import CheckpointsStub
from milepost.service.transports.base import Blob, Link, Source, Transport
from milepost.service.transports.bulk_wire import SLOWEST_BYTES_S
from milepost.service.transports.failures import FAILED, failed, no_such_blob, refused

NAME = "grpc"
PIECE_BYTES = 1 << 20
_REFUSED = "milepost-refused-bin"


class StreamTransport(Transport):
    """Go over ``channel``, which stays the caller's. ``metadata`` has the token; ``caller`` is who brings bytes.

    Each call may take ``stall_s``, and so much more as its bytes take at ``slowest_bytes_s``.
    """

    name = NAME

    def __init__(
        self,
        channel: grpc.Channel,
        *,
        metadata: Sequence[tuple[str, str]] = (),
        caller: pb.Caller | None = None,
        stall_s: float = 30.0,
        slowest_bytes_s: float = SLOWEST_BYTES_S,
    ) -> None:
        self._channel = channel
        self._calls: Any = None
        self._metadata, self._caller = tuple(metadata), caller
        self._stall_s, self._slowest_bytes_s = stall_s, slowest_bytes_s

    def reach(self, source: Source) -> Link | None:
        if source.transport != NAME:
            return None
        if self._calls is None:  # not before it is needed: a fetch that maps what lies here takes not much longer than to make it
            self._calls = CheckpointsStub(self._channel)  # type: ignore[no-untyped-call]
        return StreamLink(self)

    def download(self, blob: Blob, start: int, size_bytes: int) -> Any:
        """Ask for bytes; the call yields pieces, and is to be cancelled in the end."""
        request = pb.DownloadRequest(caller=self._caller, place=blob.place, blob=blob.name, offset=start, size_bytes=size_bytes)
        return self._calls.Download(request, timeout=self._time_for(size_bytes), metadata=self._metadata)

    def upload(self, blob: Blob, start: int, data: memoryview) -> None:
        """Bring bytes. Raises `grpc.RpcError`."""
        self._calls.Upload(self._pieces(blob, start, data), timeout=self._time_for(len(data)), metadata=self._metadata)

    def _pieces(self, blob: Blob, start: int, data: memoryview) -> Iterator[pb.Piece]:
        for at in range(0, max(len(data), 1), PIECE_BYTES):
            piece = bytes(data[at : at + PIECE_BYTES])
            if at:
                yield pb.Piece(offset=start + at, data=piece)
            else:
                yield pb.Piece(caller=self._caller, place=blob.place, blob=blob.name, offset=start, data=piece)

    def _time_for(self, size_bytes: int) -> float:
        return self._stall_s + size_bytes / self._slowest_bytes_s


class StreamLink(Link):
    """Be calls over one connection, each for itself: one that has failed hurts none of the others."""

    def __init__(self, transport: StreamTransport) -> None:
        self._transport = transport
        self._call: Any = None

    def read_into(self, blob: Blob, start: int, into: memoryview) -> None:
        view = into.cast("B")
        self._call = call = self._began(lambda: self._transport.download(blob, start, len(view)))
        come = 0
        try:
            for piece in call:
                if piece.offset != start + come or len(piece.data) > len(view) - come:
                    raise failed("other bytes came than were asked for", NAME, "")
                view[come : come + len(piece.data)] = piece.data
                come += len(piece.data)
        except grpc.RpcError as error:
            said = _failure(error)
            if isinstance(said, ServiceError) and said.kind != FAILED:
                said = failed("the service could not read", NAME, "", said.message, refused=said.kind)
            raise said from error
        finally:
            call.cancel()
        if come < len(view):
            raise no_such_blob(blob, ends_at=start + come)

    def write(self, blob: Blob, start: int, data: Buffer) -> None:
        try:
            self._began(lambda: self._transport.upload(blob, start, memoryview(data).cast("B")))
        except grpc.RpcError as error:
            raise _failure(error) from error

    def _began(self, begin: Callable[[], Any]) -> Any:
        try:
            return begin()
        except ValueError as error:  # the channel was closed by another thread, which found the service elsewhere
            raise failed("the connection is closed", NAME, "", error) from error

    def interrupt(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def close(self) -> None:
        self._call = None


def _failure(error: Any) -> MilepostError:
    for name, value in error.trailing_metadata() or ():
        if name == _REFUSED:
            said = pb.Refused.FromString(value)
            return refused(said.kind, said.message, said.hint)
    return failed("the connection failed", NAME, "", f"{error.code().name.lower()}: {error.details()}")
