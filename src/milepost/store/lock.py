"""Keep a second writer out of a local run root, and name the first one.

A lock only makes a second claim rare, and its error message good. What makes a second claim *safe* is the terms of
PROTOCOL section 1; so whoever insists (``take_over``) may go on without the lock.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial

from milepost.clock import Clock, utc_text
from milepost.errors import ConflictError, StoreError
from milepost.store.base import Guard
from milepost.store.posix import Posix, failures_of
from milepost.store.process import Writer, boot_id, host_name, process_start_time

WRITER_LOCK = "writer.lock"
LONGEST_DEADLINE_S = 600.0
"""Nobody waits longer for the writer of a trainer that is gone, whatever its record says."""
_POLL_S = 0.05
_KILLED_S = 10.0
"""How long a writer that was killed may take to let go: one that hangs in a call of a dead disk does not end."""
_RECORD_BYTES = 4096
_FAR = 1 << 63


@dataclass(frozen=True, slots=True)
class Holder:
    """Name the process that holds a lock, as it wrote itself into the lock file. For people; nothing is decided by it."""

    pid: int
    host: str
    boot_id: str
    start_time: int | None
    claimed_ns: int
    claimed_at: str
    command: str
    """The script's name only: arguments may hold secrets."""

    @classmethod
    def of_this_process(cls, clock: Clock) -> Holder:
        """Describe the calling process."""
        now_ns, pid, command = clock.wall_ns(), os.getpid(), os.path.basename(sys.argv[0] if sys.argv else "")
        return cls(pid, host_name(), boot_id(), process_start_time(pid), now_ns, utc_text(now_ns), command)

    @property
    def is_here(self) -> bool:
        """Say whether it was a process of this machine, since it was last started."""
        return self.host == host_name() and self.boot_id == boot_id()

    @property
    def is_alive(self) -> bool:
        """Say whether that very process still exists here: a PID alone may have been given to another since."""
        started = process_start_time(self.pid)
        return self.is_here and started is not None and started == self.start_time


class FileLock:
    """Hold an OS lock (flock) on one file, for one process: a forked child does not hold it."""

    def __init__(self, path: str, posix: Posix) -> None:
        self.path = path
        self.posix = posix
        self.descriptor: int | None = None

    def try_lock(self) -> bool:
        """Take the lock if nobody has it, neither another process nor another `FileLock` of this one."""
        with _forking:
            self.descriptor = self.posix.open_lock(self.path)
            _open_locks.append(self)
        try:
            self.posix.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close()
            return False
        except BaseException:
            self._close()
            raise
        return True

    def wait_and_lock(self, wait_s: float, clock: Clock, wait: Callable[[float], object]) -> bool:
        """Try until ``wait_s`` seconds have passed; return whether it is held."""
        until_ns = clock.monotonic_ns() + round(wait_s * 1e9)
        while not self.try_lock():
            left_s = (until_ns - clock.monotonic_ns()) / 1e9
            if left_s <= 0:
                return False
            wait(min(_POLL_S, left_s))
        return True

    def unlock(self) -> None:
        """Give the lock up. Does nothing if it is not held (any more): so in a child forked while it was."""
        if self.descriptor is None:
            return
        try:
            # Unlocking, not only closing: a child that native code forked has the file open too, and would keep it locked.
            # Where the medium fails at it, closing must do.
            with suppress(OSError):
                self.posix.flock(self.descriptor, fcntl.LOCK_UN)
        finally:
            self._close()

    def write(self, data: bytes) -> None:
        """Put ``data`` into the locked file. Whoever reads meanwhile may see it empty, and then knows nothing."""
        if self.descriptor is not None:
            # Emptied first: a kill between two calls must not leave a record with the tail of a longer one.
            self.posix.truncate(self.descriptor, 0)
            if data:
                self.posix.write_at(self.descriptor, data, 0)

    def _close(self) -> None:
        with _forking:
            if self.descriptor is not None:
                if self in _open_locks:  # not yet, where a Ctrl-C came before it was listed
                    _open_locks.remove(self)
                descriptor, self.descriptor = self.descriptor, None
                # It is closed whatever the answer is. On a network file system that may be about the holder's name, and a
                # name that was not written keeps nobody from going on.
                with suppress(OSError):
                    self.posix.close(descriptor)


def rewrite(descriptor: int, record: bytes, posix: Posix) -> None:
    """Put another record into a lock file that is held, by this process or the trainer that it writes for.

    At no moment is it empty: a start that finds the lock held decides by it whether to wait. So the tail of a longer record
    goes afterwards; after a kill between the two calls it is behind the first line, and nobody reads it.
    """
    posix.write_at(descriptor, record, 0)
    posix.truncate(descriptor, len(record))


# A flock belongs to the open file, which a forked child shares. Environment workers are forked, and outlive a trainer
# that is killed: if they kept the file open, the restarted trainer would find its run root locked by its own orphans.
# So the child closes its copies at once (closing does not unlock the parent's), and no thread may be between opening and
# listing one while another forks.
_forking = threading.RLock()
_open_locks: list[FileLock] = []


def _let_go_in_the_child() -> None:
    try:
        for lock in _open_locks:
            if lock.descriptor is not None:
                os.close(lock.descriptor)
                lock.descriptor = None
        _open_locks.clear()
    finally:
        _forking.release()


os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_let_go_in_the_child)


class FileGuard(Guard):
    """Hold the lock on ``writer.lock`` of a run root, with the holder's name inside it. Make ``root`` before entering."""

    def __init__(
        self, root: str, posix: Posix, clock: Clock, wait: Callable[[float], object], *, wait_s: float, take_over: bool
    ) -> None:
        self._root = root
        self._lock = FileLock(os.path.join(root, WRITER_LOCK), posix)
        self._clock = clock
        self._wait = wait
        self._wait_s = wait_s
        self._take_over = take_over
        self.holder: Holder | None = None
        """What this process has written into the lock file."""

    def __enter__(self) -> None:
        try:
            self._enter()
        except BaseException:
            # A Ctrl-C, perhaps just after the lock was taken: whoever does not get in does not keep it either.
            self._lock.unlock()
            raise

    def _enter(self) -> None:
        if self._locked():
            self.abandoned = read_holder(self._lock.path) is not None
            self.holder = Holder.of_this_process(self._clock)
            self._note(partial(self._lock.write, sealed(self.holder)))
        elif self._take_over:
            # The holder may be stopped (SIGSTOP) or hang in a dead network, and so never answer. It is not killed: it
            # may be another user's, or on another host. Should it wake, it finds a higher fence and stops (PROTOCOL rule 13).
            self.forced = True
        else:
            raise held_error(self._root, self._lock.path, self._clock)

    @property
    def descriptor(self) -> int | None:
        """Return the open lock file, to be handed to a writer that is to hold the lock, too; None while there is no lock."""
        return self._lock.descriptor

    def name_writer(self, writer: Writer) -> None:
        """Write down who holds this lock besides. Called before it does: a start that finds it held must know for whom."""
        if self.holder is not None and self._lock.descriptor is not None:
            record = sealed(self.holder, writer)
            self._note(partial(rewrite, self._lock.descriptor, record, self._lock.posix))

    def _note(self, write: Callable[[], object]) -> None:
        try:
            with failures_of("write the lock file", self._lock.path):
                write()
        except StoreError as error:
            # The name is for people. A full disk must not keep out the one who may make room on it, nor a sick one anybody.
            import logging  # not at the top: looking at a run does without

            text = "the lock file could not be written, nobody will see who holds it: %s"
            logging.getLogger("milepost").warning(text, error)

    def __exit__(self, *exc_info: object) -> None:
        try:
            with failures_of("unlock", self._lock.path):
                # A name that stays in a file which nobody has locked misleads nobody.
                with suppress(OSError):
                    self._lock.write(b"")
                self._lock.unlock()
        except BaseException:
            self._lock.unlock()  # if a Ctrl-C came in between, too
            raise

    def _locked(self) -> bool:
        try:
            with failures_of("lock", self._lock.path):
                return self._lock.wait_and_lock(self._wait_s, self._clock, self._wait) or self._outlasts_the_writer()
        except StoreError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in _NO_LOCKS:
                raise
            if self._take_over:
                return False
            raise no_locks_error(self._lock.path) from error

    def _outlasts_the_writer(self) -> bool:
        """Wait for a writer whose trainer is gone (``writer="process"``), then end it; return whether the lock is held now.

        The trainer was killed just after it had staged a save, and the process that writes it still holds the lock. To claim
        now would fence it: what `save` has returned from would be lost, though it needs a moment only. Nor is it waited for
        for ever: it may be stopped, or hang on a dead disk.
        """
        orphan = self._orphan()
        if orphan is None:
            return False
        holder, writer = orphan
        wait_s = min(writer.deadline_ms / 1e3, LONGEST_DEADLINE_S)
        if writer.is_alive:
            import logging  # not at the top: looking at a run does without

            what = "what was staged" if writer.step is None else f"step {writer.step}"
            text = "%s: waiting for the writer of pid %d, which is gone, to publish %s; %.0f s at most"
            logging.getLogger("milepost").warning(text, self._root, holder.pid, what, wait_s)
        if self._lock.wait_and_lock(wait_s if writer.is_alive else 0.0, self._clock, self._wait):
            return True
        # Only a process that has this very lock open: whoever can write to this directory could have us kill another of ours.
        if _has_open(writer.pid, self._lock.path):
            writer.kill(_KILLED_S)
        return self._lock.try_lock()

    def _orphan(self) -> tuple[Holder, Writer] | None:
        """Return a holder that is gone and the writer that it left behind; None if that is not so."""
        holder, writer = read_record(self._lock.path) or (None, None)
        if holder is None or writer is None or not holder.is_here or holder.is_alive:
            return None  # the writer of a trainer that lives is its own affair, whatever it does
        return holder, writer


_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def no_locks_error(path: str) -> StoreError:
    """Report a file system that was mounted without locks, as parallel ones often are."""
    return StoreError(
        "the file system has no locks, so a second writer cannot be kept out",
        kind="no-locks",
        retryable=False,
        hint="mount it with flock, or make sure of it yourself and pass take_over=True or --take-over (the terms still fence)",
        path=path,
    )


def held_error(root: str, path: str, clock: Clock) -> ConflictError:
    """Say who holds the lock on ``path``, for how long, and what to do about it."""
    holder = read_holder(path)
    if holder is None:
        return ConflictError(
            "another process writes to this run root",
            kind="held",
            hint="stop it, wait for it (lease_wait), or take over if it is stuck (take_over=True, --take-over)",
            held_by=_pids(path),
            root=root,
        )
    facts = {"pid": holder.pid, "host": holder.host, "age_s": max(0, (clock.wall_ns() - holder.claimed_ns) // 10**9)}
    facts |= {"command": holder.command, "root": root}
    if holder.pid == os.getpid() and holder.is_alive:
        message, hint = "this process writes to this run root already", "close the first engine before you open a second"
    elif holder.is_here and not holder.is_alive:
        # Killed, and a child it forked behind our back lives on with the lock.
        message = "the writer of this run root is gone, but a process it started still holds its lock"
        hint, facts["held_by"] = "stop that process, or take over (take_over=True, --take-over)", _pids(path)
    else:
        message = "another process writes to this run root"
        hint = f"stop it (kill {holder.pid}), wait for it (lease_wait), or take over if it is stuck (take_over=True, --take-over)"
        if not holder.is_here:
            hint = f"wait for it (lease_wait), or take over if {holder.host} is gone (take_over=True, --take-over)"
    return ConflictError(message, kind="held", hint=hint, **facts)


def sealed(holder: Holder, writer: Writer | None = None) -> bytes:
    """Return the record of a holder. It ends with a digest of itself, as every record of a run root does (docs/FORMAT.md)."""
    body = json.dumps(asdict(holder) | ({} if writer is None else {"writer": asdict(writer)}))
    return f'{body[:-1]},"digest":"sha256:{hashlib.sha256(body.encode()).hexdigest()}"}}\n'.encode()


def read_holder(path: str) -> Holder | None:
    """Return who wrote itself into a lock file; None if nobody did, or it cannot be read."""
    found = read_record(path)
    return None if found is None else found[0]


def read_record(path: str) -> tuple[Holder, Writer | None] | None:
    """Return who wrote itself into a lock file, and the process that writes for it, if any; None if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            record = file.read(_RECORD_BYTES).partition(b"\n")[0]
        fields = json.loads(record)
        is_sealed = fields.pop("digest", None) is not None
        named = fields.pop("writer", None)
        holder = Holder(**{**fields, "pid": int(fields["pid"]), "claimed_ns": int(fields["claimed_ns"])})
        writer = None if named is None else _writer(named)
        texts = (holder.host, holder.boot_id, holder.claimed_at, holder.command)
        if not all(type(text) is str and text.isprintable() for text in texts) or not -_FAR < holder.claimed_ns < _FAR:
            return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    # A damaged digit of the PID would tell people to kill a process that has nothing to do with it.
    return (holder, writer) if not is_sealed or record + b"\n" == sealed(holder, writer) else None


def _writer(fields: dict[str, int | None]) -> Writer:
    writer = Writer(**fields)  # type: ignore[arg-type]
    numbers = (writer.pid, writer.start_time, writer.deadline_ms, 0 if writer.step is None else writer.step)
    if not all(type(number) is int and 0 <= number < _FAR for number in numbers):
        raise ValueError(fields)
    return writer


def _pids(path: str) -> str | None:
    """Return which processes of this machine have ``path`` open, as far as we may see; None if none are seen."""
    return " ".join(pid for pid in filter(str.isdigit, _listed("/proc")) if _has_open(pid, path)) or None


def _has_open(pid: int | str, path: str) -> bool:
    for descriptor in _listed(f"/proc/{pid}/fd"):
        with suppress(OSError):  # gone, or not ours to see
            if os.path.samefile(f"/proc/{pid}/fd/{descriptor}", path):
                return True
    return False


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
