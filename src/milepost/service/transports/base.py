"""Say what a way for bytes is: the contract that every transport keeps, and nothing else.

``tests/service/transports/contract.py`` (`TransportTests`) is this contract as tests; every transport subclasses it. A transport
knows no versions: it moves ranges of named blobs. What is whole, what is damaged, and what is tried next, `moving` knows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from milepost.encode.digest import Buffer
from milepost.errors import ServiceError


@dataclass(frozen=True, slots=True)
class Source:
    """Say one way to the bytes of a version, as the server names it."""

    transport: str
    address: str
    """A directory, a URL, host:port; empty where the control connection is meant."""
    host: str = ""
    """Of memory: whose it is. See `milepost.service.transports.host.host_id`."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Name some bytes: file ``name`` in place ``place``. See `milepost.service.index`."""

    place: str
    name: str

    def __str__(self) -> str:
        return f"{self.place}/{self.name}"


class Link(ABC):
    """Be an open way to one source. For one thread at a time; whoever wants more opens more. Never pickles."""

    @abstractmethod
    def read_into(self, blob: Blob, start: int, into: memoryview) -> None:
        """Fill ``into`` with the bytes of ``blob`` from ``start``.

        Raises `NotFoundError` (kind ``no-such-blob``) where there is no such blob or it ends early; `ServiceError` (kind
        ``transport-failed``) for all else that fails, also after a time without any byte: then the link is of no use any more.
        """

    def read_each(self, blob: Blob, start: int, into: Sequence[memoryview]) -> Iterator[memoryview]:
        """Fill these, one behind the other from ``start`` on, and yield each when it is full. Raises as `read_into`.

        One request where the way has such: while a piece is looked at, the next ones are on their way. Whoever stops in the
        middle closes the link.
        """
        for piece in into:
            self.read_into(blob, start, piece)
            start += len(piece)
            yield piece

    def write(self, blob: Blob, start: int, data: Buffer) -> None:  # noqa: ARG002
        """Bring bytes of a commit that is on its way. Raises as `read_into`; ``cannot-write`` where bytes go one way only."""
        raise cannot_write(type(self).__name__)

    def map(self, blob: Blob) -> memoryview | None:  # noqa: ARG002
        """Return the blob itself, read-only, where it lies in memory or in a file of this host: zero copy. Else None.

        The bytes stay what they are for as long as anything refers to the view, also once the blob is erased.
        """
        return None

    def map_new(self, blob: Blob, size_bytes: int) -> memoryview | None:  # noqa: ARG002
        """Return new memory for a blob of a commit that is on its way, which then lies where the server wants it. Else None."""
        return None

    def interrupt(self) -> None:  # noqa: B027 - where nothing waits, nothing is to be done
        """End what another thread waits for in this link, which is of no use then. Never raises."""

    @abstractmethod
    def close(self) -> None:
        """Give up what is held; views stay. Never raises; a second call does nothing."""

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Transport(ABC):
    """Be one kind of way."""

    name: str
    is_local: bool = False
    """Whether `Link.map` works: a fetch then costs nothing, whatever the size."""

    @abstractmethod
    def reach(self, source: Source) -> Link | None:
        """Return a way to this source; None if it cannot be reached from here, or is not of this kind. Raises nothing."""


def cannot_write(kind: str) -> ServiceError:
    """Say that bytes go one way only here."""
    return ServiceError(
        "nothing can be brought this way",
        kind="cannot-write",
        hint="commit over another transport; transport=`auto` takes the best that can",
        transport=kind,
    )
