"""Keep bytes in this process: the model every other store is measured by, and what tests run on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from milepost.clock import Clock, SystemClock
from milepost.errors import ConflictError, StoreError, UsageError
from milepost.store.base import (
    BlobWriter,
    Buffer,
    Capabilities,
    Entry,
    Guard,
    Store,
    checked_name,
    checked_prefix,
    name_taken,
    no_such_name,
)
from milepost.store.lease import Lease, LeaseGuard


@dataclass(slots=True)
class _Space:
    """Hold what all stores of one name share."""

    names: dict[str, bytes | bytearray] = field(default_factory=dict)
    capacity_bytes: int | None = None
    holder: object = None
    changed: threading.Condition = field(default_factory=threading.Condition)


_spaces: dict[str, _Space] = {}


class MemoryStore(Store):
    """Keep names in a dictionary. Stores of one name share their bytes within the process; without a name it is private.

    With a ``lease`` it is guarded as an object store is, by a record that each of its stores reads by its own ``clock``.
    ``wait`` sleeps for some seconds; tests pass one that moves their clock.
    """

    def __init__(
        self,
        name: str = "",
        *,
        lease: Lease | None = None,
        clock: Clock | None = None,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self.url = f"memory://{name}"
        self._space = _spaces.setdefault(name, _Space()) if name else _Space()
        self._lease = lease
        self._clock = clock or SystemClock()
        self._wait = wait or threading.Event().wait

    def __repr__(self) -> str:
        return f"MemoryStore({self.url!r})"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(survives="nothing", guard="lease" if self._lease else "process")

    @property
    def capacity_bytes(self) -> int | None:
        """Return how many bytes fit, or None for no limit. Set it to see a full disk."""
        return self._space.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, value: int | None) -> None:
        self._space.capacity_bytes = value

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        with self._space.changed:
            return bytes(self._bytes(name)[start:stop])

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        with self._space.changed:
            data = self._bytes(name)[start : start + into.nbytes]
            if data:
                into.cast("B")[: len(data)] = data
            return len(data)

    def list(self, prefix: str) -> list[Entry]:
        checked_prefix(prefix)
        with self._space.changed:
            return [Entry(name, len(data)) for name, data in sorted(self._space.names.items()) if name.startswith(prefix)]

    def create(self, name: str, data: Buffer, *, label: str = "t0") -> bool:  # noqa: ARG002
        with self._space.changed:
            if checked_name(name) in self._space.names:
                return False
            self._put(name, bytes(data))
            return True

    def replace(self, name: str, data: Buffer, *, durable: bool = True, label: str = "t0") -> None:  # noqa: ARG002
        with self._space.changed:
            self._put(checked_name(name), bytes(data))

    def replace_if(self, name: str, expected: bytes | None, data: Buffer, *, label: str = "t0") -> bool:  # noqa: ARG002
        with self._space.changed:
            current = self._space.names.get(checked_name(name))
            if current != expected:
                return False
            self._put(name, bytes(data))
            return True

    def append(self, name: str, data: Buffer) -> None:
        with self._space.changed:
            self._put(name, bytes(self._space.names.get(checked_name(name), b"")) + bytes(data))

    def open_blob(self, name: str, *, size_bytes: int | None = None) -> BlobWriter:
        with self._space.changed:
            if checked_name(name) in self._space.names or f"{name}.part" in self._space.names:
                raise name_taken(name, self.url)
            self._check_room(name, size_bytes or 0)
            part = bytearray()
            self._space.names[f"{name}.part"] = part
            return _MemoryBlob(self, name, part)

    def delete(self, name: str) -> None:
        with self._space.changed:
            self._space.names.pop(checked_name(name), None)

    def move(self, name: str, to: str) -> None:
        with self._space.changed:
            names = self._space.names
            if checked_name(name) in names and checked_name(to) in names:
                raise name_taken(to, self.url)
            if name not in names and to not in names:
                raise no_such_name(name, self.url)
            if name in names:
                names[to] = names.pop(name)

    def sync(self, prefix: str) -> None:
        checked_prefix(prefix)

    def free_bytes(self) -> int | None:
        with self._space.changed:
            capacity = self._space.capacity_bytes
            return None if capacity is None else max(0, capacity - self._used_bytes())

    def guard(self, *, wait_s: float, take_over: bool) -> Guard:
        if self._lease is None:
            return _MemoryGuard(self, wait_s, take_over)
        return LeaseGuard(self, self._lease, self._clock, self._wait, wait_s=wait_s, take_over=take_over)

    def _bytes(self, name: str) -> bytes | bytearray:
        data = self._space.names.get(checked_name(name))
        if data is None:
            raise no_such_name(name, self.url)
        return data

    def _put(self, name: str, data: bytes) -> None:
        self._check_room(name, len(data) - len(self._space.names.get(name, b"")))
        self._space.names[name] = data

    def _used_bytes(self) -> int:
        return sum(len(data) for data in self._space.names.values())

    def _check_room(self, name: str, more_bytes: int) -> None:
        capacity = self._space.capacity_bytes
        if capacity is not None and more_bytes > 0 and self._used_bytes() + more_bytes > capacity:
            raise StoreError(
                "could not write: no space left",
                hint="keep fewer generations: Keep(last=...), or raise capacity_bytes",
                kind="disk-full",
                retryable=False,
                undone=True,
                name=name,
                capacity_bytes=capacity,
            )


class _MemoryBlob(BlobWriter):
    """Grow ``<name>.part``; somebody who deletes that meanwhile (a claimer's sweep) makes the commit fail, as on a disk."""

    def __init__(self, store: MemoryStore, name: str, part: bytearray) -> None:
        self._store = store
        self._name = name
        self._part: bytearray | None = part

    def write(self, data: Buffer) -> None:
        with self._store._space.changed:
            part = self._open_part()
            try:
                self._store._check_room(self._name, memoryview(data).nbytes)
            except StoreError:
                self.abort()
                raise
            part += data

    def commit(self) -> None:
        with self._store._space.changed:
            part, names = self._open_part(), self._store._space.names
            self._part = None
            if names.get(f"{self._name}.part") is not part:
                raise StoreError(
                    "the unfinished blob is gone",
                    kind="vanished",
                    retryable=False,
                    hint="another process has swept it: milepost ls shows who claimed the run",
                    name=self._name,
                )
            names[self._name] = bytes(names.pop(f"{self._name}.part"))

    def abort(self) -> None:
        with self._store._space.changed:
            names = self._store._space.names
            if self._part is not None and names.get(f"{self._name}.part") is self._part:
                del names[f"{self._name}.part"]
            self._part = None

    def _open_part(self) -> bytearray:
        if self._part is None:
            raise UsageError("the blob was committed, aborted or condemned before", kind="blob-closed", name=self._name)
        return self._part


class _MemoryGuard(Guard):
    """Be the one holder of a space."""

    def __init__(self, store: MemoryStore, wait_s: float, take_over: bool) -> None:
        self._store = store
        self._wait_s = wait_s
        self._take_over = take_over

    def __enter__(self) -> None:
        space = self._store._space
        with space.changed:
            if space.changed.wait_for(lambda: space.holder is None, timeout=self._wait_s):
                space.holder = self
            elif self._take_over:
                self.forced = True
            else:
                raise ConflictError(
                    "this process writes to this run root already",
                    kind="held",
                    hint="close the first engine before you open a second",
                    root=self._store.url,
                )

    def __exit__(self, *exc_info: object) -> None:
        space = self._store._space
        with space.changed:
            if space.holder is self:
                space.holder = None
                space.changed.notify_all()
