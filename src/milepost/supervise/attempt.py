"""Be one start of a command: started, watched, signalled, ended with all that it has started, and looked at afterwards.

Nothing here waits: whoever runs it calls `Attempt.poll` several times a second, until that returns an `End`.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from milepost.clock import Clock, utc_text
from milepost.engine import supervised
from milepost.engine.beats import Beats
from milepost.store.lock import LONGEST_DEADLINE_S
from milepost.supervise.beating import Pulse, beats_of, counts_of, trains
from milepost.supervise.causes import End
from milepost.supervise.evidence import end_of
from milepost.supervise.group import LEADERS, Group, Process, is_a_shell, is_a_tracker, is_a_writer, kill, process, processes
from milepost.supervise.listening_record import listening_among
from milepost.supervise.printing import Output, Tee
from milepost.supervise.roots import Newest, Question, older_of
from milepost.supervise.stacks import Stacks
from milepost.supervise.starting import start, status_of
from milepost.supervise.torchrun import error_file
from milepost.supervise.wording import shown
from milepost.text import name_of, name_of_signal

LOOK_S = 1.0
_STUCK_S = 30.0
_ANSWER_S = 30.0
_OUTPUT_S = 1.0


class Tell(Protocol):
    """Be told what happens: a word for programs, a line for people, and the facts."""

    def __call__(self, event: str, text: str, /, **facts: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Order:
    """Say what is to be started."""

    command: tuple[str, ...]
    folder: Path
    """Made for this attempt, and told to it (``MILEPOST_SUPERVISED``)."""
    environment: Mapping[str, str]
    """The whole of it, but for that folder: `milepost.supervise.environment.environment_of`."""
    cwd: Path | None = None
    grace_s: float = 30.0
    """How long after a signal to end it is killed."""
    pulse: Callable[[], Pulse] | None = Pulse
    """Makes what judges whether it hangs; None: nobody does."""
    linger_s: float = 3.0
    """How long what it leaves behind may take to end by itself."""
    mask: Collection[int] = ()
    """Signals that are blocked in it."""
    is_alone: bool = True
    """This process starts no other command meanwhile."""
    look: Callable[[], Mapping[int, Process]] = processes
    """Looks at all processes of the machine, now and then while it runs."""
    stdout_too: bool = False
    """What it writes to stdout goes the way of its stderr: where several commands speak, each line is to say whose it is."""


class Attempt:
    """Be one start of a command. One thread uses it, and that is the main thread: the command gets SIGTERM when it ends.

    The process is to adopt orphans meanwhile (`milepost.supervise.group.adopting`). Raises `OSError` if it cannot be started.
    """

    def __init__(
        self, order: Order, clock: Clock, tell: Tell, console: Output, *, oom_kills: Callable[[], int] = lambda: 0
    ) -> None:
        self.order, self._clock, self._tell = order, clock, tell
        order.folder.mkdir(parents=True)
        environment = {
            **order.environment,
            supervised.SUPERVISED: str(order.folder),
            **error_file(order.environment, order.folder),
        }
        self._oom_kills, self._oom_before = oom_kills, oom_kills()
        self._began, self._began_ns = utc_text(clock.wall_ns()), clock.monotonic_ns()
        self._process, reading = start(order.command, environment, order.cwd, order.mask, stdout_too=order.stdout_too)
        self.pid = self._process.pid
        LEADERS.add(self.pid)
        self._tee = self._listening(reading, console)
        self._group = Group(self.pid, order.folder, is_alone=order.is_alone)
        self._pulse = order.pulse() if order.pulse is not None else None
        self._looked_ns = self._listed_ns = self._began_ns
        self._forwarded: list[int] = []
        self._resumed: set[str] = set()
        self._read: dict[str, Beats] = {}
        self._kill_ns: int | None = None
        self._grace_s = order.grace_s
        self._killed_after_grace = self._suspect = self._hung = self._at_once = self._waits = self._is_stuck = False
        self._stacks: Stacks | None = None
        self._status: tuple[int | None, int | None] | None = None
        self._ended_ns = self._lingers_ns = 0
        self._reached: set[tuple[int, int]] = set()
        """Who was signalled behind its first process, by number and start time."""
        self._orphaned = False
        """It was we who told them to leave, since that had ended by itself."""
        self._question: Question | None = None
        self._said = -1, 0
        """How much it had said when that was looked at, and when it was more than before."""
        self._end: End | None = None

    def _listening(self, reading: int, console: Output) -> Tee:
        try:
            return Tee(reading, console)
        except RuntimeError as error:  # no room for a thread: then it is not started either
            self._process.kill()
            self._process.wait()
            LEADERS.discard(self.pid)
            os.close(reading)
            raise OSError(errno.EAGAIN, str(error)) from error

    @property
    def beats(self) -> dict[str, Beats]:
        """Return what each engine in it has said last, by a name that stays."""
        # Somebody may clear the folder away, with all that is in it: what was read before is still true.
        self._read |= beats_of(self.order.folder)
        return dict(self._read)

    @property
    def newest(self) -> tuple[Newest, ...]:
        """Return the newest generation of each root that it has named; known once `poll` has returned its end."""
        return self._question.answer if self._question is not None else ()

    def signal(self, number: int, *, within_s: float | None = None) -> None:
        """Pass a signal on to its first process alone: env workers must not die before the trainer has saved.

        ``within_s``: after that it is killed. Asked again with less, it has less.
        """
        if self._status is not None:
            return
        self._forwarded.append(number)
        self._send(number)
        there = process(self.pid)
        if there is not None and is_a_shell(there):
            self._reach(number, self._group.left() or ())
        if within_s is not None:
            self._kill_in(within_s)

    def kill(self) -> None:
        """Kill all of it at once, a writer that still publishes included."""
        self._at_once = True
        if self._status is None:
            self._strike(signal.SIGKILL)

    def poll(self) -> End | None:
        """Do what is to be done now, and return how it ended once nothing of it is left. Never blocks."""
        now_ns = self._clock.monotonic_ns()
        ahead = (self._has_ended, self._is_alone_now, self._is_answered, self._has_said_all)
        if self._end is None and all(step(now_ns) for step in ahead):
            self._end = self._over()
        return self._end

    def _send(self, number: int) -> None:
        self._strike(number)
        there = process(self.pid)
        if number != signal.SIGKILL and there is not None and there.state == "T":
            self._strike(signal.SIGCONT)  # it could not hear it, and would be killed without having saved

    def _strike(self, number: int) -> None:
        try:
            os.kill(self.pid, number)  # its number is its own until it is reaped
        except PermissionError:  # it has become somebody else: sudo, su
            text = f"{name_of_signal(number)} cannot be sent: pid {self.pid} belongs to another user now"
            self._tell("not-permitted", text, pid=self.pid, signal=number)

    def _reach(self, number: int, among: Iterable[Process]) -> list[Process]:
        """Send a signal to those that listen behind what was started, which keeps it. Return those that were not reached yet."""
        new = [each for each in listening_among(self.order.folder, among) if (each.pid, each.started) not in self._reached]
        for each in new:
            each.send(number)
        self._reached.update((each.pid, each.started) for each in new)
        return new

    def _kill_in(self, seconds: float) -> None:
        at_ns = self._clock.monotonic_ns() + round(seconds * 1e9)
        if self._kill_ns is None or at_ns < self._kill_ns:
            self._kill_ns, self._grace_s = at_ns, seconds

    def _has_ended(self, now_ns: int) -> bool:
        if self._status is None:
            self._status, self._ended_ns = status_of(self.pid), now_ns
        if self._status is None:
            self._enforce_the_grace_period(now_ns)
            if (now_ns - self._looked_ns) / 1e9 >= LOOK_S:
                self._looked_ns = now_ns
                self._look(now_ns)
        return self._status is not None

    def _enforce_the_grace_period(self, now_ns: int) -> None:
        if self._kill_ns is None or now_ns < self._kill_ns:
            return
        if not self._killed_after_grace:
            self._killed_after_grace = True
            self._tell("killed", "the grace period is over: killed", grace_s=self._grace_s)
            self._strike(signal.SIGKILL)
        elif not self._is_stuck and (now_ns - self._kill_ns) / 1e9 >= _STUCK_S:
            self._is_stuck = True
            self._tell("stuck", f"killed, and still there: pid {self.pid}; a disk or a driver holds it", pids=[self.pid])

    def _look(self, now_ns: int) -> None:
        if now_ns >= self._listed_ns:
            # Known by this look, whatever they make of themselves later. It may cost a fiftieth of the time.
            self._group.left(self.order.look())
            took_ns = self._clock.monotonic_ns() - now_ns
            self._listed_ns = now_ns + 50 * took_ns
        self._oom_kills()  # the group in which they are counted may be gone with the command
        found = beats_of(self.order.folder)
        self._read |= found
        self._tell_of(found)
        self._judge(now_ns, found)  # by what is there: of what is gone nobody knows whether it beats on

    def _tell_of(self, found: Mapping[str, Beats]) -> None:
        for name, each in found.items():
            if each.resumed and name not in self._resumed:
                self._resumed.add(name)
                text = f"went on from {name_of(each.resumed)} of {shown(each.root)}"
                self._tell("resumed", text, root=each.root, run_id=each.run_id, generation=each.resumed)

    def _judge(self, now_ns: int, found: Mapping[str, Beats]) -> None:
        if self._pulse is None or self._kill_ns is not None:
            return
        stopped = [there for pid in {self.pid, *(each.pid for each in found.values())} if (there := process(pid))]
        stands_still = any(each.state in "Tt" for each in stopped)
        life = self._pulse.look(counts_of(found), now_ns, trains=trains(found), stands_still=stands_still)
        if life in ("suspect", "hung") and not self._suspect:
            self._suspect = True
            silent = f"no safe point for {self._pulse.silent_s:.0f}s: it may hang"
            self._tell("suspect", silent, silent_s=self._pulse.silent_s, limit_s=self._pulse.limit_s)
        elif life not in ("suspect", "hung") and self._suspect:
            self._suspect, self._stacks = False, None
            self._tell("beats-again", "it was slow, and goes on")
        if life == "hung":
            self._end_a_hang(self._pulse.silent_s)

    def _end_a_hang(self, silent_s: float) -> None:
        if self._stacks is None:
            self._stacks = Stacks(self.order.folder, self.pid)
            self._tell("hung", f"no safe point for {silent_s:.0f}s: it hangs; asked where it stands", silent_s=silent_s)
        elif self._stacks.is_over:
            self._hung = True
            self._tell("stacks", self._stacks.text or "it did not say where it stands", stacks=self._stacks.text)
            self._send(signal.SIGTERM)
            self._kill_in(self.order.grace_s)

    def _is_alone_now(self, now_ns: int) -> bool:
        """Have all that it left behind end, and return whether it has: by itself, so that it can clear up, then by SIGKILL."""
        left, since_s = self._group.left(), (now_ns - self._ended_ns) / 1e9
        if not left:
            return left is not None or since_s >= _STUCK_S
        if self._at_once:
            kill(left)
        elif self._may_save(left, now_ns):
            self._lingers_ns = now_ns
            return False
        since_s = (now_ns - max(self._ended_ns, self._lingers_ns)) / 1e9
        writers = [each for each in left if is_a_writer(each)]
        others = [each for each in left if each not in writers]
        if writers and not others and not self._waits:
            self._waits = True
            self._tell("publishing", "its writer process still publishes what was staged: waited for", pid=writers[0].pid)
        if since_s >= self.order.linger_s:
            # Python's tracker unlinks the shared memory of those that were killed, and ends once they have.
            most_s = 2 * self.order.linger_s
            kill(each for each in others if since_s >= most_s or not is_a_tracker(each))
        if since_s >= LONGEST_DEADLINE_S + _STUCK_S:
            kill(writers)
        return self._give_up(left, since_s)

    def _may_save(self, left: list[Process], now_ns: int) -> bool:
        """Tell trainers that outlive what was started (a shell, a launcher) to leave, and say whether they have time for it."""
        if self._killed_after_grace or self._hung:
            return False
        new = self._reach(self._forwarded[-1] if self._forwarded else signal.SIGTERM, left)
        if new:
            pids = [each.pid for each in new]
            self._tell("orphaned", f"its first process has ended, pid {pids[0]} trains on: told to save and leave", pids=pids)
            self._orphaned = not self._forwarded
            if signal.SIGINT not in self._forwarded:
                self._kill_in(self.order.grace_s)
        return (self._kill_ns is None or now_ns < self._kill_ns) and bool(listening_among(self.order.folder, left))

    def _give_up(self, left: list[Process], since_s: float) -> bool:
        stuck_s = LONGEST_DEADLINE_S * any(map(is_a_writer, left)) + 2 * self.order.linger_s + 2 * _STUCK_S
        if since_s < stuck_s:
            return False
        pids = sorted(each.pid for each in left)
        self._tell("stuck", f"killed, and still there: pid {', '.join(map(str, pids))}; a disk or a driver holds them", pids=pids)
        return True

    def _is_answered(self, now_ns: int) -> bool:
        if self._question is None:
            found = self.beats
            self._tell_of(found)
            self._question = Question(found.values(), self._began, self._clock)
            self._looked_ns = now_ns
        return self._question.is_answered or (now_ns - self._looked_ns) / 1e9 >= _ANSWER_S

    def _has_said_all(self, now_ns: int) -> bool:
        """Wait for its last words as long as they come: nobody may read them, and somebody may hold the pipe open for ever."""
        if self._tee.passed_on != self._said[0]:
            self._said = self._tee.passed_on, now_ns
        return self._tee.is_over or (now_ns - self._said[1]) / 1e9 >= _OUTPUT_S

    def _over(self) -> End:
        LEADERS.discard(self.pid)
        self._process.wait()
        assert self._status is not None
        code, number = self._status
        seen = End(
            code,
            number,
            forwarded=tuple(self._forwarded),
            hung=self._hung,
            stacks=self._stacks.text if self._stacks is not None else "",
            killed_after_grace=self._killed_after_grace and number == signal.SIGKILL,
            oom_kills=max(0, self._oom_kills() - self._oom_before),
            stderr=self._tee.tail,
            older=older_of(self.newest),
            published=any(each.is_new for each in self.newest),
            duration_s=(self._ended_ns - self._began_ns) / 1e9,
        )
        end = end_of(self.order.folder, self.beats.values(), self.pid, seen)
        # That they have left is then no reason of the end, but what came of it.
        return replace(end, stopped=None) if self._orphaned else end


def folder_of_attempts(name: str) -> Path:
    """Return a new directory: within that of an outer run, so that it knows whose processes these are."""
    outer = supervised.folder()
    return Path(tempfile.mkdtemp(prefix=f"milepost-{name}-", dir=outer if outer and os.path.isdir(outer) else None))


def forget(folder: Path) -> None:
    """Remove what attempts have left in a folder; what cannot be removed stays."""
    # The command may have put a link in its place, to where its own files are: of that only the link goes.
    with suppress(OSError, RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
        folder.unlink()
