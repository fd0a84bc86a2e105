"""Say what milepost asks of a place that keeps bytes: the contract every store keeps, and nothing else.

Names are relative, with ``/`` between parts (``generations/000042.json``); parts are plain ASCII and never ``.`` or
``..``. A name's bytes are immutable unless it was written by `replace` or `append`.

``milepost.testing.StoreTests`` is this contract as tests; every store subclasses it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from milepost.errors import ConflictError, NotFoundError, UsageError

Buffer: TypeAlias = bytes | bytearray | memoryview
Survives: TypeAlias = Literal["nothing", "kill", "power-cut", "machine-loss"]
GuardedBy: TypeAlias = Literal["process", "lock", "lease"]


LARGE_BYTES = 1 << 20
"""From here on it is worth a thought how bytes are written, and whether they stay in the memory of the machine."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One listed name. ``size_bytes`` is exact at the moment of the listing."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Say what a store promises in which others differ. All that is not here every store promises alike: see `Store`."""

    survives: Survives
    """The worst that an acknowledged write outlives; each value includes those before it.

    ``nothing``: the bytes end with this process. ``kill``: they outlive every process, and end with the machine's uptime (a
    memory file system, or one whose fsync promises nothing). ``power-cut``: they are there after a restart.
    ``machine-loss``: they lie on another machine, and are as safe as that one keeps them.
    """
    guard: GuardedBy
    """Whom `Store.guard` keeps out.

    ``process``: other guards of this process. ``lock``: those of all processes of this machine; on a network file system
    those of other machines too, if its mount says so. It ends with the process that holds it. ``lease``: those of
    everybody who reaches the store. It ends when nobody has renewed it for long enough.
    """


class BlobWriter(ABC):
    """Receive one blob's bytes in order; nobody sees the name before `commit`.

    Not safe for use from two threads at once. Leaving its context without `commit` aborts.
    """

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """Append ``data``. Must release the GIL while the bytes travel. Raises `StoreError`."""

    @abstractmethod
    def commit(self) -> None:
        """Make bytes and name durable, then return.

        After a `StoreError`, here or in `write`, the blob is condemned: abort, write it anew under another name (a failed
        fsync may have dropped the dirty pages, and a repeated fsync then lies).
        """

    @abstractmethod
    def abort(self) -> None:
        """Drop what was written; never raises; a second call does nothing."""

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.abort()


class BlobReader:
    """Read one name many times over; leaving its context closes it. For one thread at a time.

    This one asks the store each time. A store that has to open a name before it reads it keeps it open instead.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    def read_into(self, start: int, into: memoryview) -> int:
        """Do what `Store.read_into` does."""
        return self._store.read_into(self._name, start, into)

    def close(self) -> None:
        """Give up what is held open; never raises. A later read opens it anew."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Guard(AbstractContextManager[None]):
    """Hold a run root against other writers, from entering it to leaving it. Entering may raise what `Store.guard` says."""

    forced: bool = False
    """True once entered over another holder (``take_over``): the other may still live, and only the terms fence it."""
    abandoned: bool = False
    """True once entered where the holder before had not given it up: its process died, or its machine did."""


class Store(ABC):
    """Keep named bytes. All methods may be called from any thread; all raise `StoreError` for a failing medium.

    A `StoreError` with ``retryable`` false from `create` or `replace` means that the outcome is *unknown*: the bytes
    may have landed or may land later. The caller reads back; see PROTOCOL rule 12.
    """

    url: str
    """How people and errors name this store."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return what is promised here. Asks no network, makes nothing, and never raises."""

    @abstractmethod
    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes ``[start, stop)`` of ``name`` (to its end when ``stop`` is None).

        Raises `NotFoundError` (kind ``no-such-name``) if the name does not exist. A range beyond the end returns what is there.
        """

    @abstractmethod
    def read_into(self, name: str, start: int, into: memoryview) -> int:
        """Fill ``into`` (writable, contiguous bytes) from offset ``start``; return how many bytes were there to read.

        Fewer than ``len(into)`` means that the name ends early. Raises `NotFoundError` as `read` does.
        """

    def open_reader(self, name: str) -> BlobReader:
        """Return what reads ``name`` without looking it up again for each range. That it is not there shows at the first read."""
        return BlobReader(self, name)

    def drop_cached(self, name: str) -> None:  # noqa: B027 - a request that may always be left unanswered
        """Ask that the next read of ``name`` come from the medium, and not from the memory of this machine.

        What rots on a disk is not seen in memory, and a bad read may stay there. A name that is not there is no error.
        """

    def is_cached(self, name: str) -> bool:  # noqa: ARG002
        """Say whether most of ``name`` is in the memory of this machine; False where nobody can tell, and if it is not there."""
        return False

    @contextmanager
    def passing(self, name: str, size_bytes: int) -> Iterator[None]:
        """Read ``name`` inside, perhaps in several threads, and leave no copy in the memory of this machine.

        What was there before stays. A blob that is read once, to be verified or resumed from, would else push out files
        that others on this machine read again and again. Little is left where it is.
        """
        stays = size_bytes < LARGE_BYTES or self.is_cached(name)
        try:
            yield
        finally:
            if not stays:
                self.drop_cached(name)

    @abstractmethod
    def list(self, prefix: str) -> list[Entry]:
        """Return every name below the directory ``prefix`` (which ends in ``/``, or is empty for the whole root), sorted.

        Includes the temporary names of unfinished writes, and descends into directories (not through links to them). A
        prefix nobody wrote to is an empty list. What cannot be a name, and so is not milepost's, is left out.
        """

    @abstractmethod
    def create(self, name: str, data: Buffer, *, label: str = "t0") -> bool:
        """Write ``name`` whole unless it exists, atomically and durably; return whether it was this call that made it.

        When it returns True, bytes and name survive a power cut. When it returns False the name is taken, but whoever
        took it may not have synced it: call `sync`. ``label`` (a writer's term, ``t7``) ends up in the name of any
        temporary file (``blobs/<basename>-<label>-<nonce>.tmp``), so that a claimer knows whose leftover it is.
        """

    @abstractmethod
    def replace(self, name: str, data: Buffer, *, durable: bool = True, label: str = "t0") -> None:
        """Write ``name`` whole over whatever was there, atomically: a reader sees the old bytes or the new ones.

        ``durable=False`` is for hints: after a power cut the old bytes, the new bytes or nothing may be there.
        """

    @abstractmethod
    def replace_if(self, name: str, expected: bytes | None, data: Buffer, *, label: str = "t0") -> bool:
        """Replace ``name`` only if its bytes are ``expected`` (None: only if it does not exist); return whether it did.

        Atomic against every other `replace_if` of the same name in all processes. Durable.
        """

    @abstractmethod
    def append(self, name: str, data: Buffer) -> None:
        """Append one record to ``name``, whole or not at all as far as readers without a power cut can see.

        Not durable by itself.
        """

    @abstractmethod
    def open_blob(self, name: str, *, size_bytes: int | None = None) -> BlobWriter:
        """Start a new blob. Until commit its bytes live under ``<name>.part``. The name must never have been used before.

        ``size_bytes`` is how long it will be, if that is known: where room can be set aside for it, a store that lacks it
        says so now. A blob may turn out shorter or longer.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove ``name``; a name that is not there is no error. Durable only after `sync`."""

    def prune(self, prefix: str) -> None:  # noqa: B027 - most stores have no directories
        """Take away the directory ``prefix`` if there is nothing in it, where such things exist. What is in the way stays."""

    @abstractmethod
    def move(self, name: str, to: str) -> None:
        """Rename one name within the store; replaces nothing: raises `ConflictError` (kind ``name-taken``) if ``to`` exists.

        Atomic on a file system; on an object store a copy followed by a delete. A ``name`` that is not there while ``to`` is,
        counts as moved (so that an interrupted move can be repeated). Durable only after `sync` of both directories.
        """

    @abstractmethod
    def sync(self, prefix: str) -> None:
        """Make every name created, moved or deleted below directory ``prefix`` durable, whoever did it.

        Cheap where names always are.
        """

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Return how many bytes may still be written, or None where that has no meaning."""

    @abstractmethod
    def guard(self, *, wait_s: float, take_over: bool) -> Guard:
        """Return a context in which this process is, as far as the medium can tell, the only writer.

        Entering it raises `ConflictError` (kind ``held``) naming the holder if another process, or another guard of this
        one, has it and keeps it for ``wait_s`` seconds; with ``take_over`` it goes on all the same and says ``forced``. A
        guard only keeps claims rare: the terms keep them safe (PROTOCOL section 1). It is given up when the process dies,
        and a forked child does not hold it.
        """


def checked_name(name: str) -> str:
    """Return ``name`` if it is one; raise `UsageError` (kind ``bad-name``) else. A store never reaches outside its root."""
    if not is_name(name):
        raise UsageError(
            "not a name a store can keep",
            kind="bad-name",
            hint="use relative names of printable ASCII with / between the parts, without . or .. parts and backslashes",
            name=ascii(name),
        )
    return name


def checked_prefix(prefix: str) -> str:
    """Return ``prefix`` if it is empty or a name with a ``/`` at its end; raise `UsageError` (kind ``bad-name``) else."""
    if prefix:
        checked_name(prefix.removesuffix("/") if prefix.endswith("/") else "")
    return prefix


def is_name(name: str) -> bool:
    """Say whether ``name`` may be a name in a store."""
    parts = name.split("/")
    return name.isascii() and name.isprintable() and "\\" not in name and not any(part in ("", ".", "..") for part in parts)


def no_such_name(name: str, url: str) -> NotFoundError:
    """Say that a store has no such name."""
    return NotFoundError("no such name", kind="no-such-name", name=name, store=url)


def name_taken(name: str, url: str) -> ConflictError:
    """Say that a name which was to be new is not."""
    return ConflictError("the name is taken", kind="name-taken", name=name, store=url)
