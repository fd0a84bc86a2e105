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
        self._changing = threading.Lock()
        self.pieces: dict[tuple[Blob, int], memoryview] = {}
        """Those that are not there yet. A blob without bytes is one piece, too."""
        for blob, data in parts.items():
            view = memoryview(data).cast("B")
            for start in range(0, max(len(view), 1), PIECE_BYTES):
                self.pieces[blob, start] = view[start : start + PIECE_BYTES]

    @property
    def left_bytes(self) -> int:
        """Return how many bytes are not there yet."""
        with self._changing:
            return sum(map(len, self.pieces.values()))

    def jobs(self) -> list[Piece]:
        """Return what is to be brought."""
        return [Piece(self, blob, start) for blob, start in self.pieces]

    def check_time(self) -> None:
        """Raise `ServiceError` (kind ``commit-timeout``) where the caller's time is over."""
        if self._until_ns is not None and self._clock.monotonic_ns() > self._until_ns:
            raise ServiceError(
                "to bring a commit's bytes took too long",
                kind="commit-timeout",
                hint="give it more time: commit_timeout; nothing of it is visible, and the same commit can be made again",
                left_bytes=self.left_bytes,
            )

    def arrived(self, blob: Blob, start: int) -> None:
        """Say that a piece is there."""
        with self._changing:
            del self.pieces[blob, start]


class Piece:
    """Bring one piece."""

    def __init__(self, upload: Upload, blob: Blob, start: int) -> None:
        self._upload, self._blob, self._start = upload, blob, start
        self.progress = 0

    def run(self, link: Link) -> list[Piece]:
        self._upload.check_time()
        link.write(self._blob, self._start, self._upload.pieces[self._blob, self._start])
        self.progress += 1
        self._upload.arrived(self._blob, self._start)
        return []
