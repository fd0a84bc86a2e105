"""Capture and bring back what belongs to a training beside its engines: data, counters of other parts, the user's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from milepost.errors import UsageError
from milepost.pytorch.ranks import Ranks
from milepost.pytorch.recover.epochs import shares_of
from milepost.pytorch.recover.payload import DATA, EXTRA, RNG
from milepost.pytorch.recover.sharing import reshare, same
from milepost.records import Difference
from milepost.state.protocol import Stateful
from milepost.state.rng import Rng

log = logging.getLogger("milepost")


class Part(Protocol):
    """Have a state to save: a data loader, a Saver, a counter of the user's own."""

    def state_dict(self) -> Any:
        """Return the state as plain data."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Overwrite the state."""


_SINGLE = ("saver", "evaluator", "stats_logger")


@dataclass(frozen=True, slots=True)
class Beside:
    """Hold the objects beside the engines. The data and the user's own are each rank's; the others are the same on all."""

    dataloader: Part | None = None
    saver: Part | None = None
    evaluator: Part | None = None
    stats_logger: Part | None = None
    extra: Mapping[str, Part] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in {"dataloader": self.dataloader, **self._parts()}.items():
            if value is not None and (not isinstance(value, Stateful) or isinstance(value, type)):
                raise UsageError(
                    "what is to be saved needs state_dict and load_state_dict",
                    kind="not-stateful",
                    hint="a stateful data loader, or a small class of your own; milepost.Rng(...) for generators",
                    name=name,
                    type=type(value).__name__,
                )

    def _parts(self) -> dict[str, Part | None]:
        single: dict[str, Part | None] = {name: getattr(self, name) for name in _SINGLE}
        return {**single, **{f"extra/{name}": value for name, value in self.extra.items()}}

    def states(self) -> dict[str, Any]:
        """Return what stands in the progress record."""
        return {name: part.state_dict() for name in _SINGLE if (part := getattr(self, name)) is not None}

    def own(self, rng: Rng) -> dict[str, Any]:
        """Return what this rank has by itself."""
        own: dict[str, Any] = {RNG: rng.state_dict()}
        if self.dataloader is not None:
            own[DATA] = self.dataloader.state_dict()
        if self.extra:
            own[EXTRA] = {name: part.state_dict() for name, part in self.extra.items()}
        return own

    def differences(self, progress: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> list[Difference]:
        """Name what is on one side only."""
        there = {name for name in _SINGLE if name in progress} | {f"extra/{name}" for one in own for name in one.get(EXTRA, {})}
        here = {name for name, part in self._parts().items() if part is not None}
        missing = [
            Difference(name, "nothing", "something, which stays as it is", "missing-optional") for name in sorted(here - there)
        ]
        return missing + [Difference(name, "something", "nothing", "missing-optional") for name in sorted(there - here)]

    def put_back(self, progress: Mapping[str, Any]) -> None:
        """Overwrite what was saved; what was not stays as it is."""
        for name in _SINGLE:
            if (part := getattr(self, name)) is not None and name in progress:
                part.load_state_dict(progress[name])

    def put_extra(self, own: Sequence[Mapping[str, Any]]) -> list[str]:
        """Overwrite the user's own, and return why some of it stays as it is.

        ``own`` is this rank's alone if as many ranks have saved as load: each gets what it had. Else it is every rank's, and
        what was the same on all comes back.
        """
        left = []
        for name, part in self.extra.items():
            saved = [one[EXTRA][name] for one in own if name in one.get(EXTRA, {})]
            if len(saved) == len(own) and all(same(saved[0], each) for each in saved[1:]):
                part.load_state_dict(saved[0])
            elif saved:
                left.append(f"extra/{name}: each rank had its own, and another number of ranks has saved: it stays as it is")
        return left

    def place(self, own: Sequence[Mapping[str, Any]], saved_by: int, ranks: Ranks) -> tuple[Any, list[str]]:
        """Return the place in the data that this rank gets, None for none; and why data comes twice or not at all."""
        if self.dataloader is None:
            return None, ["data: a position was saved, and there is no loader to go on from it"] * any(DATA in one for one in own)
        if not all(DATA in one for one in own):
            return None, ["data: no position was saved, the one here stays as it is"]
        states = [one[DATA] for one in own]
        if saved_by == ranks.count:
            return states[0], []
        found = reshare(states, ranks.count, shares=shares_of(self.dataloader))
        return found.states[ranks.rank], [f"data: {why}" for why in found.inexact]

    def place_differences(self, place: Any) -> list[Difference]:
        """Return why the loader would not take a place, if it can say so before it is loaded."""
        ask = getattr(self.dataloader, "state_differences", None)
        return [] if place is None or ask is None else list(ask(place))

    def put_data(self, place: Any) -> None:
        """Bring the data loader to a place."""
        if place is not None and self.dataloader is not None:
            self.dataloader.load_state_dict(place)


def put_rng(rng: Rng, own: Sequence[Mapping[str, Any]], saved_by: int, ranks: Ranks) -> list[str]:
    """Bring this rank's generators back, and return why they could not be."""
    if not any(RNG in one for one in own):
        return ["rng: no generators were saved, those here stay as they are"]
    if saved_by != ranks.count:
        return ["rng: each rank's generators stay as they are, since another number of ranks has saved"]
    differences = list(rng.state_differences(own[0][RNG]))
    if differences:
        return [f"rng: {difference}" for difference in differences]
    rng.load_state_dict(own[0][RNG])
    return []
