"""Read and set the state of random generators: those of the whole process, and those given by name."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np

from milepost.errors import CorruptError, MismatchError, UsageError
from milepost.records import Difference
from milepost.state import kinds
from milepost.state.kinds import ObjectKind
from milepost.state.paths import type_name

_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_POSITIONS = {"MT19937": 624, "Philox": 4}
"""How many numbers a generator makes at a time, for those that note where in them they are."""
_MOST_CHILDREN, _CHILDREN_AT_ONCE = 1 << 20, 1 << 12
_LARGEST_POOL = 1 << 10
_MOST_WORDS, _MOST_BITS = 1 << 12, 1 << 14


class Rng:
    """Save the process's own generators (python, NumPy, torch if imported) and any given by name.

    >>> rng = Rng(exploration=np.random.default_rng(7))

    The engine restores it last, since bringing back other components may draw numbers.
    """

    def __init__(self, **generators: object) -> None:
        kinds.load_edges()
        self._generators = {name: (generator, _kind_of(name, generator)) for name, generator in generators.items()}

    def state_dict(self) -> dict[str, object]:
        """Return every generator's state. A process-wide one that is not in use is left out."""
        states = {name: rng.get() for name, rng in kinds.global_rngs().items()}
        return {
            "process": {name: state for name, state in states.items() if state is not None},
            "named": {name: [kind.name, kind.get(live)] for name, (live, kind) in self._generators.items()},
        }

    def load_state_dict(self, state: Any, /) -> None:
        """Set every generator in place; those of the whole process last, as setting another may draw from them."""
        differences = tuple(self.state_differences(state))
        if differences:
            raise MismatchError("saved generators do not fit those here", differences, kind="rng-mismatch")
        for name, (_, saved) in state["named"].items():
            live, kind = self._generators[name]
            _set_of(kind)(live, saved)
        known = kinds.global_rngs()
        for name, saved in state["process"].items():
            known[name].set(saved)

    def state_differences(self, saved: Any, /) -> Iterable[Difference]:
        """Return generators that were saved and are not here, or the other way round, and those of another kind."""
        known = kinds.global_rngs()
        for name in saved["process"].keys() - known.keys():
            yield Difference(f"process/{name}", "a generator", "not there: import what brings it first", "missing")
        for name in saved["process"].keys() & known.keys():
            for found in known[name].differences(saved["process"][name]):
                yield Difference(f"process/{name}{found.path}", found.saved, found.live, found.kind)
        named = saved["named"]
        for name in sorted(named.keys() | self._generators.keys()):
            if name not in self._generators:
                yield Difference(f"named/{name}", named[name][0], "not given", "missing")
            elif name not in named:
                yield Difference(f"named/{name}", "not saved", self._generators[name][1].name, "unexpected")
            else:
                yield from _generator_differences(f"named/{name}", named[name], *self._generators[name])


def _kind_of(name: str, generator: object) -> ObjectKind:
    kind = kinds.object_kind(type(generator))
    if kind is None or kind.set is None:
        hint = "pass a numpy.random.Generator or RandomState, a random.Random or a torch.Generator"
        what = "this is no generator milepost knows"
        raise UsageError(what, kind="unknown-object", hint=hint, path=name, type=type_name(generator))
    return kind


def _set_of(kind: ObjectKind) -> Any:
    assert kind.set is not None
    return kind.set


def _generator_differences(path: str, saved: Any, live: object, kind: ObjectKind) -> Iterable[Difference]:
    if saved[0] != kind.name:
        yield Difference(path, saved[0], kind.name, "type")
        return
    compare = kinds.comparison(live)
    for found in compare(live, saved[1]) if compare is not None else ():
        yield Difference(f"{path}{found.path}", found.saved, found.live, found.kind)


def bit_generator_differences(live: Any, saved: Any) -> Iterable[Difference]:
    """Return a difference if a NumPy generator runs on another algorithm than the saved one did."""
    here = numpy_state(live)["bit_generator"]
    if saved["bit_generator"] != here:
        yield Difference("/bit_generator", saved["bit_generator"], here, "type")


def numpy_state(generator: Any) -> dict[str, Any]:
    """Return the state of a ``Generator`` or ``RandomState``, buffered halves and gaussians included."""
    if isinstance(generator, np.random.RandomState):
        return dict(generator.get_state(legacy=False))
    state = dict(generator.bit_generator.state)
    seeds = generator.bit_generator.seed_seq
    if type(seeds) is np.random.SeedSequence:
        # spawn() draws from the seeds, not from the state: forgotten, a resumed run would hand out the same children again.
        state["seeds"] = {**seeds.state, "entropy": _plain_entropy(seeds.entropy)}
    return state


def _plain_entropy(entropy: Any) -> Any:
    return entropy if entropy is None or type(entropy) is int else [int(part) for part in np.asarray(entropy, object).reshape(-1)]


def set_numpy_state(generator: Any, state: Any) -> None:
    """Set the state of a ``Generator`` in place, and the seeds that it hands out children from, whatever it grew from here."""
    own = _checked(dict(state))
    saved = own.pop("seeds", None)
    generator.bit_generator.state = own
    seeds = generator.bit_generator.seed_seq
    if saved is None or type(seeds) is not np.random.SeedSequence:
        return
    if saved != numpy_state(generator)["seeds"]:
        try:
            # The one setter that there is; what holds the generator goes on to hold it.
            generator.bit_generator.__setstate__((own, np.random.SeedSequence(**saved)))
        except TypeError:  # before NumPy 2 there was none, and only the count can be moved, by spawning
            while (left := saved["n_children_spawned"] - seeds.n_children_spawned) > 0:
                seeds.spawn(min(left, _CHILDREN_AT_ONCE))


def set_random_state(generator: Any, state: Any) -> None:
    """Set the state of a ``RandomState``, or of the module ``numpy.random`` itself."""
    generator.set_state(_checked(dict(state)))


def _checked(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a NumPy generator that can be one.

    NumPy takes any position in the block of numbers a generator has made, and then reads there: a planted one would read
    memory that has nothing to do with it, or crash the process at the first draw.
    """
    name, last = state["bit_generator"], _POSITIONS.get(state["bit_generator"], 0)
    position = state["state"]["pos"] if name == "MT19937" else state["buffer_pos"] if name == "Philox" else 0
    if type(position) is not int or not 0 <= position <= last:
        raise _no_generator(name, "position", position)
    seeds = state.get("seeds")
    if seeds is not None:
        _check_seeds(name, **seeds)
    return state


def _check_seeds(name: Any, *, entropy: Any, spawn_key: Any, pool_size: Any, n_children_spawned: Any) -> None:
    """Refuse seeds that would take hours or all memory to mix: NumPy takes time by the square of a seed's length."""
    parts = [*(entropy if type(entropy) is list else [entropy or 0]), *spawn_key]
    if not 0 < pool_size <= _LARGEST_POOL:
        raise _no_generator(name, "pool_size", pool_size)
    if not 0 <= n_children_spawned <= _MOST_CHILDREN:
        raise _no_generator(name, "n_children_spawned", n_children_spawned)
    if len(parts) > _MOST_WORDS or not all(type(part) is int and part.bit_length() <= _MOST_BITS for part in parts):
        raise _no_generator(name, "seeds", len(parts))


def _no_generator(name: Any, what: str, value: object) -> CorruptError:
    shown = value if type(value) is int and value.bit_length() < 64 else type(value).__name__
    text = "a stored generator is not one that can be"
    return CorruptError(text, kind="damaged-tree", bit_generator=ascii(name)[:80], what=what, value=shown)


def make_generator(state: Any) -> np.random.Generator:
    """Return a new ``Generator`` with the saved algorithm, seeds and state."""
    name = state["bit_generator"]
    if name not in _BIT_GENERATORS:
        raise CorruptError("a stored generator is of an unknown algorithm", kind="damaged-tree", bit_generator=ascii(name)[:80])
    _checked(dict(state))
    seeds = np.random.SeedSequence(**state["seeds"]) if "seeds" in state else None
    generator = np.random.Generator(getattr(np.random, name)(seeds))
    set_numpy_state(generator, state)
    return generator


def make_random_state(state: Any) -> np.random.RandomState:
    """Return a new ``RandomState`` with the saved state."""
    made = np.random.RandomState()
    set_random_state(made, state)
    return made


def python_state(generator: Any) -> dict[str, object]:
    """Return the state of a ``random.Random``, or of the module ``random`` itself."""
    version, words, gauss = generator.getstate()
    return {"version": version, "words": np.array(words, np.uint32), "gauss": gauss}


def set_python_state(generator: Any, state: Any) -> None:
    """Set the state of a ``random.Random``, or of the module ``random`` itself."""
    generator.setstate((state["version"], tuple(state["words"].tolist()), state["gauss"]))


def make_python_generator(state: Any) -> random.Random:
    """Return a new ``random.Random`` with the saved state."""
    made = random.Random()  # noqa: S311 - it becomes a copy of the user's own
    set_python_state(made, state)
    return made


def register() -> None:
    """Register NumPy's and python's generators."""
    kinds.register_object(np.random.Generator, ObjectKind("numpy.Generator", numpy_state, set_numpy_state, make_generator))
    kinds.register_object(
        np.random.RandomState,
        ObjectKind("numpy.RandomState", numpy_state, set_random_state, make_random_state),
    )
    kinds.register_object(random.Random, ObjectKind("random.Random", python_state, set_python_state, make_python_generator))
    kinds.register_comparison(np.random.Generator, bit_generator_differences)
    kinds.register_comparison(np.random.RandomState, bit_generator_differences)
    kinds.register_global_rng("python", lambda: python_state(random), lambda state: set_python_state(random, state))
    kinds.register_global_rng(
        "numpy", lambda: dict(np.random.get_state(legacy=False)), lambda state: set_random_state(np.random, state)
    )
