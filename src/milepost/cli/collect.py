"""Make room: ``gc`` says of everything in a run whether it stays and why, and with ``--yes`` deletes the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from milepost.cli import document
from milepost.cli.options import open_store, verb
from milepost.cli.progress import progress
from milepost.cli.refs import recorded_rule
from milepost.cli.text import counted, plain, size, table
from milepost.clock import SystemClock
from milepost.lifecycle.collect import Leftover, Plan, plan_of
from milepost.lifecycle.retain import Keep, rank
from milepost.publish import layout
from milepost.publish.view import View, read
from milepost.store.base import Store
from milepost.text import name_of

if TYPE_CHECKING:
    from milepost.engine.collecting import Collected


@verb
@click.option("--keep-last", type=click.IntRange(min=1), metavar="N", help="Let only the N newest generations stay.")
@click.option("--keep-best", type=click.IntRange(min=1), metavar="K", help="And the K best ones, by what the run is judged by.")
@click.option("--by", metavar="METRIC", help="Judge by this metric instead.")
@click.option("--mode", type=click.Choice(["max", "min"]), help="Whether more or less of it is better.")
@click.option("--yes", is_flag=True, help="Do it. Without this nothing is changed.")
@click.option("--take-over", is_flag=True, help="Even from a process that is training; that process can save no more.")
def gc(
    root: str,
    keep_last: int | None,
    keep_best: int | None,
    by: str | None,
    mode: str | None,
    yes: bool,
    take_over: bool,
    as_json: bool,
) -> None:
    """Say what stays, what could go and why; with --yes delete it.

    Without --keep-last or --keep-best all stays that the run itself keeps, and only leftovers go; with --keep-last alone
    the best may go, too. The newest generation, the newest healthy one, pinned ones and what a resume would take always
    stay. A run that is being trained is left alone (exit code 11).
    """
    store = open_store(root)
    view = read(store)
    keep = _keep(view, keep_last, keep_best, by, mode)
    plan = plan_of(store, view, keep)
    if not yes:
        lines = [
            *_table(view, plan),
            *_leftovers(view, plan),
            *_offer(root, plan, keep),
            *_best_goes(view, plan),
            *_set_aside(store, root),
        ]
        click.echo(document.encode("gc", root, _document(view, plan, None)) if as_json else "\n".join(lines))
        return
    from milepost.engine.collecting import collect  # it brings numpy, which looking at a run does without

    total_bytes = view.head.total_bytes if view.head else 0
    with progress("gc", total_bytes, quiet=as_json) as shown:
        done = collect(store, SystemClock(), keep, take_over=take_over, progress=shown.advance)
    click.echo(document.encode("gc", root, _document(view, done.plan, done)) if as_json else "\n".join(_result(done)))


def _keep(view: View, last: int | None, best: int | None, by: str | None, mode: str | None) -> Keep | None:
    if best is None and (by or mode):
        raise click.UsageError("--by and --mode say what --keep-best means")
    if last is None and best is None:
        return None
    rule = recorded_rule(view)
    metric = by or (rule[0] if rule else None)
    if best is not None and metric is None:
        raise click.UsageError("the run does not say which metric decides what is best: name it with --by METRIC")
    way = mode or (rule[1] if rule and rule[0] == metric else "max")
    return Keep(last=last or 1, best=best or 0, by=metric, mode="min" if way == "min" else "max")


def _table(view: View, plan: Plan) -> Iterator[str]:
    rows = []
    for one in plan.standings:
        summary = view.listing.summaries.get(one.number)
        what = (f"{summary.step:,}", size(summary.total_bytes)) if summary else ("", "")
        rows.append((name_of(one.number), *what, "stays" if one.stays else "GOES", plain(", ".join(one.why))))
    yield from table(("GEN", "STEP", "SIZE", "", "WHY"), rows, right=("STEP", "SIZE")) if rows else ["no generation yet"]


def _leftovers(view: View, plan: Plan) -> Iterator[str]:
    if plan.leftovers:
        total = size(sum(one.size_bytes for one in plan.leftovers))
        yield f"{counted(len(plan.leftovers), 'file')} ({total}) that no generation stands on: left by saves that never counted"
        if any(one.term >= view.terms.highest for one in plan.leftovers):
            yield "  if the run is being trained right now, its process may be writing some of them"


def _offer(root: str, plan: Plan, keep: Keep | None) -> Iterator[str]:
    if plan.held_up:
        yield f"{name_of(plan.held_up)} cannot be read, and nothing as old is deleted; milepost drop {plain(root)} {plan.held_up}"
    if plan.nothing:
        yield "nothing to delete" + ("" if keep else "; --keep-last N would let older generations go")
    else:
        yield f"would free {size(plan.freed_bytes)}; nothing was changed: the same command with --yes does it"


def _best_goes(view: View, plan: Plan) -> Iterator[str]:
    """Say so where the best goes by which the run itself is judged: --keep-last alone knows nothing of it."""
    rule = recorded_rule(view)
    best = rank(view.line, *rule)[:1] if rule else ()
    if rule and best and best[0] in plan.going:
        yield f"{name_of(best[0])}, the best by {plain(rule[0])}, would go too: --keep-best 1 keeps it"


def _set_aside(store: Store, root: str) -> Iterator[str]:
    aside = store.list(layout.ASIDE)
    runs = {entry.name.split("/")[1] for entry in aside}
    if runs:
        total = size(sum(entry.size_bytes for entry in aside))
        aside_at = plain(f"{root.rstrip('/')}/reset")
        yield f"{aside_at} holds {counted(len(runs), 'run')} set aside by a reset ({total}): yours to remove by hand"


def _result(done: Collected) -> Iterator[str]:
    if done.plan.nothing:
        yield "nothing to delete; nothing was changed"
        return
    again = done.trimmed.trim_of if done.trimmed else None
    gone = ", ".join(name_of(number) for number in done.generations if number != again)
    yield f"freed {size(done.freed_bytes)} in {counted(done.files, 'file')}{f'; gone: {gone}' if gone else ''}"
    if done.trimmed is not None and again is not None:
        yield f"{name_of(again)} is called {name_of(done.trimmed.number)} now: published again, with what stays"


def _document(view: View, plan: Plan, done: Collected | None) -> document.Document:
    said: document.Document = {
        "generations": [
            {"number": one.number, "name": name_of(one.number), "stays": one.stays, "why": list(one.why)}
            for one in plan.standings
        ],
        "leftovers": [_leftover(one) for one in plan.leftovers],
        "would_free_bytes": plan.freed_bytes,
        "done": done is not None,
    }
    if done is not None:
        said |= {"freed_bytes": done.freed_bytes, "files": done.files, "gone": list(done.generations)}
        said["trimmed"] = document.of_new(done.trimmed) if done.trimmed else None
    return document.of_run(view) | said


def _leftover(one: Leftover) -> document.Document:
    return dataclasses.asdict(one)
