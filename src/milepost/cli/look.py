"""Look at a run: ``ls`` lists its generations, ``show`` tells all about one. Both change nothing and import no numpy."""

from __future__ import annotations

from collections.abc import Iterator

import click

from milepost.cli import document
from milepost.cli.options import open_store, verb
from milepost.cli.refs import resolve
from milepost.cli.standing import state_of, states_of, tags_of
from milepost.cli.text import duration, number, plain, size, table
from milepost.clock import SystemClock, utc_text
from milepost.publish import layout
from milepost.publish.manifest import load_record
from milepost.publish.view import View, read
from milepost.records import Manifest, Summary
from milepost.text import name_of

_HEAD = ("GEN", "STEP", "AGE", "SIZE", "NEW", "STATE", "METRICS", "TAGS")
_METRICS = 3
"""How many metrics a line of ``ls`` shows; ``show`` and ``--json`` have them all."""


@verb
@click.option("-a", "--all", "everything", is_flag=True, help="Also what is void, retired or another run's.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="Only the newest N.")
def ls(root: str, everything: bool, limit: int | None, as_json: bool) -> None:
    """List the generations of a run, newest first."""
    view = read(open_store(root))
    tags = tags_of(view)
    states = states_of(view, everything=everything)
    shown = list(states.items())[:limit]
    if as_json:
        listed = [document.of_generation(view, n, state, tags.get(n, ())) for n, state in shown]
        click.echo(document.encode("generations", root, document.of_run(view) | {"generations": listed}))
        return
    now_ns = SystemClock().wall_ns()
    rows = [_row(view, n, state, tags.get(n, ()), now_ns) for n, state in shown]
    lines = table(_HEAD, rows, right=("STEP", "AGE", "SIZE", "NEW")) if rows else ["no generation has been published yet"]
    click.echo("\n".join([*lines, *_remarks(view, root, len(shown), len(states))]))


@verb
@click.argument("ref", default="latest")
@click.option("--leaves", is_flag=True, help="List every array and scalar.")
@click.option("--env", is_flag=True, help="List what must be equal for the same bits to come out.")
def show(root: str, ref: str, leaves: bool, env: bool, as_json: bool) -> None:
    """Tell all about one generation.

    That is the latest by default; else best, latest~2, @STEP, g000042.
    """
    store = open_store(root)
    view = read(store)
    chosen = resolve(view, ref, root).number
    manifest = load_record(store, layout.manifest(chosen), Manifest)
    state, tags = state_of(view, chosen), tags_of(view).get(chosen, ())
    if as_json:
        one = document.of_generation(view, chosen, state, tags) | document.of_manifest(manifest, leaves=leaves)
        click.echo(document.encode("generation", root, document.of_run(view) | {"generation": one}))
        return
    lines = [*_portrait(manifest, state, tags), *(_leaves(manifest) if leaves else ()), *(_fingerprint(manifest) if env else ())]
    click.echo("\n".join(lines))


def _row(view: View, n: int, state: str, tags: tuple[str, ...], now_ns: int) -> tuple[str, ...]:
    summary = view.listing.summaries.get(n)
    if summary is None:
        return (name_of(n), "", "", "", "", state, "", plain(" ".join(tags)))
    age = duration((now_ns - summary.commit_timestamp) / 1e9)
    sizes = size(summary.total_bytes), size(summary.new_bytes)
    return (name_of(n), f"{summary.step:,}", age, *sizes, state, _metrics(summary), plain(" ".join(tags)))


def _metrics(summary: Summary) -> str:
    names = sorted(summary.metrics, key=lambda name: (name != summary.best_by, name))
    shown = [f"{plain(name)}={number(summary.metrics[name].number)}" for name in names[:_METRICS]]
    return " ".join([*shown, *([f"+{len(names) - _METRICS}"] if len(names) > _METRICS else [])])


def _remarks(view: View, root: str, shown: int, of: int) -> Iterator[str]:
    """Yield what the table alone would leave a reader to guess."""
    hidden = len({*view.listing.summaries} - view.live.keys() - view.unreadable.keys())
    if shown < of:
        yield f"{shown} of {of} generations (newest first)"
    elif hidden and shown <= len(view.live) + len(view.unreadable):
        yield f"{hidden} more no longer count: milepost ls --all {plain(root)}"
    for n, mark in view.marks.items():
        if n not in view.live:
            continue
        yield f"{name_of(n)} is marked {mark.kind}: {plain(mark.reason)}"
    for n, why in view.unreadable.items():
        yield f"{name_of(n)} cannot be read: {plain(why)}"
    if view.undecided:
        yield "another process is claiming the run right now; whether the newest generation counts is undecided"


def _portrait(manifest: Manifest, state: str, tags: tuple[str, ...]) -> Iterator[str]:
    tag = f"  ({', '.join(tags)})" if tags else ""
    yield f"run {plain(manifest.run_id)}  generation {name_of(manifest.number)}  step {manifest.step:,}  {state}{tag}"
    yield from table(("", ""), [(name, plain(value)) for name, value in _facts(manifest) if value])
    rows = [
        (plain(c.name), size(sum(leaf.size_bytes for leaf in c.leaves)), f"{len(c.leaves):,}", c.exactness, plain(c.reason))
        for c in manifest.components
    ]
    if rows:
        yield from ("", *table(("COMPONENT", "SIZE", "LEAVES", "EXACTNESS", "REASON"), rows, right=("SIZE", "LEAVES")))
    if manifest.metrics:
        measured = [(plain(name), number(m.number), f"{m.step:,}") for name, m in sorted(manifest.metrics.items())]
        yield from ("", *table(("METRIC", "VALUE", "AT STEP"), measured, right=("VALUE", "AT STEP")))


def _facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    made = manifest.provenance
    attempt = f" (attempt {made.attempt})" if made.attempt > 1 else ""
    yield "  saved", f"{utc_text(manifest.commit_timestamp)} by pid {made.pid} on {made.host}{attempt}"
    yield "  because", manifest.reason
    trained_s = float.fromhex(manifest.elapsed_s)
    yield "  trained", duration(trained_s) if trained_s else ""
    yield "  counters", ", ".join(f"{name} {value:,}" for name, value in sorted(manifest.counters.items()))
    files = f"{len(manifest.blobs)} file{'' if len(manifest.blobs) == 1 else 's'}"
    yield "  size", f"{size(manifest.total_bytes)} in {files}, {size(manifest.new_bytes)} of it new"
    yield "  parent", _descent(manifest)
    yield "  not finite", ", ".join(manifest.nonfinite)
    yield "  code", f"git {made.git_commit}" if made.git_commit else ""
    yield "  command", made.command
    yield "  with", ", ".join(f"{name} {version}" for name, version in sorted(made.versions.items()))


def _descent(manifest: Manifest) -> str:
    parent = name_of(manifest.parent) if manifest.parent else "none: the first of the run"
    if manifest.rollback_to is None:
        return parent
    return f"{parent}, continuing from {name_of(manifest.rollback_to)}" if manifest.rollback_to else f"{parent}, started anew"


def _leaves(manifest: Manifest) -> Iterator[str]:
    rows = [
        (plain(leaf.path), plain(leaf.spec), size(leaf.size_bytes), plain(manifest.blobs[leaf.blob].name))
        for component in manifest.components
        for leaf in component.leaves
    ]
    yield from ("", *table(("LEAF", "WHAT", "SIZE", "FILE"), rows, right=("SIZE",)))


def _fingerprint(manifest: Manifest) -> Iterator[str]:
    rows = [(plain(name), plain(value)) for name, value in sorted(manifest.fingerprint.items())]
    yield from ("", *table(("FINGERPRINT", "VALUE"), rows))
