"""Send a file over a loopback socket again and again, as fast as that goes: the floor of every transport between processes.

The kernel takes the bytes from the file itself, which lies in memory. One connection, one request of a byte for each sending.
"""

from __future__ import annotations

import os
import socket
import sys

PORT_BYTES = 4 << 20
"""How much one call sends or receives at most."""


def receive(connection: socket.socket, into: memoryview) -> None:
    """Ask for the file and take all of it."""
    connection.sendall(b"!")
    done = 0
    while done < len(into):
        count = connection.recv_into(into[done : done + PORT_BYTES])
        if not count:
            raise ConnectionError("the sender has gone")
        done += count


def main() -> None:
    """Serve one connection until it ends."""
    path = sys.argv[1]
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while connection.recv(1):
            at = 0
            while at < size:
                at += os.sendfile(connection.fileno(), file.fileno(), at, min(PORT_BYTES, size - at))


if __name__ == "__main__":
    main()
