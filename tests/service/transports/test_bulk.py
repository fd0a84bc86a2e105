"""What the bulk port promises beyond the contract: who gets in, what a liar gets, and how much a server gives of itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from milepost.service.transports.base import Source
from milepost.service.transports.bulk import BulkTransport
from tests.service.transports.contract import Serving, TransportTests
from tests.service.transports.serving import serving

TOKEN = "a-token"


class TestBulk(TransportTests):
    @contextmanager
    def serving(self, directory: Path) -> Iterator[Serving]:
        with serving("bulk", directory, TOKEN) as (address, pid):
            yield Serving(Source("bulk", address), lambda stall_s: BulkTransport(TOKEN, stall_s=stall_s), pid)
