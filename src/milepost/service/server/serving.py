"""Serve a run: as a process of its own, or within one."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

from milepost.clock import Clock, SystemClock
from milepost.errors import StoreError
from milepost.service.adopting import Found, Opened, open_service
from milepost.service.core.catalogue import Catalogue
from milepost.service.core.records import Commit, Weights
from milepost.service.endpoint import SERVICE, Endpoint
from milepost.service.server.descriptors import raise_limit
from milepost.service.server.happening import Happening
from milepost.service.server.listening import endpoint_before
from milepost.service.server.running import Ending, run
from milepost.service.settings import ServiceSettings
from milepost.service.transports.host import SHARED
from milepost.store.local import LocalStore
from milepost.threads import Member

Heard = Callable[[Happening], None]


def serve(
    root: str | os.PathLike[str],
    settings: ServiceSettings | None = None,
    *,
    run_id: str = "",
    ready: Callable[[Server], None] | None = None,
    heard: Heard = lambda _: None,
    restored: bool = False,
    memory_base: str = SHARED,
    clock: Clock | None = None,
) -> None:
    """Serve the run below ``root`` until SIGTERM or SIGINT; then answer whoever waits, and return. For the main thread.

    ``ready`` is called when clients can come; ``heard``, in a thread of the service, with each entry once it is written
    down, and with what else happens.
    ``run_id`` names a run that is new; ``restored`` goes back to the newest snapshot of a damaged journal. Versions in memory
    stay there for the next service. Raises `ConflictError` (kinds ``held``, where another service has the root, and ``fenced``,
    where one has taken it), and what `open_service` raises.
    """
    raise_limit()
    with Server(root, settings, run_id=run_id, heard=heard, restored=restored, memory_base=memory_base, clock=clock) as server:
        # Nothing else is done in a handler: a lock that the main thread holds just now would never be given up.
        before = {number: signal.signal(number, lambda *_: server.end()) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            if ready is not None:
                ready(server)
            server.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Server:
    """Be a service within this process, in a thread of its own. Clients can come once the context is entered.

    Raises, when it is entered, what `serve` raises; when it is left, what ended it before.
    """

    endpoint: Endpoint
    token: str | None
    live: Weights | None
    """What was live when it began."""
    durable: Weights | None
    found: Found
    """Which versions it found, and where."""
    was_live: Commit | None
    """What was live for the service before it."""
    restored_from: str
    """Which snapshot its journal was restored from; empty: it was not."""
    reaped: tuple[str, ...]
    """Directories in memory that were given back, of services that will not come back."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        settings: ServiceSettings | None = None,
        *,
        run_id: str = "",
        heard: Heard = lambda _: None,
        restored: bool = False,
        memory_base: str = SHARED,
        clock: Clock | None = None,
    ) -> None:
        self._heard = heard
        self._root = os.fspath(root)
        self._settings = settings or ServiceSettings()
        self._clock = clock or SystemClock()
        self._run_id = run_id
        self._restored = restored
        self._memory_base = memory_base
        self._is_ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: Ending | None = None
        self._is_ended = False
        self._thread = Member(self._work, "milepost-serve")

    @property
    def address(self) -> str:
        """Return host:port."""
        return self.endpoint.address

    def __enter__(self) -> Server:
        self._thread.start()
        try:
            self._is_ready.wait()
        except BaseException:  # a Ctrl-C: whoever does not get in does not end it either
            self.end()
            self._thread.wait_out()
            raise
        if self._error is not None:
            self._thread.wait_out()
            raise self._error
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()
        self._thread.wait_out()
        if self._error is not None and exc_info[1] is None:
            raise self._error

    def end(self) -> None:
        """Let it end. Returns at once; may be called from any thread, and from a signal handler."""
        self._is_ended = True
        loop, ending = self._loop, self._ending
        if loop is not None and ending is not None:
            with suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(ending.set)

    def wait(self) -> None:
        """Wait until it has ended; a signal handler of the main thread runs meanwhile."""
        while not self._thread.wait(0.5):
            pass

    def _work(self) -> None:
        try:
            while self._lives():
                self._restored = False
        except BaseException as error:  # noqa: BLE001 - raised where the context is entered, or left
            self._error = error
        finally:
            self._is_ready.set()

    def _lives(self) -> bool:
        """Serve until the end; return whether that was none, since only memory was lost: it begins anew, as after a kill."""
        directory, disk = self._elsewhere()
        try:
            with open_service(
                self._root,
                self._clock,
                run_id=self._run_id,
                restored=self._restored,
                memory_base=self._memory_base,
                journal_directory=directory,
                disk=LocalStore(disk, self._clock) if disk else None,
            ) as opened:
                self.found, self.was_live = opened.found, opened.was_live
                self.restored_from, self.reaped = opened.restored, opened.reaped
                asyncio.run(self._main(opened))
        except StoreError as error:
            if error.kind != "memory-gone":
                raise
            logging.getLogger("milepost").warning("%s", error)
            return True
        return False

    def _elsewhere(self) -> tuple[str, str]:
        """Return in which directory the journal is, and where versions are on disk; empty: in the root.

        Where it was not said that is where they were before. A service that does not find the versions there are says that they
        are gone, and training has no base any more.
        """
        service = LocalStore(os.path.join(self._root, SERVICE), self._clock)
        before = endpoint_before(service)
        journal, disk = (before.journal, before.disk) if before is not None else ("", "")
        journal, disk = self._settings.journal_path or os.path.dirname(journal), self._settings.disk_path or disk
        return _unless(journal, service.root), _unless(disk, service.root)

    async def _main(self, opened: Opened) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), Ending()
        if self._is_ended:
            return
        await run(opened, self._settings, self._clock, self._ending, self._ready, self._heard)

    def _ready(self, endpoint: Endpoint, token: str | None, catalogue: Catalogue) -> None:
        self.endpoint, self.token = endpoint, token
        self.live, self.durable = (None if at is None else catalogue.weights[at] for at in (catalogue.live, catalogue.durable))
        self._is_ready.set()


def _unless(path: str, usual: str) -> str:
    return "" if os.path.realpath(path or usual) == os.path.realpath(usual) else path
