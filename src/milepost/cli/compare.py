"""Compare two generations: ``diff`` says what a run changed between them. Reads manifests only, and imports no numpy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import click

from milepost.cli import document
from milepost.cli.options import open_store, verb
from milepost.cli.refs import resolve
from milepost.cli.text import plain, size, table
from milepost.lifecycle.diff import ComponentDiff, Diff
from milepost.lifecycle.diff import diff as compare
from milepost.publish import layout
from milepost.publish.manifest import load_record
from milepost.publish.view import read
from milepost.records import Manifest
from milepost.text import name_of

DIFFERENT = 1


@verb
@click.argument("old")
@click.argument("new", default="latest")
@click.option("--other", metavar="ROOT2", type=click.Path(file_okay=False), help="Look for the second generation in this run.")
@click.option("--leaves", is_flag=True, help="List every array and value that differs.")
def diff(root: str, old: str, new: str, other: str | None, leaves: bool, as_json: bool) -> int:
    """Say what differs between two generations.

    The second is the latest by default. No data is read: manifests have the digest of every array.

    Exits with 0 if the state is the same bit for bit, and with 1 if it is not, like diff; failures say "error:" on stderr.
    """
    found = compare(_manifest(root, old), _manifest(root if other is None else other, new))
    if as_json:
        click.echo(document.encode("diff", root, {"other_root": other} | _document(found, leaves=leaves)))
    else:
        lines = [*_summary(found, one_root=other is None), *_facts(found), *(_leaves(found) if leaves else ())]
        click.echo("\n".join(lines))
    return 0 if found.same else DIFFERENT


def _manifest(root: str, ref: str) -> Manifest:
    store = open_store(root)
    return load_record(store, layout.manifest(resolve(read(store), ref, root).number), Manifest)


def _document(found: Diff, *, leaves: bool) -> document.Document:
    return {
        "same": found.same,
        "old": document.of_new(found.old),
        "new": document.of_new(found.new),
        "shared_bytes": found.shared_bytes,
        "components": [_component(component, leaves=leaves) for component in found.components],
        "facts": [dataclasses.asdict(fact) for fact in found.facts],
    }


def _component(component: ComponentDiff, *, leaves: bool) -> document.Document:
    one: document.Document = {
        "name": component.name,
        "change": component.change,
        "leaf_count": len(component.leaves),
        "changed": component.count("changed"),
        "added": component.count("added"),
        "removed": component.count("removed"),
        "changed_bytes": component.size_bytes("changed", "added", "removed"),
        "size_bytes": component.size_bytes("changed", "added", "unchanged"),
    }
    if leaves:
        one["leaves"] = [dataclasses.asdict(leaf) for leaf in component.leaves if leaf.change != "unchanged"]
    return one


def _summary(found: Diff, *, one_root: bool) -> Iterator[str]:
    old, new = name_of(found.old.number), name_of(found.new.number)
    differ = sum(component.change != "unchanged" for component in found.components)
    said = f"{differ} of {len(found.components)} components differ" if differ else "the state is the same, bit for bit"
    shared = f"; {size(found.shared_bytes)} of {size(found.new.total_bytes)} is in files of both" if one_root else ""
    yield f"{old} (step {found.old.step:,}) to {new} (step {found.new.step:,}): {said}{shared}"
    rows = [(plain(c.name), c.change, _counts(c), size(c.size_bytes("changed", "added", "removed"))) for c in found.components]
    if differ:
        yield from ("", *table(("COMPONENT", "CHANGE", "ARRAYS AND VALUES", "SIZE"), rows, right=("SIZE",)))


def _counts(component: ComponentDiff) -> str:
    if component.change == "unchanged":
        return ""
    counts = [(component.count(change), change) for change in ("changed", "added", "removed")]
    said = ", ".join(f"{count:,} {change}" for count, change in counts if count)
    return f"{said} of {len(component.leaves):,}" if said else "only how they are arranged"


def _facts(found: Diff) -> Iterator[str]:
    rows = [(plain(fact.name), plain(fact.old), plain(fact.new)) for fact in found.facts]
    if rows:
        yield from ("", *table(("NOTED", name_of(found.old.number), name_of(found.new.number)), rows))


def _leaves(found: Diff) -> Iterator[str]:
    rows = [
        (plain(leaf.path), leaf.change, plain(leaf.old), plain(leaf.new), size(leaf.size_bytes) if leaf.size_bytes else "")
        for component in found.components
        for leaf in component.leaves
        if leaf.change != "unchanged"
    ]
    if rows:
        head = ("ARRAY OR VALUE", "CHANGE", name_of(found.old.number), name_of(found.new.number), "SIZE")
        yield from ("", *table(head, rows, right=("SIZE",)))
