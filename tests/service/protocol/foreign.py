"""A client written from docs/service-protocol.md alone: generated stubs, sockets, a hash, and nothing else of milepost."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import xxhash

from milepost.service.proto import service_pb2 as pb
from milepost.service.proto.service_pb2_grpc import CheckpointsStub

CHUNK = 1 << 10
"""Any size will do; the service's own is another."""


class Foreign:
    """Be one process of a component."""

    def __init__(self, root: Path, component: str, role: str, incarnation: str) -> None:
        self.root = root
        self.caller = pb.Caller(component=component, incarnation=incarnation)
        self.role = role
        self.endpoint = json.loads((root / "service" / "endpoint.json").read_text())
        self.token = (root / "service" / "token").read_text().strip()
        self.channel = grpc.insecure_channel(self.endpoint["address"])
        self.stub: Any = CheckpointsStub(self.channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Foreign:
        self.call("Hello", pb.HelloRequest(caller=self.caller, role=self.role, versions=["v1"]))
        return self

    def __exit__(self, *_: object) -> None:
        self.call("Goodbye", pb.GoodbyeRequest(caller=self.caller))
        self.channel.close()

    def call(self, name: str, request: Any) -> Any:
        """Make a call; a refusal is raised as its message."""
        bearer = [("authorization", f"Bearer {self.token}")]
        try:
            return getattr(self.stub, name)(request, metadata=bearer, timeout=120, wait_for_ready=True)
        except grpc.RpcError as error:
            refused = [value for key, value in error.trailing_metadata() or () if key == "milepost-refused-bin"]
            if not refused:
                raise
            raise RefusedError(pb.Refused.FromString(refused[0])) from error

    def begin(self, key: str, step: int, parts: dict[str, bytes]) -> pb.Bring:
        """Announce a commit."""
        slots = [pb.Slot(slot=slot, size_bytes=len(data)) for slot, data in parts.items()]
        return self.call("Begin", pb.BeginRequest(caller=self.caller, key=key, step=step, slots=slots))

    def arrived(self, key: str, slot: str, data: bytes) -> None:
        """Say that a part is there."""
        self.call("Arrived", pb.ArrivedRequest(caller=self.caller, key=key, shard=shard_of(slot, data)))

    def finish(self, key: str, *, durable: bool = False) -> pb.Done:
        """Wait for a commit."""
        return self.call("Finish", pb.FinishRequest(caller=self.caller, key=key, durable=durable, wait_ms=120_000))

    def take(self) -> pb.Take:
        """Fetch the newest version, whatever this process has."""
        return self.call("Fetch", pb.FetchRequest(caller=self.caller, want="newest", wait_ms=60_000)).take

    def bulk(self, ways: Any) -> Bulk:
        """Open the bulk port that is among the ways."""
        (way,) = [each for each in ways if each.transport == "bulk"]
        host, _, port = way.address.rpartition(":")
        return Bulk(host or self.endpoint["address"].rpartition(":")[0], int(port), self.token)


class RefusedError(Exception):
    """Carry a refusal."""

    def __init__(self, refused: pb.Refused) -> None:
        super().__init__(f"{refused.kind}: {refused.message}")
        self.refused = refused


class Bulk:
    """Be a connection to the bulk port."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self.socket = socket.create_connection((host, port), timeout=120)
        self.socket.sendall(struct.pack("<8sHH4x", b"MILEBULK", 1, len(token)) + token.encode())
        self.answer()

    def __enter__(self) -> Bulk:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def put(self, place: str, name: str, start: int, data: bytes) -> None:
        """Bring bytes."""
        self.socket.sendall(asked(2, place, name, start, len(data)) + data)
        self.answer()

    def get(self, place: str, name: str, start: int, size: int) -> bytes:
        """Get bytes."""
        self.socket.sendall(asked(1, place, name, start, size))
        return self.answer()

    def answer(self) -> bytes:
        """Hear an answer; a refusal is raised."""
        status, size = struct.unpack("<B7xQ", self.receive(16))
        body = self.receive(size)
        if status:
            said = json.loads(body)
            raise RefusedError(pb.Refused(kind=said["kind"], message=said["message"], hint=said["hint"]))
        return body

    def receive(self, size: int) -> bytes:
        """Receive so many bytes."""
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the server has ended")
            data += piece
        return data


def asked(verb: int, place: str, name: str, start: int, size: int) -> bytes:
    """Return a request of the bulk port."""
    return struct.pack("<B3xHHQQ", verb, len(place), len(name), start, size) + (place + name).encode()


def shard_of(slot: str, data: bytes) -> pb.Shard:
    """Say what a part is."""
    digests = b"".join(xxhash.xxh3_128_digest(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK))
    digest = xxhash.xxh3_128_hexdigest(digests)
    return pb.Shard(slot=slot, size_bytes=len(data), digest=digest, chunk_bytes=CHUNK, chunk_digests=digests)


def is_whole(shard: pb.Shard, data: bytes) -> bool:
    """Say whether these are the bytes of a part, by the chunks that it is told in."""
    size = shard.chunk_bytes
    digests = b"".join(xxhash.xxh3_128_digest(data[at : at + size]) for at in range(0, len(data), size))
    return digests == shard.chunk_digests and xxhash.xxh3_128_hexdigest(digests) == shard.digest


def safetensors(name: str, values: bytes, encode: Callable[[Any], str] = json.dumps) -> bytes:
    """Return a file with one array of bytes."""
    header = encode({name: {"dtype": "U8", "shape": [len(values)], "data_offsets": [0, len(values)]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + values
