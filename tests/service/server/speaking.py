"""Speak the protocol with a server in so many words, as a client in another language would: no library of ours in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc

from milepost.service import wire
from milepost.service.core.events import Refused
from milepost.service.index import Chunks, blob_of
from milepost.service.proto import service_pb2 as pb
from milepost.service.proto.service_pb2_grpc import CheckpointsStub

CHUNK = 64
PATIENCE_S = 60.0


class Speaker:
    """Be one process that speaks."""

    def __init__(self, address: str, token: str | None, component: str, incarnation: str = "1", **options: Any) -> None:
        credentials = options.pop("credentials", None)
        self.channel = grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)
        self.stub: Any = CheckpointsStub(self.channel)  # type: ignore[no-untyped-call]
        self.metadata = [("authorization", f"Bearer {token}")] if token is not None else []
        self.caller = pb.Caller(component=component, incarnation=incarnation)
        self.place = ""

    def __enter__(self) -> Speaker:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def say(self, name: str, request: Any, timeout_s: float = PATIENCE_S) -> Any:
        return getattr(self.stub, name)(request, metadata=self.metadata, timeout=timeout_s, wait_for_ready=True)

    def hello(self, role: str = "trainer", epoch: int = 1, **fields: Any) -> pb.Welcome:
        return self.say("Hello", pb.HelloRequest(caller=self.caller, role=role, epoch=epoch, versions=["v1"], **fields))

    def begin(self, key: str, step: int, parts: dict[str, bytes], **fields: Any) -> pb.Bring:
        slots = [pb.Slot(slot=slot, size_bytes=len(data)) for slot, data in parts.items()]
        bring = self.say(
            "Begin", pb.BeginRequest(caller=self.caller, key=key, step=step, slots=slots, commit_timestamp=step, **fields)
        )
        self.place = bring.place
        return bring

    def upload(self, slot: str, data: bytes, place: str = "", piece: int = 50) -> pb.Accepted:
        where = place or self.place

        def pieces() -> Iterator[pb.Piece]:
            for start in range(0, max(len(data), 1), piece):
                yield pb.Piece(
                    caller=self.caller, place=where, blob=blob_of(slot), offset=start, data=data[start : start + piece]
                )

        return self.say("Upload", pieces())

    def arrived(self, key: str, slot: str, data: bytes) -> pb.Accepted:
        shard = wire.pack_shard(slot, Chunks.of(data, CHUNK))
        return self.say("Arrived", pb.ArrivedRequest(caller=self.caller, key=key, shard=shard))

    def finish(self, key: str, *, durable: bool = False, wait_ms: int = 60_000) -> pb.Done:
        return self.say("Finish", pb.FinishRequest(caller=self.caller, key=key, durable=durable, wait_ms=wait_ms))

    def commit(self, key: str, step: int, parts: dict[str, bytes], *, durable: bool = False, **fields: Any) -> pb.Done:
        bring = self.begin(key, step, parts, **fields)
        for slot in bring.slots:
            self.upload(slot, parts[slot])
            self.arrived(key, slot, parts[slot])
        return self.finish(key, durable=durable)

    def fetch(self, has: pb.Commit | None = None, wait_ms: int = 0, **fields: Any) -> pb.FetchReply:
        return self.say("Fetch", pb.FetchRequest(caller=self.caller, has=has, wait_ms=wait_ms, **fields))

    def download(self, weights: pb.Weights, slot: str = "weights", **fields: Any) -> bytes:
        size = next(shard.size_bytes for shard in weights.shards if shard.slot == slot)
        asked = {"place": weights.place, "blob": blob_of(slot), "offset": 0, "size_bytes": size, **fields}
        pieces = self.say("Download", pb.DownloadRequest(caller=self.caller, **asked))
        return b"".join(piece.data for piece in pieces)

    def status(self) -> pb.StatusReply:
        return self.say("Status", pb.StatusRequest())


def refusal(error: grpc.RpcError) -> Refused:
    """Return what was refused."""
    trailing = dict(error.trailing_metadata() or ())  # type: ignore[attr-defined]
    assert wire.REFUSED in trailing, error
    return wire.unpack_refused(trailing[wire.REFUSED])
