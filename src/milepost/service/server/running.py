"""Run a service from its first breath to its last, in one event loop.

Whatever ends it, also a kill anywhere, the next one begins from what is written down: nothing has to be done at the end. What
is done then spares others time.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace

import grpc.aio

from milepost.clock import Clock
from milepost.errors import ConflictError, MilepostError, StoreError
from milepost.service.adopting import JOURNAL, Opened
from milepost.service.core.catalogue import Catalogue
from milepost.service.core.service import Service
from milepost.service.endpoint import SERVICE, Endpoint, namespace, this_process, write_endpoint
from milepost.service.server.calls import Calls
from milepost.service.server.happening import Happening
from milepost.service.server.listening import bind, endpoint_before, literal, make_server, port_of
from milepost.service.server.offering import offers_of
from milepost.service.server.places import Places
from milepost.service.server.reporting import Report
from milepost.service.server.shelf import open_bulk
from milepost.service.server.shell import Shell
from milepost.service.server.storage import Storage
from milepost.service.server.token import keep_token
from milepost.service.server.ways import Ways, engine_of
from milepost.service.settings import ServiceSettings
from milepost.service.transports.host import host_id
from milepost.store.process import host_name

TICK_S = 0.25
FENCE_TICKS = 20
SWEEP_TICKS = 240
SNAPSHOT_TICKS = 3600
GRACE_S = 5.0
"""How long calls may take to hear the answers that they have at the end."""


class Ending:
    """Say to a service that it is to end, and why; once, from its own loop."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._event = asyncio.Event()

    def set(self, error: BaseException | None = None) -> None:
        """Let it end. The first error counts, also one that comes while it ends."""
        self.error = self.error or error
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for it for a time; return whether it is to end."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), timeout_s)
        return self._event.is_set()


async def run(
    opened: Opened,
    settings: ServiceSettings,
    clock: Clock,
    ending: Ending,
    ready: Callable[[Endpoint, str | None, Catalogue], None],
    heard: Callable[[Happening], None],
) -> None:
    """Serve until ``ending`` says otherwise; then answer whoever waits, and raise what made it end, if something did.

    ``ready`` is called when clients can come, with where they find it and what they have to know; ``heard`` with each entry that
    was written down, and with what else happens.
    """
    storage, places = Storage.of(opened), Places()
    limits = settings.core(opened.memory.free_bytes() + opened.memory.used_bytes())
    core = Service(limits, opened.entries, opened.found.memory, opened.run_id)
    with ExitStack() as held:
        offers = offers_of(storage, settings, limits.memory_bytes)
        shell = Shell(core, storage, places, offers, clock, ending.set, heard)
        held.callback(shell.close)
        _know(core, storage, places)
        before = endpoint_before(opened.store)
        token = keep_token(os.path.join(opened.root, SERVICE), settings, clock)
        offers.start()
        held.callback(offers.close)
        bulk = held.enter_context(closing(open_bulk(shell.shelf, token, settings, before, clock)))
        ways = Ways(
            host_id(),
            opened.memory.directory,
            opened.disk.directory,
            f":{port_of(bulk.address)}",
            settings.transport,
            held.enter_context(engine_of(opened.memory.directory, token, settings)),
        )
        calls = Calls(shell, ways, settings, opened.run_id, Report(shell, bulk.counts, opened.run_id, limits.memory_bytes))
        server = make_server(calls, token, settings)
        address = f"{literal(settings.host)}:{bind(server, settings, before)}"
        endpoint = _endpoint(core, settings, opened, ways, address)
        shell.tick()
        await server.start()
        try:
            await shell.work(lambda: write_endpoint(opened.store, endpoint))
            ready(endpoint, token, core.catalogue)
            await _live(shell, ending, limits.lease_ns)
        finally:
            await _end(shell, server)
        await shell.check_fence()
        if not isinstance(ending.error, ConflictError):  # else the root is another's, and so is what clients find there
            await _part(shell, endpoint)
    if ending.error is not None:
        raise ending.error


def _endpoint(core: Service, settings: ServiceSettings, opened: Opened, ways: Ways, address: str) -> Endpoint:
    boot, pid, start_time = this_process()
    return Endpoint(
        run_id=opened.run_id,
        address=address,
        term=core.catalogue.term,
        host=ways.host,
        boot_id=boot,
        pid=pid,
        start_time=start_time,
        namespace=namespace(),
        machine=host_name(),
        is_tls=settings.tls_cert is not None,
        has_token=settings.token is not None,
        bulk_port=port_of(ways.bulk),
        # What lies in the root is found wherever that is moved to.
        journal="" if os.path.basename(opened.journal.path) == JOURNAL else opened.journal.path,
        disk="" if opened.disk.store is opened.store else opened.disk.store.url,
    )


def _know(core: Service, storage: Storage, places: Places) -> None:
    """Read what the versions that were found are made of."""
    for at, weights in core.catalogue.weights.items():
        tiers = core.tiers(at)
        if tiers:
            places.keep(weights, storage.index(weights, tiers).chunks)


async def _live(shell: Shell, ending: Ending, lease_ns: int) -> None:
    ticks, directory = 0, shell.storage.memory.directory
    made = _identity(directory)
    while not await ending.wait(TICK_S):
        if _identity(directory) != made:
            ending.set(memory_gone(directory))
            return
        shell.tick()
        shell.look_around(lease_ns)
        ticks += 1
        if ticks % FENCE_TICKS == 0:
            shell.begin("fence", shell.check_fence)
        # None of these is waited for: a disk that hangs is no reason for time to stand still.
        if ticks % SWEEP_TICKS == 0:
            shell.begin("sweep", shell.sweep)
        if ticks % SNAPSHOT_TICKS == 1:  # the first soon: a service that never lives long keeps one, too
            shell.begin("snapshot", shell.snapshot)


def memory_gone(directory: str) -> StoreError:
    """Say that what was in memory was taken away."""
    return StoreError(
        "the directory of the versions in memory was removed while they were in use",
        kind="memory-gone",
        retryable=True,
        hint="the service begins anew from what is on disk; find out what empties that directory",
        path=directory,
    )


def _identity(directory: str) -> tuple[int, int] | None:
    try:
        status = os.stat(directory)
    except OSError:
        return None
    return status.st_dev, status.st_ino


async def _end(shell: Shell, server: grpc.aio.Server) -> None:
    shell.refuse_all()
    await shell.settle()
    await server.stop(GRACE_S)


async def _part(shell: Shell, endpoint: Endpoint) -> None:
    """Leave word that it ended in good order, and a copy of the journal."""
    await shell.snapshot()
    try:
        await shell.work(lambda: write_endpoint(shell.storage.store, replace(endpoint, has_ended=True)))
    except MilepostError as error:
        logging.getLogger("milepost").warning("the end of the service could not be noted: %s", error)
