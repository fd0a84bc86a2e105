"""Break a store exactly where a test says so: pauses, errors, lost answers, late requests, deaths.

Two levels. `FaultStore` wraps any store and works on its operations; it is one process's view, so that two of them over
one store are two processes. `kill_before`, `fail_at` and `count_operations` work below a `LocalStore`, on its system calls.

>>> from milepost.store.memory import MemoryStore
>>> store = FaultStore(MemoryStore())
>>> late = store.delay("create", "generations/*")
>>> store.create("generations/000001.json", b"{}")
Traceback (most recent call last):
milepost.errors.StoreError: no answer in time: operation=`create` name=`generations/000001.json`
>>> store.list("")
[]
>>> store.deliver(late), store.list("")
(True, [Entry(name='generations/000001.json', size_bytes=2)])
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import ParamSpec, TypeVar

from milepost.errors import StoreError
from milepost.store.base import BlobWriter, Buffer, Capabilities, Entry, Guard, Store
from milepost.store.posix import CHANGES, Posix

P = ParamSpec("P")
T = TypeVar("T")

HANG_S = 60.0
"""After how long a gate gives up, so that a wrong test fails instead of hanging."""

KILLED = 137
"""The exit status of a process that SIGKILL ended, as a shell reports it."""

OPERATIONS = frozenset(
    {"read", "read_into", "list", "create", "replace", "replace_if", "append", "delete", "move", "sync", "free_bytes"}
    | {"open_blob", "write_blob", "commit_blob", "abort_blob", "guard", "release_guard"}
)
"""What rules can name. A store-wide operation (``free_bytes``, ``guard``) has the empty name."""


class Killed(BaseException):
    """Stand for the death of the process that uses a `FaultStore`. No ``except Exception`` survives it either."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that was asked of a `FaultStore`."""

    operation: str
    name: str


class Gate:
    """Hold one operation of another thread at the door, until released."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def wait_until_reached(self) -> None:
        """Wait until the operation stands at the gate."""
        if not self.reached.wait(HANG_S):
            raise TimeoutError("no operation reached the gate")

    def release(self) -> None:
        """Let the operation go on."""
        self._open.set()

    def _pass(self) -> None:
        self.reached.set()
        if not self._open.wait(HANG_S):
            raise TimeoutError("nobody released the gate")


class Late:
    """Hold one request that the network swallowed, and may still deliver."""

    def __init__(self) -> None:
        self.request: Callable[[], object] | None = None


Effect = Callable[[Operation, Callable[[], object]], object]


@dataclass(slots=True)
class _Rule:
    """Do something else at the matches ``[nth, nth + times)``, counted from 1 since the rule was made."""

    operation: str
    pattern: str
    nth: int
    times: int | None
    effect: Effect
    seen: int = field(default=0)

    def claims(self, asked: Operation) -> bool:
        if asked.operation != self.operation or not fnmatchcase(asked.name, self.pattern):
            return False
        self.seen += 1
        return self.seen >= self.nth and (self.times is None or self.seen < self.nth + self.times)


class FaultStore(Store):
    """Pass everything on to ``inner``, but for what the rules say. Rules may be added while other threads work.

    Patterns are shell patterns on the name, where ``*`` matches ``/`` too; of several rules that claim an operation the
    first one acts. ``operations`` logs all that was asked, before any rule acts.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url = inner.url
        self.operations: list[Operation] = []
        self.dead = False
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()
        self._dies_before: int | None = None
        self._held_before: dict[int, Gate] = {}

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def pause(self, operation: str, pattern: str = "*", *, nth: int = 1, after: bool = False) -> Gate:
        """Hold the ``nth`` matching operation before it is applied, or ``after``: applied, its answer not yet given."""
        gate = Gate()

        def effect(_asked: Operation, apply: Callable[[], object]) -> object:
            if after:
                answer = apply()
                gate._pass()
                return answer
            gate._pass()
            return apply()

        self._add(operation, pattern, nth, 1, effect)
        return gate

    def fail(
        self, operation: str, pattern: str = "*", error: Exception | None = None, *, nth: int = 1, times: int | None = 1
    ) -> None:
        """Refuse matching operations with ``error`` (a passing network failure) and do nothing; ``times=None``: from then on."""
        made = error or StoreError("the network failed", kind="network", retryable=True)

        def effect(_asked: Operation, _apply: Callable[[], object]) -> object:
            raise made

        self._add(operation, pattern, nth, times, effect)

    def lose_answer(self, operation: str, pattern: str = "*", *, nth: int = 1) -> None:
        """Apply the ``nth`` matching operation, and let its caller believe that it may have failed."""

        def effect(asked: Operation, apply: Callable[[], object]) -> object:
            apply()
            raise _unanswered("the answer was lost", "lost-answer", asked)

        self._add(operation, pattern, nth, 1, effect)

    def delay(self, operation: str, pattern: str = "*", *, nth: int = 1) -> Late:
        """Time the ``nth`` matching operation out now; `deliver` applies it later, long after its caller has gone on."""
        late = Late()

        def effect(asked: Operation, apply: Callable[[], object]) -> object:
            late.request = apply
            raise _unanswered("no answer in time", "timeout", asked)

        self._add(operation, pattern, nth, 1, effect)
        return late

    def deliver(self, late: Late) -> object:
        """Apply a delayed request; return what its caller would have been told."""
        if late.request is None:
            raise LookupError("nothing was asked that this delays")
        request, late.request = late.request, None
        return request()

    def kill(self, operation: str, pattern: str = "*", *, nth: int = 1, after: bool = False) -> None:
        """Let this store's user die at the ``nth`` matching operation, before or ``after`` it is applied.

        From then on every operation raises `Killed` and does nothing, so nothing that unwinds can tidy up. To see what
        the next process finds, open another store over ``inner``.
        """

        def effect(asked: Operation, apply: Callable[[], object]) -> object:
            if after:
                apply()
            self.dead = True
            raise Killed(f"{asked.operation} {asked.name}")

        self._add(operation, pattern, nth, 1, effect)

    def kill_before(self, number: int) -> None:
        """Let this store's user die before its operation ``number``, counted from 0 over all that was and will be asked."""
        self._dies_before = number

    def pause_before(self, number: int) -> Gate:
        """Hold this store's operation ``number``, counted as by `kill_before`, at the door."""
        gate = self._held_before[number] = Gate()
        return gate

    def names_asked(self, operation: str) -> list[str]:
        """Return the names for which ``operation`` was asked, in order."""
        with self._lock:
            return [asked.name for asked in self.operations if asked.operation == operation]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        return self._run("read", name, lambda: self.inner.read(name, start, stop))

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        return self._run("read_into", name, lambda: self.inner.read_into(name, start, into))

    def drop_cached(self, name: str) -> None:
        self._run("drop_cached", name, lambda: self.inner.drop_cached(name))

    def is_cached(self, name: str) -> bool:
        return self.inner.is_cached(name)

    def list(self, prefix: str) -> list[Entry]:
        return self._run("list", prefix, lambda: self.inner.list(prefix))

    def create(self, name: str, data: Buffer, *, label: str = "t0") -> bool:
        kept = bytes(data)  # a request under way has its own copy: the caller may reuse the buffer
        return self._run("create", name, lambda: self.inner.create(name, kept, label=label))

    def replace(self, name: str, data: Buffer, *, durable: bool = True, label: str = "t0") -> None:
        kept = bytes(data)
        self._run("replace", name, lambda: self.inner.replace(name, kept, durable=durable, label=label))

    def replace_if(self, name: str, expected: bytes | None, data: Buffer, *, label: str = "t0") -> bool:
        kept = bytes(data)
        return self._run("replace_if", name, lambda: self.inner.replace_if(name, expected, kept, label=label))

    def append(self, name: str, data: Buffer) -> None:
        kept = bytes(data)
        self._run("append", name, lambda: self.inner.append(name, kept))

    def open_blob(self, name: str, *, size_bytes: int | None = None) -> BlobWriter:
        inner = self._run("open_blob", name, lambda: self.inner.open_blob(name, size_bytes=size_bytes))
        return _FaultBlob(self, name, inner)

    def delete(self, name: str) -> None:
        self._run("delete", name, lambda: self.inner.delete(name))

    def move(self, name: str, to: str) -> None:
        self._run("move", name, lambda: self.inner.move(name, to))

    def sync(self, prefix: str) -> None:
        self._run("sync", prefix, lambda: self.inner.sync(prefix))

    def free_bytes(self) -> int | None:
        return self._run("free_bytes", "", self.inner.free_bytes)

    def guard(self, *, wait_s: float, take_over: bool) -> Guard:
        return _FaultGuard(self, self.inner.guard(wait_s=wait_s, take_over=take_over))

    def _add(self, operation: str, pattern: str, nth: int, times: int | None, effect: Effect) -> None:
        if operation not in OPERATIONS:
            raise ValueError(f"no such operation: {operation}; there are {', '.join(sorted(OPERATIONS))}")
        with self._lock:
            self._rules.append(_Rule(operation, pattern, nth, times, effect))

    def _run(self, operation: str, name: str, apply: Callable[[], T]) -> T:
        asked = Operation(operation, name)
        with self._lock:
            if self.dead or len(self.operations) == self._dies_before:
                self.dead = True
                raise Killed(f"{operation} {name}")
            gate = self._held_before.pop(len(self.operations), None)
            self.operations.append(asked)
            claiming = [rule for rule in self._rules if rule.claims(asked)]
        if gate is not None:
            gate._pass()
        if not claiming:
            return apply()
        return claiming[0].effect(asked, apply)  # type: ignore[return-value]  # an effect returns what apply does, or raises


class _FaultBlob(BlobWriter):
    def __init__(self, store: FaultStore, name: str, inner: BlobWriter) -> None:
        self._store = store
        self._name = name
        self._inner = inner

    def write(self, data: Buffer) -> None:
        self._store._run("write_blob", self._name, lambda: self._inner.write(data))

    def commit(self) -> None:
        self._store._run("commit_blob", self._name, self._inner.commit)

    def abort(self) -> None:
        self._store._run("abort_blob", self._name, self._inner.abort)


class _FaultGuard(Guard):
    def __init__(self, store: FaultStore, inner: Guard) -> None:
        self._store = store
        self._inner = inner

    def __enter__(self) -> None:
        self._store._run("guard", "", self._inner.__enter__)
        self.forced, self.abandoned = self._inner.forced, self._inner.abandoned

    def __exit__(self, *exc_info: object) -> None:
        if self._store.dead:  # the operating system gives up the locks of the dead
            self._inner.__exit__(None, None, None)
        else:
            self._store._run("release_guard", "", lambda: self._inner.__exit__(None, None, None))


def _unanswered(message: str, kind: str, asked: Operation) -> StoreError:
    return StoreError(message, kind=kind, retryable=False, operation=asked.operation, name=asked.name)


@dataclass(frozen=True, slots=True)
class FileOperation:
    """One system call that changes files, with its arguments (paths or descriptors first)."""

    name: str
    arguments: tuple[object, ...]


class FaultyPosix(Posix):
    """Log every call that changes files, and do something else before the one numbered ``at`` (from 0), once."""

    def __init__(self, at: int | None = None, effect: Callable[[FileOperation], None] | None = None) -> None:
        self.operations: list[FileOperation] = []
        self._at = at
        self._effect = effect
        self._lock = threading.Lock()

    def perform(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if name in CHANGES:
            operation = FileOperation(name, args)
            with self._lock:
                number = len(self.operations)
                self.operations.append(operation)
            if number == self._at and self._effect is not None:
                self._effect(operation)
        return function(*args, **kwargs)


def count_operations(action: Callable[[Posix], object]) -> list[FileOperation]:
    """Run ``action`` on a `Posix` and return every call by which it changed files."""
    posix = FaultyPosix()
    action(posix)
    return posix.operations


def kill_before(number: int) -> Posix:
    """Return a `Posix` that ends the process, with no tidying up, before its change ``number`` (from 0)."""
    return FaultyPosix(number, lambda _: os._exit(KILLED))


def fail_at(number: int, errno: int) -> Posix:
    """Return a `Posix` that answers its change ``number`` (from 0) with an error of the system instead of doing it."""

    def fail(_: FileOperation) -> None:
        raise OSError(errno, os.strerror(errno))

    return FaultyPosix(number, fail)


def run_and_kill(action: Callable[[Posix], object], number: int) -> bool:
    """Run ``action`` in a forked child that dies before its change ``number``; return False if it ended before that.

    Loop over all numbers to see every state a kill can leave:

        for number in itertools.count():
            ...
            if not run_and_kill(action, number):
                break
    """
    status = run_in_child(lambda: action(kill_before(number)))
    if status not in (0, KILLED):
        raise RuntimeError(f"the child failed with exit status {status}; its traceback is on stderr")
    return status == KILLED


def run_in_child(action: Callable[[], object]) -> int:
    """Run ``action`` in a forked child and return its exit status: 0, or 1 after an exception, which it prints."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        action()
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it must not unwind into the parent's code
        traceback.print_exc()
    finally:
        os._exit(status)  # no atexit, no test runner: this process is the parent's image
