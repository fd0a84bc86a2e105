"""Listen for what is to end this process, for an engine: signals, a platform's notice, a limit, SLURM's end time.

Signals belong to a process and not to a library, so all engines of a process share one `Lookout`: the handlers are there once,
from the first engine that listens until the last that does is closed. Each engine is told, and has its own grace period.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from milepost.clock import Clock, SystemClock
from milepost.engine import supervised
from milepost.engine.between import Stoppable
from milepost.engine.supervised import NOTICE, STOP_AT
from milepost.errors import UsageError
from milepost.lifecycle.amounts import seconds_of
from milepost.lifecycle.stopping import GRACE_S, Stop
from milepost.supervise import children, slurm_end
from milepost.supervise.failure_record import Watch
from milepost.supervise.listening import Listening
from milepost.supervise.listening_record import StackDump, leave_listening_record
from milepost.supervise.lookout import Lookout
from milepost.supervise.notices import source_of

log = logging.getLogger("milepost")

_TORCHRUN = "TORCHELASTIC_RUN_ID"
_PATIENCE = ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "PET_SHUTDOWN_TIMEOUT")
_TORCHRUN_S = 30.0


@dataclass(slots=True)
class _Process:
    """Be what this process has of listening. A forked child begins with an empty one."""

    lookout: Lookout | None = None
    began_ns: int | None = None
    """When it began to listen first."""
    closed: list[Lookout] = field(default_factory=list)
    """Those that could not give their signals back, for it was not the main thread in which their last engine was closed."""
    dump: StackDump | None = None
    watch: Watch | None = None
    step: int = -1
    """The last safe point of an engine that is closed by now."""


_process = _Process()
_changing = threading.RLock()
"""Held while an engine begins or ends to listen. Reentrant: one may be freed while another begins."""


def listen(settings: Stop, engine: Stoppable) -> Listening:
    """Begin to listen for ``engine``. What cannot be listened to here is told.

    Raises `UsageError`: kind ``bad-notice`` for a notice that is no place, ``bad-environment`` for a variable that is no time.
    """
    clock, notice = SystemClock(), settings.notice or os.environ.get(NOTICE, "")
    source, stop_at_s = source_of(notice) if notice else None, _stop_at_s(os.environ)
    grace = grace_s(settings.grace, os.environ)
    with _changing:
        try:
            new = _process.lookout is None
            lookout = _process.lookout = _process.lookout or Lookout(clock, _abandoned)
            listening = Listening(engine, lookout, grace, _close)
            lookout.ears = [*(each for each in lookout.ears if each.lives), listening]
            paths = [*_take_signals(lookout, settings, engine), *_limit(settings, engine, clock, stop_at_s)]
            if source is not None:
                lookout.look_for(notice, source, listening)
                paths.append(f"notice {source.name}")
            if settings.slurm and slurm_end.in_a_job(os.environ):
                paths += _slurm_end(lookout, listening, clock)
            if new:
                _arrange_forks()
                lookout.start()
            lookout.notices.start()
            _leave_word(clock, paths)
            listening.poll()  # of what an engine before it has heard
            return listening
        except BaseException:
            _surely(lambda: _forget(engine))
            raise


def grace_s(setting: str | float | None, environment: Mapping[str, str]) -> float:
    """Return what a signal leaves, in seconds: what was set, but no more than torchrun waits before it kills.

    >>> grace_s("2m", {}), grace_s(None, {}), grace_s("2m", {"TORCHELASTIC_RUN_ID": "none"})
    (120.0, 30.0, 30.0)
    """
    seconds = GRACE_S if setting is None else seconds_of(setting)
    if _TORCHRUN not in environment:
        return seconds
    told = next((environment[name] for name in _PATIENCE if environment.get(name, "").isdigit()), None)
    most_s = _TORCHRUN_S if told is None else float(told)
    if seconds > most_s:
        log.warning(
            "grace is %g s, and torchrun kills its workers %g s after SIGTERM: that counts. TORCH_ELASTIC_SHUTDOWN_TIMEOUT gives "
            "more (kind torchrun-kills-sooner)",
            seconds,
            most_s,
        )
    return min(seconds, most_s)


def _stop_at_s(environment: Mapping[str, str]) -> float | None:
    text = environment.get(STOP_AT)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0:
        hint = "like $(date -d '+23 hours' +%s); or unset it"
        raise UsageError(f"{STOP_AT} is a time in Unix seconds", kind="bad-environment", hint=hint, value=text)
    return seconds


def _take_signals(lookout: Lookout, settings: Stop, engine: Stoppable) -> tuple[str, ...]:
    """Have the signals handled that are not yet; return those that are."""
    if threading.current_thread() is not threading.main_thread():
        if settings.signals:
            text = "signals are not listened to: only the main thread may do that, and the engine begins in another one (kind %s)"
            lookout.say_once("thread", text, "not-main-thread")
    else:
        for each in _process.closed:
            each.dispositions.give_back()
        _process.closed.clear()
        lookout.dispositions.take(name for name in settings.signals if f"SIG{name}" not in lookout.dispositions.names)
        _spare_children(engine, [signal.Signals[name] for name in lookout.dispositions.names])
    return lookout.dispositions.names


def _spare_children(engine: Stoppable, signums: list[signal.Signals]) -> None:
    """Leave it to this process when its workers end: those that there are, and those that are made from now on."""
    children.spare(signums)
    for env in {id(env): env for value in engine.apart.state.values() for env in _envs_of(value)}.values():
        children.spare_workers_of(env, signums)
    left = children.unspared(signums)
    if left and (supervised.folder() is None or slurm_end.in_a_job(os.environ)):
        log.warning(
            "%d worker processes were there before the engine, and are not its envs': a Ctrl-C, or a signal to all of a job, "
            "ends them before this process has saved (kind workers-not-spared). Make them after engine.resume(), or use "
            "milepost run",
            len(left),
        )


def _envs_of(value: object) -> tuple[object, ...]:
    """Return the envs of a component: those it is, or those of the training that an adapter's component is a part of."""
    captured = sys.modules.get("milepost.envs.capture")
    if captured is not None and isinstance(value, captured.Envs):
        return (value.env,)
    return tuple(getattr(getattr(value, "subject", None), "environments", ()))


def _limit(settings: Stop, engine: Stoppable, clock: Clock, stop_at_s: float | None) -> list[str]:
    """Tell the engine until when it may train, and return the names of what says so."""
    paths = []
    if _process.began_ns is None:
        _process.began_ns = clock.monotonic_ns()
    if settings.limit is not None:
        listened_s = (clock.monotonic_ns() - _process.began_ns) / 1e9
        paths.append(f"limit {settings.limit}")
        engine.stop_by(max(0.0, seconds_of(settings.limit) - listened_s), path=paths[-1], at_once=False)
    if stop_at_s is not None:
        # Turned into a length of time once: a wall clock that is set right in the night does not move the end of this run.
        paths.append(STOP_AT)
        engine.stop_by(max(0.0, stop_at_s - clock.wall_ns() / 1e9), path=STOP_AT, at_once=False)
    return paths


def _slurm_end(lookout: Lookout, listening: Listening, clock: Clock) -> list[str]:
    """Tell the engine when SLURM ends this job, as soon as that is known."""
    path = "SLURM end time"

    def tell(within_s: float) -> None:
        engine = listening.engine()
        if engine is not None:
            lookout.say_once(path, "%s: this job ends in %.0f s", path, within_s, level=logging.INFO)
            engine.stop_by(max(0.0, within_s), path=path, at_once=False)
            lookout.dispositions.poke()

    def ask() -> None:
        left_s, answer = slurm_end.asked_left_s(os.environ)
        if left_s is not None:
            tell(left_s)
        else:
            lookout.say_once(
                path, "when SLURM ends this job cannot be told (%s): its signals are listened to all the same", answer
            )

    end_ns = slurm_end.told_end_wall_ns(os.environ)
    if end_ns is None:
        lookout.notices.ask_once(ask)
    else:
        tell((end_ns - clock.wall_ns()) / 1e9)
    return [path]


def _leave_word(clock: Clock, paths: list[str]) -> None:
    """Say where this process is supervised, if it is, that it listens; and see that its failure is told there."""
    folder = supervised.folder()
    if folder is None:
        return
    if _process.dump is None:
        _process.dump = StackDump(folder)
        _process.watch = Watch(folder, clock, _step)
    leave_listening_record(folder, _process.dump, tuple(paths))


def _step() -> int:
    lookout = _process.lookout
    return max([_process.step, *(each.step for each in (lookout.ears if lookout is not None else ()))])


def _close(listening: Listening) -> None:
    _process.step = max(_process.step, listening.step)
    engine = listening.engine()
    if engine is not None:
        with _changing:  # both times: between them the thread would end what only this one can put back
            _surely(lambda: _forget(engine))


def _surely(work: Callable[[], object]) -> None:
    """Do it to its end, though a handler that was there before us may raise in the midst of it; then raise that."""
    try:
        work()
    except BaseException:
        work()
        raise


def _forget(engine: Stoppable) -> None:
    lookout = _process.lookout
    if lookout is not None:
        lookout.ears = [each for each in lookout.ears if each.engine() is not engine]
        _abandoned(lookout)


def _abandoned(lookout: Lookout) -> bool:
    """Listen no more if there is no engine to listen for, and return whether that was so.

    The handlers leave with the next signal, where they cannot now.
    """
    with _changing:
        if _process.lookout is not lookout or any(each.lives for each in lookout.ears):
            return False
        children.spare_no_more()
        if not lookout.end() and lookout not in _process.closed:
            _process.closed.append(lookout)
        _process.lookout = None
        return True


# Forks. A signal that comes to a child before it has let go would be written into the pipe that it shares with its parent, which
# would take it for its own; or be lost with the handler's flag, which a child clears. So it waits until the child is itself.

_masks = threading.local()
_forks_arranged = False


def _arrange_forks() -> None:
    global _forks_arranged
    if not _forks_arranged:
        _forks_arranged = True
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def _before_fork() -> None:
    lookout = _process.lookout
    taken = {signal.Signals[name] for name in lookout.dispositions.names} if lookout is not None else set()
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, taken)


def _after_fork() -> None:
    before: Any = _masks.__dict__.pop("before", None)
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _after_fork_in_child() -> None:
    global _process, _changing
    parents, _process, _changing = _process, _Process(), threading.RLock()
    try:
        for lookout in (parents.lookout, *parents.closed):
            if lookout is not None:
                lookout.dispositions.let_go_in_the_child()
    finally:
        _after_fork()
