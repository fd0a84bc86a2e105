"""Take bytes from a call, and give bytes to one, in pieces: the compatible way, where no other is open."""

from __future__ import annotations

from collections.abc import AsyncIterator

from milepost.errors import NotFoundError
from milepost.service import wire
from milepost.service.core.events import Refused
from milepost.service.proto import service_pb2 as pb
from milepost.service.server.places import Incoming, slot_of
from milepost.service.server.refusing import Refusal
from milepost.service.server.shell import Shell
from milepost.service.server.storage import Storage
from milepost.service.tiers.disk import DiskTier
from milepost.service.tiers.memory import MemoryTier
from milepost.service.transports.base import Blob


async def receive(shell: Shell, pieces: AsyncIterator[pb.Piece]) -> None:
    """Write what comes to where it belongs. The first piece says who brings it, and which blob it is of."""
    caller, blob, begins_at = None, Blob("", ""), 0
    async for piece in pieces:
        if caller is None:
            caller, blob, begins_at = wire.unpack_caller(piece.caller), Blob(piece.place, piece.blob), piece.offset
            refused = shell.core.refusal(caller)
            if refused is not None:
                raise Refusal(refused)
        if len(piece.data) > wire.MAX_PIECE_BYTES:
            raise wire.bad_message(f"a piece has at most {wire.MAX_PIECE_BYTES} bytes", size_bytes=len(piece.data))
        if piece.place not in ("", blob.place) or piece.blob not in ("", blob.name):
            raise wire.bad_message("one call brings one blob", blob=str(blob)[: wire.MAX_NAME])
        start = piece.offset or begins_at
        incoming = shell.places.may_write(caller, blob.place, blob.name, start, len(piece.data))
        if isinstance(incoming, Refused):
            raise Refusal(incoming)
        data, target = piece.data, incoming
        await shell.work(lambda: write(shell.storage, target, blob, start, data))  # noqa: B023 - awaited within the turn
        begins_at = start + len(data)
        shell.counts["bytes.grpc"] += len(data)


def write(storage: Storage, incoming: Incoming, blob: Blob, start: int, data: bytes) -> None:
    """Write bytes of a commit that is on its way. For any thread. Raises `Refusal` where its slot is closed meanwhile."""
    slot = slot_of(blob.name)
    with incoming.writing(slot) as may:
        if not may:
            hint = "ask Begin what is missing"
            raise Refusal(Refused("not-missing", "this part is here already, or its commit was given up", hint, {"slot": slot}))
        tier = storage.tier(incoming.tier)
        with incoming.making:
            if blob.name not in incoming.begun:
                tier.new_blob(blob, incoming.sizes[slot])
                incoming.begun.add(blob.name)
        tier.write(blob, start, data)


async def send(shell: Shell, request: pb.DownloadRequest) -> AsyncIterator[pb.Piece]:
    """Yield bytes ``[offset, offset + size_bytes)`` of a blob. What is erased meanwhile stays readable where that is possible."""
    kept = shell.places.may_read(request.place, request.blob)
    if isinstance(kept, Refused):
        raise Refusal(kept)
    blob = Blob(request.place, request.blob)
    view, tier = await shell.work(lambda: _opened(shell.storage, blob))
    start, stop = request.offset, request.offset + request.size_bytes
    while start < stop:
        until = min(start + wire.MAX_PIECE_BYTES, stop)
        if view is not None:
            if until > len(view):
                raise Refusal(_ends_early(blob))
            data = bytes(view[start:until])
        else:
            into = bytearray(until - start)
            await shell.work(lambda: tier.read_into(blob, start, memoryview(into)))  # noqa: B023 - awaited within the turn
            data = bytes(into)
        yield pb.Piece(offset=start, data=data)
        shell.counts["bytes.grpc"] += len(data)
        start = until


def _opened(storage: Storage, blob: Blob) -> tuple[memoryview | None, MemoryTier | DiskTier]:
    for tier in (storage.memory, storage.disk):
        try:
            view = tier.map(blob)
            if view is None:
                tier.read_into(blob, 0, memoryview(bytearray()))
            return view, tier
        except NotFoundError:
            continue
    raise Refusal(_ends_early(blob))


def _ends_early(blob: Blob) -> Refused:
    hint = "fetch again: its version may be kept no longer"
    return Refused("no-such-blob", "there are no such bytes here", hint, {"blob": str(blob)})
