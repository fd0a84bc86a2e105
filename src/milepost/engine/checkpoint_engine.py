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
from milepost.engine import misuse
from milepost.engine.components import components_of
from milepost.engine.metrics import Metrics
from milepost.engine.mismatch import Answer, Mismatches
from milepost.engine.opening import Opened, hold, open_session
from milepost.engine.overhead import Meter
from milepost.engine.process_writer import check_process_writer, deadline_of
from milepost.engine.redact import redact_the_log
from milepost.engine.resuming import Resuming, parts_asked_for
from milepost.engine.save_errors import SaveErrors
from milepost.engine.saving import Saving
from milepost.engine.scrubbing import Scrubbing, period_of
from milepost.engine.session import BLOB_BYTES, Session
from milepost.engine.settings import WriterKind, check_settings, whole
from milepost.errors import MilepostError
from milepost.lifecycle.budget import Overhead
from milepost.lifecycle.grace import grace_of
from milepost.lifecycle.recover import Which
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.triggers import Reading, Trigger
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
    again within a week, in a thread beside training. ``grace="30s"`` is what is left of the process after a notice to end: where
    safe points come further apart, each of them is kept staged, for `flush_staged`.

    Raises `UsageError` for settings that cannot work (kinds ``bad-setting``, ``no-process-writer``). ``blob_bytes`` is the size
    above which what one save writes is split into several files.

    One thread uses an engine; any other may call `flush_staged`. Saves are called at safe points only: places where the state
    is a consistent cut.
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
        self._when = when
        self._fingerprint = dict(fingerprint or {})
        kinds = frozenset(name.partition("/")[0] for name in self._fingerprint)
        self._mismatches = Mismatches(dict(on_mismatch or {}), strict, kinds)
        self._errors = SaveErrors(self._store.url, on_save_error, save_errors_max)
        self._guard = (lease_wait, take_over)
        self._trust_pickle, self._health_eval = trust_pickle, health_eval
        self._scrub_s = period_of(scrub)
        self._scrubbing: Scrubbing | None = None
        self._blob_bytes, self._compress = blob_bytes, compress
        self._metrics, self._meter = Metrics(self.keep), Meter(self._clock, when, grace_of(grace))
        measured, staging = (self._metrics, self._meter, self._errors), (allow_pickle, dict(exactness or {}), staging_bytes)
        self._saving = Saving(self.state, self._clock, *measured, writer, deadline_of(writer_deadline), *staging)
        self._background = self._saving.background
        self._open: Opened | None = None
        self._looked: tuple[int, Resuming] | None = None
        self._overwritten: set[str] = set()
        self._held, self._pid = ExitStack(), os.getpid()
        self._last, self._ready, self._closed = Reading(), False, False
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
        self._check_usable()
        if self._open is None:
            self._saving.prepare()
            guard = self._store.guard(wait_s=self._guard[0], take_over=self._guard[1])
            try:
                hold(guard, self._held, self._store.url)
                self._open = open_session(
                    self._store,
                    self._clock,
                    self.keep,
                    self._fingerprint,
                    incarnation=self._clock.nonce(),
                    guard=guard,
                    blob_bytes=self._blob_bytes,
                    compress=self._compress,
                )
                self._saving.claimed(self._open.session, guard, self._held)
                # A run without any generation is a fresh start; nobody has to call resume() for that.
                self._ready = self._open.claimed.view.head is None
                self._begin_from(None)
                if self._scrub_s is not None:
                    self._scrubbing = Scrubbing(self._open.session, self._scrub_s, self._background.join)
                    self._scrubbing.start(self._held)
            except BaseException:
                self._open = None
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
            made.overwritten = self._overwritten
            self._looked = (head, made)
        return self._looked[1]

    def _begin_from(self, restored: Restored | Summary | None) -> None:
        now_ns = self._clock.monotonic_ns()
        self._saving.begin(restored, now_ns)
        if self._ready:
            self._saving.warm()
        self._meter.begin(now_ns, self._claimed.session.events, resumed=isinstance(restored, Restored))
        counters = restored.counters if restored else {}
        self._last = Reading(restored.step if restored else 0, now_ns, counters.get("episodes", 0), counters.get("epochs", 0))
        self._metrics.begin(self._claimed.session.chain.line)

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note numbers measured at ``step``; they go into the next generation. A new best makes the next safe point due."""
        with self._turn:
            self._metrics.report(whole("step", step), metrics)

    def save_if_due(self, step: int, *, episodes: int = 0, epochs: int = 0, counters: Mapping[str, int] | None = None) -> bool:
        """Save if a trigger is due at this safe point, and return whether a save was started.

        While a save is in flight nothing is due: the trigger fires at the first safe point after it. Where nothing is due, a
        safe point may be kept staged (``grace``).
        """
        self.claim()
        with self._turn:
            if not self._ready:
                self._check_may_save()
            now = self._read(step, episodes, epochs)
            if self._background.busy:
                return False
            reason = self._reason(now)
            if reason is not None:
                self._save(now, reason, counters)
            elif self._meter.outlasts_grace:
                self._check_may_save()
                self._saving.wait()
                self._saving.keep(self._claimed.session, now, counters)
            return reason is not None

    def _reason(self, now: Reading) -> str | None:
        damage = self._scrubbing.reason() if self._scrubbing else None
        due = self._when.due if self._when else lambda *_: None
        return damage or self._saving.owed() or self._metrics.new_best() or due(self._last, now)

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
        with self._turn:
            self._save(self._read(step, episodes, epochs), reason, counters, complete=complete)

    def _read(self, step: int, episodes: int, epochs: int) -> Reading:
        step, now_ns = whole("step", step), self._clock.monotonic_ns()
        costs = self._meter.point(step, now_ns, busy=self._background.busy)
        return Reading(step, now_ns, whole("episodes", episodes), whole("epochs", epochs), costs)

    def _save(self, now: Reading, reason: str, counters: Mapping[str, int] | None, *, complete: bool = True) -> None:
        self._check_may_save()
        self._saving.wait()
        self._last = now
        if self._scrubbing:
            self._scrubbing.answered()
        self._saving.save(self._claimed.session, now, reason, counters, complete=complete)

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
            self._last = flushed.now if flushed else self._last
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
                _give_up(self._held, self._pid)  # again, if interrupted: what is given up already is not there any more
                self._finalizer.detach()

    def _check_may_save(self) -> None:
        self._errors.check()
        if not self._ready:
            raise misuse.not_resumed(self._store.url)

    def _check_usable(self) -> None:
        if self._closed:
            raise misuse.closed(self._store.url)
        self._check_pid()

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
