"""Let all readers of one host share what one of them fetches: it comes over the network once, and lies in memory once.

A blob is two files in a directory of ``/dev/shm`` that is this user's alone, named by what is in it: ``KEY.bytes``, and
``KEY.chunks`` with a byte for each chunk that has come and was found to be right. Who locks the second fetches what is missing;
the others wait for the lock, and find nothing missing. A reader that dies lets go of its lock with its last breath, and the next
goes on from the chunks that are there. Who has ``KEY.bytes`` mapped holds a shared lock on it for as long; what nobody maps may
go.
"""

from __future__ import annotations

import logging
import mmap
import os
import stat
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

from milepost.clock import Clock, SystemClock
from milepost.encode.digest import xxh3
from milepost.errors import StoreError
from milepost.service.index import Chunks
from milepost.service.transports import host_cache_files as files
from milepost.service.transports.folder import room_in
from milepost.service.transports.host import SHARED, host_id
from milepost.service.transports.landing import Landing, PrivateLanding
from milepost.service.transports.private_map import map_private
from milepost.store.posix import failures_of

log = logging.getLogger("milepost")

_LOOK_S = 0.02


class HostCache:
    """Give landings that are shared (`milepost.service.transports.landing.Land`). From any thread.

    ``host``: which host this is (default: `milepost.service.transports.host.host_id`), for the name of the directory.
    ``shares_alone``: False leaves it be where no other reader of this host has fetched anything: memory of this process is found
    several times faster than memory that is shared. ``limit_bytes``: what all blobs in it may take, also those that are mapped;
    None: a quarter of what is free when it is first used. ``stall_s``: how long another reader that fetches nothing is waited
    for. ``idle_s``: for how long what nobody maps is kept for who comes next. Where there is no room for a blob, or no way to
    share one, it lands in memory of this process, and one line of the log says so.
    """

    def __init__(
        self,
        directory: str | None = None,
        *,
        host: str | None = None,
        shares_alone: bool = True,
        limit_bytes: int | None = None,
        stall_s: float = 60.0,
        idle_s: float = 600.0,
        clock: Clock | None = None,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self.directory = directory or _directory_of(host_id() if host is None else host)
        self._limit_bytes, self._stall_s, self._idle_s = limit_bytes, stall_s, idle_s
        self._clock, self._wait = clock or SystemClock(), wait or threading.Event().wait
        self._pid = os.getpid()
        self._shares_alone = shares_alone
        self._beginning = threading.Lock()
        self._present: int | None = None
        self._used: set[int] = set()
        """For each blob that is mapped here the descriptor that keeps its lock."""
        self._has_told = False

    def land(self, chunks: Chunks) -> Landing:
        """Return where a blob is to land; what another reader has fetched of it is there. Waits while one fetches it."""
        if not chunks.size_bytes:
            return PrivateLanding(chunks)
        try:
            with failures_of("share memory", self.directory):
                self._check_directory()
                # Both are asked: whoever has fetched is there for the others from then on.
                if self._is_alone() and not self._shares_alone:
                    return PrivateLanding(chunks)
                return self._landing(chunks)
        except StoreError as error:
            self._tell(error.message)
            return PrivateLanding(chunks)

    def close(self) -> None:
        """Let everything go that no other reader maps or fetches, whoever left it; what is mapped here stays readable.

        Never raises.
        """
        if os.getpid() != self._pid:
            return  # a forked child has the locks in common with its parent, who needs them
        with self._beginning:
            present, self._present = self._present, None
        if present is not None:
            os.close(present)
        while (descriptor := _taken(self._used)) is not None:
            files.unshare(descriptor)
            os.close(descriptor)
        with suppress(OSError):  # another reader, or the next one, clears up
            for each in files.entries(self.directory):
                files.evict(self.directory, each.key)

    def _is_alone(self) -> bool:
        """Say whether no other reader of this host is there."""
        with self._beginning:
            if self._present is None:
                self._present = files.open_here(os.path.join(self.directory, files.READERS))
            return files.is_alone(self._present)

    def _landing(self, chunks: Chunks) -> SharedLanding:
        key = files.key_of(chunks)
        marks = self._locked(files.path_of(self.directory, key, files.MARKS))
        try:
            data = files.open_there(self.directory, key, chunks, marks)
            if data is None:
                data = self._new(key, chunks, marks)
            try:
                files.share(data)
                os.utime(marks)  # it is used: others go before it
                return SharedLanding(chunks, data, marks, self._keep)
            except BaseException:
                os.close(data)
                raise
        except BaseException:
            os.close(marks)
            raise

    def _keep(self, data: int, mapped: object) -> None:
        """Keep a blob's lock for as long as its mapping lives."""
        self._used.add(data)
        weakref.finalize(mapped, _let_go, self._used, data).atexit = False

    def _new(self, key: str, chunks: Chunks, marks: int) -> int:
        """Make room for a blob, and return its file. The marks are locked by us: nobody else does the same."""
        os.ftruncate(marks, 0)
        room = self._locked(os.path.join(self.directory, files.ROOM))
        try:
            self._make_room(chunks.size_bytes, but=key)
            data = files.create(self.directory, key)
            try:
                room_in(data, chunks.size_bytes)
                files.begin_marks(marks, data, chunks)
            except BaseException:
                os.close(data)
                files.remove(self.directory, key)
                raise
            return data
        finally:
            os.close(room)

    def _make_room(self, size_bytes: int, but: str) -> None:
        """Let go of what nobody maps, the longest unused first, until a blob fits. Raises `StoreError` where it does not."""
        there = [each for each in files.entries(self.directory) if each.key != but]
        used_bytes = sum(each.size_bytes for each in there)
        if self._limit_bytes is None:
            space = os.statvfs(self.directory)
            self._limit_bytes = (space.f_bavail * space.f_frsize + used_bytes) // 4
        idle_since_ns = self._clock.wall_ns() - round(self._idle_s * 1e9)
        for each in sorted(there, key=lambda each: each.used_ns):
            is_wanted = each.size_bytes > 0 and each.used_ns >= idle_since_ns
            is_too_much = used_bytes + size_bytes > self._limit_bytes
            if (is_too_much or not is_wanted) and files.evict(self.directory, each.key):
                used_bytes -= each.size_bytes
        if used_bytes + size_bytes > self._limit_bytes:
            raise StoreError(
                f"{size_bytes} bytes do not fit beside the {used_bytes} that are mapped, within {self._limit_bytes}",
                kind="disk-full",
                retryable=False,
            )

    def _locked(self, path: str) -> int:
        """Open a file and lock it, when nobody else has it locked. Raises `StoreError` where whoever has it stands still."""
        waits_since, seen = self._clock.monotonic_ns(), 0
        while True:
            descriptor = files.open_lock(path)
            if descriptor is not None:
                return descriptor
            moved = files.movement(self.directory)
            if moved != seen:
                waits_since, seen = self._clock.monotonic_ns(), moved
            elif self._clock.monotonic_ns() - waits_since > self._stall_s * 1e9:
                raise StoreError("another reader fetches it, and gets nothing", kind="stalled", retryable=True)
            self._wait(_LOOK_S)

    def _check_directory(self) -> None:
        with suppress(FileExistsError):
            os.mkdir(self.directory, 0o700)
        status = os.lstat(self.directory)
        # Memory is everybody's to make directories in: whoever made this one could hand us weights of his own.
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise StoreError("the directory is not this user's alone", kind="permission", retryable=False, path=self.directory)

    def _tell(self, why: str) -> None:
        if not self._has_told:
            log.warning("weights are fetched into memory of this process, and not shared with others on this host: %s", why)
        self._has_told = True


def _directory_of(host: str) -> str:
    return os.path.join(SHARED, f"milepost-cache-{os.geteuid()}-{xxh3(host.encode())[:8]}")


def _let_go(used: set[int], data: int) -> None:
    # Once: by the time of a second one the number may be that of another file.
    with suppress(KeyError):
        used.remove(data)
        os.close(data)


def _taken(used: set[int]) -> int | None:
    with suppress(KeyError):
        return used.pop()
    return None


class SharedLanding:
    """Land in memory that all readers of this host map, by the right of the lock on its marks."""

    def __init__(self, chunks: Chunks, data: int, marks: int, keep: Callable[[int, object], None]) -> None:
        self._chunks, self._data, self._marks, self._keep = chunks, data, marks, keep
        self.memory = memoryview(mmap.mmap(data, chunks.size_bytes, flags=mmap.MAP_SHARED))

    def missing(self) -> list[int]:
        marks = os.pread(self._marks, len(self._chunks), files.HEAD_BYTES)
        return [number for number in range(len(self._chunks)) if marks[number : number + 1] != files.HERE]

    def landed(self, number: int) -> None:
        os.pwrite(self._marks, files.HERE, files.HEAD_BYTES + number)

    def finish(self) -> memoryview:
        view = map_private(self._data, self._chunks.size_bytes)
        self._keep(self._data, view.obj)
        self._data = -1
        return view

    def close(self) -> None:
        self.memory = memoryview(b"")
        for descriptor in (self._data, self._marks):
            if descriptor >= 0:
                os.close(descriptor)
        self._data = self._marks = -1
