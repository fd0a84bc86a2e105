"""Read versions from a store that both sides reach: an object store, or whatever keeps the contract of `milepost.store.base`."""

from __future__ import annotations

from collections.abc import Callable

from milepost.clock import Clock, SystemClock
from milepost.errors import MilepostError, NotFoundError, StoreError
from milepost.service.transports.base import Blob, Link, Source, Transport
from milepost.service.transports.failures import failed, no_such_blob
from milepost.service.transports.folder import is_plain
from milepost.store.base import BlobReader, Store
from milepost.store.resolve import open_store

NAME = "store"


class StoreTransport(Transport):
    """Reach a store by its URL. ``opened`` turns that into a store (default: `milepost.store.resolve.open_store`)."""

    name = NAME

    def __init__(self, opened: Callable[[str], Store] | None = None, clock: Clock | None = None) -> None:
        self._opened = opened or (lambda url: open_store(url, clock or SystemClock()))

    def reach(self, source: Source) -> Link | None:
        if source.transport != NAME:
            return None
        try:
            return StoreLink(self._opened(source.address))
        except MilepostError:  # a kind of URL that nobody here knows
            return None


class StoreLink(Link):
    """Read names of a store, ``PLACE/NAME``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._blob: Blob | None = None
        self._reader: BlobReader | None = None

    def read_into(self, blob: Blob, start: int, into: memoryview) -> None:
        try:
            count = self._reading(blob).read_into(start, into)
        except NotFoundError as error:
            raise no_such_blob(blob) from error
        except StoreError as error:
            raise failed("could not read from the store", NAME, self._store.url, error.message) from error
        if count < len(into):
            raise no_such_blob(blob, ends_at=start + count)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._blob = None

    def _reading(self, blob: Blob) -> BlobReader:
        if self._reader is None or blob != self._blob:
            self.close()
            if not is_plain(blob):
                raise no_such_blob(blob)
            self._reader, self._blob = self._store.open_reader(str(blob)), blob
        return self._reader
