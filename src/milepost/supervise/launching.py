"""Start the processes of a pipeline for real, each as an `Attempt`."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from milepost.clock import Clock, SystemClock
from milepost.errors import UsageError
from milepost.supervise.attempt import Attempt, Order, Tell, forget
from milepost.supervise.beating import Pulse
from milepost.supervise.causes import End
from milepost.supervise.control import CONTROL, Control
from milepost.supervise.environment import SUPERVISED, Way, environment_of
from milepost.supervise.group import Looks, Process, adopting, processes
from milepost.supervise.member import Before, Launch, NotStarted, Running
from milepost.supervise.memory import OomKills
from milepost.supervise.pipeline import Pipeline
from milepost.supervise.policy import Limits
from milepost.supervise.printing import Console, Labelled
from milepost.supervise.requeue import attempts_before
from milepost.supervise.roles import Plan, Role
from milepost.supervise.running import NO_SUCH, NOT_STARTED, Ear

_LIMITS = Limits()


@contextmanager
def launched(
    plan: Plan,
    *,
    control: Path | None = None,
    clock: Clock | None = None,
    console: Console | None = None,
    tell: Tell | None = None,
    ear: Ear | None = None,
    limits: Limits = _LIMITS,
    is_a_program: bool = False,
) -> Iterator[Pipeline]:
    """Yield a pipeline of real processes, for the main thread to `run`; when this is left, nothing of it is.

    ``control``: listen for orders at this socket, which belongs to nobody else (`ControlLock`). ``tell`` is told what
    happens, ``console`` writes what the processes say. ``is_a_program``: this process does nothing else, and reaps whatever
    ends in it. Raises `UsageError` (``bad-control``).
    """
    clock, console, tell = clock or SystemClock(), console or Console(), tell or _to_nobody
    environment = {**os.environ, **({CONTROL: str(control)} if control else {})}
    outer = os.environ.get(SUPERVISED)
    # Within that of an outer run, so that it knows whose processes these are.
    folder = Path(tempfile.mkdtemp(prefix="milepost-up-", dir=outer if outer and os.path.isdir(outer) else None))
    launcher = Launcher(
        folder,
        clock,
        console,
        tell,
        environment,
        mask=ear.before if ear is not None else (),
        memory=Memory(OomKills().grown),
        look=Looks(clock, reaps=is_a_program),
    )
    before = Before(attempts_before(os.environ), Way.given(os.environ))
    try:
        with adopting(), ExitStack() as stack:
            pipeline = Pipeline(plan, launcher, clock, tell, ear=ear, limits=limits, before=before)
            if control is not None:
                stack.callback(Control(control, pipeline.submit, clock).close)
            yield pipeline
    finally:
        forget(folder)


def _to_nobody(event: str, text: str, /, **facts: object) -> None:
    """Do nothing."""


class Memory:
    """Count OOM kills that explain no end yet: all roles share one counter, and a kill of one is not that of another."""

    def __init__(self, grown: Callable[[], int]) -> None:
        self._grown = grown
        self._explained = 0

    def unexplained(self) -> int:
        return self._grown() - self._explained

    def explain(self, end: End) -> None:
        """Note what an end was taken for."""
        self._explained += end.signal == signal.SIGKILL and end.oom_kills > 0


@dataclass(frozen=True, slots=True)
class Launcher:
    """Hold what every process of a pipeline is started with. Called by the main thread, within `adopting`."""

    folder: Path
    """In which each attempt has its own."""
    clock: Clock
    console: Console
    tell: Tell
    environment: Mapping[str, str]
    mask: Collection[int] = ()
    """Signals that are blocked in them."""
    memory: Memory = field(default_factory=lambda: Memory(lambda: 0))
    look: Callable[[], Mapping[int, Process]] = processes
    linger_s: float = 3.0

    def __call__(self, launch: Launch) -> Running:
        role, index = launch.role, str(launch.place.index)
        if not role.cwd.is_dir():
            hint = "cwd is relative to the folder of the pipeline file"
            raise UsageError("its directory is not there", kind="no-such-directory", hint=hint, role=role.name, cwd=role.cwd)
        base = {**self.environment, **launch.environment}
        order = Order(
            tuple(word.replace("{index}", index) for word in role.command),
            self.folder / f"{launch.place}-{launch.attempt}",
            environment_of(base, number=launch.attempt, grace_s=role.grace_s, way=launch.way),
            cwd=role.cwd,
            grace_s=role.grace_s,
            pulse=_pulse_of(role),
            linger_s=self.linger_s,
            mask=self.mask,
            is_alone=False,
            look=self.look,
            stdout_too=True,
        )
        output = Labelled(self.console, str(launch.place))
        try:
            attempt = Attempt(order, self.clock, self._told_of(launch), output, oom_kills=self.memory.unexplained)
        except OSError as error:
            if error.errno not in NO_SUCH:
                return NotStarted(End(NOT_STARTED, None, stderr=str(error)))
            raise UsageError(
                f"the command of role {role.name} cannot be started: {os.strerror(error.errno or 0)}",
                kind="no-such-command",
                hint="write cmd as you would at the prompt, in that directory",
                command=order.command[0],
                cwd=role.cwd,
            ) from error
        return Live(attempt, output, self.clock, self.memory)

    def _told_of(self, launch: Launch) -> Tell:
        place, attempt = launch.place, launch.attempt

        def tell(event: str, text: str, /, **facts: object) -> None:
            self.tell(event, f"{place}: {text}", role=place.role, index=place.index, **{"attempt": attempt, **facts})

        return tell


class Live:
    """Be an attempt that runs."""

    def __init__(self, attempt: Attempt, output: Labelled, clock: Clock, memory: Memory) -> None:
        self._memory = memory
        self._attempt, self._output, self._clock = attempt, output, clock
        self._kill_ns: int | None = None
        self.pid = attempt.pid

    def poll(self) -> End | None:
        if self._kill_ns is not None and self._clock.monotonic_ns() >= self._kill_ns:
            self._attempt.kill()
        end = self._attempt.poll()
        if end is not None:
            self._output.end()
            self._memory.explain(end)
            forget(self._attempt.order.folder)
        return end

    def stop(self, grace_s: float) -> None:
        if grace_s < self._attempt.order.grace_s:
            self._kill_ns = self._clock.monotonic_ns() + round(grace_s * 1e9)
        self._attempt.signal(signal.SIGTERM, then_kill=True)

    def kill(self) -> None:
        self._attempt.kill()

    def newest_generation(self) -> int:
        return sum(each.generation for each in self._attempt.beats.values())


def _pulse_of(role: Role) -> Callable[[], Pulse] | None:
    if role.hang_after == "off":
        return None
    return partial(Pulse, None if role.hang_after == "auto" else float(role.hang_after))
