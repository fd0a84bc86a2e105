"""Know the kinds of object that may stand in a tree, and load those that optional packages bring.

A *leaf kind* is an array type: its bytes go to a blob. An *object kind* is a small class whose state is a plain tree. An
edge (an entry point of the group ``milepost.edges``, named after the module it watches) registers its kinds once that
module has been imported by somebody: milepost itself imports no framework.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol

from milepost.errors import UsageError
from milepost.records import Difference, LeafSpec


class LeafKind(Protocol):
    """Read and write one array type. Methods are called from the training thread only."""

    name: str
    """What `milepost.records.LeafSpec.kind` says; if an import brings the kind, the name of that module."""

    def describe(self, value: Any, path: str) -> LeafSpec:
        """Return what ``value`` is. Raises `UsageError` naming ``path`` if it cannot be saved."""

    def size_bytes(self, spec: LeafSpec) -> int:
        """Return how many bytes such a leaf has. Raises `CorruptError` for a spec that `describe` never returns."""

    def identity(self, value: Any) -> Hashable | None:
        """Return what is equal for two values over the very same memory, and None for values that can't be shared."""

    def copy_into(self, value: Any, into: memoryview) -> None:
        """Copy the value's bytes in C order into ``into`` (writable bytes, exactly `size_bytes` long, not zero)."""

    def make(self, spec: LeafSpec) -> Any:
        """Return a new value of that spec from the type's own allocator (its alignment may decide bits), bytes undefined."""

    def blank(self, spec: LeafSpec) -> Any:
        """Return a new value of that spec, every byte zero; memory is taken only as it is written to."""

    def memory(self, value: Any) -> memoryview | None:
        """Return the writable memory of ``value`` (not empty) in C order as bytes, or None if it has no such thing."""

    def is_writable(self, value: Any) -> bool:
        """Return whether the value can be overwritten."""

    def copy_from(self, value: Any, source: Any) -> None:
        """Overwrite a writable ``value`` with ``source`` (same spec, made by `make`)."""


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """Say how a small class gives its state as a plain tree and takes it back, in place (``set``) or anew (``make``)."""

    name: str
    get: Callable[[Any], object]
    set: Callable[[Any, Any], object] | None = None
    make: Callable[[Any], object] | None = None


Comparison = Callable[[Any, Any], Iterable[Difference]]
"""Takes the live object and its saved tree with a `LeafSpec` for each array; paths are relative to the object."""


@dataclass(frozen=True, slots=True)
class GlobalRng:
    """Say how to read and set a generator that the whole process shares. ``get`` returns None when it is not in use."""

    get: Callable[[], object]
    set: Callable[[Any], object]
    differences: Callable[[Any], Iterable[Difference]] = lambda _: ()
    """Says of a saved state, without its arrays, why it cannot be set here; paths are relative to it."""


@dataclass(slots=True)
class _Registry:
    leaves: dict[type, LeafKind]
    leaf_names: dict[str, LeafKind]
    objects: dict[type, ObjectKind]
    object_names: dict[str, ObjectKind]
    comparisons: dict[type, Comparison]
    in_place: list[type]
    wrappers: dict[type, Callable[[Any], object]]
    global_rngs: dict[str, GlobalRng]


_registry = _Registry({}, {}, {}, {}, {}, [], {}, {})


def register_leaf(type_: type, kind: LeafKind) -> None:
    """Let values of exactly ``type_`` be leaves."""
    _registry.leaves[type_] = kind
    _registry.leaf_names[kind.name] = kind


def register_object(type_: type, kind: ObjectKind) -> None:
    """Let values of exactly ``type_`` stand in a tree."""
    _registry.objects[type_] = kind
    _registry.object_names[kind.name] = kind


def register_comparison(type_: type, compare: Comparison) -> None:
    """Let ``compare`` decide whether a saved state fits a ``type_`` or subclass that is not `Comparable` itself."""
    _registry.comparisons[type_] = compare


def register_in_place(type_: type) -> None:
    """Promise that ``load_state_dict`` of ``type_`` and subclasses may be given arrays of its own ``state_dict``.

    Their bytes are then read straight into the object's memory. Wrong for classes that clear before they copy.
    """
    _registry.in_place.append(type_)


def register_component(type_: type, wrap: Callable[[Any], object]) -> None:
    """Let objects of ``type_`` and subclasses, which have no state of their own to give, be components: as ``wrap(object)``."""
    _registry.wrappers[type_] = wrap


def register_global_rng(
    name: str,
    get: Callable[[], object],
    put: Callable[[Any], object],
    differences: Callable[[Any], Iterable[Difference]] = lambda _: (),
) -> None:
    """Let `milepost.Rng` save and restore a generator of the whole process."""
    _registry.global_rngs[name] = GlobalRng(get, put, differences)


def leaf_kind(type_: type) -> LeafKind | None:
    """Return the leaf kind of exactly ``type_``."""
    return _registry.leaves.get(type_)


def leaf_kind_named(name: str) -> LeafKind | None:
    """Return the leaf kind called ``name``."""
    return _registry.leaf_names.get(name)


def object_kind(type_: type) -> ObjectKind | None:
    """Return the object kind of exactly ``type_``."""
    return _registry.objects.get(type_)


def object_kind_named(name: str) -> ObjectKind | None:
    """Return the object kind called ``name``."""
    return _registry.object_names.get(name)


def comparison(value: object) -> Comparison | None:
    """Return the comparison registered for the nearest class of ``value``."""
    return next((_registry.comparisons[base] for base in type(value).__mro__ if base in _registry.comparisons), None)


def as_component(value: object) -> object:
    """Return what saves and restores ``value`` as a component: itself, unless its type was registered otherwise."""
    load_edges()
    wrap = next((_registry.wrappers[base] for base in type(value).__mro__ if base in _registry.wrappers), None)
    return value if wrap is None else wrap(value)


def takes_own_arrays(value: object) -> bool:
    """Return whether `register_in_place` was called for a class of ``value``."""
    return isinstance(value, tuple(_registry.in_place))


def global_rngs() -> dict[str, GlobalRng]:
    """Return the generators of the whole process that are known by now."""
    load_edges()
    return _registry.global_rngs


# milepost's own edges stand here too, so that a source tree without installed metadata behaves the same.
_OWN_EDGES = (
    ("numpy", "milepost.state.arrays:register"),
    ("numpy", "milepost.state.rng:register"),
    ("torch", "milepost.pytorch.leaves:register"),
    ("gymnasium", "milepost.envs.capture:register_gymnasium"),
    ("stable_baselines3", "milepost.envs.capture:register_stable_baselines3"),
)
_waiting: list[tuple[str, str]] | None = None


def load_edges() -> None:
    """Register the kinds of every package that has been imported since the last call. Costs nothing when there is none."""
    global _waiting
    if _waiting is None:
        found = ((point.name, point.value) for point in entry_points(group="milepost.edges"))
        _waiting = list(dict.fromkeys([*_OWN_EDGES, *found]))
    ready = [edge for edge in _waiting if edge[0] in sys.modules]
    if not ready:
        return
    for edge in ready:
        _load(*edge)
    # Only now: another thread that is here, too, loads them once more, which changes nothing, and never goes on without them.
    _waiting = [edge for edge in _waiting if edge not in ready]


def _load(watched: str, target: str) -> None:
    module, _, function = target.partition(":")
    try:
        register = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        hint = "reinstall or remove the package that declares it"
        raise UsageError("an edge cannot be loaded", kind="broken-edge", hint=hint, watches=watched, edge=target) from error
    register()
