"""Pass messages between a trainer and its writer process: framed bytes over a socket, which ends when the other has ended."""

from __future__ import annotations

import array
import select
import socket
from collections.abc import Sequence

_LENGTH_BYTES = 8
MOST_BYTES = 1 << 30
"""A longer message is none: the largest holds a manifest, which has a quarter of this."""
_MOST_DESCRIPTORS = 8


class ChannelError(Exception):
    """Report that the other side has ended, or says what is no message."""


class Channel:
    """Be one end. Sending and receiving may be done by two threads, each by one at a time."""

    def __init__(self, end: socket.socket, other: int | None = None) -> None:
        self._socket = end
        self._other = other

    def watch(self, other: int) -> None:
        """Take the end of a process (a pidfd) for the end of the channel.

        A socket ends when nobody holds the other end any more, and a child that native code forked may hold on to it for
        ever. What had been sent before is received all the same.
        """
        self._other = other

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one message, and these descriptors with it. Raises `ChannelError` if nobody is there to receive it."""
        whole = memoryview(len(message).to_bytes(_LENGTH_BYTES, "little") + message)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            sent = self._socket.sendmsg([whole], ancillary, socket.MSG_NOSIGNAL)
            if sent < len(whole):
                self._socket.sendall(whole[sent:], socket.MSG_NOSIGNAL)
        except OSError as error:
            raise ChannelError(str(error)) from error

    def receive(self, within_s: float | None = None) -> bytes | None:
        """Return the next message; None once the other has ended. Half a message is none. Raises `TimeoutError`."""
        return self.receive_with_descriptors(within_s)[0]

    def receive_with_descriptors(self, within_s: float | None = None) -> tuple[bytes | None, list[int]]:
        """Return the next message and what descriptors came with it."""
        found: list[int] = []
        head = self._exactly(_LENGTH_BYTES, within_s, found)
        if head is None:
            return None, found
        length = int.from_bytes(head, "little")
        if length > MOST_BYTES:
            raise ChannelError(f"a message of {length} bytes")
        body = self._exactly(length, within_s, found)
        return body, found

    def _exactly(self, size_bytes: int, within_s: float | None, found: list[int]) -> bytes | None:
        data = bytearray(size_bytes)
        view = memoryview(data)
        while view:
            if self._socket.fileno() < 0:
                return None
            ended = self._wait(within_s)
            try:
                room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
                flags = socket.MSG_CMSG_CLOEXEC | (socket.MSG_DONTWAIT if ended else 0)
                count, ancillary, _, _ = self._socket.recvmsg_into([view], room, flags)
            except BlockingIOError:
                return None  # the other has ended, and this is all that it had sent
            except OSError:
                return None  # reset: it ended with something of ours unread
            for _, _, sent in ancillary:
                found += array.array("i", sent[: len(sent) - len(sent) % array.array("i").itemsize])
            if count == 0:
                return None
            view = view[count:]
        return bytes(data)

    def _wait(self, within_s: float | None) -> bool:
        """Wait until there is something to receive or the other has ended; return whether it has ended."""
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        if self._other is not None:
            ready.register(self._other, select.POLLIN)
        there = ready.poll(None if within_s is None else round(within_s * 1e3))
        if not there:
            raise TimeoutError
        return self._socket.fileno() not in {descriptor for descriptor, _ in there}

    def end(self) -> None:
        """Say that nothing more will be sent; the other may still have something to say."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it has ended already
