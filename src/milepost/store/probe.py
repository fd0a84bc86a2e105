"""Try on a directory what a local store is made of, and say what holds there.

All of it happens in a directory of its own below the one that was asked about, which is removed again.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.clock import Clock
from milepost.errors import NotFoundError, UsageError
from milepost.store.place import Place, place_of
from milepost.store.posix import Posix, closing, failures_of, read_all, write_all

Outcome: TypeAlias = Literal["yes", "no", "not tried"]

LONGEST_NAME = 100
"""How long a part of a name is at most, with room to spare."""
LONGEST_OWN_PATH = 120
"""How much of a path lies below a run root at most, with room for a run that was set aside."""
_FSYNCS = 5
_CHILD_REFUSED, _CHILD_GOT_IT, _CHILD_FAILED = 0, 10, 11


@dataclass(frozen=True, slots=True)
class Check:
    """Hold what one attempt came to. Names are stable: checks are added, never renamed."""

    name: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """Hold what was found of one place. What could not be tried is None."""

    path: str
    """The directory that was asked about, or the one it would be made in."""
    place: Place
    refusal: str
    """Why nothing can be written there; empty if it can."""
    checks: tuple[Check, ...]
    free_bytes: int | None
    free_inodes: int | None
    """None also where the file system has no fixed number of them."""
    longest_name: int | None
    fsync_us: float | None
    """The median of a few, of a small file; None also where it fails."""
    directory_fsync_us: float | None
    clock_ahead_s: float | None
    """How far the clock that stamps files is ahead of this machine's. Nothing in milepost is decided by either."""
    file_mode: int | None
    directory_mode: int | None

    def can(self, name: str) -> bool:
        """Say whether a check came out well."""
        return any(check.name == name and check.outcome == "yes" for check in self.checks)

    @property
    def creates_atomically(self) -> bool:
        """Say whether of two writers that create one name exactly one is told that it did."""
        return self.can("hard_links") or self.can("rename_without_replacing")

    @property
    def names_are_durable(self) -> bool:
        """Say whether a name survives what its bytes survive. Where a network file system has no such call, it always does."""
        has_no_call = Check("fsync_directory", "no", NO_SUCH_CALL) in self.checks
        return self.can("fsync_directory") or (has_no_call and self.place.kind == "network")

    @property
    def fsync_is_doubtful(self) -> bool:
        """Say whether an fsync returns so fast that it cannot have written anything, on what should be a disk."""
        return self.fsync_us is not None and self.fsync_us < NO_DISK_US and self.place.kind != "memory"

    @property
    def lacks(self) -> tuple[str, ...]:
        """Return what is missing of that which training stands on; nothing if all promises hold."""
        if self.refusal:
            return ("writable",)
        needed = {name: self.can(name) for name in ("write", "atomic_replace", "fsync_file", "locks", "long_names", "long_paths")}
        needed |= {"atomic_create": self.creates_atomically, "fsync_directory": self.names_are_durable}
        return tuple(name for name, there in needed.items() if not there)


NO_SUCH_CALL = "the file system has no such call"
NO_DISK_US = 20.0
"""No medium that outlives a power cut takes four kilobytes in less."""


def probe(path: str, clock: Clock, posix: Posix) -> Findings:
    """Try ``path``, a directory, or one that could be made in an existing one. Raises `NotFoundError` or `UsageError` else."""
    where = _existing(os.path.abspath(path), posix)
    with failures_of("ask for the space of", where):
        space = posix.space(where)
    attempt = _Attempt(where, clock, posix)
    attempt.run()
    return Findings(
        where,
        place_of(where, posix),
        attempt.refusal,
        tuple(attempt.checks),
        space.f_bavail * space.f_frsize,
        space.f_favail if space.f_files else None,
        space.f_namemax,
        attempt.fsync_us,
        attempt.directory_fsync_us,
        attempt.clock_ahead_s,
        attempt.file_mode,
        attempt.directory_mode,
    )


def _existing(path: str, posix: Posix) -> str:
    for where in (path, os.path.dirname(path)):
        if posix.is_directory(where):
            return where
        if posix.exists(where):
            hint = "name the run root, or where it is to be"
            raise UsageError("not a directory", kind="not-a-directory", hint=hint, path=where)
    raise NotFoundError(
        "neither the directory nor the one above it is there",
        kind="no-such-directory",
        hint="name the run root, or the directory it is to be made in",
        path=path,
    )


class _Attempt:
    """Try one thing after the other in a directory of its own."""

    def __init__(self, where: str, clock: Clock, posix: Posix) -> None:
        self.checks: list[Check] = []
        self.refusal = ""
        self.fsync_us: float | None = None
        self.directory_fsync_us: float | None = None
        self.clock_ahead_s: float | None = None
        self.file_mode: int | None = None
        self.directory_mode: int | None = None
        self._clock = clock
        self._posix = posix
        self._directory = os.path.join(where, f".milepost-doctor-{clock.nonce()}")

    def run(self) -> None:
        """Make the directory, try everything, and remove it, whatever happens."""
        try:
            try:
                self._posix.mkdir(self._directory)
            except OSError as error:
                self.refusal = error.strerror or str(error)
                return
            self._try_all()
        finally:
            self._clean_up()

    def _try_all(self) -> None:
        tries: list[tuple[str, Callable[[], str | None]]] = [
            ("write", self._write),
            ("exclusive_create", self._exclusive_create),
            ("hard_links", self._hard_links),
            ("rename_without_replacing", self._rename_without_replacing),
            ("atomic_replace", self._atomic_replace),
            ("append", self._append),
            ("fsync_file", self._fsync_file),
            ("fsync_directory", self._fsync_directory),
            ("locks", self._locks),
            ("long_names", self._long_names),
            ("long_paths", self._long_paths),
            ("case_sensitive", self._case_sensitive),
        ]
        for name, attempt in tries:
            try:
                why_not = attempt()
            except OSError as error:
                why_not = error.strerror or str(error)
            self.checks.append(Check(name, "no" if why_not else "yes", why_not or ""))

    # Each of these returns None if it came out well, else what was wrong; an error of the system is what was wrong, too.

    def _write(self) -> str | None:
        before_ns = self._clock.wall_ns()
        path = self._make("write", b"0123456789")
        after_ns = self._clock.wall_ns()
        status, above = self._posix.status(path), self._posix.status(self._directory)
        self.file_mode, self.directory_mode = stat.S_IMODE(status.st_mode), stat.S_IMODE(above.st_mode)
        # Stamps are rounded, on some file systems to two seconds: only what lies outside of the two readings is ahead or behind.
        ahead_ns = max(0, status.st_mtime_ns - after_ns) - max(0, before_ns - status.st_mtime_ns)
        self.clock_ahead_s = ahead_ns / 1e9
        return None if self._content(path) == b"0123456789" else "what was written does not read back"

    def _exclusive_create(self) -> str | None:
        path = self._make("exclusive", b"")
        try:
            self._posix.close(self._posix.open_new(path))
        except FileExistsError:
            return None
        return "a file was created that was there already"

    def _hard_links(self) -> str | None:
        path, other = self._make("link", b"1"), self._make("link-other", b"2")
        target = self._path("link-target")
        self._posix.link(path, target)
        try:
            self._posix.link(other, target)
        except FileExistsError:
            is_ours = self._posix.same_file(path, target) and self._content(target) == b"1"
            return None if is_ours else "the wrong file got the name"
        return "a link took a name that was taken"

    def _rename_without_replacing(self) -> str | None:
        path, other = self._make("rename", b"1"), self._make("rename-other", b"2")
        target = self._path("rename-target")
        self._posix.rename_new(path, target)
        try:
            self._posix.rename_new(other, target)
        except FileExistsError:
            return None if self._content(target) == b"1" else "the wrong file got the name"
        return "a rename took a name that was taken"

    def _atomic_replace(self) -> str | None:
        target = self._make("replace-target", b"old")
        reader = self._posix.open_read(target)
        with closing(self._posix, reader):
            self._posix.replace(self._make("replace", b"new"), target)
            seen = self._read(reader)
        if seen != b"old":
            return "a reader that had the old file open lost it"
        return None if self._content(target) == b"new" else "the old bytes are still there"

    def _append(self) -> str | None:
        path = self._path("append")
        for text in (b"one\n", b"two\n"):
            descriptor = self._posix.open_append(path)
            with closing(self._posix, descriptor):
                write_all(self._posix, descriptor, memoryview(text))
        return None if self._content(path) == b"one\ntwo\n" else "what was appended is not where it belongs"

    def _fsync_file(self) -> str | None:
        times: list[float] = []
        for number in range(_FSYNCS):
            descriptor = self._posix.open_new(self._path(f"fsync-{number}"))
            with closing(self._posix, descriptor):
                write_all(self._posix, descriptor, memoryview(bytes(4096)))
                times.append(self._microseconds(lambda file=descriptor: self._posix.fsync(file)))  # type: ignore[misc]
        self.fsync_us = sorted(times)[_FSYNCS // 2]
        return None

    def _fsync_directory(self) -> str | None:
        times: list[float] = []
        there_is_one = True

        def sync() -> None:
            nonlocal there_is_one
            there_is_one = self._posix.sync_directory(self._directory)

        for number in range(_FSYNCS):
            self._make(f"fsync-directory-{number}", b"")
            times.append(self._microseconds(sync))
        if not there_is_one:
            return NO_SUCH_CALL
        self.directory_fsync_us = sorted(times)[_FSYNCS // 2]
        return None

    def _locks(self) -> str | None:
        descriptor = self._posix.open_lock(self._path("lock"))
        with closing(self._posix, descriptor):
            self._posix.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = self._lock_in_a_child()
            self._posix.flock(descriptor, fcntl.LOCK_UN)
        if status == _CHILD_GOT_IT:
            return "two processes were given the same lock at once"
        return None if status == _CHILD_REFUSED else "a second process could not ask for the lock"

    def _lock_in_a_child(self) -> int:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        status = _CHILD_FAILED
        try:
            # A lock belongs to the open file, and the parent's is shared with us: opened anew, it is another one.
            descriptor = self._posix.open_lock(self._path("lock"))
            self._posix.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = _CHILD_GOT_IT
        except BlockingIOError:
            status = _CHILD_REFUSED
        finally:
            os._exit(status)  # this is the parent's image: it must not run the parent's clean-up

    def _long_names(self) -> str | None:
        self._make("x" * LONGEST_NAME, b"")
        return None

    def _long_paths(self) -> str | None:
        limit = os.pathconf(os.path.dirname(self._directory), "PC_PATH_MAX")
        length = len(os.fsencode(os.path.dirname(self._directory)))
        if length + LONGEST_OWN_PATH < limit:
            return None
        return f"the path has {length} bytes of the {limit} that a whole name may have"

    def _case_sensitive(self) -> str | None:
        self._make("case", b"")
        return "names that differ in case only are one" if self._posix.exists(self._path("CASE")) else None

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _make(self, name: str, data: bytes) -> str:
        path = self._path(name)
        descriptor = self._posix.open_new(path)
        with closing(self._posix, descriptor):
            write_all(self._posix, descriptor, memoryview(data))
        return path

    def _content(self, path: str) -> bytes:
        descriptor = self._posix.open_read(path)
        with closing(self._posix, descriptor):
            return self._read(descriptor)

    def _read(self, descriptor: int) -> bytes:
        data = bytearray(64)
        return bytes(data[: read_all(self._posix, descriptor, memoryview(data), 0)])

    def _microseconds(self, action: Callable[[], object]) -> float:
        before_ns = self._clock.monotonic_ns()
        action()
        return (self._clock.monotonic_ns() - before_ns) / 1000

    def _clean_up(self) -> None:
        with suppress(OSError):  # it says itself whose it was: .milepost-doctor-...
            for name, _ in self._posix.scan(self._directory)[1]:
                with suppress(OSError):
                    self._posix.unlink(self._path(name))
            self._posix.rmdir(self._directory)
