"""Keep a second writer out of a run root that has no OS lock, an object store's say: by a record which its holder renews.

The record is one name, changed only by `Store.replace_if`. Its holder counts a beat up in it, every third of its time to
live. Whoever wants in watches: bytes that changed are a holder that lives; bytes that stood still for a whole time to live,
on the watcher's *own monotonic* clock, are one that has gone. Wall clocks are hours apart somewhere, and go backwards: they
stand in the record for people, and decide nothing.

A refusal needs proof of life. Who meets a record for the first time cannot know whether its writer was killed a second
ago, so it watches for up to one time to live, even if it was told not to wait: else each restart after a kill would fail, or
need ``--take-over``. Most of the time a beat ends the watch after a third of that.

A lease only makes a second claim rare. A holder that was paused may find its lease gone only long after it has gone on
writing, and no clock can forbid that: the terms do (PROTOCOL section 1). So nobody is stopped when a lease is lost.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass

from milepost.clock import Clock
from milepost.errors import ConflictError, CorruptError, NotFoundError, StoreError, UsageError
from milepost.store.base import Guard, Store
from milepost.store.lock import Holder
from milepost.threads import Member

log = logging.getLogger("milepost")

LEASE = "lease.json"
_MOST_BYTES = 1 << 16
_POLL_S = 1.0
_BEATS_PER_TTL = 3
_HOLDER_FIELDS = tuple(each.name for each in dataclasses.fields(Holder))

_held_here: set[str] = set()
"""The incarnations of the leases that guards of this process hold."""


_LONGEST_TTL_S = 600.0
"""Nobody is watched for longer, whatever a record says: else one that lies would keep every start waiting for ever."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Say how a root is leased: for how long without a beat, by whom, and whether a thread beats.

    Without one (``renewed`` false) the owner calls `LeaseGuard.beat`; so do tests, whose clocks stand still.
    """

    ttl_s: float = 30.0
    who: Callable[[Clock], Holder] = Holder.of_this_process
    renewed: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.ttl_s <= _LONGEST_TTL_S:
            raise UsageError(
                f"a lease needs some time to live, and at most {_LONGEST_TTL_S:g} s",
                kind="bad-setting",
                hint="say ttl_s=30.0",
                ttl_s=self.ttl_s,
            )


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Be what `LEASE` holds. Of one incarnation no two records have the same beat, so no two have the same bytes."""

    holder: Holder
    incarnation: str
    beat: int
    ttl_ms: int
    released: bool = False

    def encode(self) -> bytes:
        """Return the record's bytes, which end with a digest of themselves (docs/FORMAT.md)."""
        fields = {**asdict(self.holder), **{name: getattr(self, name) for name in ("incarnation", "beat", "ttl_ms", "released")}}
        body = json.dumps(fields, separators=(",", ":"))
        return f'{body[:-1]},"digest":"sha256:{hashlib.sha256(body.encode()).hexdigest()}"}}\n'.encode()


def decode_lease(data: bytes | None) -> LeaseRecord | None:
    """Return the record that ``data`` is; None if it is none or damaged: its holder is unknown then, but watched all the same."""
    front, _, digest = (data or b"").rpartition(b',"digest":"sha256:')
    if digest != hashlib.sha256(front + b"}").hexdigest().encode() + b'"}\n':
        return None
    try:
        fields = json.loads(front + b"}")
        holder = Holder(**{name: fields[name] for name in _HOLDER_FIELDS})
        return LeaseRecord(holder, fields["incarnation"], int(fields["beat"]), int(fields["ttl_ms"]), bool(fields["released"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


class LeaseGuard(Guard):
    """Hold the lease of a run root: a `Guard` over any store that has `Store.replace_if`."""

    def __init__(
        self, store: Store, lease: Lease, clock: Clock, wait: Callable[[float], object], *, wait_s: float, take_over: bool
    ) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self._wait = wait
        self._wait_s = wait_s
        self._take_over = take_over
        self._record: LeaseRecord | None = None
        self._mine: bytes | None = None
        """The record as it lies in the store, as far as we know; None while the lease is not held."""
        self._overwritten: bytes | None = None
        self._renewed_ns = 0
        self._warned = False
        self._pid = 0
        # Reentrant: an engine that is dropped gives its lease up from whatever the collector interrupts, a beat too.
        self._beating = threading.RLock()
        self._left = threading.Event()
        self._thread: Member | None = None

    def __enter__(self) -> None:
        self._left.clear()
        self._pid, self._warned, self.forced, self.abandoned = os.getpid(), False, False, False
        first = LeaseRecord(self._lease.who(self._clock), self._clock.nonce(), 0, round(self._lease.ttl_s * 1000))
        # Noted before anybody can see it: another thread of ours would take it for one that nobody here holds.
        _held_here.add(first.incarnation)
        try:
            self._acquire(first)
        except BaseException:
            _held_here.discard(first.incarnation)
            raise
        if self._lease.renewed:
            # A daemon, since it must not keep a process alive. A forked child has no copy of it, and so renews nothing.
            self._thread = Member(self._keep_beating, "milepost-lease")
            self._thread.start()

    def __exit__(self, *exc_info: object) -> None:
        if self._pid != os.getpid():
            return  # a forked child, and the lease is its parent's
        self._left.set()
        if self._record is not None:
            _held_here.discard(self._record.incarnation)
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread() and not thread.wait(self._lease.ttl_s):
            # A beat hangs in the network; should it land one day, it finds other bytes than it expects.
            self._was_not_given_back("a renewal has not come back")
            return
        with self._beating:
            try:
                if self._mine is not None:
                    self._give_back()
            except StoreError as error:
                self._was_not_given_back(error)
            self._mine = None

    def _was_not_given_back(self, why: object) -> None:
        log.warning("the lease on %s was not given back; the next writer waits %g s: %s", self._store.url, self._lease.ttl_s, why)

    @property
    def is_held(self) -> bool:
        """Return whether the lease is ours, as far as we know: it may have been taken since the last beat."""
        return self._mine is not None

    def beat(self) -> bool:
        """Renew the lease once; return False if it is not ours any more. A store that fails is tried again at the next beat."""
        with self._beating:
            if self._mine is None or self._record is None:
                return False
            began_ns = self._clock.monotonic_ns()
            try:
                if self._advance(lambda record: dataclasses.replace(record, beat=record.beat + 1).encode()):
                    self._renewed_ns, self._warned = began_ns, False
                    return True
            except StoreError as error:
                silent_s = (self._clock.monotonic_ns() - self._renewed_ns) / 1e9
                if silent_s > self._lease.ttl_s and not self._warned:
                    self._warned = True
                    log.warning("the lease on %s could not be renewed for %.0f s: %s", self._store.url, silent_s, error)
                return True
            self._mine = None
            log.warning("the lease on %s was taken by another process; this one can save no more", self._store.url)
            return False

    def _keep_beating(self) -> None:
        while not self._left.wait(self._lease.ttl_s / _BEATS_PER_TTL):
            if not self.beat():
                return

    def _acquire(self, first: LeaseRecord) -> None:
        """Watch until the lease is ours, or somebody is known to hold it."""
        seen = self._read()
        since_ns = began_ns = self._clock.monotonic_ns()
        has_changed = False
        while True:
            if seen is not None and len(seen) > _MOST_BYTES:
                # Known by its beginning only, it could be replaced by nobody, and would be watched for ever.
                raise CorruptError(
                    "a lease is too large to be one", kind="damaged-record", hint="remove it", root=self._store.url, name=LEASE
                )
            found = decode_lease(seen)
            now_ns = self._clock.monotonic_ns()
            expires_s = self._ttl_s(found) - (now_ns - since_ns) / 1e9
            waits_s = self._wait_s - (now_ns - began_ns) / 1e9
            if seen is None or expires_s <= 0 or self._is_free(found):
                # Only if nobody has touched it since: of two who saw it expire one wins, and a beat in time beats both.
                if self._put(seen, first.encode()):
                    self.abandoned = found is not None and not found.released
                    return self._entered(first)
            elif waits_s > 0:
                self._wait(min(_POLL_S, self._lease.ttl_s / 10, expires_s, waits_s))
            elif self._take_over:
                if self._put(seen, first.encode()):
                    self.forced, self._overwritten = True, seen
                    return self._entered(first)
            elif has_changed or _lives_here(found):
                raise self._held(found)
            else:
                self._wait(min(_POLL_S, self._lease.ttl_s / 10, expires_s))
            last, seen = seen, self._read()
            if seen != last:
                # Taken *after* the answer: bytes can be old when they arrive here, and must not look older than they are.
                since_ns, has_changed = self._clock.monotonic_ns(), True

    def _entered(self, first: LeaseRecord) -> None:
        self._record, self._mine = first, first.encode()
        self._renewed_ns = self._clock.monotonic_ns()

    def _ttl_s(self, found: LeaseRecord | None) -> float:
        """Return how long to watch: the holder promised to beat in *its* time to live, which may be longer than ours."""
        return max(self._lease.ttl_s, min(found.ttl_ms / 1000, _LONGEST_TTL_S) if found else 0.0)

    def _is_free(self, found: LeaseRecord | None) -> bool:
        """Say whether nobody holds the lease for certain: it was given back, or is this process's and no guard of it has it.

        The second is a request of ours that landed after we had given up on it. Of another process we believe no absence
        of its PID: containers of one machine share its boot id, and often its name, but see only their own processes.
        """
        if found is None or found.released:
            return found is not None
        return found.holder.pid == os.getpid() and found.holder.is_alive and found.incarnation not in _held_here

    def _put(self, expected: bytes | None, data: bytes) -> bool:
        """Replace the record; what landed though its answer got lost counts as done."""
        try:
            return self._store.replace_if(LEASE, expected, data)
        except StoreError:
            if self._read() != data:
                raise
            return True

    def _advance(self, next_of: Callable[[LeaseRecord], bytes]) -> bool:
        """Replace our own record by what follows it; return False if it is not there any more."""
        assert self._record is not None
        incarnation = self._record.incarnation
        for _ in range(2):
            data = next_of(self._record)
            if self._put(self._mine, data):
                self._mine, self._record = data, decode_lease(data) or self._record
                return True
            there = self._read()
            found = decode_lease(there)
            if found is None or found.incarnation != incarnation or found.released:
                return False
            # A beat of ours that timed out, and landed after we had looked for it.
            self._mine, self._record = there, found
        return False

    def _give_back(self) -> None:
        """Say that the lease is free; after a takeover put back what lay there, since its holder has not let go."""
        overwritten = self._overwritten if self.forced else None
        self._advance(lambda record: overwritten or dataclasses.replace(record, beat=record.beat + 1, released=True).encode())

    def _read(self) -> bytes | None:
        try:
            return self._store.read(LEASE, 0, _MOST_BYTES + 1)
        except NotFoundError:
            return None

    def _held(self, found: LeaseRecord | None) -> ConflictError:
        root = self._store.url
        if found is None:
            return ConflictError("another process writes to this run root", kind="held", hint=_elsewhere("it"), root=root)
        holder = found.holder
        age_s = max(0, (self._clock.wall_ns() - holder.claimed_ns) // 10**9)
        facts = {"pid": holder.pid, "host": holder.host, "age_s": age_s, "command": holder.command, "root": root}
        if found.incarnation in _held_here and holder.pid == os.getpid():
            message, hint = "this process writes to this run root already", "close the first engine before you open a second"
            return ConflictError(message, kind="held", hint=hint, **facts)
        hint = f"stop it (kill {holder.pid}), or {_elsewhere('it')}" if holder.is_alive else _elsewhere(holder.host)
        return ConflictError("another process writes to this run root", kind="held", hint=hint, **facts)


def _lives_here(found: LeaseRecord | None) -> bool:
    """Say whether the very process that wrote the record is seen on this machine."""
    return found is not None and found.holder.is_alive


def _elsewhere(who: str) -> str:
    return f"wait for it (lease_wait), or take over if {who} is gone (take_over=True, --take-over)"
