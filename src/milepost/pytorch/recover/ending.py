"""Have all ranks of a training end at one step, and show `milepost run` how far they are.

A signal comes to whichever ranks it comes to, and when. At each dump the ranks exchange a few words; what one of them has heard
by then, all do at that dump, so that no rank waits in a save for another that trains on.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from milepost.clock import Clock
from milepost.engine import supervised
from milepost.engine.beats import Beat
from milepost.engine.between import Apart
from milepost.engine.events import Events
from milepost.engine.overhead import Flight, Meter
from milepost.engine.requests import Requests, settings_of
from milepost.engine.stopping import leave_stopped
from milepost.errors import UsageError
from milepost.lifecycle.grace import grace_here
from milepost.lifecycle.stopping import EXIT_CODE, Stop, StopBy, Stopped
from milepost.pytorch.ranks import Ranks
from milepost.pytorch.recover.agreeing import TRAIN, Verdict, Word, agreed, is_urgent
from milepost.records import Manifest, Summary

log = logging.getLogger("milepost")

_TORCHRUNS_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"


class Ending:
    """Be what one rank's handler knows of the end that is coming, and what it shows of itself.

    In the order of a run: `begin`, `loading`, `trains`; at each dump `at`, then `saving` and `published`; `ended` with
    the last one; `close`. `begin` and `at` are called on all ranks at once.
    """

    def __init__(self, clock: Clock, url: str, *, stop: Stop | bool | None = None, grace: str | float | None = None) -> None:
        limit = grace_here(grace)
        self.beat = Beat()
        self.meter = Meter(clock, None, limit)
        self._requests = Requests(clock, settings_of(stop, limit))
        self._clock, self._url = clock, url
        self._ranks: Ranks | None = None
        self._flight: Flight | None = None
        self._saved: set[str] = set()
        """The paths for which an early save was made."""

    # -- what a signal or a notice is told to: `milepost.engine.between.Stoppable` -----------------------------------------------

    def stop_by(
        self,
        within: str | float | None = None,
        *,
        path: str = "stop_by",
        exit_code: int = EXIT_CODE,
        at_once: bool = True,
        early: bool = False,
    ) -> None:
        """Have the next dump save and leave, on all ranks; as `milepost.CheckpointEngine.stop_by`."""
        self._requests.by(within, path, exit_code, at_once, early)

    def withdraw(self, path: str) -> None:
        """Take a `stop_by` back."""
        self._saved.discard(path)
        self._requests.withdraw(path)

    @property
    def stopping(self) -> StopBy | None:
        return self._requests.leading

    @property
    def last_call_ns(self) -> int | None:
        """Return None: between two dumps nothing is staged that could still be made durable by one rank alone."""
        return None

    @property
    def apart(self) -> Apart:
        return _Apart(self)

    # -- the story of a run ------------------------------------------------------------------------------------------------------

    def begin(self, ranks: Ranks, retries: int) -> None:
        """Begin to listen, and to beat: the root is about to be claimed. ``retries``: how often it is to be started again."""
        folder, self._ranks = supervised.folder(), ranks
        if _tells(folder, ranks):
            self.beat.show(folder, self._url, self._clock)
            if folder is not None:
                supervised.leave_record(folder, f"retries-{os.getpid()}", {"retries": retries})
        if folder is None and retries and ranks.is_first and os.environ.get(_TORCHRUNS_RESTARTS, "0") == "0":
            log.warning(
                "retries=%d, but nobody starts this run again when it fails: milepost run -- COMMAND does (kind no-restarts)",
                retries,
            )
        self._requests.listen(self)

    @property
    def has_begun(self) -> bool:
        """Return whether it listens by now."""
        return self._ranks is not None

    def loading(self, manifest: Manifest) -> None:
        """Say which generation is about to be loaded: if that kills this process, somebody knows what did."""
        self.beat.loading, self.beat.phase = manifest.number, "resuming"
        self.beat.name(self._url, manifest.run_id)

    def trains(self, generation: int, step: int, events: Events | None) -> None:
        """Say that all is in place, and training begins: from a generation, or anew with 0. ``events``: of who holds the root."""
        self.meter.begin(self._clock.monotonic_ns(), events, resumed=generation > 0)
        self.beat.loading, self.beat.resumed = 0, generation
        self.beat.at(step)

    def at(
        self, step: int, *, is_due: bool = False, has_failed: bool = False, size_bytes: Callable[[], int] = lambda: 0
    ) -> tuple[bool, bool, Verdict]:
        """Return whether a save is due, whether some rank has failed, and what the ranks do about the end, the same on each.

        ``is_due`` counts on rank 0 only, whose clock decides; ``has_failed`` on any. ``size_bytes`` is asked what this rank would
        write, while there is an end to reckon with and no save was measured. Raises `UsageError` (kind ``ranks-apart``)
        on all ranks where they are not at the same step, and `ServiceError` (kind ``rank-lost``).
        """
        is_busy = self._flight is not None and self._flight.ended_ns is None
        self.beat.at(step, "saving" if is_busy else "training")
        self.meter.point(step, self._clock.monotonic_ns(), busy=is_busy)
        self._requests.poll()
        word = self._word(size_bytes)
        ranks = self._together
        told = [is_due and ranks.is_first, has_failed, is_urgent(word), step, -step]
        due, failed, urgent, last, first = ranks.highest([int(each) for each in told])
        if last != -first:
            raise UsageError(
                "the ranks are not at the same step",
                kind="ranks-apart",
                hint="call dump on all ranks, once a step",
                first=-first,
                last=last,
                here=step,
            )
        verdict = agreed(ranks.told_by_all(word)) if urgent else TRAIN
        self._saved.update(verdict.early)
        return bool(due), bool(failed), verdict

    def _word(self, size_bytes: Callable[[], int]) -> Word:
        now_ns, costs = self._clock.monotonic_ns(), self.meter.costs
        requests = tuple(
            replace(each, deadline_ns=None if each.deadline_ns is None else each.deadline_ns - now_ns)
            for each in self._requests.all
        )
        saved = frozenset(self._saved)
        size = size_bytes() if requests and not costs.duration_s else 0
        return Word(requests, saved, costs.duration_s, costs.slowest_s, self.meter.gap_s, size)

    @contextmanager
    def saving(self, step: int, verdict: Verdict) -> Iterator[Flight]:
        """Be within a dump that saves. Enter what it yields around the writing, in whichever thread that is."""
        self.beat.at(step, "stopping" if verdict.leaves else "saving")
        if verdict.leaves and self._together.is_first:
            log.warning("%s: saving at step %d on all ranks, and leaving", verdict.why, step)
        self._flight = self.meter.save(self._clock.monotonic_ns())
        try:
            yield self._flight
        except BaseException:
            self.not_saved()
            raise
        finally:
            self.meter.released()
            self.beat.enter("stopping" if verdict.leaves else "training")

    def not_saved(self) -> None:
        """Note that the last save has failed: one that was made early is still to be made."""
        self._saved.clear()
        self._flight = None

    def published(self, run_id: str, number: int) -> None:
        """Say that a generation is published. From any thread, on all ranks: each node has somebody who looks."""
        self.beat.generation = number
        self.beat.name(self._url, run_id)

    def ended(self, verdict: Verdict, step: int, newest: Summary | None, events: Events | None) -> Stopped:
        """Note that all is durable, and return what to raise on this rank once the root is given up."""
        request = verdict.request
        assert request is not None
        facts: dict[str, object] = {
            "path": request.path,
            "exit_code": request.exit_code,
            "generation": newest.number if newest else 0,
            "step": step,
            "complete": True,
        }
        if events is not None:
            events.write("stopped", **facts, left_out=[])
            log.info("stopped by %s at step %d: the newest generation is %s", request.path, step, newest and newest.number)
        leave_stopped(facts)
        return Stopped(request.exit_code, request.path, newest)

    @property
    def _together(self) -> Ranks:
        assert self._ranks is not None, "it has begun"
        return self._ranks

    def close(self) -> None:
        """Listen no more. May be called again."""
        self._requests.close()
        self.beat.enter("closed")


class _Apart:
    """Be a handler as another thread sees it: nothing of it is staged between two dumps, and nobody but training ends it."""

    is_only_staged = is_published = False

    def __init__(self, ending: Ending) -> None:
        self._ending = ending

    @property
    def state(self) -> Mapping[str, object]:
        return {}

    @property
    def step(self) -> int:
        return self._ending.beat.step

    @property
    def now_ns(self) -> int:
        return self._ending._clock.monotonic_ns()

    @property
    def slowest_s(self) -> float:
        return self._ending.meter.costs.slowest_s

    def flush(self, reason: str) -> Summary | None:  # noqa: ARG002 - an engine says why
        return None

    def held(self) -> AbstractContextManager[bool]:
        return _not_to_end()

    def note_the_end(self, request: StopBy) -> None:
        """Do nothing: nobody else ends it."""


@contextmanager
def _not_to_end() -> Iterator[bool]:
    yield False


def _tells(folder: str | None, ranks: Ranks) -> bool:
    """Return whether it is this rank that beats: the lowest of those that one `milepost run` looks after, on a node say.

    One is enough. The ranks meet at each dump, so that where any of them stands still, all soon do.
    """
    mine = socket.gethostname(), folder
    return ranks.told_by_all(mine).index(mine) == ranks.rank
