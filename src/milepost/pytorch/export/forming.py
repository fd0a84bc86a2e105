"""Find out what an export's tensors will be, and which of the model's each is made of. From shapes alone; pure.

A tensor of the file may be one of the model's as it is, a part of one (an expert), or several put together. Whoever knows which
gathers no more at a time than it takes, and keeps only what it writes itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from milepost.errors import UsageError
from milepost.pytorch.export.contents import Contents, Tensors, dtype_of, stored_bytes
from milepost.pytorch.export.sharding import Spec


@dataclass(frozen=True, slots=True)
class Part:
    """Be tensors of the model that are brought to their form together, and what they become."""

    names: tuple[str, ...]
    """All of the model's that `Contents.finish` needs at once."""
    specs: Mapping[str, Spec]
    """By their names in the files."""
    as_they_are: Mapping[str, str]
    """Which of these are a tensor of the model as it is: its name, one for all that are tied."""

    def copies(self, mine: Collection[str]) -> dict[str, list[str]]:
        """Return which of ``mine`` take the memory of one copy: by the first of them."""
        first: dict[tuple[bool, str], list[str]] = {}
        for name in self.specs:
            if name in mine:
                unchanged = name in self.as_they_are
                first.setdefault((unchanged, self.as_they_are[name] if unchanged else name), []).append(name)
        return {names[0]: names for names in first.values()}

    def formed(self, contents: Contents, whole: Tensors) -> Tensors:
        """Return what these tensors become; ``whole`` has them by `names`."""
        if len(self.as_they_are) == len(self.specs):
            return {name: whole[source] for name, source in self.as_they_are.items()}
        return contents.finish(whole)


@dataclass(frozen=True, slots=True)
class Forms:
    """Say what all tensors of an export will be."""

    specs: Mapping[str, Spec]
    """By their names in the files, in the order in which they lie there."""
    parts: tuple[Part, ...]
    """In the order of the model's tensors."""


def forms_of(contents: Contents, dtype: torch.dtype | None) -> Forms:
    """Return what the tensors will be, the same on all ranks.

    ``finish`` is asked with tensors that have a shape and no data. Where it cannot answer, all is one part if no other rank is
    needed to see the tensors; raises `UsageError` (kind ``bad-finish``) else.
    """
    try:
        return _traced(contents, dtype)
    except Exception as error:
        if any(isinstance(tensor, DTensor) for tensor in contents.tensors.values()):
            raise UsageError(
                "what a sharded model's tensors become cannot be told from their shapes",
                kind="bad-finish",
                hint="let Contents.finish take tensors of device meta, and some of them at a time",
                cause=f"{type(error).__name__}: {error}"[:300],
            ) from error
        finished = contents.finish(contents.tensors)
        specs = {name: _spec(value, dtype) for name, value in finished.items()}
        return Forms(specs, (Part(tuple(contents.tensors), specs, {}),))


def keys_of(contents: Contents) -> dict[str, str]:
    """Return of each tensor's name the first name of the same tensor."""
    first: dict[tuple[bool, object], str] = {}
    return {
        name: first.setdefault((True, contents.same[name]) if name in contents.same else (False, name), name)
        for name in contents.tensors
    }


class _Traced(torch.Tensor):
    """Be a shape that knows which tensors it was made of."""

    made_of: frozenset[str] = frozenset()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        made_of = frozenset[str]().union(*(each.made_of for each in _all_traced((args, kwargs))))
        for each in _all_traced(made):
            each.made_of = made_of
        return made


def _all_traced(value: object) -> Iterator[_Traced]:
    if isinstance(value, _Traced):
        yield value
    elif isinstance(value, Mapping):
        yield from _all_traced(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _all_traced(each)


def _shapes(contents: Contents, names: Iterable[str], keys: Mapping[str, str]) -> dict[str, torch.Tensor]:
    shapes: dict[str, torch.Tensor] = {}
    for name in names:
        tensor = contents.tensors[name]
        shape = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta").as_subclass(_Traced)
        shape.made_of = frozenset((keys[name],))
        shapes[name] = shape
    return shapes


def _traced(contents: Contents, dtype: torch.dtype | None) -> Forms:
    keys = keys_of(contents)
    shapes = _shapes(contents, contents.tensors, keys)
    unchanged = {id(shape): keys[name] for name, shape in shapes.items()}
    finished = contents.finish(dict(shapes))
    all_specs = {name: _spec(tensor, dtype) for name, tensor in finished.items()}
    names_of: dict[str, list[str]] = {}
    for name, key in keys.items():
        names_of.setdefault(key, []).append(name)
    parts = []
    for group in _groups(finished, list(names_of)):
        names = tuple(name for key in group.keys for name in names_of[key])
        specs = {name: all_specs[name] for name in group.made}
        as_they_are = {name: unchanged[id(finished[name])] for name in group.made if id(finished[name]) in unchanged}
        part = Part(names, specs, as_they_are)
        if len(as_they_are) < len(specs):
            _check(part, contents.finish(_shapes(contents, names, keys)), dtype)
        parts.append(part)
    return Forms(all_specs, tuple(parts))


@dataclass(slots=True)
class _Group:
    keys: list[str]
    made: list[str] = field(default_factory=list)


def _groups(finished: Tensors, keys: Sequence[str]) -> list[_Group]:
    """Put together what shares a tensor that it is made of. What is made of none goes with the first."""
    group_of = {key: _Group([key]) for key in keys}
    place = {key: number for number, key in enumerate(keys)}
    for name, tensor in finished.items():
        made_of = sorted(tensor.made_of, key=place.__getitem__) if isinstance(tensor, _Traced) else []
        first, *others = (group_of[key] for key in made_of or keys[:1])
        for other in others:
            if other is not first:
                first.keys += other.keys
                first.made += other.made
                group_of.update(dict.fromkeys(other.keys, first))
        first.made.append(name)
    return [group for key, group in group_of.items() if group.made and group.keys[0] == key]


def _check(part: Part, formed: Tensors, dtype: torch.dtype | None) -> None:
    """Raise unless a part by itself becomes what it becomes among all others."""
    if any(name not in formed or _spec(formed[name], dtype) != spec for name, spec in part.specs.items()):
        raise ValueError("of some of the tensors it makes something else than of all")


def _spec(tensor: torch.Tensor, dtype: torch.dtype | None) -> Spec:
    return Spec(dtype_of(tensor, dtype), tuple(tensor.shape), stored_bytes(tensor, dtype))
