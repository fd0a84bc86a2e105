"""The compatible way: bytes over the control connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from milepost.service.transports.base import Source
from milepost.service.transports.stream import StreamTransport
from tests.service.transports.contract import Serving, TransportTests
from tests.service.transports.serving import serving


class TestStream(TransportTests):
    @contextmanager
    def serving(self, directory: Path) -> Iterator[Serving]:
        with serving("grpc", directory) as (address, pid), grpc.insecure_channel(address) as channel:
            yield Serving(
                Source("grpc", ""), lambda stall_s: StreamTransport(channel, stall_s=stall_s, slowest_bytes_s=1 << 20), pid
            )
