"""Find what rots: ``scrub`` reads a run's data again, slowly, and goes on where the last one ended."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator

import click

from milepost.cli import document
from milepost.cli.check import CORRUPT
from milepost.cli.options import open_store, verb
from milepost.cli.progress import progress
from milepost.cli.text import counted, plain, size
from milepost.clock import SystemClock
from milepost.lifecycle.amounts import bytes_of, seconds_of
from milepost.lifecycle.scrub import Pace, Scrub, ScrubReport
from milepost.text import name_of


@verb
@click.option("--rate", metavar="SIZE", default="50M", show_default=True, help="Read no more than this in a second.")
@click.option("--older-than", metavar="AGE", default="0", help="Leave out what a scrub found sound within this time, like 7d.")
def scrub(root: str, rate: str, older_than: str, as_json: bool) -> int:
    """Read a run's data again, slowly, to find what rots.

    What was not read for longest comes first, at a bounded rate. Needs no claim and may run beside training. Interrupted,
    the next one goes on from there. Exits with 13 if anything is damaged.
    """
    clock = SystemClock()
    bytes_s, age_s = bytes_of(rate), seconds_of(older_than)
    work = Scrub(open_store(root), clock, older_than_s=age_s)
    pace = Pace(bytes_s, clock, threading.Event().wait)
    with progress("scrub", work.due_bytes, quiet=as_json) as shown:

        def let_through(size_bytes: int) -> None:
            shown.advance(size_bytes)
            pace.spend(size_bytes)

        report = work.run(let_through, piece_bytes=pace.piece_bytes)
    if as_json:
        click.echo(document.encode("scrub", root, _document(report)))
    else:
        click.echo("\n".join(_lines(report, root, older_than)))
    return 0 if report.ok else CORRUPT


def _document(report: ScrubReport) -> document.Document:
    return {
        "ok": report.ok,
        "files_read": report.blobs_read,
        "read_bytes": report.read_bytes,
        "files_left_out": report.recent,
        "problems": [dataclasses.asdict(problem) for problem in report.problems],
        "not_remembered_because": report.not_remembered or None,
    }


def _lines(report: ScrubReport, root: str, older_than: str) -> Iterator[str]:
    for problem in report.problems:
        hit = plain("; ".join((", ".join(problem.components), *problem.told_rows))) or "no component: only its header is hit"
        yield f"{name_of(problem.generation or 0)}  {plain(problem.name)} ({hit}): {plain(problem.problem)}"
    left_out = f"; {report.recent} left out: found sound within {plain(older_than)}" if report.recent else ""
    found = "all sound" if report.ok else f"{len({problem.name for problem in report.problems})} DAMAGED"
    files = f"{counted(report.blobs_read, 'file')} ({size(report.read_bytes)})"
    yield f"{files} read: {found}{left_out}" if report.blobs_read else f"nothing to read{left_out}"
    if report.not_remembered:
        yield f"the next scrub begins from the start: what was read could not be noted ({plain(report.not_remembered)})"
    if not report.ok:
        yield f"hint: milepost verify {plain(root)} says what a resume would take; a running engine should save soon"
