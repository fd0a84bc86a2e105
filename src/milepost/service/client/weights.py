"""Be one version of the weights, as who fetched it reads it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from milepost.errors import NotFoundError, UsageError
from milepost.records import Version
from milepost.service.client.leases import Lease
from milepost.service.core.records import Commit
from milepost.service.core.records import Weights as Described
from milepost.service.tensors import tensors_of
from milepost.service.unpacking import Part

WEIGHTS = "weights"
"""The part that ``commit`` calls its weights."""


class Weights(Mapping[str, np.ndarray[Any, Any]]):
    """Map the names of one version's arrays to read-only views of their bytes; on the service's host nothing is copied for it.

    All of it is one version, and stays what it is for as long as anybody has a view, also once the service keeps it no longer. It
    counts as being read until `release`, or until it is dropped; so it can be used with ``with``.
    """

    def __init__(self, described: Described, views: Mapping[str, memoryview], lease: Lease) -> None:
        self.described = described
        """What was announced of this version: its parts with their digests, whence it came, who brought it."""
        self._views = {**views}
        self._read: dict[str, Part] = {}
        self._lease: Lease | None = lease

    @property
    def at(self) -> Commit:
        """Return its place in the order of all versions; ``at.number`` is what people call it by."""
        return self.described.at

    @property
    def version(self) -> Version:
        """Return the run, the step and the time of its commit."""
        return self.described.version

    @property
    def step(self) -> int:
        """Return the step of training that it was committed at."""
        return self.described.version.step

    @property
    def size_bytes(self) -> int:
        """Return how many bytes there are of it here."""
        return sum(map(len, self._views.values()))

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self._with(name).array(name)

    def __iter__(self) -> Iterator[str]:
        for part in self._parts(self._main):
            yield from part.entries

    def __len__(self) -> int:
        return sum(len(part.entries) for part in self._parts(self._main))

    def __contains__(self, name: object) -> bool:
        return any(name in part.entries for part in self._parts(self._main))

    def array(self, name: str, dtype: str | None = None) -> np.ndarray[Any, Any]:
        """Return one array: as a view, or as a copy in another dtype. A bfloat16 one, which NumPy has not, in ``float32``, exactly.

        Raises `NotFoundError` (kind ``no-such-tensor``), `UsageError` (kind ``not-in-numpy``).
        """
        return self._with(name).array(name) if dtype is None else self._with(name).widened(name, dtype)

    def tensors(self, part: str | None = None, *, copy: bool = False) -> OrderedDict[str, Any]:
        """Return all arrays as torch tensors on the CPU, in the order in which they were committed: what ``load_state_dict`` takes.

        They lie in this version's own memory. What is written to one changes it for this process at most, and not for others; with
        ``copy`` they are fresh. Raises `MissingExtraError` without torch.
        """
        found: OrderedDict[str, Any] = OrderedDict()
        for each in self._parts(part or self._main):
            made = tensors_of(each, copy=copy)
            vars(found).update(vars(made))
            found.update(made)
        return found

    def part(self, name: str) -> Any:
        """Return what was committed as this part, an optimizer's state for one, built anew: its arrays may be written to."""
        parts = self._parts(name)
        if len(parts) == 1:
            return parts[0].value()
        return {key: value for each in parts for key, value in each.value().items()}

    @property
    def parts(self) -> tuple[str, ...]:
        """Return which parts there are here."""
        return tuple(sorted({part_of(slot) for slot in self._views}))

    def release(self) -> None:
        """Let the service know that this version is read no more. Views stay valid. A second call does nothing."""
        self._views.clear()
        self._read.clear()
        self._lease = None

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Weights {self.at} of step {self.step}, {self.size_bytes} bytes in {', '.join(self.parts) or 'no parts'}>"

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def _main(self) -> str:
        return WEIGHTS if any(part_of(slot) == WEIGHTS for slot in self._views) else next(iter(self.parts), WEIGHTS)

    def _with(self, name: str) -> Part:
        parts = self._parts(self._main)
        return next((part for part in parts if name in part.entries), parts[0])

    def _parts(self, name: str) -> list[Part]:
        if self._lease is None:
            raise UsageError("these weights were released", kind="released", hint="fetch them again", version=str(self.at))
        slots = [slot for slot in self._views if part_of(slot) == name]
        if not slots:
            there = ", ".join(self.parts)
            hint = f"fetch it, too: fetch(parts=[..., {name!r}])"
            raise NotFoundError("this part was not fetched", kind="no-such-part", hint=hint, part=name, fetched=there)
        return [self._part(slot) for slot in sorted(slots, key=number_of)]

    def _part(self, slot: str) -> Part:
        if slot not in self._read:
            self._read[slot] = Part(self._views[slot], slot)
        return self._read[slot]


def part_of(slot: str) -> str:
    """Return which part a slot belongs to: ``weights`` for ``weights.0-of-4``."""
    head, _, tail = slot.rpartition(".")
    first, of, last = tail.partition("-of-")
    return head if head and of and first.isdigit() and last.isdigit() else slot


def number_of(slot: str) -> tuple[int, str]:
    """Return a slot's place among those of its part."""
    first = slot.rpartition(".")[2].partition("-of-")[0]
    return (int(first) if part_of(slot) != slot else 0, slot)
