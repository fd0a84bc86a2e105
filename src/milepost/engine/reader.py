"""Load one generation into live objects. `load_into` is the story of a resume, the mirror of `milepost.engine.writer.write`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from milepost.encode.digest import matches
from milepost.engine.arena import ALIGNMENT, Arena
from milepost.engine.capture import Staged, StagedComponent, StagedLeaf, in_order
from milepost.engine.components import is_essential
from milepost.engine.mismatch import Mismatches
from milepost.errors import CorruptError, NotFoundError
from milepost.records import ComponentRecord, Difference, LeafRecord, Manifest
from milepost.state.compare import compare
from milepost.state.inflate import check_tree, inflate
from milepost.state.restore import restore
from milepost.store.base import Store


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


def load_into(
    store: Store, manifest: Manifest, state: Mapping[str, object], overwritten: set[str], *, trust_pickle: bool = False
) -> tuple[str, ...]:
    """Overwrite the live objects with a generation that `check_fit` has passed, and return the components restored.

    Each leaf's digest is verified while its bytes go where they belong. Raises `CorruptError` if one is damaged: objects
    are then half old and half new, and the caller must load another generation over them or stop. Which ones that may be
    is added to ``overwritten``, each before its first assignment.
    """
    done: list[str] = []
    # Counters and containers come in the order given; generators of random numbers last, since restoring may draw.
    for name in in_order(state):
        record = manifest.component(name)
        if record is not None:
            overwritten.add(name)
            restore(state[name], record.tree, record.leaves, Source(store, manifest, record), name, trust_pickle=trust_pickle)
            done.append(name)
    return tuple(done)


def build(store: Store, manifest: Manifest, parts: Iterable[str] | None, *, trust_pickle: bool = False) -> dict[str, object]:
    """Return components as fresh trees, only ``parts`` of them if given (B7); the others' bytes are not read."""
    wanted = names_of(manifest) if parts is None else parts
    built: dict[str, object] = {}
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
        built[name] = inflate(record.tree, record.leaves, Source(store, manifest, record), trust_pickle=trust_pickle)
    return built


def restage(store: Store, manifest: Manifest, arena: Arena) -> Staged:
    """Read a generation's leaves into ``arena``, each verified, to be written again as they are."""
    arena.reserve(sum(leaf.size_bytes + ALIGNMENT for component in manifest.components for leaf in component.leaves))
    components: list[StagedComponent] = []
    for component in manifest.components:
        source, leaves = Source(store, manifest, component), []
        for index, leaf in enumerate(component.leaves):
            data = arena.take(leaf.size_bytes)
            source.read_into(index, data)
            leaves.append(StagedLeaf(leaf.path, leaf.spec, data))
        components.append(StagedComponent(component.name, component.tree, tuple(leaves)))
    return Staged(tuple(components))


@dataclass(frozen=True, slots=True)
class Source:
    """Read and verify the leaves of one component."""

    store: Store
    manifest: Manifest
    component: ComponentRecord

    def read_into(self, index: int, into: memoryview) -> None:
        """Fill ``into`` with a leaf's bytes. What looks damaged is read once more: a flaky read is not damage."""
        leaf = self.component.leaves[index]
        if not (self._fills(leaf, into) or self._fills_from_medium(leaf, into)):
            raise CorruptError(
                "a leaf's bytes are not those that were saved",
                kind="damaged-leaf",
                hint=f"milepost verify {self.store.url}",
                generation=self.manifest.number,
                component=self.component.name,
                leaf=leaf.path,
                blob=self.manifest.blobs[leaf.blob].name,
            )

    def settle(self) -> None:
        """Return at once: every read is done when it is asked for."""

    def _fills_from_medium(self, leaf: LeafRecord, into: memoryview) -> bool:
        # From the memory of this machine it would be the same bad bytes once more.
        self.store.drop_cached(self.manifest.blobs[leaf.blob].name)
        return self._fills(leaf, into)

    def _fills(self, leaf: LeafRecord, into: memoryview) -> bool:
        try:
            got = self.store.read_into(self.manifest.blobs[leaf.blob].name, leaf.start, into)
        except NotFoundError:
            return False
        return got == len(into) == leaf.size_bytes and matches(into, leaf.digest)


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
    names: Sequence[str] = sorted({*saved, *live})
    return [
        Difference(name, saved.get(name, "nothing"), live.get(name, "nothing"), name.partition("/")[0])
        for name in names
        if saved.get(name) != live.get(name)
    ]
