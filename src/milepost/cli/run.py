"""Keep a training command running: ``run`` starts it, passes signals on, says why it ended, and starts it again."""

from __future__ import annotations

import dataclasses
import os
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from milepost.cli import document
from milepost.cli.options import Time
from milepost.clock import SystemClock
from milepost.errors import UsageError
from milepost.lifecycle.amounts import seconds_of
from milepost.lifecycle.grace import grace_here
from milepost.lifecycle.stopping import GRACE_S
from milepost.supervise.attempt import folder_of_attempts
from milepost.supervise.beating import Pulse
from milepost.supervise.hearing import Hearing
from milepost.supervise.journal import Journal
from milepost.supervise.listening_record import tell_an_outer_run
from milepost.supervise.memory import OomKills
from milepost.supervise.policy import FAILURES, Limits
from milepost.supervise.printing import Console
from milepost.supervise.requeue import MOST, requeue
from milepost.supervise.running import Bench, Outcome, Report, Request
from milepost.supervise.running import run as keep_running

_FOREVER = "Here and below -1 is without limit, and a new checkpoint gives all of it back."

backoff_option = click.option(
    "--backoff", metavar="TIME..TIME", default="5s..5m", show_default=True, help="Wait at most so long before a restart, growing."
)
requeue_option = click.option(
    "--requeue",
    "when",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="auto: in a SLURM job, ask for another start of it; everywhere, exit code 75 says so.",
)
log_option = click.option(
    "--log", type=click.Path(dir_okay=False, path_type=Path), help="Add what happens to this file, as JSON lines."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Say what happens in JSON, and print a summary as one document."
)


@click.command(
    context_settings={"allow_interspersed_args": False}, short_help="Keep a command running: signals, restarts, hangs."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--max-failures",
    type=click.IntRange(-1),
    default=None,
    help=f"Start again so often after its own faults. {_FOREVER}  [default: what the command asks for, else {FAILURES}]",
)
@click.option(
    "--max-infrastructure",
    type=click.IntRange(-1),
    default=10,
    show_default=True,
    help="So often after faults of the machine, its disks, its network, after hangs, and after a SIGKILL from outside.",
)
@click.option("--max-preemptions", type=click.IntRange(-1), default=-1, show_default=True, help="So often after preemptions.")
@backoff_option
@click.option(
    "--grace",
    metavar="TIME",
    type=Time("auto"),
    default="auto",
    help="Time to save and leave after a SIGTERM, then it is killed. [default: MILEPOST_GRACE, else 30s]",
)
@click.option(
    "--hang-after",
    metavar="TIME",
    type=Time("auto", "off"),
    default="auto",
    show_default=True,
    help="No safe point for so long is a hang; off: nothing is. auto: ten times the longest silence so far, 10m at least.",
)
@click.option("--notice", metavar="WHERE", help="Where preemption is announced: a path, a URL, ec2, gcp, azure.")
@click.option("--limit", metavar="TIME", type=Time(), help="Have it save and leave after so long.")
@requeue_option
@log_option
@json_option
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of a failure.")
def run(
    command: tuple[str, ...],
    max_failures: int | None,
    max_infrastructure: int,
    max_preemptions: int,
    backoff: str,
    grace: float | str,
    hang_after: float | str,
    notice: str | None,
    limit: float | None,
    when: str,
    log: Path | None,
    as_json: bool,
) -> int:
    """Keep a training command running: milepost run -- python train.py

    Starts COMMAND, passes SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 on to it, and starts it again when it fails or is killed, until
    it ends with 0. Each start goes on from its newest checkpoint. Failures that starting again cannot heal end it.

    Exits with the command's own code, with 128 + N where signal N ended it, with 75 where it is to be started again, with 130
    after a Ctrl-C. A second SIGTERM or Ctrl-C, more than a second later, kills all of it at once.
    """
    check_the_system()
    open_what_is_closed()
    request = Request(
        command,
        dict(os.environ),
        Limits(max_failures, max_infrastructure, max_preemptions, backoff_of(backoff)),
        _grace(grace),
        _pulse(hang_after),
        notice,
        limit,
    )
    clock, console = SystemClock(), Console()
    journal = Journal(console, clock, log, as_json=as_json)
    with Hearing(for_good=is_a_program()) as ear:
        tell_an_outer_run()
        try:
            bench = Bench(clock, ear, console, journal, folder_of_attempts("run"), OomKills().grown)
            if when == "auto":
                bench.requeue = partial(requeue, os.environ, most=MOST if max_preemptions < 0 else max_preemptions)
            outcome = keep_running(request, bench)
        finally:
            journal.close()
    if as_json:
        with suppress(OSError):  # nobody reads it: what the command ended with is said by the exit code all the same
            click.echo(document.encode("run", "", _document(outcome, command)))
    return outcome.exit_code


def check_the_system() -> None:
    """Raise `UsageError` (kind ``no-supervision``) where processes cannot be looked after."""
    if not (hasattr(os, "pidfd_open") and os.path.isdir("/proc/self")):
        raise UsageError(
            "a command cannot be supervised here: it needs process descriptors and /proc (Linux 5.3 or newer)",
            kind="no-supervision",
            hint="start it by itself; with stop=True its engine listens for signals, and a further start goes on",
        )


def open_what_is_closed() -> None:
    """Open nothing in the place of a standard stream that is closed: the next file opened would be taken for it."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing == descriptor:
                os.set_inheritable(nothing, True)  # the command has the same three
            else:
                os.dup2(nothing, descriptor)
                os.close(nothing)


def is_a_program() -> bool:
    """Return whether this process does nothing else, and ends afterwards."""
    return bool((click.get_current_context().obj or {}).get("is_a_program"))


def backoff_of(text: str) -> tuple[float, float]:
    """Return the first wait and the longest of ``5s..5m``."""
    first, dots, longest = text.partition("..")
    try:
        waits = seconds_of(first), seconds_of(longest if dots else first)
    except UsageError as error:
        hint = "a first wait and the longest, --backoff 5s..5m, or one for both, --backoff 30s"
        raise UsageError("--backoff is not a length of time", kind=error.kind, hint=hint, given=text) from error
    if waits[0] > waits[1]:
        raise UsageError("the longest wait is shorter than the first", kind="bad-setting", hint="--backoff 5s..5m", backoff=text)
    return waits


def _grace(given: float | str) -> float:
    if isinstance(given, float):
        return given
    told = grace_here(None)
    return told.grace_s if told is not None else GRACE_S


def _pulse(given: float | str) -> partial[Pulse] | None:
    return None if given == "off" else partial(Pulse, given if isinstance(given, float) else None)


def _document(outcome: Outcome, command: tuple[str, ...]) -> document.Document:
    return {
        "command": list(command),
        "exit_code": outcome.exit_code,
        "why": outcome.why,
        "attempts": [_attempt(report) for report in outcome.reports],
    }


def _attempt(report: Report) -> document.Document:
    end, cause = report.end, report.cause
    return {
        "number": report.number,
        "exit_code": end.exit_code,
        "signal": end.signal,
        "kind": cause.kind,
        "fault": cause.fault,
        "budget": cause.budget,
        "why": cause.text,
        "advice": cause.advice,
        "hung": end.hung,
        "stacks": end.stacks,
        "step": end.step,
        "published": end.published,
        "duration_s": end.duration_s,
        "action": report.decision.action,
        "wait_s": report.decision.wait_s,
        "newest": [dataclasses.asdict(each) for each in report.newest],
    }
