"""Run a pipeline of several roles (``up``), see what runs (``roles``), and have some of it started again (``restart``)."""

from __future__ import annotations

import dataclasses
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from milepost.cli import document
from milepost.cli.options import Time
from milepost.cli.run import (
    backoff_of,
    backoff_option,
    check_the_system,
    is_a_program,
    json_option,
    log_option,
    open_what_is_closed,
    requeue_option,
)
from milepost.cli.text import counted, plain, table
from milepost.clock import SystemClock
from milepost.errors import UsageError
from milepost.lifecycle.stopping import EXIT_CODE
from milepost.supervise.control import CONTROL, ControlLock, ask, error_of
from milepost.supervise.hearing import Hearing
from milepost.supervise.journal import Journal
from milepost.supervise.launching import launched
from milepost.supervise.listening_record import tell_an_outer_run
from milepost.supervise.orders import Look, Order, RestartAll, RestartRole, RestartWorker
from milepost.supervise.pipeline import PipelineEnd
from milepost.supervise.policy import Limits
from milepost.supervise.printing import Console
from milepost.supervise.requeue import requeue
from milepost.supervise.rolefile import read_plan
from milepost.supervise.roles import Plan, Role

_FILE = "pipeline.toml"
_LINES = 12

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
_verbose = click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of a failure.")
_control = click.option(
    "--control",
    type=click.Path(path_type=Path),
    help=f"Its socket, or its file. Else {CONTROL}, else that of {_FILE} in this directory.",
)


@click.command(short_help="Run the roles of a pipeline, and what falls again.")
@click.argument("pipeline", type=click.Path(path_type=Path), default=_FILE)
@click.option("--check", is_flag=True, help="Read the file, show in which order roles start and how they end, start nothing.")
@click.option("--control", type=click.Path(path_type=Path), help="Take orders at this socket. Else at the file's name + .sock.")
@backoff_option
@log_option
@json_option
@requeue_option
@_verbose
def up(pipeline: Path, check: bool, control: Path | None, backoff: str, log: Path | None, as_json: bool, when: str) -> int:
    """Run the roles of a pipeline: milepost up pipeline.toml

    Starts each role after those that it depends on, starts again what ends too early, by each role's own rule, and takes
    orders of others (milepost restart). SIGTERM and Ctrl-C end all of it in good order, whoever relies on others first.

    Exits with 0 once every role is done, with 75 if it was stopped and has saved, with 130 after a Ctrl-C, with 143 after
    another signal where nothing asked to go on, and with the code of the process for which it gave up.
    """
    plan = read_plan(pipeline)
    if check:
        click.echo(document.encode("pipeline", "", _plan(plan, pipeline)) if as_json else "\n".join(_roles(plan)))
        return 0
    check_the_system()
    open_what_is_closed()
    path = Path(os.path.abspath(control or f"{pipeline}.sock"))
    clock, console = SystemClock(), Console()
    with ControlLock(path, clock), Hearing(for_good=is_a_program()) as ear:
        tell_an_outer_run()
        journal = Journal(console, clock, log, as_json=as_json, name="up")
        try:
            limits = Limits(backoff_s=backoff_of(backoff))
            with launched(
                plan,
                control=path,
                clock=clock,
                console=console,
                tell=journal,
                ear=ear,
                limits=limits,
                is_a_program=is_a_program(),
            ) as there:
                journal("up", f"{_summary(plan)}; orders: {path}", control=str(path))
                end = there.run()
            _tell(end, journal)
            if end.exit_code == EXIT_CODE and when == "auto" and (said := requeue(os.environ)):
                journal("requeue", said)
        finally:
            journal.close()
    if as_json:
        with suppress(OSError):  # nobody reads it: the exit code says how it ended all the same
            click.echo(document.encode("up", "", _end(end, pipeline)))
    if end.error is not None:
        raise end.error
    return end.exit_code


def _tell(end: PipelineEnd, journal: Journal) -> None:
    for line in end.stderr.splitlines()[-_LINES:]:
        journal("stderr", f"  {line}")
    journal("over", f"exit code {end.exit_code} after {counted(end.starts, 'start')}: {end.why}", exit_code=end.exit_code)


@click.command(short_help="Have a role of a running pipeline, or a part, started again.")
@click.argument("what")
@click.argument("index", type=click.IntRange(0), required=False)
@_control
@click.option("--attempt", type=click.IntRange(0), help="Only if this attempt still runs (MILEPOST_ATTEMPT).")
@click.option("--now", is_flag=True, help="Kill it at once; else it has its grace period to save.")
@click.option("--why", default="", help="The reason, for the log.")
@click.option("--key", help="Given again with the same key, it is done once.")
@click.option(
    "--timeout", metavar="TIME", type=Time(), default="10m", show_default=True, help="Wait so long for it to be carried out."
)
@_json
@_verbose
def restart(
    what: str,
    index: int | None,
    control: Path | None,
    attempt: int | None,
    now: bool,
    why: str,
    key: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Have part of a running pipeline started again: milepost restart sampler 3

    WHAT is a role, or all. With INDEX it is that process alone (of ranks all of them: none can come back alone). Returns when
    it was started again and is ready.
    """
    order = _order(what, index, attempt, now, why[:1000])
    answer = _asked(_control_of(control), order, key or SystemClock().nonce(), timeout)
    if as_json:
        click.echo(document.encode("restart", "", {name: answer[name] for name in ("key", "outcome", "standings")}))
        return 0
    said = {"restarted": "restarted", "already": "had been started again already"}[answer["outcome"]]
    for each in answer["standings"]:
        click.echo(f"{each['role']}.{each['index']}: {said} (pid {each['pid']}, attempt {each['attempt']})")
    return 0


@click.command(short_help="Show the processes of a running pipeline.")
@_control
@_json
@_verbose
def roles(control: Path | None, as_json: bool) -> int:
    """Show the processes of a running pipeline."""
    answer = _asked(_control_of(control), Look(), "", 60.0)
    if as_json:
        click.echo(document.encode("roles", "", {"processes": answer["standings"]}))
        return 0
    rows = [
        (f"{each['role']}.{each['index']}", each["standing"], str(each["pid"] or ""), str(each["attempt"]), plain(each["why"]))
        for each in answer["standings"]
    ]
    click.echo("\n".join(table(("PROCESS", "STANDING", "PID", "ATTEMPT", "WHY"), rows, right=("PID", "ATTEMPT"))))
    return 0


def _order(what: str, index: int | None, attempt: int | None, now: bool, why: str) -> Order:
    if what == "all":
        if index is not None or attempt is not None:
            raise UsageError("all has no index and no attempt", kind="bad-order", hint="milepost restart all")
        return RestartAll(now, why)
    return RestartRole(what, attempt, now, why) if index is None else RestartWorker(what, index, attempt, now, why)


def _asked(control: Path, order: Order, key: str, timeout_s: float) -> dict[str, Any]:
    answer = ask(control, order, key, timeout_s)
    if not answer.get("ok"):
        raise error_of(answer)
    return answer


def _control_of(given: Path | None) -> Path:
    path = given or Path(os.environ.get(CONTROL) or f"{_FILE}.sock")
    return path.with_name(f"{path.name}.sock") if path.suffix == ".toml" else path


def _summary(plan: Plan) -> str:
    named = ", ".join(f"{role.name} x{role.count}" if role.count > 1 else role.name for role in plan.roles)
    return f"{named}; an orderly end takes up to {_longest_end_s(plan):g} s"


def _longest_end_s(plan: Plan) -> float:
    """Return the sum of the grace periods along the longest chain: a platform is to wait that long before it kills."""
    longest: dict[str, float] = {}
    for role in plan.roles:
        longest[role.name] = role.grace_s + max((longest[name] for name in role.depends_on), default=0.0)
    return max(longest.values(), default=0.0)


def _roles(plan: Plan) -> list[str]:
    head = ("ROLE", "PROCESSES", "RESTART", "DEPENDS ON", "UNTIL", "READY", "GRACE", "COMMAND")
    rows = [
        (
            role.name,
            f"{role.count} ranks" if role.is_ranks else str(role.count),
            role.restart,
            " ".join(role.depends_on),
            " ".join(role.until),
            plain(role.ready or ""),
            f"{role.grace_s:g}s",
            plain(" ".join(role.command)),
        )
        for role in plan.roles
    ]
    return [*table(head, rows), f"an orderly end takes up to {_longest_end_s(plan):g} s"]


def _plan(plan: Plan, path: Path) -> document.Document:
    return {"pipeline": str(path), "orderly_end_s": _longest_end_s(plan), "roles": [_role(role) for role in plan.roles]}


def _role(role: Role) -> document.Document:
    return {
        "name": role.name,
        "command": list(role.command),
        "cwd": str(role.cwd),
        "processes": role.count,
        "ranks": role.is_ranks,
        "restart": role.restart,
        "depends_on": list(role.depends_on),
        "until": list(role.until),
        "ready": str(role.ready) if role.ready else None,
        "grace_s": role.grace_s,
    }


def _end(end: PipelineEnd, path: Path) -> document.Document:
    return {
        "pipeline": str(path),
        "exit_code": end.exit_code,
        "why": end.why,
        "starts": end.starts,
        "processes": [dataclasses.asdict(each) for each in end.standings],
    }
