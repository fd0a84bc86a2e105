"""Say what differs between two generations, from their manifests alone: no blob is read, since every leaf has its digest."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.clock import utc_text
from milepost.errors import CorruptError
from milepost.records import ComponentRecord, Manifest, Node

Change: TypeAlias = Literal["added", "removed", "changed", "unchanged"]

_MANY = ("list", "tuple", "set", "frozenset")
_TEXT = 60


@dataclass(frozen=True, slots=True)
class LeafDiff:
    """Say of one array, or of one plain value in a component's tree, what became of it."""

    path: str
    change: Change
    old: str = ""
    """What it was: the kind, dtype and shape of an array, or the value; empty where there was none."""
    new: str = ""
    size_bytes: int = 0
    """Of the array in the newer one; in the older one where it was removed."""


@dataclass(frozen=True, slots=True)
class ComponentDiff:
    """Say of one component what became of it."""

    name: str
    change: Change
    leaves: tuple[LeafDiff, ...]
    """Its arrays and plain values, in order."""

    def count(self, change: Change) -> int:
        """Return how many of its leaves were ``change``."""
        return sum(leaf.change == change for leaf in self.leaves)

    def size_bytes(self, *changes: Change) -> int:
        """Return the size of those leaves."""
        return sum(leaf.size_bytes for leaf in self.leaves if leaf.change in changes)


@dataclass(frozen=True, slots=True)
class Fact:
    """Name one thing that is noted beside the state and that is not the same in both; empty where it is not there."""

    name: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Diff:
    """Say what differs between two generations."""

    old: Manifest
    new: Manifest
    components: tuple[ComponentDiff, ...]
    facts: tuple[Fact, ...]
    shared_bytes: int
    """The size of the files that both stand on; none for generations of two roots."""

    @property
    def same(self) -> bool:
        """Return whether the state is the same, bit for bit. When, where and why it was saved does not count."""
        return all(component.change == "unchanged" for component in self.components)


def diff(old: Manifest, new: Manifest) -> Diff:
    """Compare two generations."""
    names = dict.fromkeys(component.name for manifest in (old, new) for component in manifest.components)
    components = tuple(_component(name, old.component(name), new.component(name)) for name in names)
    shared = set(old.blobs) & set(new.blobs)
    return Diff(old, new, components, tuple(_facts(old, new)), sum(blob.size_bytes for blob in shared))


def _component(name: str, old: ComponentRecord | None, new: ComponentRecord | None) -> ComponentDiff:
    before, after = _leaves(old), _leaves(new)
    leaves = tuple(_leaf(path, before.get(path), after.get(path)) for path in dict.fromkeys((*before, *after)))
    if old is None or new is None:
        return ComponentDiff(name, "removed" if new is None else "added", leaves)
    # Beside leaves and values there is the order of keys, say, and which arrays are one.
    same = old.tree == new.tree and all(leaf.change == "unchanged" for leaf in leaves)
    return ComponentDiff(name, "unchanged" if same else "changed", leaves)


@dataclass(frozen=True, slots=True)
class _Leaf:
    text: str
    digest: str
    size_bytes: int = 0


def _leaf(path: str, old: _Leaf | None, new: _Leaf | None) -> LeafDiff:
    if old is None or new is None:
        there = old or new
        assert there is not None
        change: Change = "removed" if new is None else "added"
        return LeafDiff(path, change, old.text if old else "", new.text if new else "", there.size_bytes)
    return LeafDiff(path, "unchanged" if old == new else "changed", old.text, new.text, new.size_bytes)


def _leaves(component: ComponentRecord | None) -> dict[str, _Leaf]:
    """Return a component's arrays and plain values by path. Paths are for people and may repeat: then they are numbered."""
    found: dict[str, _Leaf] = {}
    seen: Counter[str] = Counter()
    for path, leaf in _all(component) if component else ():
        seen[path] += 1
        found[path if seen[path] == 1 else f"{path} ({seen[path]})"] = leaf
    return found


def _all(component: ComponentRecord) -> Iterator[tuple[str, _Leaf]]:
    yield from ((leaf.path, _Leaf(str(leaf.spec), leaf.digest, leaf.size_bytes)) for leaf in component.leaves)
    try:
        for path, node in _values(component.tree, component.name):
            yield path, _Leaf(text_of(node), repr(node))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, struct.error) as error:
        # Sealed does not mean sane.
        raise CorruptError("a manifest holds no tree of values", kind="damaged-record", component=component.name) from error


def _values(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Yield the plain values in a tree with their paths; a loop and not a recursion: trees of files may be deep."""
    pending: list[tuple[str, Node]] = [(path, node)]
    while pending:
        path, node = pending.pop()
        tag = node[0]
        if tag in _MANY or tag == "deque":
            inner = [(f"{path}/{index}", each) for index, each in enumerate(node[-1])]
        elif tag in ("dict", "ordered-dict"):
            inner = [(f"{path}/{key if isinstance(key, str) else text_of(key)}", each) for key, each in node[1]]
        elif tag in ("object", "stateful"):
            inner = [(path, node[-1])]
        else:
            inner = []
            if tag != "array":
                yield path, node
        pending += reversed(inner)


def text_of(node: Node) -> str:
    """Return a plain value of a stored tree for people, shortened."""
    tag, rest = node[0], node[1:]
    if tag == "float":
        return repr(struct.unpack(">d", bytes.fromhex(rest[0]))[0])
    if tag == "rows":
        return f"{rest[1]:,} rows written, room for {rest[0]:,}"
    if tag == "items":
        return f"items {rest[0]:,} to {rest[1]:,}"
    text = str(rest[0]) if tag in ("int", "bool") and rest else tag if not rest else f"{tag} {' '.join(map(str, rest))}"
    text = repr(rest[0]) if tag == "str" else text
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"


def _facts(old: Manifest, new: Manifest) -> Iterator[Fact]:
    before, after = _noted(old), _noted(new)
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield Fact(name, before.get(name, ""), after.get(name, ""))


def _noted(manifest: Manifest) -> Mapping[str, str]:
    """Return what is noted beside the state, by name."""
    made = manifest.provenance
    noted = {
        "step": f"{manifest.step:,}",
        "saved": utc_text(manifest.commit_timestamp),
        "because": manifest.reason,
        "complete": "" if manifest.complete else "no",
        "healthy": "" if manifest.healthy else "no",
        **{f"counters/{name}": f"{count:,}" for name, count in sorted(manifest.counters.items())},
        **{f"metrics/{name}": repr(metric.number) for name, metric in sorted(manifest.metrics.items())},
        "run": manifest.run_id,
        "host": made.host,
        "pid": str(made.pid),
        "attempt": str(made.attempt),
        "command": made.command,
        "code": made.git_commit,
        **{f"with/{name}": version for name, version in sorted(made.versions.items())},
        **{f"fingerprint/{name}": value for name, value in sorted(manifest.fingerprint.items())},
        **{f"exactness/{c.name}": c.exactness + (f" ({c.reason})" if c.reason else "") for c in manifest.components},
    }
    return {name: value for name, value in noted.items() if value}
