"""Load one generation into live objects. `load_into` is the story of a resume, the mirror of `milepost.engine.writer.write`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from milepost.engine.arena import Arena
from milepost.engine.capture import Copied, Staged, in_order, stage
from milepost.engine.components import is_essential
from milepost.engine.mismatch import Mismatches
from milepost.engine.reads import Reads
from milepost.errors import InternalError, NotFoundError
from milepost.records import ComponentRecord, Difference, Manifest, is_piece
from milepost.state.compare import compare
from milepost.state.inflate import check_tree, inflate
from milepost.state.late import Arrived, nothing_late
from milepost.state.restore import restore
from milepost.state.tree import Flat, LiveLeaf, no_collection
from milepost.store.base import Store

HELD_BYTES = 32 << 20
"""How much of a generation is read before the first assignment, and copied: so much more memory a resume needs for a moment."""

UNKNOWN = {"*": "unknown"}
"""What the fingerprint of a state that was made elsewhere holds, too: what else there is to compare, nobody knows of it."""

RESTAGED_BYTES = 1 << 30
"""How much of a generation is held in memory at once while it is written again."""


def check_fit(
    manifest: Manifest,
    state: Mapping[str, object],
    fingerprint: Mapping[str, str],
    mismatches: Mismatches,
    *,
    root: str,
    wanted: Collection[str] | None = None,
) -> list[str]:
    """Compare everything that can be compared, and return what is only warned about. Changes nothing.

    Raises `MismatchError` with every difference of a kind that is an error. With ``wanted`` only these components are
    compared: the others will stay as they are.
    """
    components = _component_differences(manifest, state, {*state, *names_of(manifest)} if wanted is None else wanted)
    found = [*components, *_fingerprint_differences(manifest.fingerprint, fingerprint)]
    return mismatches.judge(found, root=root, generation=manifest.number)


def names_of(manifest: Manifest) -> list[str]:
    """Return the names of a generation's components."""
    return [component.name for component in manifest.components]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Say what was loaded."""

    components: tuple[str, ...]
    read_bytes: int


def load_into(
    store: Store,
    manifest: Manifest,
    state: Mapping[str, object],
    overwritten: set[str],
    *,
    also: Collection[str] = (),
    trust_pickle: bool = False,
) -> Loaded:
    """Overwrite the live objects with a generation that `check_fit` has passed. Every byte is read once, and verified.

    What is small, above all what a run can do without, is read before the first assignment, and the components ``also``
    are read that nobody wants, so that the whole generation is known to be sound; what is large goes straight into place.
    Raises `CorruptError` if a leaf is damaged: where that was found in place, objects are half old and half new, and the
    caller must load another generation over them or stop. Which ones that may be is added to ``overwritten``, each before
    its first assignment.
    """
    done: list[str] = []
    reads = Reads(store, manifest)
    with no_collection(), reads, reads:  # twice: see there
        held = _hold(reads, manifest, state)
        for name in also:
            record = manifest.component(name)
            for leaf in record.leaves if record else ():
                reads.ask(name, leaf, None)
        reads.settle()
        # Counters and containers come in the order given; generators of random numbers last, since restoring may draw.
        for name in in_order(state):
            record = manifest.component(name)
            if record is not None:
                overwritten.add(name)
                source = held.get(name) or Source(reads, record)
                restore(state[name], record.tree, record.leaves, source, name, trust_pickle=trust_pickle)
                done.append(name)
    return Loaded(tuple(done), reads.read_bytes)


def _hold(reads: Reads, manifest: Manifest, wanted: Collection[str]) -> dict[str, Held]:
    """Have as many components as fit read into memory of their own.

    First those that a run can do without: damaged, they are to be found as they were in the live state (B8).
    """
    held: dict[str, Held] = {}
    room = HELD_BYTES
    for record in sorted(manifest.components, key=lambda record: (is_essential(record.name), _size_of(record))):
        if record.name in wanted and _size_of(record) <= room:
            room -= _size_of(record)
            held[record.name] = Held.of(reads, record)
    return held


def _size_of(record: ComponentRecord) -> int:
    return sum(leaf.size_bytes for leaf in record.leaves)


def build(store: Store, manifest: Manifest, parts: Iterable[str] | None, *, trust_pickle: bool = False) -> dict[str, object]:
    """Return components as fresh trees, only ``parts`` of them if given (B7); the others' bytes are not read."""
    wanted = names_of(manifest) if parts is None else parts
    built: dict[str, object] = {}
    with Reads(store, manifest) as reads:
        for name in wanted:
            record = manifest.component(name)
            if record is None:
                raise NotFoundError(
                    "this generation has no such component",
                    kind="no-such-component",
                    hint=f"it has {', '.join(names_of(manifest))}",
                    generation=manifest.number,
                    component=name,
                )
            built[name] = inflate(record.tree, record.leaves, Source(reads, record), trust_pickle=trust_pickle)
    return built


def restage(store: Store, manifest: Manifest, arena: Arena) -> Staged:
    """Read a generation's leaves into ``arena``, each verified, to be written again as they are: in waves, if it is large."""

    def read(leaves: Sequence[Copied], memory: memoryview) -> Arrived:
        with Reads(store, manifest) as reads:
            for leaf, start in leaves:
                component, record = leaf.value
                reads.ask(component, record, memory[start : start + leaf.size_bytes])
            reads.settle()
        return nothing_late

    flat: dict[str, Flat] = {}
    for component in manifest.components:
        leaves = [
            LiveLeaf(leaf.path, leaf.spec, leaf.size_bytes, (component.name, leaf), _not_live, is_piece(leaf.path))
            for leaf in component.leaves
        ]
        flat[component.name] = Flat(component.tree, tuple(leaves))
    return stage(flat, arena, staging_bytes=RESTAGED_BYTES, copy=read)


def _not_live(_: object, into: memoryview) -> None:
    raise InternalError("a stored leaf has no live memory", kind="not-live", size_bytes=len(into))


@dataclass(frozen=True, slots=True)
class Source:
    """Read the leaves of one component straight into place."""

    reads: Reads
    component: ComponentRecord

    def read_into(self, index: int, into: memoryview) -> None:
        """Have ``into`` filled with a leaf's bytes by the next `settle`."""
        self.reads.ask(self.component.name, self.component.leaves[index], into)

    def settle(self) -> None:
        """Return once all of them are there and verified. Raises `CorruptError` (kind ``damaged-leaf``)."""
        self.reads.settle()


@dataclass(frozen=True, slots=True)
class Held:
    """Give the leaves of one component out of memory, where they were read and verified."""

    leaves: tuple[memoryview, ...]

    @classmethod
    def of(cls, reads: Reads, record: ComponentRecord) -> Held:
        """Have the leaves read; they are there, and verified, once ``reads`` has settled."""
        room, end = memoryview(bytearray(_size_of(record))), 0
        leaves = []
        for leaf in record.leaves:
            leaves.append(room[end : end + leaf.size_bytes])
            end += leaf.size_bytes
            reads.ask(record.name, leaf, leaves[-1])
        return cls(tuple(leaves))

    def read_into(self, index: int, into: memoryview) -> None:
        """Fill ``into`` with a leaf's bytes."""
        into[:] = self.leaves[index]

    def settle(self) -> None:
        """Return at once: everything is there."""


def _component_differences(manifest: Manifest, state: Mapping[str, object], wanted: Collection[str]) -> list[Difference]:
    found: list[Difference] = []
    for name, live in state.items():
        if name not in wanted:
            continue
        record = manifest.component(name)
        if record is None:
            found.append(Difference(name, "nothing", "a component", _kind(name)))
        else:
            # All of it, before the first assignment: what is damaged further down must not be found half-way.
            check_tree(record.tree, record.leaves)
            found.extend(compare(live, record.tree, record.leaves, name))
    saved = (name for name in names_of(manifest) if name in wanted)
    found.extend(Difference(name, "a component", "nothing", _kind(name)) for name in saved if name not in state)
    return found


def _kind(name: str) -> str:
    return "missing" if is_essential(name) else "missing-optional"


def _fingerprint_differences(saved: Mapping[str, str], live: Mapping[str, str]) -> list[Difference]:
    names: Sequence[str] = sorted({*saved, *live} - UNKNOWN.keys())
    if saved.keys() >= UNKNOWN.keys():
        untold = [name for name in names if name not in saved]
        known = _fingerprint_differences({name: saved[name] for name in names if name in saved}, _only(live, saved))
        return (
            [*known, Difference("fingerprint", "unknown", f"not compared: {', '.join(untold)}", "unknown")] if untold else known
        )
    return [
        Difference(name, saved.get(name, "nothing"), live.get(name, "nothing"), name.partition("/")[0])
        for name in names
        if saved.get(name) != live.get(name)
    ]


def _only(live: Mapping[str, str], saved: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in live.items() if name in saved}
