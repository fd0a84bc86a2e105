"""The loop of `milepost run`, with real commands and a clock and signals that the test decides."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from milepost.clock import FakeClock
from milepost.errors import UsageError
from milepost.supervise.attempt import LOOK_S, Attempt
from milepost.supervise.beating import Pulse
from milepost.supervise.group import adopting, process
from milepost.supervise.journal import Journal
from milepost.supervise.policy import Limits
from milepost.supervise.printing import Console
from milepost.supervise.running import POLL_S, Bench, Outcome, Request, run
from tests.supervise.attempts import PRELUDE, Told, is_there, order_of, until


class Ear:
    """Stand for the signals of this process: nothing is waited for but what a command takes to do something."""

    before = frozenset[int]()

    def __init__(self, clock: FakeClock, hears: Callable[[float], int | None]) -> None:
        self.clock, self.hears = clock, hears
        self.waits: list[float] = []

    def wait(self, seconds: float) -> int | None:
        if seconds == POLL_S:
            Event().wait(0.01)
        else:
            self.waits.append(seconds)
        self.clock.advance(seconds=seconds)
        return self.hears(seconds)


def kept_running(
    tmp_path: Path,
    script: str,
    *,
    hears: Callable[[float], int | None] = lambda _: None,
    told: Told | None = None,
    **settings: Any,
) -> tuple[Outcome, list[float]]:
    clock = FakeClock()
    ear, console = Ear(clock, hears), Console()
    journal = told or Journal(console, clock, None, quiet=True)
    environment = {**os.environ, "HERE": str(tmp_path)}
    command = (
        sys.executable,
        "-c",
        PRELUDE + "os.chdir(os.environ['HERE'])\nattempt = int(os.environ['MILEPOST_ATTEMPT'])\n" + script,
    )
    more = {name: settings.pop(name) for name in ("oom_kills", "requeue") if name in settings}
    request = Request(command, settings.pop("environment", environment), **settings)
    return run(request, Bench(clock, ear, console, journal, tmp_path / "supervised", **more)), ear.waits  # type: ignore[arg-type]


def test_waits_grow_from_the_first_to_the_longest(tmp_path: Path) -> None:
    limits = Limits(infrastructure=6, backoff_s=(10.0, 40.0))
    outcome, waits = kept_running(tmp_path, "os.kill(os.getpid(), 9)", limits=limits)
    assert outcome.exit_code == 137
    assert len(outcome.reports) > 4
    planned = [report.decision.wait_s for report in outcome.reports[:-1]]
    assert waits == pytest.approx(planned)
    for wait, most in zip(planned, (10.0, 20.0, 40.0, 40.0, 40.0, 40.0), strict=False):
        assert 0 <= wait <= most


def test_a_signal_ends_the_wait_and_starts_nothing_more(tmp_path: Path) -> None:
    outcome, _ = kept_running(
        tmp_path, "os.kill(os.getpid(), 9)", hears=lambda seconds: signal.SIGTERM if seconds != POLL_S else None
    )
    assert (outcome.exit_code, len(outcome.reports)) == (75, 1)
    outcome, _ = kept_running(
        tmp_path, "os.kill(os.getpid(), 9)", hears=lambda seconds: signal.SIGINT if seconds != POLL_S else None
    )
    assert (outcome.exit_code, len(outcome.reports)) == (130, 1)


def test_an_oom_kill_is_told_from_any_other(tmp_path: Path) -> None:
    kills = tmp_path / "kills"
    kills.write_text("0")
    outcome, _ = kept_running(
        tmp_path, "made('kills', str(attempt))\nos.kill(os.getpid(), 9)", oom_kills=lambda: int(kills.read_text())
    )
    assert {report.cause.kind for report in outcome.reports} == {"host-memory"}
    assert outcome.reports[0].end.oom_kills == 1


def test_what_an_outer_run_says_is_passed_on_once_and_not_for_ever(tmp_path: Path) -> None:
    # The inner one publishes between: what it was to go back to once must not take that away.
    environment = {
        **os.environ,
        "HERE": str(tmp_path),
        "MILEPOST_RESUME": "abc:3",
        "MILEPOST_SKIP": "abc:4",
        "MILEPOST_SUPERVISED": "/nowhere",
    }
    script = """
made(f"told-{attempt}", repr({k: v for k, v in os.environ.items() if k in ("MILEPOST_RESUME", "MILEPOST_SKIP", "MILEPOST_STOP")}))
if attempt == 2:
    from milepost.engine.beats import Beat
    from milepost.clock import SystemClock
    beat = Beat()
    beat.show(os.environ["MILEPOST_SUPERVISED"], "memory://elsewhere", SystemClock())
    beat.generation = 5
    beat.beat()
sys.exit(75 if attempt < 3 else 0)
"""
    outcome, _ = kept_running(tmp_path, script, environment=environment)
    assert outcome.exit_code == 0
    skip = "'MILEPOST_SKIP': 'abc:4'"
    assert skip in (tmp_path / "told-1").read_text()
    assert "'MILEPOST_RESUME': 'abc:3'" in (tmp_path / "told-1").read_text()
    assert "'MILEPOST_RESUME': 'abc:3'" in (tmp_path / "told-2").read_text()  # the first has published nothing
    assert "MILEPOST_RESUME" not in (tmp_path / "told-3").read_text()
    assert skip in (tmp_path / "told-3").read_text()


def test_a_system_without_room_for_a_process_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from milepost.supervise import attempt

    real, failures = attempt.start, [12, 11]

    def start(*arguments: Any, **more: Any) -> Any:
        if failures:
            number = failures.pop()
            raise OSError(number, os.strerror(number))
        return real(*arguments, **more)

    monkeypatch.setattr(attempt, "start", start)
    outcome, _ = kept_running(tmp_path, "sys.exit(0)")
    assert outcome.exit_code == 0
    assert [report.end.exit_code for report in outcome.reports] == [71, 71, 0]


def test_a_program_that_has_vanished_is_an_error(tmp_path: Path) -> None:
    clock = FakeClock()
    request = Request((str(tmp_path / "gone"),), dict(os.environ))
    bench = Bench(clock, Ear(clock, lambda _: None), Console(), Journal(Console(), clock, None, quiet=True), tmp_path / "s")
    with pytest.raises(UsageError) as caught:
        run(request, bench)
    assert caught.value.kind == "no-such-command"
    assert not (tmp_path / "s").exists()


BEATS = """
from milepost.engine.beats import Beat
from milepost.clock import SystemClock
beat = Beat()
beat.show(os.environ["MILEPOST_SUPERVISED"], "memory://elsewhere", SystemClock())
beat.at(1)
made("ready")
"""


@contextmanager
def watched(tmp_path: Path, script: str, limit_s: float, grace_s: float) -> Iterator[tuple[Attempt, Told, Callable[[], object]]]:
    """Start a command that beats; the last of the three looks at it a second later, by its clock."""
    clock, told = FakeClock(), Told()
    order = order_of(tmp_path, BEATS + script, pulse=lambda: Pulse(limit_s), grace_s=grace_s)
    with adopting():
        attempt = Attempt(order, clock, told, Console())

        def look() -> object:
            clock.advance(seconds=LOOK_S)
            return attempt.poll()

        try:
            until(is_there(tmp_path / "ready"))
            yield attempt, told, look
        finally:
            attempt.kill()
            until(attempt.poll, lambda: clock.advance(seconds=0.1))


def test_a_command_that_somebody_has_stopped_does_not_hang(tmp_path: Path) -> None:
    with watched(tmp_path, "wait_for_ever()", 10.0, 0.0) as (attempt, told, look):
        os.kill(attempt.pid, signal.SIGSTOP)
        until(lambda: process(attempt.pid).state == "T")  # type: ignore[union-attr]
        for _ in range(100):
            look()
        assert told.events == []
        os.kill(attempt.pid, signal.SIGCONT)
        until(lambda: process(attempt.pid).state != "T")  # type: ignore[union-attr]
        until(lambda: "suspect" in told.events, look)


def test_a_command_that_hangs_is_suspected_then_asked_and_ended(tmp_path: Path) -> None:
    with watched(tmp_path, "wait_for_ever()", 10.0, 5.0) as (attempt, told, look):
        until(look)
        end = attempt.poll()
    assert told.events == ["suspect", "hung", "stacks"]
    assert end is not None
    assert (end.hung, end.signal, end.forwarded, end.killed_after_grace) == (True, signal.SIGTERM, (), False)


def test_where_nobody_in_it_listens_py_spy_is_asked_if_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / "py-spy"
    stand_in.write_text('#!/bin/sh\necho "$@: in rollout (train.py:12)"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    with watched(tmp_path, "wait_for_ever()", 10.0, 5.0) as (attempt, _, look):
        until(look)
        end = attempt.poll()
    assert end is not None
    assert end.stacks == f"pid {attempt.pid}:\ndump --pid {attempt.pid}: in rollout (train.py:12)\n"


def test_one_that_comes_back_while_it_is_suspected_is_left_alone(tmp_path: Path) -> None:
    script = "while not Path('go').exists(): pass\nbeat.beat()\nmade('beaten')\nwait_for_ever()"
    with watched(tmp_path, script, 10.0, 5.0) as (_, told, look):
        until(lambda: "suspect" in told.events, look)
        (tmp_path / "go").touch()
        until(is_there(tmp_path / "beaten"))
        look()
        assert told.events == ["suspect", "beats-again"]


def looks(pulse: Pulse, *counts: dict[str, int], every_s: float = 1.0, at_s: float = 0.0) -> list[str]:
    return [pulse.look(each, round((at_s + number * every_s) * 1e9)) for number, each in enumerate(counts)]


def test_without_a_beat_nothing_is_judged() -> None:
    assert looks(Pulse(5.0), *[{}] * 1000) == ["unknown"] * 1000


def test_silence_is_suspect_and_some_more_of_it_a_hang() -> None:
    found = looks(Pulse(20.0), *[{"a": 1}] * 30)
    assert found == ["beating"] * 20 + ["suspect"] * 2 + ["hung"] * 8


def test_one_engine_that_beats_is_enough() -> None:
    assert set(looks(Pulse(5.0), *[{"a": 1, "b": number} for number in range(100)])) == {"beating"}


def test_time_in_which_the_supervisor_did_not_run_is_no_silence() -> None:
    pulse = Pulse(60.0)
    looks(pulse, {"a": 1}, {"a": 1})
    # The machine was asleep for a day, a minute, and another day.
    assert [pulse.look({"a": 1}, seconds * 10**9) for seconds in (86_400, 86_460, 172_800)] == ["beating"] * 3


def test_the_limit_that_nobody_gave_is_ten_times_the_longest_silence_and_ten_minutes_at_least() -> None:
    pulse = Pulse()
    looks(pulse, {"a": 1}, {"a": 2}, {"a": 3})
    assert pulse.limit_s == 600.0
    looks(pulse, *[{"a": 3}] * 301, {"a": 4}, at_s=3.0)
    assert pulse.limit_s == pytest.approx(3020.0, abs=20.0)


def test_until_it_is_known_how_far_safe_points_lie_apart_the_limit_that_nobody_gave_is_an_hour() -> None:
    pulse = Pulse()
    for beats, limit_s in ((1, 3600.0), (2, 3600.0), (3, 600.0)):
        pulse.look({"a": beats}, beats * 10**9)
        assert pulse.limit_s == limit_s


def test_a_load_or_a_save_is_given_more_time() -> None:
    pulse, given = Pulse(), Pulse(10.0)
    for each in (pulse, given):
        looks(each, {"a": 1}, {"a": 2}, {"a": 3})
        each.look({"a": 4}, 4 * 10**9, trains=False)
    assert (pulse.limit_s, given.limit_s) == (3600.0, 60.0)
    assert (pulse.look({"a": 5}, 5 * 10**9), pulse.limit_s) == ("beating", 600.0)


def test_an_engine_that_was_closed_is_no_longer_waited_for() -> None:
    pulse = Pulse(5.0)
    assert looks(pulse, {"a": 1}, {"a": 1}, {}, *[{}] * 100)[2:] == ["unknown"] * 101
    assert pulse.look({"b": 1}, 200 * 10**9) == "beating"


def test_a_job_that_is_told_to_end_while_it_waits_to_start_again_is_put_back(tmp_path: Path) -> None:
    asked: list[str] = []

    def put_back() -> str:
        asked.append("again")
        return "SLURM was asked"

    def terms(seconds: float) -> int | None:
        return None if seconds == POLL_S else signal.SIGTERM

    told = Told()
    outcome, _ = kept_running(tmp_path, "sys.exit(1)", hears=terms, told=told, requeue=put_back)
    assert (outcome.exit_code, asked) == (75, ["again"])
    assert outcome.why == "SIGTERM came before it was started again; SLURM was asked"


def test_a_ctrl_c_while_it_waits_to_start_again_puts_nothing_back(tmp_path: Path) -> None:
    def interrupts(seconds: float) -> int | None:
        return None if seconds == POLL_S else signal.SIGINT

    outcome, _ = kept_running(tmp_path, "sys.exit(1)", hears=interrupts, told=Told(), requeue=lambda: "SLURM was asked")
    assert (outcome.exit_code, outcome.why) == (130, "SIGINT came before it was started again")


def test_a_ctrl_c_that_comes_when_the_command_was_killed_already_puts_nothing_back(tmp_path: Path) -> None:
    """What it left behind is still there, so that its end is not known to the loop yet."""
    script = """
if os.fork() == 0:
    while os.getppid() == leader: pass
    made("killed")
    while not Path("heard").exists(): pass
    os._exit(0)
os.kill(os.getpid(), 9)
"""

    def interrupts(_: float) -> int | None:
        if not (tmp_path / "killed").exists():
            return None
        (tmp_path / "heard").touch()
        return signal.SIGINT

    script = "leader = os.getpid()" + script
    outcome, _ = kept_running(tmp_path, script, hears=interrupts, linger_s=1e6, requeue=lambda: "SLURM was asked")
    assert (outcome.exit_code, outcome.why, len(outcome.reports)) == (130, "it was interrupted", 1)
