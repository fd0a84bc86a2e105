"""Check blobs and leaves against their digests, each blob once, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

from milepost.encode.digest import Digest
from milepost.encode.frames import Extent, ReadInto
from milepost.errors import CorruptError, NotFoundError
from milepost.lifecycle.sealed import GONE
from milepost.records import BlobRecord, LeafRecord, Manifest
from milepost.store.base import Store

PIECE_BYTES = 8 << 20
"""How much is read at once: the memory that a check needs, whatever the size of the run."""


class Contents:
    """Read what blobs unpack to: leaves lie at offsets in that. For any thread; one of its own for each who reads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._extents: dict[str, tuple[BlobRecord, Extent]] = {}

    def read_into(self, blob: BlobRecord, start: int, into: memoryview) -> int:
        """Fill ``into`` from offset ``start`` of the raw file; return how many bytes were there.

        Raises `NotFoundError` if the file does not exist, and `CorruptError` where a frame cannot be unpacked.
        """
        if not blob.frames:
            return self._store.read_into(blob.name, start, into)
        known = self._extents.get(blob.name)
        if known is None or known[0] != blob:
            extent = Extent(partial(self._store.read_into, blob.name), blob.frames)
            known = self._extents[blob.name] = (blob, extent)
        return known[1].read(start, into)

    def drop_cached(self, blob: BlobRecord) -> None:
        """Have the next read come from the medium: what is in this machine's memory looks damaged."""
        self._store.drop_cached(blob.name)
        self._extents.pop(blob.name, None)


class Blobs:
    """Check blobs, each once however many generations share it, in bounded memory."""

    def __init__(
        self,
        store: Store,
        *,
        full: bool,
        chosen: Collection[str] | None = None,
        progress: Callable[[int], None] | None = None,
        piece_bytes: int = PIECE_BYTES,
        from_medium: bool = False,
    ) -> None:
        """Read in pieces of ``piece_bytes``; ``from_medium`` asks for what is on the disk and not in this machine's memory."""
        self._store = store
        self._contents = Contents(store)
        self._full = full
        self._chosen = chosen
        self._progress = progress
        self._piece_bytes = piece_bytes
        self._from_medium = from_medium
        self._known: dict[str, tuple[BlobRecord, str | None]] = {}
        self.read_bytes = 0

    @property
    def looked_at(self) -> list[BlobRecord]:
        """Return the blobs that were asked about."""
        return [blob for blob, _ in self._known.values()]

    def reads(self, blob: BlobRecord) -> bool:
        """Return whether the bytes of ``blob`` are read, and not only its size is checked."""
        return self._full and (self._chosen is None or blob.name in self._chosen)

    def count(self, size_bytes: int) -> None:
        """Note that bytes were checked."""
        self.read_bytes += size_bytes
        if self._progress:
            self._progress(size_bytes)

    def problem(self, blob: BlobRecord) -> str | None:
        """Return what is wrong with ``blob``, or None."""
        known = self._known.get(blob.name)
        if known is None or known[0] != blob:
            # A flaky read is not damage: what looks damaged is read once more before it is believed.
            with self._store.passing(blob.name, blob.size_bytes if self.reads(blob) else 0):
                problem = self._look(blob, again=self._from_medium) and self._look(blob, again=True)
            known = self._known[blob.name] = (blob, problem)
        return known[1]

    def _look(self, blob: BlobRecord, *, again: bool) -> str | None:
        if again:
            # Read from the same memory it would be the same bad bytes once more.
            self._store.drop_cached(blob.name)
        try:
            size, digest = self._measure(blob)
        except NotFoundError:
            return GONE
        if size != blob.size_bytes:
            return (
                f"it is {'longer' if size > blob.size_bytes else 'shorter'} than the {blob.size_bytes:,} bytes that were written"
            )
        if digest is not None and digest != blob.digest:
            return "its digest is not the one that was written"
        return None

    def _measure(self, blob: BlobRecord) -> tuple[int, str | None]:
        if not self.reads(blob):
            # One byte beyond the end tells a file that grew from one that is whole.
            probe = bytearray(2)
            start = max(blob.size_bytes - 1, 0)
            return start + self._store.read_into(blob.name, start, memoryview(probe)), None
        # One byte more than there should be, so that a file that grew is told from one that is whole.
        digest, size = Digest.like(blob.digest), 0
        for piece in self._pieces(partial(self._store.read_into, blob.name), 0, blob.size_bytes + 1):
            digest.update(piece)
            size += len(piece)
            self.count(len(piece))
        return size, digest.hex()

    def _pieces(self, read_into: ReadInto, start: int, stop: int) -> Iterator[memoryview]:
        """Read bytes ``[start, stop)``, or what there is of them, piece by piece into one buffer."""
        buffer = memoryview(bytearray(min(self._piece_bytes, stop - start)))
        while True:
            piece = buffer[: stop - start]
            got = read_into(start, piece)
            yield piece[:got]
            start += got
            if got < len(piece) or start == stop:
                return

    def damaged(self, manifest: Manifest, blob: int) -> Iterator[tuple[str, LeafRecord]]:
        """Yield each damaged leaf in this blob, and the component it is of."""
        for component in manifest.components:
            for leaf in component.leaves:
                if leaf.blob == blob and not self.is_sound(manifest, leaf):
                    yield component.name, leaf

    def is_sound(self, manifest: Manifest, leaf: LeafRecord) -> bool:
        """Return whether a leaf's bytes are those that were saved; what looks damaged is read once more."""
        blob = manifest.blobs[leaf.blob]
        if self._fits(blob, leaf):
            return True
        self._contents.drop_cached(blob)
        return self._fits(blob, leaf)

    def _fits(self, blob: BlobRecord, leaf: LeafRecord) -> bool:
        digest = Digest.like(leaf.digest)
        try:
            for piece in self._pieces(partial(self._contents.read_into, blob), leaf.start, leaf.stop):
                digest.update(piece)
        except (NotFoundError, CorruptError):
            return False
        return digest.hex() == leaf.digest
