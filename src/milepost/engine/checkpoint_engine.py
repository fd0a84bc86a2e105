"""The engine users construct: claim a run root, resume from it, save to it at safe points, and say what is current."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Literal

from milepost.clock import Clock, SystemClock
from milepost.engine import misuse, supervised
from milepost.engine.asked import instead_of_latest
from milepost.engine.beats import Beat
from milepost.engine.between import Apart, EngineApart
from milepost.engine.components import components_of
from milepost.engine.metrics import Metrics
from milepost.engine.mismatch import Answer, Mismatches
from milepost.engine.opening import Opened, Opening
from milepost.engine.overhead import Meter
from milepost.engine.process_writer import check_process_writer, deadline_of
from milepost.engine.redact import redact_the_log
from milepost.engine.requests import settings_of
from milepost.engine.resuming import Resuming, parts_asked_for
from milepost.engine.safe_points import SafePoints
from milepost.engine.save_errors import SaveErrors
from milepost.engine.saving import Saving
from milepost.engine.scrubbing import Scrubbing, period_of
from milepost.engine.session import BLOB_BYTES, Session
from milepost.engine.settings import WriterKind, check_settings, whole
from milepost.engine.stopping import Stops
from milepost.errors import MilepostError
from milepost.lifecycle.budget import Overhead
from milepost.lifecycle.grace import grace_here
from milepost.lifecycle.recover import Which
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.stopping import EXIT_CODE, Stop, StopBy
from milepost.lifecycle.triggers import Trigger
from milepost.publish.signed import open_root
from milepost.publish.view import read
from milepost.records import Exactness, Restored, Summary
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
    ``writer="inline"`` saves in the calling thread, ``"process"`` in a process of its own: what was staged when the trainer is
    killed is published all the same, within ``writer_deadline`` (seconds, or text like ``"60s"``; ten minutes at most).
    ``staging_bytes`` is how much memory a save may copy the state into; a larger state is copied in parts, while training waits
    for the disk, and one array that is larger is copied whole. By default it is as much as the state takes, and 256 MiB for
    what logs (`milepost.Rows`) add. ``compress="off"`` compresses nothing, not even what shrinks. ``lease_wait`` is how many
    seconds to wait for another writer to end; with ``take_over`` the root is then claimed all the same. ``key_file`` holds a key
    (or the environment does, see `milepost.publish.key.find_key`): what is saved is signed with it, and what is not signed is
    refused. ``health_eval`` is called after a resume; False means: not this one. ``scrub="7d"`` reads all that is retained
    again within a week, in a thread beside training. ``grace="30s"`` (else ``MILEPOST_GRACE``) is what is left of the process
    after a notice to end: where safe points come further apart, each of them is kept staged, for `flush_staged`.

    ``stop`` says what to listen to for that (`milepost.Stop`; True: signals, notices, limits; False: nothing). None: to all if
    ``MILEPOST_STOP=1``, as under ``milepost run``, else to nothing, since signals belong to a process and not to a library. When
    it is time to end, the next safe point saves, gives the root up, and raises `milepost.Stopped`.

    Raises `UsageError` for settings that cannot work (kinds ``bad-setting``, ``no-process-writer``). ``blob_bytes`` is the size
    above which what one save writes is split into several files.
    One thread uses an engine; any other may call `flush_staged`, `stop_by` and `withdraw`. Saves are called at safe points only:
    places where the state is a consistent cut.
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
        grace: str | float | None = None,
        stop: Stop | bool | None = None,
        blob_bytes: int = BLOB_BYTES,
        staging_bytes: int | None = None,
        compress: Literal["auto", "off"] = "auto",
        clock: Clock | None = None,
    ) -> None:
        redact_the_log()
        self.state = components_of(state)
        check_settings(when, keep, on_save_error, writer, {"staging_bytes": staging_bytes, "blob_bytes": blob_bytes}, compress)
        self.keep = keep or Keep()
        self._clock = clock or SystemClock()
        self._store = open_root(root, self._clock, key_file)
        check_process_writer(writer, self._store)
        prints = dict(fingerprint or {})
        self._mismatches = Mismatches(dict(on_mismatch or {}), strict, frozenset(name.partition("/")[0] for name in prints))
        self._errors = SaveErrors(self._store.url, on_save_error, save_errors_max)
        self._opening = Opening(self._store, self._clock, self.keep, prints, lease_wait, take_over, blob_bytes, compress)
        self._trust_pickle, self._health_eval, self._scrub_s = trust_pickle, health_eval, period_of(scrub)
        self._metrics, self._meter = Metrics(self.keep), Meter(self._clock, when, grace_here(grace))
        measured, staging = (self._metrics, self._meter, self._errors), (allow_pickle, dict(exactness or {}), staging_bytes)
        self._saving = Saving(self.state, self._clock, *measured, writer, deadline_of(writer_deadline), *staging)
        self._background, self._beat = self._saving.background, Beat()
        self._saving.published = self._beat.publish
        self._stops = Stops(self._clock, settings_of(stop, self._meter.grace), self._meter, self._saving, self._errors)
        self._points = SafePoints(self._clock, when, *measured, self._saving, self._stops, self._beat)
        self._open: Opened | None = None
        self._looked: tuple[int, Resuming] | None = None
        self._overwritten: set[str] = set()
        self._held, self._pid = ExitStack(), os.getpid()
        self._ready = self._closed = False
        self._turn = threading.RLock()
        """Held while a save is begun or its end is heard of: a flush may come from another thread. Never while one is written."""
        # An engine that is dropped without close() gives its root up, too. Not with the engine itself, but with what the thread
        # holds on to while it saves: with the lock given up before that, the next start would fence a save that was staged.
        self._finalizer = weakref.finalize(self._saving, _give_up, self._held, self._pid)

    def __enter__(self) -> CheckpointEngine:
        self.claim()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # On an exception the live state is not saved, since it may be half a step old; what is staged already is.
        if kind is None:
            self.close()
            return
        try:
            try:
                if self._saving.keeps and self._pid == os.getpid():
                    self.flush_staged("ended by an exception")
            finally:
                self.close()
        except MilepostError as failure:
            log.error("while another error was raised, the last save failed: %s", failure)

    def claim(self) -> Session:
        """Claim the run root, once; the other verbs do it when they are first called.

        Raises `ConflictError` if another process holds it, naming its PID, host and age.
        """
        if self._closed:
            raise misuse.closed(self._store.url)
        self._check_pid()
        if self._open is None:
            self._beat.show(supervised.folder(), self._store.url, self._clock)
            self._saving.prepare()
            try:
                self._open = self._opening.open(self._held, self._saving)
                # A run without any generation is a fresh start; nobody has to call resume() for that.
                self._ready = self._open.claimed.view.head is None
                self._points.begin(self._open.session, None, ready=self._ready)
                if self._scrub_s is not None:
                    self._points.scrubbing = Scrubbing(self._open.session, self._scrub_s, self._background.join)
                    self._points.scrubbing.start(self._held)
                self._beat.name(self._store.url, self._open.session.run_id)
                self._stops.listen(self)
            except BaseException:
                self._open = None
                self._stops.close()
                self._held.close()
                raise
        return self._open.session

    def peek(self, which: Which = "latest") -> Summary | None:
        """Return the generation that `resume` would take, or None, without loading it. Counters are in it.

        Its bytes are verified when they are loaded: if they turn out to be damaged, `resume` takes another, and says so.
        """
        return self._resuming(leaves=False).peek(which)

    def resume(self, which: Which = "latest", *, parts: Iterable[str] | None = None) -> Restored | None:
        """Bring the state back in place from the newest sound generation, or from ``which``; None if the run starts anew.

        ``which`` is ``latest``, ``best`` (by ``keep.by``), a generation's number, or ``never``: start anew, keeping what was
        there until two new generations exist. Compares everything first: `MismatchError` lists every difference and leaves
        all as it was. Damaged generations are passed over and named. If none is whole, the newest of which policy, value,
        target, optimizer and counters are sound is taken without what is damaged, and that is told (not if the engine is
        ``strict``); `CorruptError` if none is left. Raises `Stopped` where the process is to end already: nothing is trained.

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
        self._points.resumed(resuming.session, restored, all_of_it=wanted is None, mixed=bool(resuming.overwritten))
        self._leave_if_all_is_saved()
        return restored

    def adopt(self) -> Summary | None:
        """Go on from the newest generation with the live state as it is, loading nothing; None if there is none.

        For a process that has made this state itself, since that generation or by saving it: a second ``learn()``, say.
        """
        resuming, self._looked = self._resuming(), None
        adopted = resuming.adopt()
        self._ready = True
        self._points.begin(self._claimed.session, adopted, ready=self._ready)
        return adopted

    def _resuming(self, *, leaves: bool = True) -> Resuming:
        """Return what a resume works with, as the root is now; what `peek` has chosen is not chosen again.

        ``leaves``: the state goes back, and what is staged of it would be published on top of another past.
        """
        session = self.claim()
        with self._turn:
            self._saving.settle(keep=not leaves)
        head = session.chain.head.number if session.chain.head else 0
        if self._looked is None or self._looked[0] != head:
            claimed = self._claimed.claimed
            view = claimed.view if head == claimed.settlement.head and not self._ready else read(session.store)
            traces = None if self._ready else self._claimed.traces
            made = Resuming(session, view, self.state, self._mismatches, self._trust_pickle, self._health_eval, traces=traces)
            made.overwritten, made.loading = self._overwritten, self._beat.load
            made.instead = instead_of_latest(self._store.url, session.run_id, session.chain.head, self._claimed.wanted)
            self._looked = (head, made)
        return self._looked[1]

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note numbers measured at ``step``; they go into the next generation. A new best makes the next safe point due."""
        with self._turn:
            self._metrics.report(whole("step", step), metrics)

    def save_if_due(self, step: int, *, episodes: int = 0, epochs: int = 0, counters: Mapping[str, int] | None = None) -> bool:
        """Save if a trigger is due at this safe point, and return whether a save was started.

        While a save is in flight nothing is due: the trigger fires at the first safe point after it. Where nothing is due, a
        safe point may be kept staged (``grace``). Raises `Stopped` once the last save is durable, if the process is to end.
        """
        self.claim()
        with self._turn:
            if not self._ready:
                self._check_may_save()
            now = self._points.read(step, episodes, epochs)
            saved = self._points.save_if_due(self._claimed.session, now, counters)
            self._leave_if_all_is_saved()
        return saved

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
        or `close`. Raises `Stopped`, once it is durable, if the process is to end.
        """
        self.claim()
        with self._turn:
            now = self._points.read(step, episodes, epochs)
            self._check_may_save()
            self._points.save(self._claimed.session, now, reason, counters, complete=complete)
            self._leave_if_all_is_saved()

    def _leave_if_all_is_saved(self) -> None:
        if self._points.stopped is not None:
            self.close()
            raise self._points.stopped

    def stop_by(
        self,
        within: str | float | None = None,
        *,
        path: str = "stop_by",
        exit_code: int = EXIT_CODE,
        at_once: bool = True,
        early: bool = False,
    ) -> None:
        """Have the next safe point save and leave, ``within`` so long (seconds, or ``"30s"``; None: it may take its time).

        Not ``at_once``: as late as is safe. ``early``: it saves right away as well. ``path`` names the reason, in logs and for
        `withdraw`. For any thread and for signal handlers: it only notes. Raises `UsageError` (kind ``bad-duration``).
        """
        self._stops.by(within, path, exit_code, at_once, early)

    def withdraw(self, path: str) -> None:
        """Take a `stop_by` back. For any thread and for signal handlers."""
        self._stops.withdraw(path)

    @property
    def stopping(self) -> StopBy | None:
        """Return what this process is to end for, and by when; None: it may train on."""
        return self._stops.leading

    @property
    def last_call_ns(self) -> int | None:
        """Return after which instant of the monotonic clock no save would be durable before the deadline; None: there is none."""
        return self._stops.last_call_ns

    @property
    def apart(self) -> Apart:
        """Return what a thread beside training sees of this engine. For `milepost.supervise`."""
        return EngineApart(self)

    @property
    def overhead(self) -> Overhead:
        """Return what saving has cost training so far, and what a `budget` makes of it; ``str()`` of it is one line."""
        return self._meter.overhead()

    def wait(self) -> Summary | None:
        """Wait for the save in flight and return the newest generation of this run. Raises `SaveFailed` if it failed."""
        with self._turn:
            self._saving.wait()
        return self._open.session.chain.head if self._open else None

    def flush_staged(self, reason: str = "preempted") -> Summary | None:
        """Publish the last safe point, if ``grace`` keeps it staged, and return the newest generation once that is durable.

        It becomes a generation like any other, as of that safe point; training may go on, meanwhile and afterwards. A save in
        flight is waited for first; a safe point that is saved already is not saved twice.

        For any thread, in the middle of a rollout, too, but for a signal handler, which may interrupt this engine at work (kind
        ``flush-within``). Raises `SaveFailed`, whatever ``on_save_error`` says; what is staged stays so, for another try.
        """
        self._check_pid()
        if self._turn._is_owned():  # type: ignore[attr-defined]
            raise misuse.flush_within(self._store.url)
        if self._open is None:
            return None
        self._background.join()  # here and not within: training that gets to a safe point meanwhile goes on
        with self._turn:
            self._saving.wait()
            flushed = self._saving.flush(self._open.session, reason)
            self._points.last = flushed.now if flushed else self._points.last
        self._background.join()
        with self._turn:
            self._saving.landed(flushed)
        return self._open.session.chain.head

    def close(self) -> None:
        """Wait for the save in flight, give up the run root, and free the arena. A second call does nothing."""
        with self._turn if self._pid == os.getpid() else ExitStack():  # a child may have been forked while another thread held it
            if self._pid == os.getpid():
                self._background.settle()  # interrupted here, it is not closed: the lock outlives the save that is still written
            try:
                if not self._closed:
                    self._closed = True
                    self._saving.surface()
            finally:
                self._saving.close()
                self._stops.close()
                _give_up(self._held, self._pid)  # again, if interrupted: what is given up already is not there any more
                self._finalizer.detach()
                self._beat.enter("closed")

    def _check_may_save(self) -> None:
        self._errors.check()
        if not self._ready:
            raise misuse.not_resumed(self._store.url)

    def _check_pid(self) -> None:
        if self._pid != os.getpid():
            raise misuse.forked(self._store.url, self._pid)

    @property
    def _claimed(self) -> Opened:
        self.claim()
        assert self._open is not None
        return self._open


def _give_up(held: ExitStack, made_by_pid: int) -> None:
    if made_by_pid == os.getpid():
        held.close()
