"""Check a run: ``verify`` reads it against its own digests, says what is bad and what a resume would take."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator

import click

from milepost.cli import document
from milepost.cli.options import open_store, verb
from milepost.cli.progress import Progress
from milepost.cli.refs import name_of, numbered, resolve
from milepost.cli.text import plain, size
from milepost.clock import SystemClock
from milepost.lifecycle.verify import Problem, Report
from milepost.lifecycle.verify import verify as check
from milepost.publish import quarantine
from milepost.publish.view import View, read

CORRUPT = 13
NOTHING_VALID = 14


@verb
@click.argument("refs", nargs=-1, metavar="[REF]...")
@click.option("--quick", is_flag=True, help="Check records and sizes only; do not read the blobs.")
@click.option("--clear", is_flag=True, help="Take the quarantine mark off each generation that is found valid.")
def verify(root: str, refs: tuple[str, ...], quick: bool, clear: bool, as_json: bool) -> int:
    """Read a run (or the generations named) against its own digests. Changes nothing; may run beside training.

    Exits with 13 if anything is damaged, and with 14 if no generation is left to resume from.
    """
    if clear and quick:
        raise click.UsageError("--clear needs the whole check, without --quick")
    store = open_store(root)
    view = read(store)
    numbers = [_number(view, ref, root) for ref in refs] or None
    progress = Progress("verify", 0 if quick else _bytes_of(view, numbers), SystemClock(), sys.stderr)
    report = check(store, numbers, full=not quick, progress=progress.advance)
    progress.done()
    cleared = [r.number for r in report.generations if clear and r.state == "valid" and r.number in view.marks]
    for number in cleared:
        quarantine.clear(store, number)
    if as_json:
        click.echo(document.encode("verify", root, document.of_run(view) | _document(report, cleared)))
    else:
        click.echo("\n".join([*_lines(view, report, cleared), *_verdict(report, root, partial=numbers is not None)]))
    return _exit_code(report, partial=numbers is not None)


def _number(view: View, ref: str, root: str) -> int:
    # By its number one may also check what is not live: an unreadable manifest, say.
    number = numbered(ref)
    return resolve(view, ref, root).number if number is None else number


def _bytes_of(view: View, numbers: list[int] | None) -> int:
    wanted = view.live if numbers is None else view.live.keys() & set(numbers)
    return sum({blob.name: blob.size_bytes for number in wanted for blob in view.live[number].blobs}.values())


def _exit_code(report: Report, *, partial: bool) -> int:
    standing = any(one.state in ("valid", "damaged", "unreadable") for one in report.generations)
    if standing and report.resume_from is None and not partial:
        return NOTHING_VALID
    return 0 if report.ok else CORRUPT


def _document(report: Report, cleared: list[int]) -> document.Document:
    return {
        "ok": report.ok,
        "resume_from": report.resume_from,
        "checked_bytes": report.checked_bytes,
        "generations": [
            {"number": r.number, "name": name_of(r.number), "state": r.state, "step": r.step, "problems": _problems(r.problems)}
            for r in report.generations
        ],
        "problems": _problems(report.problems),
        "cleared": cleared,
    }


def _problems(problems: tuple[Problem, ...]) -> list[document.Document]:
    return [dataclasses.asdict(problem) for problem in problems]


def _lines(view: View, report: Report, cleared: list[int]) -> Iterator[str]:
    for one in report.generations:
        state = one.state.upper() if one.problems else one.state
        mark = view.marks.get(one.number)
        said = "mark cleared" if one.number in cleared else f"marked {mark.kind}: {plain(mark.reason)}" if mark else ""
        yield f"{name_of(one.number)}  {state}{f'  ({said})' if said else ''}"
        yield from (f"  {plain(problem)}" for problem in one.problems)
    of_generations = {problem for one in report.generations for problem in one.problems}
    yield from (plain(problem) for problem in report.problems if problem not in of_generations)


def _verdict(report: Report, root: str, *, partial: bool) -> Iterator[str]:
    counts = Counter(one.state for one in report.generations)
    counted = ", ".join(f"{count} {state}" for state, count in sorted(counts.items(), key=lambda item: -item[1]))
    yield f"{counted or 'no generations'}; {size(report.checked_bytes)} read"
    if report.undecided:
        yield "another process is claiming the run right now; whether the newest generation counts is undecided"
    if partial:
        return
    if report.resume_from is not None:
        yield f"a resume would take {name_of(report.resume_from)}"
    elif report.generations:
        yield f"no generation may be resumed from\nhint: milepost reset {plain(root)} sets the run aside for a fresh start"
