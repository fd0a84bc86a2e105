"""Strike a copy of a run on purpose, and tell what it cost: ``milepost drill kill9 --root runs/ppo -- python train.py``."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from milepost.cli.failure import FAILED, MISSED, NOT_DETERMINISTIC, NOTHING_PROVEN
from milepost.cli.options import Time
from milepost.cli.text import plain, table
from milepost.errors import UsageError

if TYPE_CHECKING:
    from milepost.cli.document import Document
    from milepost.supervise.drill import Request, Verdict
    from milepost.supervise.drill_judge import Drilled

_CODES = {
    "recovered": 0,
    "missed its bounds": MISSED,
    "not deterministic": NOT_DETERMINISTIC,
    "nothing proven": NOTHING_PROVEN,
    "failed": FAILED,
}
_DRILLS = {
    "kill9": "kill it with SIGKILL, and start it again: nothing acknowledged may be lost",
    "term": "SIGTERM: it saves within its grace, exits with 75, and loses no step when it is started again",
    "stop": "stop it with SIGSTOP, start it a second time meanwhile, let it go on: only one may write",
    "bitflip": "kill it, and flip a bit of its newest generation: it goes back to the one before, and says so",
    "diskfull": "a disk that is full for a while: it makes room or ends, and loses nothing",
}
_COUNT = click.IntRange(1, 1000)


class _Drill(click.Command):
    """Say where the options of the drilled command belong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = f"{ctx.command_path} --help; options of your own command come after --"
            raise UsageError(error.format_message(), kind="usage", hint=hint) from error


@click.command(cls=_Drill, short_help="Strike a copy of a run, and tell what is lost.")
@click.argument("drill", required=False, metavar="DRILL", type=click.Choice(list(_DRILLS)))
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]", type=click.UNPROCESSED)
@click.option("--root", "roots", multiple=True, metavar="ROOT", help="Begin from a copy of this run root. Again for several.")
@click.option("--runs", type=_COUNT, default=5, show_default=True, help="Strike so many runs, each at a moment of its own.")
@click.option(
    "--for", "for_", metavar="TIME", type=Time(), help="Train so long instead of to the end, and compare what was saved by then."
)
@click.option("--timeout", metavar="TIME", type=Time(), default="10m", show_default=True, help="Stop a start that takes longer.")
@click.option("--grace", metavar="TIME", type=Time(), default="30s", show_default=True, help="What term leaves before it kills.")
@click.option("--max-rto", metavar="TIME", type=Time(zero=True), help="Fail (17) if some run takes longer to train on again.")
@click.option("--max-rpo-steps", type=click.IntRange(0), help="Fail (17) if some run loses more steps.")
@click.option("--max-rpo", metavar="TIME", type=Time(zero=True), help="Fail (17) if some run loses more time of training.")
@click.option("--disk", metavar="DIRECTORY", help="An empty file system that diskfull may fill; else it makes one.")
@click.option("--here", is_flag=True, help="Run it in this directory, not in an empty one.")
@click.option("--keep", is_flag=True, help="Keep the scratch directory, and say where it is.")
@click.option("--html", "html_file", type=click.Path(dir_okay=False, writable=True), help="Write a page with pictures, too.")
@click.option("--list", "as_list", is_flag=True, help="Say what each drill does.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of a failure.")
def drill(drill: str | None, command: tuple[str, ...], as_list: bool, html_file: str | None, keep: bool, **options: Any) -> int:
    """Strike a copy of a run, and tell what is lost: milepost drill kill9 --root runs/ppo -- python train.py

    DRILL is kill9, term, stop, bitflip or diskfull. Runs COMMAND undisturbed, and then --runs times more, each struck once at
    a moment drawn by chance, and recovered. All of it on copies below TMPDIR: your own run roots are only read. Without a
    COMMAND a sample is drilled.

    Exits with 0 if every run recovered within the bounds, lost nothing and ended with the bits of the undisturbed one, with
    17 if not; with 21, 22, 23 as selftest does, if the command does not repeat itself, nothing could be proven, or it failed.
    """
    if as_list:
        return _list(as_json=options["as_json"])
    if drill is None:
        hint = f"milepost drill kill9, or one of {', '.join(_DRILLS)}; --list says what each does"
        raise UsageError("no drill was named", kind="no-drill", hint=hint)
    if options["disk"] and drill != "diskfull":
        raise UsageError("only diskfull fills a disk", kind="bad-setting", hint="milepost drill diskfull --disk ...", drill=drill)
    if html_file is not None:
        _check_page(Path(html_file))
    return _drill(drill, command, html_file, keep=keep, **options)


def _list(*, as_json: bool) -> int:
    if as_json:
        from milepost.cli import document

        click.echo(document.encode("drills", "", {"drills": _DRILLS}))
    else:
        click.echo("\n".join(table(("DRILL", "WHAT IT DOES"), [*_DRILLS.items()])))
    return 0


def _check_page(path: Path) -> None:
    """Say before hours of drilling that its page could not be written."""
    if not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        hint = "name a file in a directory that is there, and that you may write to: --html drill.html"
        raise UsageError("the page cannot be written there", kind="bad-page", hint=hint, html=path)


def _drill(verb: Any, command: tuple[str, ...], html_file: str | None, *, keep: bool, as_json: bool, **options: Any) -> int:
    from milepost.supervise import small_disk
    from milepost.supervise.drill_scratch import scratch

    if verb == "diskfull" and not options["disk"]:
        small_disk.enter()  # before anything that starts threads is imported
    from milepost.clock import SystemClock, draw
    from milepost.supervise.drill import drill
    from milepost.supervise.drill_run import Bench

    request = _request(verb, command, **options)
    with scratch(keep=keep) as folder, _ended_by_signals():
        clock = SystemClock()
        bench = Bench(folder, clock, threading.Event().wait, _tell, partial(draw, clock))
        verdict = drill(request, bench)
        if as_json:
            from milepost.cli import document

            click.echo(document.encode("drill", ",".join(request.roots), _document(verdict)))
        else:
            click.echo("\n".join((*_lines(verdict), *_meaning(verdict))))
        if keep:
            click.echo(f"kept: {folder}", err=True)
        if html_file is not None:
            _write_page(verdict, Path(html_file))
    return _CODES[verdict.outcome]


def _write_page(verdict: Verdict, path: Path) -> None:
    from milepost.supervise.drill_page import page

    try:
        path.write_text(page(verdict, [*_lines(verdict)], [*_meaning(verdict)]), encoding="utf-8")
    except OSError as error:
        click.echo(f"the page could not be written ({error.strerror}): {plain(str(path))}", err=True)


def _tell(line: str) -> None:
    click.echo(plain(line), err=True)


class _ended_by_signals:  # noqa: N801 - read where it is used
    """Let SIGTERM and SIGHUP end a drill as Ctrl-C does: what it has started is killed, what it has copied removed."""

    def __enter__(self) -> None:
        def interrupt(number: int, _frame: object) -> None:
            raise SystemExit(128 + number)

        self._before = {each: signal.signal(each, interrupt) for each in (signal.SIGTERM, signal.SIGHUP)}

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)


def _request(
    verb: Any,
    command: tuple[str, ...],
    *,
    roots: tuple[str, ...],
    runs: int,
    for_: float | None,
    timeout: float,
    grace: float,
    max_rto: float | None,
    max_rpo_steps: int | None,
    max_rpo: float | None,
    disk: str | None,
    here: bool,
) -> Request:
    from milepost.supervise.drill import Request
    from milepost.supervise.drill_judge import Bounds

    if roots and not command:
        hint = f"say what to run: milepost drill {verb} --root {roots[0]} -- python train.py"
        raise UsageError("a run root does not say how it is trained", kind="no-command", hint=hint)
    bounds = Bounds(max_rto, max_rpo_steps, max_rpo)
    place, given = Path.cwd() if here else None, Path(disk) if disk else None
    return Request(verb, command, roots, runs, timeout, for_, grace, place, bounds, given)


def _lines(verdict: Verdict) -> Iterator[str]:
    """Yield what is said about the whole drill."""
    runs = [run for run in verdict.runs if run.struck]
    if runs:
        yield _summary(verdict, runs)
    for name in verdict.request.bounds.missed(runs) if runs else ():
        yield f"MISSED: the bound on {name}"
    for run in runs:
        yield from (f"LOST in run {run.number}: {each}" for each in run.lost)
        yield from (f"NOT RECOVERED in run {run.number}: {each}" for each in run.problems)
        if run.end in _ENDS:
            yield f"run {run.number}: the end {_ENDS[run.end]}"
    if verdict.outcome not in ("recovered", "missed its bounds"):
        yield f"{verdict.outcome.upper()}: {_WHY[verdict.kind]}"
    yield from (f"  {plain(place)}" for place in verdict.places)
    if verdict.complaint:
        yield from ("the end of its stderr:", *(f"  {plain(line)}" for line in verdict.complaint))
    if verdict.kind in _HINTS:
        in_its_own_place = verdict.kind == "failed-by-itself" and verdict.request.here is not None
        yield f"hint: {'start it once without a drill' if in_its_own_place else _HINTS[verdict.kind]}"


def _summary(verdict: Verdict, runs: Sequence[Drilled]) -> str:
    recovered, identical = sum(run.recovered for run in runs), sum(run.end == "identical" for run in runs)
    bounds = verdict.request.bounds
    parts = [
        f"{verdict.request.verb}  {recovered}/{len(verdict.runs)} recovered",
        "RPO " + _spread([run.rpo_steps for run in runs], "steps", bounds.rpo_steps, digits=0),
        _spread([run.rpo_s for run in runs], "s", bounds.rpo_s),
        "RTO " + _spread([run.rto_s for run in runs], "s", bounds.rto_s),
        f"lost generations {sum(len(run.lost) for run in runs)}",
        f"end identical {identical}/{len(runs)}",
    ]
    return "  ".join(parts)


def _spread(values: Sequence[float | None], unit: str, bound: float | None, digits: int = 1) -> str:
    from milepost.supervise.drill_measure import middle

    known = [value for value in values if value is not None]
    if not known:
        return "not measured"
    of = f" of {len(known)}/{len(values)}" if len(known) < len(values) else ""
    limit = f" (bound {bound:,g})" if bound is not None else ""
    return f"p50 {middle(known):,.{digits}f} max {max(known):,.{digits}f} {unit}{of}{limit}"


def _meaning(verdict: Verdict) -> Iterator[str]:
    """Yield what the numbers are."""
    runs = [run for run in verdict.runs if run.struck]
    if not runs:
        return
    yield "RPO: from the generation that a run went on from, to its last safe point before it was struck; that is trained again"
    yield f"RTO: from {runs[0].since} to the first safe point at which it had trained on; nobody waits before it is started again"
    if any(run.measured_by == "generations" for run in runs):
        yield "safe points were not told, and saves were taken for them: RPO is at least that, RTO at most"
    if any(run.end == "not compared" for run in runs):
        yield "not compared: no two saves were of the same step, so nothing is said about the bits of those runs"
    if verdict.request.verb == "diskfull":
        yield "full: a file system of its own without a free block; the kernel refused, nothing was simulated"


_ENDS = {"differs": "is not that of the undisturbed run", "not reached": "was not reached"}
_WHY = {
    "failed-by-itself": "the command fails by itself, before anything was done to it",
    "timed-out": "the command takes longer than --timeout",
    "never-saved": "it ended, and saved nothing",
    "saved-elsewhere": "it saved somewhere else:",
    "another-root": "it did not go on from what was copied:",
    "never-resumed": "it began anew, although there was something to go on from",
    "at-its-end": "it went on from the copy, and trained nothing more: that run is at its end",
    "saved-only-once": "it saved only once, so there is nothing to go on from",
    "ended-before": "it ended before it could be struck, three times over",
    "nothing-to-fall-back-to": "there was never more than one generation, so there is nothing to fall back to",
    "never-compared": "after a strike no two saves were of the same step, so nothing can be said of the end",
    "before-any-strike": "it does not repeat itself: what it saved before it was struck is not what the undisturbed run saved",
}
_HINTS = {
    "failed-by-itself": "it runs in an empty directory; --here runs it in this one",
    "timed-out": "give it more time, --timeout 1h, or let it train a part only: --for 2m",
    "never-saved": "is CheckpointEngine or Checkpointing reached, and MILEPOST_ROOT passed on to it?",
    "saved-elsewhere": "something clears the environment, or has another milepost",
    "another-root": "name the root as the command does: --root runs/ppo",
    "never-resumed": 'call engine.resume(), and without which="never"',
    "at-its-end": "drill it from its beginning, without --root, or have it train for longer",
    "saved-only-once": "let it save on the way: when=every(steps=...)",
    "ended-before": "let it run longer, or save earlier",
    "nothing-to-fall-back-to": "keep more: Keep(last=5)",
    "never-compared": "without --for the ends are compared; or let it save by steps: when=every(steps=...)",
    "before-any-strike": "milepost selftest --twice says where, and what to do",
    "end-differs": "milepost selftest says where the two runs part, and what to do",
    "bound": "save more often (budget(max_loss=...)) for RPO; start and load faster for RTO",
}


def _document(verdict: Verdict) -> Document:
    runs = [dataclasses.asdict(run) | {"recovered": run.recovered} for run in verdict.runs]
    return {
        "drill": verdict.request.verb,
        "command": list(verdict.request.command),
        "outcome": verdict.outcome,
        "kind": verdict.kind,
        "undisturbed_s": verdict.undisturbed_s,
        "last_step": verdict.last_step,
        "copied": [dataclasses.asdict(each) | {"at": str(each.at)} for each in verdict.copied],
        "bounds": dataclasses.asdict(verdict.request.bounds),
        "missed_bounds": verdict.request.bounds.missed([run for run in verdict.runs if run.struck]) if verdict.runs else [],
        "runs": runs,
        "complaint": list(verdict.complaint),
        "places": list(verdict.places),
    }
