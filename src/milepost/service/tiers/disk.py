"""Keep versions in a store: what is here outlives this host, as far as the store's promise goes.

A version is here if its index is: blobs first, each durable, then the index. What a kill leaves is swept at the next start.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from threading import Lock

from milepost.encode.digest import Buffer
from milepost.errors import NotFoundError, UsageError
from milepost.service.index import INDEX_NAME, Chunks, Index, blob_of
from milepost.service.tiers.memory import no_such_blob
from milepost.service.tiers.names import checked, checked_range, is_plain
from milepost.service.transports.base import Blob
from milepost.store.base import BlobWriter, Store
from milepost.store.local import LocalStore
from milepost.store.posix import as_bytes

BELOW = "versions/"


class _Coming:
    """Be a blob on its way to disk."""

    def __init__(self, writer: BlobWriter, size_bytes: int) -> None:
        self.writer = writer
        self.size_bytes = size_bytes
        self.done_bytes = 0
        self.lock = Lock()


class DiskTier:
    """Be the directory ``versions/`` of ``store``. May be used from many threads; a blob is written by one at a time.

    Raises as `milepost.service.tiers.memory.MemoryTier` does, and `StoreError` for a store that fails.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._coming: dict[Blob, _Coming] = {}
        self._lock = Lock()

    @property
    def directory(self) -> str | None:
        """Return where its places lie as files; None where the store is no directory."""
        return f"{self.store.root}/{BELOW.rstrip('/')}" if isinstance(self.store, LocalStore) else None

    def sizes(self) -> dict[str, dict[str, int]]:
        """Return the sizes of all blobs, by place and name, in one listing: also of what is not whole."""
        found: dict[str, dict[str, int]] = {}
        for entry in self.store.list(BELOW):
            place, _, name = entry.name.removeprefix(BELOW).partition("/")
            if is_plain(place) and is_plain(name):
                found.setdefault(place, {})[name] = entry.size_bytes
        return found

    def places(self) -> list[str]:
        """Return all places, also those without an index, in order."""
        return sorted(self.sizes())

    def index(self, place: str) -> Index | None:
        """Return what lies there; None if nothing whole does. Raises `CorruptError` (kind ``damaged-record``)."""
        name = _name(Blob(place, INDEX_NAME))
        try:
            return Index.decode(self.store.read(name), name)
        except NotFoundError:
            return None

    def write_index(self, index: Index) -> None:
        """Say that all parts are there: durable when it returns. One that was there before must be the same."""
        name, record = _name(Blob(index.place, INDEX_NAME)), index.encode()
        if not self.store.create(name, record):
            if self.store.read(name) != record:
                raise UsageError(
                    "another version lies under this name",
                    kind="place-taken",
                    hint="give each commit a key of its own",
                    place=index.place,
                )
            self.store.sync(f"{BELOW}{index.place}/")

    def new_blob(self, blob: Blob, size_bytes: int) -> None:
        """Begin a blob of this size. One of this name that was there before goes, with what was on its way."""
        name = _name(blob)
        with self._lock:
            before = self._coming.pop(blob, None)
        if before is not None:
            before.writer.abort()
        for old in (name, name + ".part"):
            self.store.delete(old)
        writer = self.store.open_blob(name, size_bytes=size_bytes or None)
        with self._lock:
            self._coming[blob] = _Coming(writer, size_bytes)

    def write(self, blob: Blob, start: int, data: Buffer) -> None:
        """Write the next bytes of a blob that `new_blob` has begun. What is here already is passed over.

        Raises `UsageError` (kind ``not-in-order``) for bytes that leave a gap.
        """
        view = as_bytes(data)
        coming = self._of(blob)
        with coming.lock:
            checked_range(blob, coming.size_bytes, start, start + len(view))
            if start > coming.done_bytes:
                raise UsageError(
                    "these bytes come before those that they follow",
                    kind="not-in-order",
                    hint="what is brought to disk comes in order: go on from where it is",
                    blob=str(blob),
                    start=start,
                    done_bytes=coming.done_bytes,
                )
            new = view[coming.done_bytes - start :]
            if new:
                self._write_new(blob, coming, new)

    def _write_new(self, blob: Blob, coming: _Coming, new: memoryview) -> None:
        try:
            coming.writer.write(new)
        except BaseException:
            self._forget(blob, coming)  # a store condemns what it could not write: it is begun anew
            raise
        coming.done_bytes += len(new)

    def finish(self, blob: Blob) -> None:
        """Make a blob durable under its name. One that is finished already is no error. Raises ``no-such-blob`` if bytes lack."""
        with self._lock:
            coming = self._coming.get(blob)
        if coming is None:
            self.size(blob)
            return
        with coming.lock:
            if coming.done_bytes < coming.size_bytes:
                raise no_such_blob(blob, self.store.url)
            try:
                coming.writer.commit()
            finally:
                self._forget(blob, coming)

    def size(self, blob: Blob) -> int:
        """Return how many bytes a finished blob has."""
        checked(blob)
        for entry in self.store.list(f"{BELOW}{blob.place}/"):
            if entry.name == _name(blob):
                return entry.size_bytes
        raise no_such_blob(blob, self.store.url)

    def read_into(self, blob: Blob, start: int, into: memoryview) -> None:
        """Fill ``into`` from ``start``."""
        try:
            count = self.store.read_into(_name(blob), start, into)
        except NotFoundError as error:
            raise no_such_blob(blob, self.store.url) from error
        if count < into.nbytes:
            raise no_such_blob(blob, self.store.url)

    def map(self, blob: Blob) -> memoryview | None:
        """Return the blob itself, read-only, where the store is a directory; else None."""
        checked(blob)
        directory = self.directory
        if directory is None:
            return None
        try:
            with open(f"{directory}/{blob.place}/{blob.name}", "rb") as file:
                size_bytes = file.seek(0, 2)
                return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if size_bytes else b"")
        except FileNotFoundError as error:
            raise no_such_blob(blob, self.store.url) from error

    def verify(self, index: Index) -> dict[str, tuple[int, ...]]:
        """Read all of a version; return the numbers of the chunks that are not as they should be, by slot. Empty: it is whole."""
        found = {slot: self.wrong(Blob(index.place, blob_of(slot)), chunks) for slot, chunks in index.chunks.items()}
        return {slot: wrong for slot, wrong in found.items() if wrong}

    def wrong(self, blob: Blob, chunks: Chunks) -> tuple[int, ...]:
        """Return the numbers of the chunks of one finished blob that are not as they should be."""
        with suppress(NotFoundError):
            if self.size(blob) == chunks.size_bytes:
                piece = memoryview(bytearray(min(chunks.chunk_bytes, chunks.size_bytes)))
                with self.store.passing(_name(blob), chunks.size_bytes), self.store.open_reader(_name(blob)) as reader:
                    return tuple(
                        number
                        for number in range(len(chunks))
                        for start, stop in [chunks.range_of(number)]
                        if reader.read_into(start, piece[: stop - start]) < stop - start
                        or not chunks.matches(number, piece[: stop - start])
                    )
        return tuple(range(len(chunks))) or (0,)

    def erase(self, place: str) -> None:
        """Remove a place, the index first, and what is on its way there. One that is not there is no error."""
        with self._lock:
            coming = {blob: each for blob, each in self._coming.items() if blob.place == place}
        for blob, each in coming.items():
            with each.lock:
                each.writer.abort()
            self._forget(blob, each)
        prefix = _name(Blob(place, INDEX_NAME)).removesuffix(INDEX_NAME)
        # Bytes without an index are no version; an index without all bytes would be a damaged one. So its end is durable before
        # theirs begins: after a power cut it could else be back, and they not.
        self.store.delete(prefix + INDEX_NAME)
        self.store.sync(prefix)
        for entry in self.store.list(prefix):
            self.store.delete(entry.name)
        self.store.prune(prefix)

    def used_bytes(self) -> int:
        """Return how many bytes all blobs here have."""
        return sum(entry.size_bytes for entry in self.store.list(BELOW))

    def _of(self, blob: Blob) -> _Coming:
        with self._lock:
            coming = self._coming.get(checked(blob))
        if coming is None:
            raise no_such_blob(blob, self.store.url)
        return coming

    def _forget(self, blob: Blob, coming: _Coming) -> None:
        coming.writer.abort()
        with self._lock:
            if self._coming.get(blob) is coming:
                del self._coming[blob]


def _name(blob: Blob) -> str:
    checked(blob)
    return f"{BELOW}{blob.place}/{blob.name}"
