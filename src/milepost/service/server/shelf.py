"""Lay the bytes that come over a connection where they belong, and open those that are asked for: what counts, no more."""

from __future__ import annotations

import os
import ssl

from milepost.clock import Clock
from milepost.errors import NotFoundError, ServiceError, UsageError
from milepost.service import wire
from milepost.service.core.events import Caller, Refused
from milepost.service.endpoint import Endpoint
from milepost.service.index import DELTA
from milepost.service.server.places import Incoming, Places, slot_of
from milepost.service.server.storage import Storage
from milepost.service.settings import ServiceSettings
from milepost.service.transports.base import Blob
from milepost.service.transports.bulk_server import BulkServer, Limits
from milepost.service.transports.folder import Folder
from milepost.store.posix import failures_of

_CONNECTIONS = 256


class Shelf:
    """Be where bytes come and go. For many threads; raises as `milepost.service.transports.bulk_server.Shelf` says."""

    def __init__(self, storage: Storage, places: Places) -> None:
        self._storage = storage
        self._places = places

    def write(self, blob: Blob, start: int, data: memoryview | bytes, caller: Caller | None = None) -> None:
        """Take bytes of a commit that is on its way; ``caller``: whose it has to be."""
        incoming = self._places.may_write(blob.place, blob.name, start, len(data), caller)
        if isinstance(incoming, Refused):
            raise wire.error_of(incoming)
        self._write(incoming, blob, start, data)

    def _write(self, incoming: Incoming, blob: Blob, start: int, data: memoryview | bytes) -> None:
        slot = slot_of(blob.name)
        with incoming.writing(slot) as may:
            if not may:
                message, hint = "this part is here already, or its commit was given up", "ask Begin what is missing"
                raise ServiceError(message, kind="not-missing", hint=hint, slot=slot)
            if DELTA in blob.name:
                # Nobody has said how long it is, and no room is set aside for it: it grows to the length of its part at most.
                Folder(self._storage.memory.directory).write(blob, start, data)
                return
            tier = self._storage.tier(incoming.tier)
            with incoming.making:
                if blob.name not in incoming.begun:
                    tier.new_blob(blob, incoming.sizes[slot])
                    incoming.begun.add(blob.name)
            try:
                tier.write(blob, start, data)
            except (
                NotFoundError
            ):  # it was erased with what was there before, or condemned by a disk: the next piece begins it anew
                incoming.begun.discard(blob.name)
                raise

    def open_file(self, blob: Blob) -> int | None:
        """Return a descriptor to read a blob from, the caller's to close; None where it is no file: in a store.

        What is erased meanwhile stays readable through it.
        """
        self._check(blob)
        for directory in (self._storage.memory.directory, self._storage.disk.directory):
            if directory is not None:
                path = os.path.join(directory, blob.place, blob.name)
                with failures_of("open", path):
                    try:
                        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                    except FileNotFoundError:
                        continue
        if self._storage.disk.directory is None:
            self._storage.disk.size(blob)
            return None
        hint = "fetch again: its version may be kept no longer"
        raise NotFoundError("there are no such bytes here", kind="no-such-blob", hint=hint, blob=str(blob))

    def size(self, blob: Blob) -> int:
        """Return how many bytes a blob of a store has."""
        self._check(blob)
        return self._storage.disk.size(blob)

    def read_into(self, blob: Blob, start: int, into: memoryview) -> None:
        """Fill ``into`` from a blob of a store."""
        self._check(blob)
        self._storage.disk.read_into(blob, start, into)

    def _check(self, blob: Blob) -> None:
        kept = self._places.may_read(blob.place, blob.name)
        if isinstance(kept, Refused):
            raise wire.error_of(kept)


def open_bulk(shelf: Shelf, token: str | None, settings: ServiceSettings, before: Endpoint | None, clock: Clock) -> BulkServer:
    """Listen for bulk transfers: at the port of the service before if it is free. Raises `ServiceError` (``cannot-listen``)."""

    def start(port: int) -> BulkServer:
        server = BulkServer(
            shelf, token or "", host=settings.host, port=port, tls=_context(settings), limits=Limits(_CONNECTIONS), clock=clock
        )
        server.start()
        return server

    if settings.bulk_port or before is None or not before.bulk_port:
        return start(settings.bulk_port)
    try:
        return start(before.bulk_port)
    except ServiceError:
        return start(0)


def _context(settings: ServiceSettings) -> ssl.SSLContext | None:
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
        if settings.tls_ca is not None:
            context.load_verify_locations(settings.tls_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # SSLError is one
        raise UsageError(
            "the service cannot speak TLS with these files",
            kind="bad-setting",
            hint="tls_cert and tls_key are a pair, and tls_ca a certificate, all in PEM: openssl x509 -noout -text -in FILE",
            setting="tls_cert",
            value=settings.tls_cert,
            cause=error,
        ) from error
    return context
