"""Prove a training script: ``selftest`` runs it alone, then killed and resumed, and compares bit for bit."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from milepost.cli import document
from milepost.cli.failure import FAILED, NOT_DETERMINISTIC, NOT_EXACT, NOTHING_PROVEN
from milepost.cli.options import Time
from milepost.cli.text import counted, plain, table
from milepost.clock import SystemClock
from milepost.lifecycle.divergence import Apart, Divergence
from milepost.supervise.advice import advice
from milepost.supervise.judging import Comparison, Parting
from milepost.supervise.selftest import Bench, Request, Verdict
from milepost.supervise.selftest import selftest as prove
from milepost.text import name_of

_CODES = {
    "identical": 0,
    "different": NOT_EXACT,
    "not deterministic": NOT_DETERMINISTIC,
    "nothing proven": NOTHING_PROVEN,
    "failed": FAILED,
}


@click.command(
    context_settings={"allow_interspersed_args": False}, short_help="Kill a script, resume it, and compare bit for bit."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--kills", type=click.IntRange(1, 100), default=2, show_default=True, help="Kill it so often.")
@click.option(
    "--at",
    type=click.Choice(["each", "mid-rollout", "during-save", "random"]),
    default="each",
    show_default=True,
    help="When to kill: between two saves, while one is written, each of them in turn, or at random.",
)
@click.option("--twice", is_flag=True, help="First run it alone a second time: does it do the same, if nobody disturbs it?")
@click.option("--timeout", metavar="TIME", type=Time(), default="10m", show_default=True, help="Stop a start that takes longer.")
@click.option("--here", is_flag=True, help="Run it in this directory, not in an empty one.")
@click.option("--keep", is_flag=True, help="Keep the scratch directory with all runs, and say where it is.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of a failure.")
def selftest(
    command: tuple[str, ...], kills: int, at: Any, twice: bool, timeout: float, here: bool, keep: bool, as_json: bool
) -> int:
    """Prove that a training script resumes exactly: milepost selftest -- python train.py

    Runs COMMAND alone, then again, killed with SIGKILL and started anew until it ends, and compares what both have saved.
    Works in a scratch directory (TMPDIR says where); run roots are moved there, so that your own are not touched.

    Exits with 0 if all is identical, with 20 if it is not, with 21 if the script does not even repeat itself, with 22 if
    nothing could be proven (it saves nothing, or only at its end), and with 23 if it fails by itself.
    """
    scratch = Path(tempfile.mkdtemp(prefix="milepost-selftest-"))
    request = Request(command, kills, at, twice, timeout, Path.cwd() if here else None)
    bench = Bench(scratch, SystemClock(), threading.Event().wait, lambda line: click.echo(line, err=True))
    try:
        verdict = prove(request, bench)
        if as_json:
            click.echo(document.encode("selftest", str(scratch), _document(verdict, request)))
        else:
            click.echo("\n".join(_lines(verdict, request)))
        if keep:
            click.echo(f"kept: {scratch} (run roots in alone/roots and killed/roots)", err=True)
    finally:
        if not keep:
            shutil.rmtree(scratch, ignore_errors=True)
    return _CODES[verdict.outcome]


def _document(verdict: Verdict, request: Request) -> document.Document:
    comparison = verdict.comparison
    parting = comparison.parting if comparison else None
    return {
        "command": list(request.command),
        "outcome": verdict.outcome,
        "kind": verdict.kind,
        "starts": [dataclasses.asdict(start) for start in verdict.starts],
        "compared_generations": comparison.compared if comparison else 0,
        "same_at_the_end": comparison.is_same_at_the_end if comparison else None,
        "parting": _parting(parting) if parting else None,
        "complaint": list(verdict.complaint),
        "places": list(verdict.places),
        "advice": [line.strip() for line in advice(verdict, request)],
    }


def _parting(parting: Parting) -> document.Document:
    return {
        "run_root": parting.root.original,
        "step": parting.other.step,
        "shown": _parting(parting.shown) if parting.shown else None,
        "resumed_from_step": parting.resumed_from,
        "alone": name_of(parting.one.number),
        "other": name_of(parting.other.number),
        "components": [
            {"name": apart.component, "paths": list(apart.paths), "first": dataclasses.asdict(apart.first)}
            for apart in parting.apart
        ],
    }


def _lines(verdict: Verdict, request: Request) -> Iterator[str]:
    kills = sum(start.ended == "killed" for start in verdict.starts)
    yield from _HEADS[verdict.outcome](verdict, kills)
    if verdict.comparison and verdict.comparison.parting and verdict.outcome in ("different", "not deterministic"):
        yield from _parts(verdict.comparison, "killed and resumed" if verdict.kind == "state-differs" else "the second time")
    if verdict.places:
        yield from (f"  {plain(place)}" for place in verdict.places)
    if verdict.complaint:
        yield from ("", "the end of its stderr:", *(f"  {plain(line)}" for line in verdict.complaint))
    hints = [*advice(verdict, request)]
    if hints:
        yield from ("", *(f"hint: {plain(hint)}" if not hint.startswith(" ") else f"      {plain(hint)}" for hint in hints))


def _identical(verdict: Verdict, kills: int) -> Iterator[str]:
    comparison = verdict.comparison
    assert comparison is not None
    yield f"identical: killed {counted(kills, 'time')} and resumed, it ends with the bits of the run that was left alone"
    yield f"compared: {counted(comparison.compared, 'generation')} of equal steps, every leaf but those that hold the time of day"
    yield from (f"note: not in the state, and said so: {plain(each)}" for each in comparison.missing)
    yield from (f"note: {plain(each)} was neither seeded nor drawn from; each run has its own" for each in comparison.idle)


def _different(verdict: Verdict, kills: int) -> Iterator[str]:
    if verdict.kind == "failed-after-a-kill":
        yield f"DIFFERENT: left alone it ends, killed and started again it does not ({plain(_how(verdict))})"
        return
    yield f"DIFFERENT: killed {counted(kills, 'time')} and resumed, it is not the run that was left alone"


def _undetermined(verdict: Verdict, _: int) -> Iterator[str]:
    yield "NOT DETERMINISTIC: the script does not do twice the same by itself, so nothing can be said of a resume"
    if verdict.kind == "before-any-kill":
        yield "(what it saved before it was ever killed is not what it saved when it was left alone)"


def _unproven(verdict: Verdict, _: int) -> Iterator[str]:
    why = {
        "never-saved": "it ended, and saved nothing",
        "saved-elsewhere": "it saved somewhere else:",
        "saved-only-once": "it saved only once",
        "other-roots": "not all runs saved to the same run roots:",
        "never-resumed": "it was not resumed",
        "ended-before-a-kill": "it was not killed",
        "killed-too-late": "it was killed too late",
    }
    yield f"NOTHING PROVEN: {why[verdict.kind]}"


def _failed(verdict: Verdict, _: int) -> Iterator[str]:
    yield f"FAILED by itself, before anything was proven: {plain(_how(verdict))}"


_HEADS = {
    "identical": _identical,
    "different": _different,
    "not deterministic": _undetermined,
    "nothing proven": _unproven,
    "failed": _failed,
}


def _how(verdict: Verdict) -> str:
    last = verdict.starts[-1]
    return f"stopped after {last.seconds:.0f} s" if last.ended == "timed out" else f"exit code {last.exit_code}"


def _parts(comparison: Comparison, other: str) -> Iterator[str]:
    parting = comparison.parting
    assert parting is not None
    of = f" of {plain(parting.root.original)}"
    yield (
        f"they part at step {parting.other.step:,}{of}: {name_of(parting.one.number)} alone, "
        f"{name_of(parting.other.number)} {other}"
    )
    if parting.resumed_from is not None:
        yield f"  it is the first save after it went on from step {parting.resumed_from:,}"
    if parting.steps:
        yield f"  they end at different steps: {parting.steps[0]:,} alone, {parting.steps[1]:,} {other}"
    if comparison.is_same_at_the_end:
        yield "  at the end they are the same again"
    yield ""
    shown = parting.shown or parting
    if parting.shown and parting.apart:
        yield f"  (its data is retired; from step {shown.other.step:,}, the first that is still there on both sides:)"
    for apart in shown.apart[:1]:
        yield from _first(apart.first, other)
    rows = [(plain(a.component), f"{len(a.paths):,}", plain(a.first.path), plain(_brief(a))) for a in parting.apart]
    if rows:
        yield from ("", *table(("COMPONENT", "DIFFERENT", "FIRST", "ELEMENTS"), rows, right=("DIFFERENT",)))


def _first(first: Divergence, other: str) -> Iterator[str]:
    if not first.count:
        yield f"  {plain(first.path)}: {plain(first.one or 'nothing')} alone, {plain(first.other or 'nothing')} {other}"
        return
    yield f"  {plain(first.path)}, {plain(first.one)}: {first.count:,} of {counted(first.total, 'element')} differ"
    at = f", [{', '.join(map(str, first.index))}]" if first.index else ""
    yield f"  the first{at}: {first.values[0]} alone, {first.values[1]} {other}"


def _brief(apart: Apart) -> str:
    first = apart.first
    return f"{first.count:,} of {first.total:,}" if first.count else ""
