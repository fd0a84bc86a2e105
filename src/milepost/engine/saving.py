"""Carry a save from its safe point to its end. `Saving.save` is the part that training waits for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack

from milepost.clock import Clock
from milepost.engine.arena import Arena
from milepost.engine.background import Background
from milepost.engine.capture import Staged, capacity, capture, lay_out
from milepost.engine.ferry import Ferry
from milepost.engine.metrics import Metrics
from milepost.engine.overhead import Flight, Meter
from milepost.engine.process_writer import ProcessWriter
from milepost.engine.relief import clear_up, write_with_relief
from milepost.engine.save_errors import SaveErrors
from milepost.engine.session import Order, Session
from milepost.engine.settings import WriterKind, whole
from milepost.engine.shared_arena import SharedArena
from milepost.lifecycle.triggers import Reading
from milepost.records import Exactness, Metric, Restored, Summary
from milepost.state.protocol import Reporting
from milepost.state.tree import flatten, no_collection
from milepost.store.base import Guard

log = logging.getLogger("milepost")


class Saving:
    """Save one at a time, and say afterwards what became of it. Used by the thread that trains."""

    def __init__(
        self,
        state: Mapping[str, object],
        clock: Clock,
        metrics: Metrics,
        meter: Meter,
        errors: SaveErrors,
        writer: WriterKind,
        deadline_s: float,
        allow_pickle: bool,
        exactness: Mapping[str, tuple[Exactness, str]],
        staging_bytes: int | None,
    ) -> None:
        self.state = state
        self.background = Background("inline" if writer == "inline" else "thread")
        self._clock = clock
        self._metrics = metrics
        self._meter = meter
        self._errors = errors
        self._inline = writer == "inline"
        self._allow_pickle = allow_pickle
        self._exactness = dict(exactness)
        self._staging_bytes = staging_bytes
        self._told_of_waves = self._told_of_bound = False
        self._owed = False
        self._cold_bytes = 0
        self._arena = SharedArena() if writer == "process" else Arena()
        self._deadline_s = deadline_s
        self._process: ProcessWriter | None = None
        self._told: dict[str, str] = {}
        self._in_flight: dict[str, Metric] | None = None
        self._elapsed_base_s, self._started_ns = 0.0, 0

    def prepare(self) -> None:
        """Find what cannot be saved before the first step, and have memory at hand; copies nothing, writes nothing."""
        with no_collection():
            flat = {name: flatten(value, name, allow_pickle=self._allow_pickle) for name, value in self.state.items()}
            room = lay_out(flat, self._staging_bytes)
        self._arena.reserve(capacity(room, self._staging_bytes))
        self._cold_bytes = room.size_bytes
        self.exactness_now()

    def warm(self) -> None:
        """Have the memory for saves be found, once: when the state is there, and not while it is being read."""
        cold_bytes, self._cold_bytes = self._cold_bytes, 0
        self._arena.warm(cold_bytes)

    def claimed(self, session: Session, guard: Guard, held: ExitStack) -> None:
        """Start the writer process, if there is to be one. It ends before ``guard`` is left: it holds the lock as well."""
        if isinstance(self._arena, SharedArena):
            self._process = ProcessWriter(session, self._arena, guard, self._deadline_s)
            held.callback(self._process.close)
            held.callback(self._process.close)  # twice, as the guard: a Ctrl-C in the midst of it loses one
            self._process.start()

    def begin(self, restored: Restored | Summary | None, now_ns: int) -> None:
        """Count training time from here on, after what ``restored`` had behind it."""
        elapsed_s = restored.elapsed_s if restored else 0.0
        self._elapsed_base_s = float.fromhex(elapsed_s) if isinstance(elapsed_s, str) else elapsed_s
        self._started_ns = now_ns

    def save(
        self, session: Session, now: Reading, reason: str, counters: Mapping[str, int] | None, *, complete: bool = True
    ) -> None:
        """Copy the state and hand it to the writer; none is in flight. What goes wrong later is for `surface` to tell."""
        counted = {name: whole(name, count) for name, count in (counters or {}).items()}
        if self._process is not None:
            self.background.settle()  # what is posted says where the chain stands, and that moves until the last save is over
        staged = capture(
            self.state, self._arena, allow_pickle=self._allow_pickle, have=session.have, staging_bytes=self._staging_bytes
        )
        self._owed = False
        self._tell(staged)
        noted = self._metrics.take()
        elapsed_s = self._elapsed_base_s + (now.monotonic_ns - self._started_ns) / 1e9
        progress = {"episodes": now.episodes, "epochs": now.epochs} | counted
        order = Order(now.step, reason, elapsed_s, progress, noted, complete, self.exactness_now())
        self._in_flight = noted
        flight = self._meter.save(now.monotonic_ns)
        if self._process is not None:
            self._process.post(staged, order)
        if staged.wave_count > 1 and not self._inline:
            self._write_in_waves(session, staged, order, flight)
        else:
            self.background.start(lambda: self._write(session, staged, order, flight), lambda: self._clear_up(session))
        self._meter.released()
        if self._inline:
            self.surface()

    def _write(self, session: Session, staged: Staged, order: Order, flight: Flight) -> None:
        with flight:
            if self._process is not None:
                self._process.finish()
            else:
                write_with_relief(session, staged, order)

    def _write_in_waves(self, session: Session, staged: Staged, order: Order, flight: Flight) -> None:
        """Have the state written while training waits, until the last wave of it is copied."""
        ferry, started_ns = Ferry(staged), self._clock.monotonic_ns()

        def write() -> None:
            try:
                self._write(session, staged, order, flight)
            finally:
                ferry.end()

        with ferry.aboard:
            self.background.start(write, lambda: self._clear_up(session))
            if self.background.busy:
                ferry.serve()
        if not self._told_of_waves:
            self._told_of_waves = True
            log.warning(
                "the state is larger than the %d bytes that are staged at once: training waited %.1f s while it was written; "
                "a larger staging_bytes= takes memory instead",
                self._arena.size_bytes,
                (self._clock.monotonic_ns() - started_ns) / 1e9,
            )

    def _tell(self, staged: Staged) -> None:
        for entry in staged.logs:
            if entry.mark.doubt:
                log.warning("all of `%s` is saved again: %s", entry.component, entry.mark.doubt)
        most = self._staging_bytes
        if most is not None and staged.wave_bytes > most and not self._told_of_bound:
            self._told_of_bound = True
            log.warning("an array is larger than staging_bytes=%d: %d bytes are staged at once", most, staged.wave_bytes)

    def owed(self) -> str | None:
        """Return why the next safe point should save: the last one relied on what the disk has lost."""
        failed = self.background.failure
        lost = self._owed or getattr(failed, "kind", "") == "blobs-gone"
        return "rows that were saved before are gone from the disk" if lost else None

    def _clear_up(self, session: Session) -> None:
        # A method, so that the thread holds on to this object, and with it to the root, until nothing is deleted any more.
        if self._process is not None:
            self._process.clear_up()
        else:
            clear_up(session)

    def exactness_now(self) -> dict[str, tuple[Exactness, str]]:
        """Return what the manifest says of each component that is not exact, as it was captured last; what is new is told."""
        found: dict[str, tuple[Exactness, str]] = {}
        for name, value in self.state.items():
            text = "; ".join(map(str, value.left_out())) if isinstance(value, Reporting) else ""
            if text:
                found[name] = ("not captured" if name.rpartition("/")[2] == "envs" else "approximate", text)
            if text and self._told.get(name) != text:
                log.warning("a resumed run may differ from this one: `%s` is saved without %s", name, text)
            self._told[name] = text
        return found | self._exactness

    def wait(self) -> None:
        """Wait until the save in flight is acknowledged or has failed, and `surface` that."""
        self.background.join()
        if self._process is not None:
            self._process.join()
        self.surface()

    def settle(self) -> None:
        """Wait until nothing of any save is under way: the session is nobody else's then."""
        self.wait()
        self.background.settle()

    def surface(self) -> None:
        """Raise what the last save died of, or warn, as the user chose. A fenced writer always raises, and for good."""
        if self._in_flight is None:
            return
        noted, self._in_flight = self._in_flight, None
        failure = self.background.collect()
        if failure is not None:
            self._owed = getattr(failure, "kind", "") == "blobs-gone"
            self._metrics.give_back(noted)
        self._errors.judge(failure)

    def close(self) -> None:
        """End the thread and free the arena; nothing is under way any more. May be called again."""
        self.background.close()
        self._arena.close()
        if isinstance(self._arena, SharedArena):
            self._arena.give_back()
