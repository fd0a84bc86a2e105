"""The engine users construct: claim a run root, resume from it, save to it at safe points, and say what is current."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Literal

from milepost.clock import Clock, SystemClock
from milepost.engine.arena import Arena
from milepost.engine.background import Background
from milepost.engine.capture import Staged, capture
from milepost.engine.components import components_of
from milepost.engine.metrics import Metrics
from milepost.engine.mismatch import Answer, Mismatches
from milepost.engine.opening import Opened, open_session
from milepost.engine.overhead import Flight, Meter
from milepost.engine.process_writer import ProcessWriter, check_process_writer, deadline_of
from milepost.engine.redact import redact_the_log
from milepost.engine.relief import write_with_relief
from milepost.engine.resuming import Resuming, parts_asked_for
from milepost.engine.save_errors import SaveErrors
from milepost.engine.scrubbing import Scrubbing, period_of
from milepost.engine.session import BLOB_BYTES, Order, Session
from milepost.engine.settings import WriterKind, check_settings, whole
from milepost.engine.shared_arena import SharedArena
from milepost.errors import MilepostError, UsageError
from milepost.lifecycle.budget import Overhead
from milepost.lifecycle.recover import Which
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.triggers import Reading, Trigger
from milepost.publish.signed import open_root
from milepost.publish.view import read
from milepost.records import Exactness, Metric, Restored, Summary
from milepost.state.protocol import Reporting
from milepost.state.tree import flatten
from milepost.store.base import Store

log = logging.getLogger("milepost")


class CheckpointEngine:
    """Keep one training run alive: everything in ``state`` is saved together and comes back together.

    ``root`` is a directory, a URL or a store. ``state`` maps component names (``policy``, ``optimizer``, ``replay``,
    ``envs``, ``rng``, ``counters``, ...) to objects with ``state_dict``/``load_state_dict`` or to plain trees, which are
    read and overwritten in place. ``when`` says when a save is due, ``keep`` which generations stay.

    ``exactness`` says of a component, for the manifest, that it is ``approximate`` or ``not captured``, and why.
    ``fingerprint`` names what must be equal for the same bits to come out (``{"env/id": "CartPole-v1"}``).
    ``on_mismatch`` answers ``error``, ``ask`` or ``warn`` per kind of difference; ``strict`` makes every missing component
    an error. ``on_save_error="warn"`` trains on through failed saves, until ``save_errors_max`` have failed in a row.
    ``writer="inline"`` saves in the calling thread, ``"process"`` in a process of its own: it takes less from training, and what
    was staged when the trainer is killed is published all the same, within ``writer_deadline``. ``lease_wait`` is how many seconds to wait for another writer to end;
    with ``take_over`` the root is then claimed all the same. ``key_file`` holds a key (or the environment does, see
    `milepost.publish.key.find_key`): what is saved is signed with it, and what is not signed is refused. ``health_eval``
    is called after a resume; False means: not this one. ``scrub="7d"`` reads all that is retained again within a week, in
    a thread beside training.

    One thread uses an engine. Saves are called at safe points only: places where the state is a consistent cut.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | Store,
        *,
        state: Mapping[str, object],
        when: Trigger | None = None,
        keep: Keep | None = None,
        exactness: Mapping[str, tuple[Exactness, str]] | None = None,
        fingerprint: Mapping[str, str] | None = None,
        on_mismatch: Mapping[str, Answer] | None = None,
        strict: bool = False,
        on_save_error: Literal["raise", "warn"] = "raise",
        save_errors_max: int = 3,
        writer: WriterKind = "thread",
        writer_deadline: str | float = "60s",
        allow_pickle: bool = False,
        trust_pickle: bool = False,
        lease_wait: float = 0.0,
        take_over: bool = False,
        key_file: str | os.PathLike[str] | None = None,
        health_eval: Callable[[], bool] | None = None,
        scrub: str | float | None = None,
        blob_bytes: int = BLOB_BYTES,
        clock: Clock | None = None,
    ) -> None:
        redact_the_log()
        self.state = components_of(state)
        check_settings(when, keep, on_save_error, writer)
        self._deadline_s = deadline_of(writer_deadline)
        self.keep = keep or Keep()
        self.exactness = dict(exactness or {})
        self._clock = clock or SystemClock()
        self._store = open_root(root, self._clock, key_file)
        if writer == "process":
            check_process_writer(self._store)
        self._when = when
        self._fingerprint = dict(fingerprint or {})
        kinds = frozenset(name.partition("/")[0] for name in self._fingerprint)
        self._mismatches = Mismatches(dict(on_mismatch or {}), strict, kinds)
        self._errors = SaveErrors(self._store.url, on_save_error, save_errors_max)
        self._pickle = (allow_pickle, trust_pickle)
        self._guard = (lease_wait, take_over)
        self._health_eval = health_eval
        self._scrub_s = period_of(scrub)
        self._scrubbing: Scrubbing | None = None
        self._blob_bytes = blob_bytes
        self._arena = SharedArena() if writer == "process" else Arena()
        self._process: ProcessWriter | None = None
        self._background = Background("inline" if writer == "inline" else "thread")
        self._inline = writer == "inline"
        self._metrics = Metrics(self.keep)
        self._meter = Meter(self._clock, when)
        self._open: Opened | None = None
        self._looked: tuple[int, Resuming] | None = None
        self._overwritten: set[str] = set()
        self._told: dict[str, str] = {}
        self._held = ExitStack()
        self._ready = False
        self._in_flight: dict[str, Metric] | None = None
        self._closed = False
        self._last = Reading()
        self._elapsed_base_s, self._started_ns = 0.0, 0
        self._pid = os.getpid()
        # An engine that is dropped without close() gives its root up, too; while it saves, the writer holds on to it.
        self._finalizer = weakref.finalize(self, _give_up, self._held, self._pid)

    def __enter__(self) -> CheckpointEngine:
        self.claim()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # On an exception nothing new is saved, since the state may be half a step old; what is staged already is flushed.
        if kind is None:
            self.close()
            return
        try:
            self.close()
        except MilepostError as failure:
            log.error("while another error was raised, the last save failed: %s", failure)

    def claim(self) -> Session:
        """Claim the run root, once; the other verbs do it when they are first called.

        Raises `ConflictError` if another process holds it, naming its PID, host and age.
        """
        self._check_usable()
        if self._open is None:
            self._check_capturable()
            wait_s, take_over = self._guard
            guard = self._store.guard(wait_s=wait_s, take_over=take_over)
            # Pushed before it is entered, and nothing by half: after a Ctrl-C anywhere in here the root is free again, and not
            # held by this process for as long as it lives.
            self._held.push(guard)
            self._held.push(guard)  # and twice: a Ctrl-C while the first is left loses that one
            try:
                guard.__enter__()
                if guard.forced:
                    log.warning("claiming %s from a process that still holds it; that one can save no more", self._store.url)
                self._open = open_session(
                    self._store,
                    self._clock,
                    self.keep,
                    self._fingerprint,
                    incarnation=self._clock.nonce(),
                    guard=guard,
                    blob_bytes=self._blob_bytes,
                )
                if isinstance(self._arena, SharedArena):
                    self._process = ProcessWriter(self._open.session, self._arena, guard, self._deadline_s)
                    self._held.callback(self._process.close)  # left before the guard is: it holds the lock as well
                    self._held.callback(self._process.close)
                    self._process.start()
                self._begin_from(None)
                if self._scrub_s is not None:
                    self._scrubbing = Scrubbing(self._open.session, self._scrub_s, self._background.join)
                    self._scrubbing.start(self._held)
                # A run without any generation is a fresh start; nobody has to call resume() for that.
                self._ready = self._open.claimed.view.head is None
            except BaseException:
                self._open = None
                self._held.close()
                raise
        return self._open.session

    def _check_capturable(self) -> None:
        """Find what cannot be saved before the first step, and not at the first save; copies nothing, writes nothing."""
        for name, value in self.state.items():
            flatten(value, name, allow_pickle=self._pickle[0])
        self._exactness_now()

    def peek(self, which: Which = "latest") -> Summary | None:
        """Return the generation that `resume` would take, or None, without loading it. Counters are in it."""
        return self._resuming().peek(which)

    def resume(self, which: Which = "latest", *, parts: Iterable[str] | None = None) -> Restored | None:
        """Bring the state back in place from the newest sound generation, or from ``which``; None if the run starts anew.

        ``which`` is ``latest``, ``best`` (by ``keep.by``), a generation's number, or ``never``: start anew, keeping what was
        there until two new generations exist. Compares everything first: `MismatchError` lists every difference and leaves
        all as it was. Damaged generations are passed over and named. If none is whole, the newest of which policy, value,
        target, optimizer and counters are sound is taken without what is damaged, and that is told (not if the engine is
        ``strict``); `CorruptError` if none is left.

        With ``parts`` only these components are read, compared and loaded, from the newest generation in which they are
        sound; the others stay as they are, and the result names them.
        """
        wanted = parts_asked_for(parts, which, self.state)
        resuming, self._looked = self._resuming(), None
        try:
            restored = resuming.resume(which, wanted)
        except BaseException as error:
            if resuming.overwritten:
                self._errors.half_loaded(error)
            raise
        self._ready = True
        if restored is not None:
            self._metrics.forget()
            if not resuming.overwritten:
                self._errors.loaded()
        if wanted is None or restored is None or restored.counted:
            self._begin_from(restored)
        else:  # the loop is where it was, and only its past is another
            self._metrics.begin(self._claimed.session.chain.line)
        return restored

    def adopt(self) -> Summary | None:
        """Go on from the newest generation with the live state as it is, loading nothing; None if there is none.

        For a process that has made this state itself, since that generation or by saving it: a second ``learn()``, say.
        """
        resuming, self._looked = self._resuming(), None
        adopted = resuming.adopt()
        self._ready = True
        self._begin_from(adopted)
        return adopted

    def _resuming(self) -> Resuming:
        """Return what a resume works with, as the root is now; what `peek` has verified is not verified again."""
        session = self.claim()
        self.wait()
        head = session.chain.head.number if session.chain.head else 0
        if self._looked is None or self._looked[0] != head:
            claimed = self._claimed.claimed
            view = claimed.view if head == claimed.settlement.head and not self._ready else read(session.store)
            traces = None if self._ready else self._claimed.traces
            made = Resuming(session, view, self.state, self._mismatches, self._pickle[1], self._health_eval, traces=traces)
            made.overwritten = self._overwritten
            self._looked = (head, made)
        return self._looked[1]

    def _begin_from(self, restored: Restored | Summary | None) -> None:
        elapsed_s = restored.elapsed_s if restored else 0.0
        self._elapsed_base_s = float.fromhex(elapsed_s) if isinstance(elapsed_s, str) else elapsed_s
        self._started_ns = now_ns = self._clock.monotonic_ns()
        self._meter.begin(now_ns, self._claimed.session.events)
        counters = restored.counters if restored else {}
        self._last = Reading(restored.step if restored else 0, now_ns, counters.get("episodes", 0), counters.get("epochs", 0))
        self._metrics.begin(self._claimed.session.chain.line)

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note numbers measured at ``step``; they go into the next generation. A new best makes the next safe point due."""
        self._metrics.report(whole("step", step), metrics)

    def save_if_due(self, step: int, *, episodes: int = 0, epochs: int = 0, counters: Mapping[str, int] | None = None) -> bool:
        """Save if a trigger is due at this safe point, and return whether a save was started.

        While a save is in flight nothing is due: the trigger fires at the first safe point after it.
        """
        self.claim()
        if not self._ready:
            self._check_may_save()
        now = self._read(step, episodes, epochs)
        if self._background.busy:
            return False
        damage = self._scrubbing.reason() if self._scrubbing else None
        reason = damage or self._metrics.new_best() or (self._when.due(self._last, now) if self._when else None)
        if reason is None:
            return False
        self._save(now, reason, counters)
        return True

    def save(
        self,
        step: int,
        *,
        reason: str = "manual",
        episodes: int = 0,
        epochs: int = 0,
        counters: Mapping[str, int] | None = None,
        complete: bool = True,
    ) -> None:
        """Save now: copy the state, then write and publish it beside training. Waits first for a save in flight.

        What is saved is the state at the call, whatever training does next. Failures are raised by the next save, `wait`
        or `close`.
        """
        self.claim()
        self._save(self._read(step, episodes, epochs), reason, counters, complete=complete)

    def _read(self, step: int, episodes: int, epochs: int) -> Reading:
        step, now_ns = whole("step", step), self._clock.monotonic_ns()
        costs = self._meter.point(step, now_ns, busy=self._background.busy)
        return Reading(step, now_ns, whole("episodes", episodes), whole("epochs", epochs), costs)

    def _save(self, now: Reading, reason: str, counters: Mapping[str, int] | None, *, complete: bool = True) -> None:
        self._check_may_save()
        self.wait()
        counted = {name: whole(name, count) for name, count in (counters or {}).items()}
        staged = capture(self.state, self._arena, allow_pickle=self._pickle[0])
        noted = self._metrics.take()
        elapsed_s = self._elapsed_base_s + (now.monotonic_ns - self._started_ns) / 1e9
        progress = {"episodes": now.episodes, "epochs": now.epochs} | counted
        order = Order(now.step, reason, elapsed_s, progress, noted, complete, self._exactness_now())
        self._last, self._in_flight = now, noted
        if self._scrubbing:
            self._scrubbing.answered()
        flight = self._meter.save(now.monotonic_ns)
        if self._process is not None:
            self._process.post(staged, order)
        self._background.start(lambda: self._write(staged, order, flight))
        self._meter.released()
        if self._inline:
            self._surface()

    def _write(self, staged: Staged, order: Order, flight: Flight) -> None:
        if self._process is not None:
            with flight:
                self._process.finish()
            self._process.clear_up()
            return
        with flight:
            write_with_relief(self._claimed.session, staged, order)

    def _exactness_now(self) -> dict[str, tuple[Exactness, str]]:
        """Return what the manifest says of each component that is not exact, as it was captured last; what is new is told."""
        found: dict[str, tuple[Exactness, str]] = {}
        for name, value in self.state.items():
            text = "; ".join(map(str, value.left_out())) if isinstance(value, Reporting) else ""
            if text:
                found[name] = ("not captured" if name.rpartition("/")[2] == "envs" else "approximate", text)
            if text and self._told.get(name) != text:
                log.warning("a resumed run may differ from this one: `%s` is saved without %s", name, text)
            self._told[name] = text
        return found | self.exactness

    @property
    def overhead(self) -> Overhead:
        """Return what saving has cost training so far, and what a `budget` makes of it; ``str()`` of it is one line."""
        return self._meter.overhead()

    def wait(self) -> Summary | None:
        """Wait for the save in flight and return the newest generation of this run. Raises `SaveFailed` if it failed."""
        self._background.join()
        self._surface()
        return self._open.session.chain.head if self._open else None

    def close(self) -> None:
        """Wait for the save in flight, give up the run root, and free the arena. A second call does nothing."""
        if self._pid == os.getpid():
            self._background.join()  # interrupted here, it is not closed: the lock outlives the save that is still written
        try:
            if not self._closed:
                self._closed = True
                self._surface()
        finally:
            self._arena.close()
            _give_up(self._held, self._pid)  # again, if that was interrupted: what is given up already is not there any more
            self._finalizer.detach()

    def _surface(self) -> None:
        """Raise what the last save died of, or warn, as the user chose. A fenced writer always raises, and for good."""
        if self._in_flight is None:
            return
        noted, self._in_flight = self._in_flight, None
        failure = self._background.collect()
        if failure is not None:
            self._metrics.give_back(noted)
        self._errors.judge(failure)

    def _check_may_save(self) -> None:
        self._errors.check()
        if not self._ready:
            raise UsageError(
                "this run has generations, and they were not resumed; saving now would go on from somewhere else",
                kind="not-resumed",
                hint='call engine.resume() first, or engine.resume(which="never") to start anew',
                root=self._store.url,
            )

    def _check_usable(self) -> None:
        if self._closed:
            raise UsageError("this engine is closed", kind="closed", hint="construct a new one", root=self._store.url)
        if self._pid != os.getpid():
            raise UsageError(
                "this engine was made in the parent process; a forked child may not save",
                kind="forked",
                hint="save in the process that constructed the engine",
                root=self._store.url,
                made_by_pid=self._pid,
            )

    @property
    def _claimed(self) -> Opened:
        self.claim()
        assert self._open is not None
        return self._open


def _give_up(held: ExitStack, made_by_pid: int) -> None:
    if made_by_pid == os.getpid():
        held.close()
