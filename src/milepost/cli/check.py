"""Check a run: ``verify`` reads it against its own digests, says what is bad and what a resume would take."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import click

from milepost.cli import document
from milepost.cli.options import open_store, verb
from milepost.cli.progress import progress
from milepost.cli.refs import numbered, resolve
from milepost.cli.text import plain, size
from milepost.clock import SystemClock
from milepost.lifecycle import subset
from milepost.lifecycle.verify import GenerationReport, Problem, Report, blobs_of
from milepost.lifecycle.verify import verify as check
from milepost.publish import quarantine
from milepost.publish.view import View, read
from milepost.text import name_of

CORRUPT = 13
NOTHING_VALID = 14
FAILED = 1


@verb
@click.argument("refs", nargs=-1, metavar="[REF]...")
@click.option("--full", is_flag=True, help="Read every byte. This is what happens unless you say otherwise.")
@click.option("--quick", is_flag=True, help="Check records and sizes only; do not read the blobs.")
@click.option(
    "--read-data-subset", "part", metavar="SPEC", help="Read only a part of the blobs: 3/10 (the third tenth), 5% at random, 2G."
)
@click.option("--clear", is_flag=True, help="Take the quarantine mark off each generation that is found valid.")
def verify(root: str, refs: tuple[str, ...], full: bool, quick: bool, part: str | None, clear: bool, as_json: bool) -> int:
    """Read a run (or the generations named) against its own digests. Changes nothing; may run beside training.

    Exits with 13 if anything is damaged, with 14 if no generation is left to resume from, and with 1 if the disk or the network
    failed at some file, so that nothing is known of it.
    """
    if sum((full, quick, part is not None)) > 1:
        raise click.UsageError("--full, --quick and --read-data-subset exclude each other")
    if clear and (quick or part):
        raise click.UsageError("--clear needs the whole check: every byte read")
    store = open_store(root)
    view = read(store)
    numbers = [_number(view, ref, root) for ref in refs] or None
    wanted = blobs_of(view.live[number] for number in view.live if numbers is None or number in numbers)
    chosen = subset.parse(part, SystemClock()) if part else None
    names = chosen.choose(wanted) if chosen else {blob.name for blob in wanted if not quick}
    total_bytes = sum(blob.size_bytes for blob in wanted if blob.name in names)
    with progress("verify", total_bytes, quiet=as_json) as shown:
        report = check(store, numbers, full=not quick, subset=chosen, spare=_spare, progress=shown.advance)
    cleared = [r.number for r in report.generations if clear and r.state == "valid" and r.number in view.marks]
    for number in cleared:
        quarantine.clear(store, number)
    if as_json:
        click.echo(document.encode("verify", root, document.of_run(view) | _document(report, cleared)))
    else:
        click.echo("\n".join([*_lines(view, report, cleared), *_verdict(view, report, root, partial=numbers is not None)]))
    return _exit_code(report, partial=numbers is not None)


def _spare(component: str) -> bool:
    from milepost.engine.components import is_essential  # it brings numpy; and it is asked for only where nothing is whole

    return not is_essential(component)


def _number(view: View, ref: str, root: str) -> int:
    # By its number one may also check what is not live: an unreadable manifest, say.
    number = numbered(ref)
    return resolve(view, ref, root).number if number is None else number


def _exit_code(report: Report, *, partial: bool) -> int:
    standing = any(one.state in ("valid", "damaged", "unreadable") for one in report.generations)
    unread = {problem for one in report.generations if one.state == "unread" for problem in one.problems}
    if standing and report.resume_from is None and not partial and not unread:
        return NOTHING_VALID
    return CORRUPT if set(report.problems) - unread else FAILED if unread else 0


def _document(report: Report, cleared: list[int]) -> document.Document:
    return {
        "ok": report.ok,
        "resume_from": report.resume_from,
        "resume_without": list(report.resume_without),
        "checked_bytes": report.checked_bytes,
        "data_bytes": report.data_bytes,
        "data_read_bytes": report.data_read_bytes,
        "subset": str(report.subset) if report.subset else None,
        "generations": [
            {
                "number": r.number,
                "name": name_of(r.number),
                "state": r.state,
                "step": r.step,
                "problems": _problems(r.problems),
                "sound_components": list(r.sound),
                "damaged_components": list(r.damaged),
            }
            for r in report.generations
        ],
        "problems": _problems(report.problems),
        "torn": _problems(report.torn),
        "cleared": cleared,
    }


def _problems(problems: tuple[Problem, ...]) -> list[document.Document]:
    return [dataclasses.asdict(problem) for problem in problems]


def _lines(view: View, report: Report, cleared: list[int]) -> Iterator[str]:
    for one in report.generations:
        state = one.state.upper() if one.problems else one.state
        mark = view.marks.get(one.number)
        said = "mark cleared" if one.number in cleared else f"marked {mark.kind}: {plain(mark.reason)}" if mark else ""
        yield f"{name_of(one.number)}  {state}{_parts(one)}{f'  ({said})' if said else ''}"
        yield from (f"  {plain(problem)}" for problem in one.problems)
    of_generations = {problem for one in report.generations for problem in one.problems}
    yield from (plain(problem) for problem in report.problems if problem not in of_generations)


def _parts(one: GenerationReport) -> str:
    if one.state != "damaged":
        return ""
    if not one.damaged:
        return ": every component is sound; the damage is in a file's header, where no component's bytes are"
    sound = f"{plain(', '.join(one.sound))} sound; " if one.sound else ""
    return f": {sound}{plain(', '.join(one.damaged))} DAMAGED"


def _verdict(view: View, report: Report, root: str, *, partial: bool) -> Iterator[str]:
    counts = Counter(one.state for one in report.generations)
    counted = ", ".join(f"{count} {state}" for state, count in sorted(counts.items(), key=lambda item: -item[1]))
    yield f"{counted or 'no generations'}; {_read(report)}"
    yield from (f"note: {plain(problem)}" for problem in report.torn)
    if report.lost:
        yield (
            f"LATEST tells of {name_of(report.lost)}, which is not here: it was removed, "
            "or this is a copy that was begun before it was saved (then copy once more)"
        )
    if report.undecided:
        yield "another process is claiming the run right now; whether the newest generation counts is undecided"
    if partial:
        return
    if report.resume_from is not None:
        without = f" without {plain(', '.join(report.resume_without))}" if report.resume_without else ""
        yield f"a resume would take {name_of(report.resume_from)}{without}"
    elif report.unread:
        yield (
            f"{name_of(max(report.unread))} cannot be read now, and a resume stops at it\n"
            f"hint: mend the disk, or go around it: milepost rollback {plain(root)} to one that is valid"
        )
    elif report.generations:
        yield "no generation may be resumed from"
        # What a rollback or a fresh start left behind is resumed from by nobody, and may be sound.
        valid = [view.live[one.number] for one in report.generations if one.state == "valid" and one.number in view.live]
        left_behind = [one.number for one in valid if one.healthy and one.number not in view.line]
        back = (
            f"milepost rollback {plain(root)} {name_of(max(left_behind))} goes back to one that is sound; " if left_behind else ""
        )
        yield f"hint: {back}milepost reset {plain(root)} sets the run aside for a fresh start"


def _read(report: Report) -> str:
    if report.data_read_bytes == report.data_bytes:
        return f"{size(report.checked_bytes)} read"
    if report.subset is None:
        return f"none of its {size(report.data_bytes)} of data was read, only records and the sizes of files"
    part = f"{size(report.data_read_bytes)} of {size(report.data_bytes)} of data was read ({report.subset})"
    return f"{part}; of the rest only the sizes of files were checked"
