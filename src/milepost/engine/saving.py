"""Carry a save from its safe point to its end. `Saving.save` is the part that training waits for."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from milepost.clock import Clock
from milepost.encode.digest import matches
from milepost.engine.arena import Arena
from milepost.engine.background import Background, Job
from milepost.engine.capture import Staged, capacity, capture, lay_out
from milepost.engine.ferry import Ferry
from milepost.engine.kept import Kept
from milepost.engine.metrics import Metrics
from milepost.engine.overhead import Flight, Meter
from milepost.engine.process_writer import ProcessWriter
from milepost.engine.relief import clear_up, write_with_relief
from milepost.engine.save_errors import SaveErrors
from milepost.engine.session import Order, Session
from milepost.engine.settings import WriterKind, whole
from milepost.engine.shared_arena import SharedArena
from milepost.errors import StoreError
from milepost.lifecycle.triggers import Reading
from milepost.records import Exactness, Manifest, Metric, Restored, Summary
from milepost.state.protocol import Reporting
from milepost.state.tree import Flat, KeptLeaf, flatten, no_collection
from milepost.store.base import Guard

log = logging.getLogger("milepost")


class Saving:
    """Save one at a time, and say afterwards what became of it. Used by one thread at a time: the engine sees to it."""

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
        self._kept: Kept | None = None
        """The last safe point, if it is staged for a grace period: its bytes lie in the arena, until another copy."""
        self._too_large = self._never_fits = self._told_of_size = False
        self._cold_bytes = 0
        self._arena = SharedArena() if writer == "process" else Arena()
        self._deadline_s = deadline_s
        self._process: ProcessWriter | None = None
        self._told: dict[str, str] = {}
        self._in_flight: dict[str, Metric] | None = None
        self._elapsed_base_s, self._started_ns = 0.0, 0
        self.size_bytes = 0
        """What a save would write, as far as that is known without having measured one."""
        self.published: Callable[[int], object] = lambda _: None
        """Is told of each generation, by whatever thread has published it."""

    def prepare(self) -> None:
        """Find what cannot be saved before the first step, and have memory at hand; copies nothing, writes nothing."""
        with no_collection():
            flat = {name: flatten(value, name, allow_pickle=self._allow_pickle) for name, value in self.state.items()}
            room = lay_out(flat, self._staging_bytes)
        self.size_bytes = _size_of(flat)
        self._arena.reserve(capacity(room, self._staging_bytes))
        self._cold_bytes = room.size_bytes
        self._never_fits = self._meter.grace is not None and len(room.waves) > 1 and not room.logs
        if self._never_fits:
            self._refuse_to_keep()
        self.exactness_now()

    def measure(self, session: Session) -> int:
        """Find how much a save would write now, and return that: a buffer may have filled since the root was claimed."""
        with no_collection():
            settings: Any = {"allow_pickle": self._allow_pickle, "matches": matches}
            flat = {name: flatten(value, name, have=session.have(name), **settings) for name, value in self.state.items()}
        for mark in (mark for found in flat.values() for mark in found.logs):
            mark.drop()
        self.size_bytes = _size_of(flat)
        return self.size_bytes

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
        self,
        session: Session,
        now: Reading,
        reason: str,
        counters: Mapping[str, int] | None,
        *,
        complete: bool = True,
        without: frozenset[str] = frozenset(),
    ) -> None:
        """Copy the state and hand it to the writer; none is in flight. What goes wrong later is for `surface` to tell.

        ``without`` names components that are left out. Nothing of them is staged: their logs hear of no save.
        """
        counted = _counted(now, counters)
        self._settle_chain()
        staged = self._stage(session, without)
        self._owed = self._too_large = False
        self._tell(staged)
        order = self._order(now, reason, counted, complete)
        self._metrics.hand_over(order.metrics)
        flight = self._meter.save(now.monotonic_ns)
        if staged.wave_count > 1 and not self._inline:
            self._post(staged, order)
            self._write_in_waves(session, staged, order, flight)
        else:
            self._hand_over(session, staged, order, flight)
        self._meter.released()
        if self._inline:
            self.surface()

    def keep(self, session: Session, now: Reading, counters: Mapping[str, int] | None) -> None:
        """Copy the state as `save` does, and write nothing: `flush` may do that, until the next copy. None is in flight."""
        if self._too_large or self._never_fits:
            return
        counted = _counted(now, counters)
        staged = self._stage(session)
        if staged.wave_count > 1:
            # Of what comes in waves only the first could be kept. Logs may be too large now, and not after the next save.
            self._too_large = True
            self._refuse_to_keep()
            for entry in staged.logs:
                entry.mark.drop()
            return
        self._kept = Kept(staged, self._order(now, "", counted, complete=True), now)
        self._meter.staged(now.monotonic_ns, staged.size_bytes)

    @property
    def keeps(self) -> bool:
        """Return whether a safe point is staged that no generation holds."""
        return self._kept is not None and not self._kept.published

    def flush(self, session: Session, reason: str) -> Kept | None:
        """Hand what `keep` has staged to the writer; None if it is published already, or there is none. None is in flight.

        Reads no live state. Of what becomes of it, `landed` tells.
        """
        kept = self._kept
        if kept is None or kept.published:
            return None
        self._errors.check()
        self._settle_chain()
        order = dataclasses.replace(kept.order, reason=reason)
        self._tell(kept.staged)
        self._metrics.hand_over(order.metrics)
        kept.failure = None
        kept.job = self._hand_over(session, kept.staged, order, self._meter.save(kept.now.monotonic_ns, flush=True))
        return kept

    def landed(self, kept: Kept | None) -> None:
        """Raise what a flush that is over died of, whatever policy there is for saves: who flushes is about to end."""
        if kept is None:
            return
        if not self.background.busy:  # else a later save is, and who began that has surfaced this one
            self.surface()
        if not kept.published:
            failure = kept.failure or StoreError("it was broken off", kind="broken-off", retryable=True)
            raise self._errors.failed(failure) from failure

    def drop(self) -> None:
        """Keep nothing staged any more: the arena is wanted for another copy, or the state goes back to another past."""
        kept, self._kept = self._kept, None
        if kept is not None and not kept.published:
            # Nothing else is to be undone: logs are told of commits only, and the changes since the last one stay noted ▲.
            for entry in kept.staged.logs:
                entry.mark.drop()

    def _stage(self, session: Session, without: frozenset[str] = frozenset()) -> Staged:
        self.drop()
        state = {name: value for name, value in self.state.items() if name not in without}
        return capture(state, self._arena, allow_pickle=self._allow_pickle, have=session.have, staging_bytes=self._staging_bytes)

    def _order(self, now: Reading, reason: str, counted: dict[str, int], complete: bool) -> Order:
        elapsed_s = self._elapsed_base_s + (now.monotonic_ns - self._started_ns) / 1e9
        return Order(now.step, reason, elapsed_s, counted, self._metrics.pending(), complete, self.exactness_now())

    def _settle_chain(self) -> None:
        if self._process is not None:
            self.background.settle()  # what is posted says where the chain stands, and that moves until the last save is over

    def _post(self, staged: Staged, order: Order) -> None:
        self._in_flight = order.metrics
        if self._process is not None:
            self._process.post(staged, order)

    def _hand_over(self, session: Session, staged: Staged, order: Order, flight: Flight) -> Job:
        self._post(staged, order)
        return self.background.start(lambda: self._write(session, staged, order, flight), lambda: self._clear_up(session))

    def _write(self, session: Session, staged: Staged, order: Order, flight: Flight) -> Manifest:
        with flight:
            manifest = self._process.finish() if self._process is not None else write_with_relief(session, staged, order)
        self.published(manifest.number)
        return manifest

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

    def _refuse_to_keep(self) -> None:
        if not self._told_of_size:
            self._told_of_size = True
            log.warning(
                "the state is larger than what is staged at once: no safe point can be kept staged, and with grace= a preemption "
                "waits for the next one all the same; a larger staging_bytes= takes memory instead"
            )

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

    def settle(self, *, keep: bool = False) -> None:
        """Wait until nothing of any save is under way, and the session is nobody else's. Drop what is staged, or ``keep`` it."""
        self.wait()
        self.background.settle()
        if not keep:
            self.drop()

    def surface(self) -> None:
        """Raise what the last save died of, or warn, as the user chose. A fenced writer always raises, and for good."""
        if self._in_flight is None:
            return
        noted, self._in_flight = self._in_flight, None
        failure = self.background.collect()
        if failure is not None:
            self._owed = getattr(failure, "kind", "") == "blobs-gone"
            self._metrics.give_back(noted)
            if self._kept is not None:
                self._kept.failure = failure
        self._errors.judge(failure)

    def close(self) -> None:
        """End the thread and free the arena; nothing is under way any more. May be called again."""
        self._kept = None
        self.background.close()
        self._arena.close()
        if isinstance(self._arena, SharedArena):
            self._arena.give_back()


def _size_of(flat: Mapping[str, Flat]) -> int:
    return sum(leaf.size_bytes for found in flat.values() for leaf in found.leaves if not isinstance(leaf, KeptLeaf))


def _counted(now: Reading, counters: Mapping[str, int] | None) -> dict[str, int]:
    counted = {name: whole(name, count) for name, count in (counters or {}).items()}
    return {"episodes": now.episodes, "epochs": now.epochs} | counted
