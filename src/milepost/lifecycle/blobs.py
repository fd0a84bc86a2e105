"""Check blobs and leaves against their digests, each blob once, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from milepost.encode.digest import Digest
from milepost.errors import NotFoundError
from milepost.lifecycle.sealed import GONE
from milepost.records import BlobRecord, LeafRecord, Manifest
from milepost.store.base import Store

PIECE_BYTES = 8 << 20
"""How much is read at once: the memory that a check needs, whatever the size of the run."""


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
        for piece in self._pieces(blob.name, 0, blob.size_bytes + 1):
            digest.update(piece)
            size += len(piece)
            self.count(len(piece))
        return size, digest.hex()

    def _pieces(self, name: str, start: int, stop: int) -> Iterator[memoryview]:
        """Read bytes ``[start, stop)``, or what there is of them, piece by piece into one buffer."""
        buffer = memoryview(bytearray(min(self._piece_bytes, stop - start)))
        while True:
            piece = buffer[: stop - start]
            got = self._store.read_into(name, start, piece)
            yield piece[:got]
            start += got
            if got < len(piece) or start == stop:
                return

    def touched(self, manifest: Manifest, blob: int) -> tuple[str, ...]:
        """Return which components have a damaged leaf in this blob."""
        found = [
            component.name
            for component in manifest.components
            if any(self._bad(manifest, leaf, blob) for leaf in component.leaves)
        ]
        return tuple(found)

    def _bad(self, manifest: Manifest, leaf: LeafRecord, blob: int) -> bool:
        return leaf.blob == blob and not self.is_sound(manifest, leaf)

    def is_sound(self, manifest: Manifest, leaf: LeafRecord) -> bool:
        """Return whether a leaf's bytes are those that were saved; what looks damaged is read once more."""
        if self._fits(manifest, leaf):
            return True
        self._store.drop_cached(manifest.blobs[leaf.blob].name)
        return self._fits(manifest, leaf)

    def _fits(self, manifest: Manifest, leaf: LeafRecord) -> bool:
        try:
            digest = Digest.like(leaf.digest)
            for piece in self._pieces(manifest.blobs[leaf.blob].name, leaf.start, leaf.stop):
                digest.update(piece)
        except NotFoundError:
            return False
        return digest.hex() == leaf.digest
