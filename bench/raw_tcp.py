"""Send a file over loopback sockets again and again, as fast as that goes: the floor of every transport between processes.

The file lies in memory and is mapped: of pages that ``sendfile`` hands over one by one the receiver has more work. Each of the
connections, as many as the client of a service has, carries a part of its own.
"""

from __future__ import annotations

import mmap
import socket
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

CONNECTIONS = 2
AT_ONCE = 1 << 20


def receive(connections: Sequence[socket.socket], pool: ThreadPoolExecutor, into: memoryview) -> None:
    """Ask for the file on all connections, and take all of it."""
    list(pool.map(_receive, connections, _parts(into)))


def _receive(connection: socket.socket, into: memoryview) -> None:
    connection.sendall(b"!")
    done = 0
    while done < len(into):
        count = connection.recv_into(into[done : done + AT_ONCE], 0, socket.MSG_WAITALL)
        if not count:
            raise ConnectionError("the sender has gone")
        done += count


def _parts(memory: memoryview) -> list[memoryview]:
    each = -(-len(memory) // CONNECTIONS)
    return [memory[start : start + each] for start in range(0, len(memory), each)]


def _send(connection: socket.socket, part: memoryview) -> None:
    with connection:
        while connection.recv(1):
            connection.sendall(part)


def main() -> None:
    """Serve as many connections until they end."""
    with open(sys.argv[1], "rb") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        threads = [threading.Thread(target=_send, args=(listener.accept()[0], part)) for part in _parts(memory)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
