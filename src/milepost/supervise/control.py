"""Take orders from other processes at a Unix socket, one JSON line each; and give one.

What arrives may be cut off, hostile, or never end. Everything is bounded (the length of a line, the connections, what one
of them has unanswered, how long a line may take), and whatever is wrong with a line is the answer to it.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import socket
import stat
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from milepost.clock import Clock
from milepost.errors import ConflictError, MilepostError, NotFoundError, ServiceError, StoreError, UsageError
from milepost.store.lock import FileLock, read_holder, sealed
from milepost.store.lock import Holder as LockHolder
from milepost.store.posix import Posix
from milepost.supervise.orders import MAX_LINE_BYTES, Answer, Order, answered, read, written
from milepost.threads import Member

Submit: TypeAlias = Callable[[Order, str], "Future[Answer]"]

CONTROL = "MILEPOST_CONTROL"
"""Tells a process of a pipeline where that takes orders."""
MAX_CLIENTS = 64
MAX_UNANSWERED = 16
MAX_IDLE_S = 30.0
"""A connection without an order under way is closed after that: who has something to say says it."""
_MAX_OUT_BYTES = 4 << 20
_CREDENTIALS = struct.Struct("3i")


class ControlLock:
    """Keep two `milepost up` from one control socket. The lock goes with the process, however that ends.

    Raises `ConflictError` (kind ``held``), `UsageError` (``bad-control``).
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._lock = FileLock(f"{path}.lock", Posix())
        self._path, self._clock = path, clock

    def __enter__(self) -> ControlLock:
        try:
            is_ours = self._lock.try_lock()
        except OSError as error:
            raise _bad_control(self._path, error) from error
        if not is_ours:
            holder = read_holder(self._lock.path)
            raise ConflictError(
                "this pipeline runs already",
                kind="held",
                hint="milepost roles shows it; to run it twice at once give each its own --control PATH",
                pid=holder.pid if holder else None,
                control=self._path,
            )
        self._lock.write(sealed(LockHolder.of_this_process(self._clock)))
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._lock.write(b"")
        self._lock.unlock()


@dataclass(slots=True, eq=False)
class _Peer:
    """Be one connection."""

    socket: socket.socket
    heard_ns: int
    read: bytearray = field(default_factory=bytearray)
    out: bytearray = field(default_factory=bytearray)
    unanswered: int = 0
    says_no_more: bool = False
    """Its end of the connection is closed, or it is not listened to any more; what is due to it is still sent."""

    @property
    def has_a_line(self) -> bool:
        return b"\n" in self.read

    @property
    def events(self) -> int:
        wants_more = not (self.says_no_more or self.has_a_line) and self.unanswered < MAX_UNANSWERED
        return (selectors.EVENT_READ if wants_more else 0) | (selectors.EVENT_WRITE if self.out else 0)

    @property
    def is_over(self) -> bool:
        return self.says_no_more and not (self.has_a_line or self.out or self.unanswered)


class Control:
    """Listen at a socket, in a thread of its own, and hand each order to ``submit``, which must not wait.

    Hold the `ControlLock` of the same path: a socket file that lies there is taken for that of a dead process. Raises
    `UsageError` (kind ``bad-control``) for a path that holds something else or cannot be listened at.
    """

    def __init__(self, path: Path, submit: Submit, clock: Clock, *, owner: int | None = None) -> None:
        self._submit, self._clock = submit, clock
        self._owner = os.getuid() if owner is None else owner
        self._path = path
        self._listener, self._made = _listen(path)
        self._looked_ns = clock.monotonic_ns()
        self._poke, self._poked = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._peers: set[_Peer] = set()
        self._done: deque[tuple[_Peer, bytes]] = deque()
        self._is_closing = False
        for each in (self._listener, self._poked):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)
        self._thread = Member(self._run, "milepost-control")
        self._thread.start()

    def close(self) -> None:
        """Send what is due, as far as it is taken at once, and go; the socket file goes, too."""
        self._is_closing = True
        self._wake()
        try:
            self._thread.wait_out()
        finally:
            with suppress(OSError):
                if _name_of(self._path) == self._made:  # not that of another, if somebody has removed ours
                    self._path.unlink()

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):
            self._poke.send(b".", socket.MSG_DONTWAIT)

    def _run(self) -> None:
        try:
            while not self._is_closing:
                for key, _ in self._selector.select(1.0):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._poked:
                        with suppress(BlockingIOError):
                            self._poked.recv(4096)
                    else:
                        self._serve(key.data)
                self._send_answers()
                self._drop_idle()
                self._come_back()
            self._send_answers()
        finally:
            for peer in list(self._peers):
                self._drop(peer)
            for each in (self._listener, self._poked, self._poke):
                each.close()
            self._selector.close()

    def _come_back(self) -> None:
        """Listen anew where the socket file is gone: what clears a folder would leave a pipeline that nobody can reach."""
        if self._clock.monotonic_ns() - self._looked_ns < 10**9 or os.path.lexists(self._path):
            return
        self._looked_ns = self._clock.monotonic_ns()
        with suppress(UsageError):  # the folder is gone, too; it may come back
            listener, self._made = _listen(self._path)
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = listener
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # gone again, or no descriptor is free: it is tried again with the next
        connection.setblocking(False)
        peer = _Peer(connection, self._clock.monotonic_ns())
        self._peers.add(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid not in (self._owner, 0):
            self._refuse(peer, UsageError("this pipeline is another user's", kind="not-yours", hint="ask its owner", uid=uid))
        elif len(self._peers) > MAX_CLIENTS:
            self._refuse(peer, ServiceError("too many connections at once", kind="busy", hint="close some, then try again"))

    def _refuse(self, peer: _Peer, error: MilepostError) -> None:
        """Answer with an error, and listen no more."""
        peer.read.clear()
        peer.says_no_more = True
        self._send(peer, answered("", error))

    def _serve(self, peer: _Peer) -> None:
        if peer.out:
            self._send(peer, b"")
        if peer not in self._peers or not peer.events & selectors.EVENT_READ:
            return
        try:
            data = peer.socket.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._drop(peer)
            return
        peer.heard_ns = self._clock.monotonic_ns()
        peer.read += data
        peer.says_no_more = not data
        self._take_lines(peer)

    def _take_lines(self, peer: _Peer) -> None:
        while peer.has_a_line and peer.unanswered < MAX_UNANSWERED and peer in self._peers:
            line, _, rest = peer.read.partition(b"\n")
            peer.read = rest
            if line.strip():
                self._order(peer, bytes(line))
        if not peer.has_a_line and len(peer.read) > MAX_LINE_BYTES:
            limit = f"{MAX_LINE_BYTES:,} bytes"
            self._refuse(peer, UsageError(f"a line has {limit} at most", kind="bad-order", hint="one order a line"))
        self._settle(peer)

    def _order(self, peer: _Peer, line: bytes) -> None:
        key = ""
        try:
            order, key = read(line)
            future = self._submit(order, key)
        except MilepostError as error:
            self._send(peer, answered(key, error))
            return
        peer.unanswered += 1
        future.add_done_callback(lambda ended: self._answer(peer, key, ended))

    def _answer(self, peer: _Peer, key: str, future: Future[Answer]) -> None:
        """Note an answer, from whichever thread gives it."""
        error = future.exception()
        if error is not None and not isinstance(error, MilepostError):
            error = ServiceError(f"the order failed: {type(error).__name__}: {error}", kind="order-failed")
        self._done.append((peer, answered(key, error or future.result())))
        self._wake()

    def _send_answers(self) -> None:
        while self._done:
            peer, line = self._done.popleft()
            peer.unanswered -= 1
            peer.heard_ns = self._clock.monotonic_ns()
            if peer in self._peers:
                self._send(peer, line)
                self._take_lines(peer)  # what it had said while too much was unanswered

    def _send(self, peer: _Peer, line: bytes) -> None:
        peer.out += line
        try:
            while peer.out:
                del peer.out[: peer.socket.send(peer.out)]
        except BlockingIOError:
            if len(peer.out) > _MAX_OUT_BYTES:  # it asks, and does not read
                self._drop(peer)
        except OSError:
            self._drop(peer)
        self._settle(peer)

    def _settle(self, peer: _Peer) -> None:
        """Drop a connection with which all is said, else wait for what can come next."""
        if peer not in self._peers:
            return
        if peer.is_over:
            self._drop(peer)
            return
        registered = peer.socket in self._selector.get_map()
        if peer.events and registered:
            self._selector.modify(peer.socket, peer.events, peer)
        elif peer.events:
            self._selector.register(peer.socket, peer.events, peer)
        elif registered:
            self._selector.unregister(peer.socket)

    def _drop_idle(self) -> None:
        before_ns = self._clock.monotonic_ns() - round(MAX_IDLE_S * 1e9)
        for peer in [peer for peer in self._peers if not peer.unanswered and peer.heard_ns < before_ns]:
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        if peer in self._peers:
            self._peers.remove(peer)
            if peer.socket in self._selector.get_map():
                self._selector.unregister(peer.socket)
            peer.socket.close()


def ask(path: Path, order: Order, key: str, timeout_s: float | None) -> dict[str, Any]:
    """Give an order to the `milepost up` that listens at ``path``, and return the answer once it is carried out.

    Raises `NotFoundError` (``no-pipeline``), `StoreError` (``permission``), `ServiceError` (``no-answer``,
    ``lost-pipeline``). An answer that is an error is returned like any other. After a ``timeout_s`` or a lost connection
    the order may still be carried out: give it again with the same ``key``, and it is done once.
    """
    again = f"it may still be carried out; ask again with --key {key}" if key else "ask again"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        _connect(connection, path)
        try:
            with suppress(BrokenPipeError):  # who refuses us has said why, and closed
                connection.sendall(written(order, key))
            with connection.makefile("rb") as lines:
                line = lines.readline(_MAX_OUT_BYTES)
        except TimeoutError as error:
            raise ServiceError("no answer yet", kind="no-answer", hint=again, waited_s=timeout_s, control=path) from error
        except OSError as error:
            raise ServiceError("milepost up has gone", kind="lost-pipeline", hint=again, control=path) from error
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise ServiceError("milepost up has gone without an answer", kind="lost-pipeline", hint=again, control=path) from error
    assert isinstance(answer, dict)
    return answer


def error_of(answer: Mapping[str, Any]) -> MilepostError:
    """Return the error that an answer tells of, as it was raised there."""
    told = answer["error"]
    kinds: dict[object, type[MilepostError]] = {2: UsageError, 10: NotFoundError}
    kind = kinds.get(told["exit_code"], ServiceError)
    return kind(told["message"], kind=told["kind"], hint=told["hint"], **told["facts"])


def _connect(connection: socket.socket, path: Path) -> None:
    hint = "start it with: milepost up pipeline.toml; or say where its socket is: --control PATH"
    try:
        with _short(path) as address:
            connection.connect(address)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        was = (
            "no milepost up listens there any more"
            if isinstance(error, ConnectionRefusedError)
            else "no milepost up listens there"
        )
        raise NotFoundError(was, kind="no-pipeline", hint=hint, control=path) from error
    except PermissionError as error:
        message = "this pipeline is another user's"
        raise StoreError(message, kind="permission", retryable=False, hint="ask its owner", control=path) from error
    except OSError as error:
        raise NotFoundError(
            f"no milepost up can be reached: {_reason(error)}", kind="no-pipeline", hint=hint, control=path
        ) from error


def _name_of(path: Path) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


def _listen(path: Path) -> tuple[socket.socket, tuple[int, int]]:
    """Return a socket that listens, and which file it is."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise OSError(errno.EEXIST, "something else lies there")
            os.unlink(path)  # of a `milepost up` that was killed: whoever lives holds the lock
        with _short(path) as address:
            listener.bind(address)
        os.chmod(path, 0o600)  # before it listens: until then nobody can connect, whatever the umask was
        listener.listen(MAX_CLIENTS)
        return listener, _name_of(path)
    except OSError as error:
        listener.close()
        raise _bad_control(path, error) from error


def _bad_control(path: Path, error: OSError) -> UsageError:
    hint = "name a path on a local disk where you may write: --control /tmp/mine.sock"
    return UsageError(f"no socket can be made for orders: {_reason(error)}", kind="bad-control", hint=hint, control=path)


def _reason(error: OSError) -> str:
    return error.strerror or "the name of the file is too long for one"  # what Python refuses by itself has no number


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield an address for a path: one of a socket has 107 bytes at most, one of a run's folder often has more."""
    if len(os.fsencode(path)) < 100:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
