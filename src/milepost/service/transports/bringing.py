"""Bring the bytes of a commit: in pieces, each of which is there once it is answered."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from milepost.clock import Clock
from milepost.encode.digest import Buffer
from milepost.errors import ServiceError
from milepost.service.transports.base import Blob, Link

PIECE_BYTES = 8 << 20


class Upload:
    """Be all that one call brings."""

    def __init__(self, parts: Mapping[Blob, Buffer], until_ns: int | None, clock: Clock) -> None:
        self._until_ns, self._clock = until_ns, clock
        self._parts = [Bringing(self, blob, memoryview(data).cast("B")) for blob, data in parts.items()]
        self._counting = threading.Lock()
        self.moved_bytes = 0

    @property
    def is_over(self) -> bool:
        """Return whether all is there."""
        return not self.jobs()

    def jobs(self) -> list[Bringing]:
        """Return what is to be brought: a blob each."""
        return [part for part in self._parts if not part.is_over]

    def count(self, size_bytes: int) -> None:
        """Add what has arrived. From several threads."""
        with self._counting:
            self.moved_bytes += size_bytes

    def check_time(self) -> None:
        """Raise `ServiceError` (kind ``commit-timeout``) where the caller's time is over."""
        if self._until_ns is not None and self._clock.monotonic_ns() > self._until_ns:
            raise ServiceError(
                "to bring a commit's bytes took too long",
                kind="commit-timeout",
                hint="give it more time: commit_timeout; nothing of it is visible, and the same commit can be made again",
                moved_bytes=self.moved_bytes,
            )


class Bringing:
    """Bring one blob, piece after piece: a disk takes them in their order."""

    def __init__(self, upload: Upload, blob: Blob, data: memoryview) -> None:
        self._upload, self._blob, self._data = upload, blob, data
        self.progress = 0
        self.is_over = False

    def run(self, link: Link) -> list[Bringing]:
        while not self.is_over:
            self._upload.check_time()
            piece = self._data[self.progress : self.progress + PIECE_BYTES]
            link.write(self._blob, self.progress, piece)
            self.progress += len(piece)
            self.is_over = self.progress == len(self._data)
            self._upload.count(len(piece))
        return []
