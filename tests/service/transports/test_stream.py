"""The compatible way: bytes over the control connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from milepost.errors import NotFoundError, ServiceError
from milepost.service.proto import service_pb2 as pb
from milepost.service.transports.base import Source
from milepost.service.transports.stream import StreamLink, StreamTransport
from tests.service.transports.contract import BLOB, DIGITS, Serving, TransportTests, read
from tests.service.transports.serving import serving


class TestStream(TransportTests):
    @contextmanager
    def serving(self, directory: Path) -> Iterator[Serving]:
        with serving("grpc", directory) as (address, pid), grpc.insecure_channel(address) as channel:
            yield Serving(
                Source("grpc", ""), lambda stall_s: StreamTransport(channel, stall_s=stall_s, slowest_bytes_s=1 << 20), pid
            )


def test_a_channel_that_another_thread_has_closed_is_a_way_that_failed() -> None:
    with grpc.insecure_channel("localhost:1") as channel:
        link = StreamTransport(channel).reach(Source("grpc", ""))
    assert link is not None
    for move in (lambda: link.read_into(BLOB, 0, memoryview(bytearray(1))), lambda: link.write(BLOB, 0, b"x")):
        with pytest.raises(ServiceError) as failed:
            move()
        assert failed.value.kind == "transport-failed"


class Call(list[pb.Piece]):
    """Be a call that brings these pieces, whatever was asked for."""

    was_cancelled = False

    def cancel(self) -> None:
        self.was_cancelled = True


class Liar:
    def __init__(self, *pieces: pb.Piece) -> None:
        self.call = Call(pieces)

    def download(self, *asked: Any) -> Call:
        return self.call


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ((pb.Piece(offset=1, data=DIGITS[:10]),), ServiceError),
        ((pb.Piece(offset=0, data=DIGITS[:11]),), ServiceError),
        ((pb.Piece(offset=0, data=DIGITS[:6]), pb.Piece(offset=5, data=DIGITS[5:10])), ServiceError),
        ((pb.Piece(offset=0, data=DIGITS[:10]), pb.Piece(offset=10, data=b"!")), ServiceError),
        ((pb.Piece(offset=0, data=DIGITS[:9]),), NotFoundError),
        ((), NotFoundError),
    ],
)
def test_pieces_that_were_not_asked_for_are_not_taken(pieces: tuple[pb.Piece, ...], error: type[Exception]) -> None:
    liar = Liar(*pieces)
    with pytest.raises(error):
        read(StreamLink(liar), BLOB, 0, 10)  # type: ignore[arg-type]
    assert liar.call.was_cancelled
