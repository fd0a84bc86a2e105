"""Serve a directory in a process of its own: ``python -m tests.service.transports.serving bulk DIRECTORY [TOKEN]``.

Says its address in a line, and goes on until its input ends.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from milepost.errors import NotFoundError
from milepost.service.proto import service_pb2 as pb
from milepost.service.proto.service_pb2_grpc import CheckpointsServicer, add_CheckpointsServicer_to_server
from milepost.service.transports.base import Blob
from milepost.service.transports.bulk_server import BulkServer
from milepost.service.transports.folder import Folder

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def serving(kind: str, directory: Path, *args: str) -> Iterator[tuple[str, int]]:
    """Serve in a process of its own; yield the address and the process."""
    command = [sys.executable, "-m", "tests.service.transports.serving", kind, str(directory), *args]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip(), server.pid
        finally:
            server.kill()


def serve_bulk(directory: str, token: str = "") -> None:
    with BulkServer(Folder(directory), token) as server:
        print(server.address, flush=True)
        sys.stdin.read()


class Streams(CheckpointsServicer):
    """Answer the two calls that move bytes, as the service does."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def Download(self, request: Any, context: Any) -> Iterator[pb.Piece]:
        start, stop = request.offset, request.offset + request.size_bytes
        try:
            if stop > self._folder.size(Blob(request.place, request.blob)):
                raise NotFoundError("it ends early", kind="no-such-blob")
            while start < stop:
                piece = bytearray(min(1 << 20, stop - start))
                self._folder.read_into(Blob(request.place, request.blob), start, memoryview(piece))
                yield pb.Piece(offset=start, data=bytes(piece))
                start += len(piece)
        except NotFoundError as error:
            refused = pb.Refused(kind=error.kind, message=error.message).SerializeToString()
            context.set_trailing_metadata((("milepost-refused-bin", refused),))
            context.abort(grpc.StatusCode.NOT_FOUND, error.message)

    def Upload(self, request_iterator: Iterator[pb.Piece], context: Any) -> pb.Accepted:
        blob = Blob("", "")
        for piece in request_iterator:
            blob = Blob(piece.place, piece.blob) if piece.place else blob
            self._folder.write(blob, piece.offset, piece.data)
        return pb.Accepted()


def serve_grpc(directory: str) -> None:
    server = grpc.server(ThreadPoolExecutor(8))
    add_CheckpointsServicer_to_server(Streams(Folder(directory)), server)
    print(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
    server.start()
    sys.stdin.read()


if __name__ == "__main__":
    {"bulk": serve_bulk, "grpc": serve_grpc}[sys.argv[1]](*sys.argv[2:])
