"""Say what is saved of a place in the data, and read it again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from milepost.errors import CorruptError
from milepost.pytorch.recover.generators import Orders, orders_of

_VERSION = 1
_KIND = "trained-frontier"


@dataclass(frozen=True, slots=True)
class Place:
    """Hold an epoch, from 0, and how many batches of it were drawn."""

    epoch: int
    batches: int


@dataclass(frozen=True, slots=True)
class Position:
    """Hold a place in the data up to which everything is trained or dropped, and what is so beyond it."""

    ordinal: int
    """The batch that the loader gives next: all before it are trained or dropped."""
    place: Place
    """Where in its epoch the loader is before that batch."""
    loader: Any
    """The loader's own state there; where nothing was drawn, the one it was given with, None if it was new."""
    orders: Orders
    """What the epoch is drawn from."""
    begun: bool
    """Whether anything was drawn: else the loader is as it was made, and its next epoch that of the place."""
    beyond: tuple[tuple[int, int], ...]
    """Half-open spans of ordinals, in order, that are trained or dropped, too."""
    open: int
    """How many were given out and neither trained nor dropped."""
    dropped: Mapping[str, int]
    shares: int | None
    """How many ranks share each epoch between them; None if each has all of it, or nobody can tell."""
    workers: int | None
    """How many processes load, if the loader has any: torchdata's position is one of each."""
    batches: int | None
    """How many batches an epoch has, if the loader says so."""
    epochs_begun: int = 0
    """How many epochs were begun when it was saved: ahead of training, the last of them after this place."""

    def ordinals(self) -> Iterator[int]:
        """Yield what else is trained or dropped."""
        for start, stop in self.beyond:
            yield from range(start, stop)

    def as_state(self) -> dict[str, Any]:
        """Return the plain state to save."""
        return {
            "version": _VERSION,
            "kind": _KIND,
            "ordinal": self.ordinal,
            "epoch": self.place.epoch,
            "batches_of_epoch": self.place.batches,
            "loader": self.loader,
            "generators": {"before": [*self.orders.before], "now": self.orders.now},
            "begun": self.begun,
            "epochs_begun": self.epochs_begun,
            "beyond": [list(span) for span in self.beyond],
            "open": self.open,
            "dropped": {**self.dropped},
            "shares": self.shares,
            "workers": self.workers,
            "batches": self.batches,
        }

    def told(self, batches: int | None) -> str:
        """Return in words where the data goes on, for the log."""
        of = f" of {batches}" if batches is not None else ""
        parts = [f"at batch {self.ordinal}: epoch {self.place.epoch}, after {self.place.batches}{of}"]
        skipped = sum(stop - start for start, stop in self.beyond)
        if skipped:
            parts.append(f"{skipped} from there on are trained or dropped already")
        if self.open:
            parts.append(f"{self.open} that were open are given out again")
        if self.dropped:
            parts.append("dropped so far: " + ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items())))
        return "; ".join(parts)


def spans_of(ordinals: Collection[int]) -> tuple[tuple[int, int], ...]:
    """Return half-open spans of whole numbers, in order.

    >>> spans_of({7, 3, 4, 5})
    ((3, 6), (7, 8))
    """
    spans: list[tuple[int, int]] = []
    for ordinal in sorted(ordinals):
        if spans and spans[-1][1] == ordinal:
            spans[-1] = (spans[-1][0], ordinal + 1)
        else:
            spans.append((ordinal, ordinal + 1))
    return tuple(spans)


def is_plain(state: Any) -> bool:
    """Say whether a state is a loader's own position, and none of a `TrainedFrontier`."""
    return isinstance(state, Mapping) and bool(state) and "kind" not in state


def plain_position(state: Any, orders: Orders) -> Position:
    """Return the place at which a loader's own position is the beginning."""
    return Position(0, Place(0, 0), state, orders, True, (), 0, {}, None, None, None, epochs_begun=1)


def read_position(state: Any) -> Position:
    """Return what was saved. Raises `CorruptError` (kind ``bad-position``) for what is no place in any data."""
    try:
        if state["version"] != _VERSION or state["kind"] != _KIND:
            raise ValueError(f"version {state['version']} of {state['kind']}")
        found = Position(
            ordinal=_count(state["ordinal"]),
            place=Place(_count(state["epoch"]), _count(state["batches_of_epoch"])),
            loader=state["loader"],
            orders=orders_of(state["generators"]["before"], state["generators"]["now"]),
            begun=_truth(state["begun"]),
            epochs_begun=_count(state["epochs_begun"]),
            beyond=tuple((_count(start), _count(stop)) for start, stop in state["beyond"]),
            open=_count(state["open"]),
            dropped={_text(reason): _count(count) for reason, count in state["dropped"].items()},
            shares=None if state["shares"] is None else _count(state["shares"]),
            workers=None if state["workers"] is None else _count(state["workers"]),
            batches=None if state["batches"] is None else _count(state["batches"]),
        )
        _check_order(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(
            "this is no place in the data up to which everything is trained",
            kind="bad-position",
            hint="was it saved of a TrainedFrontier? a loader's own position is loaded by the loader",
            cause=f"{type(error).__name__}: {error}",
        ) from error
    return found


def _check_order(found: Position) -> None:
    last = found.ordinal - 1  # two spans do not touch
    for start, stop in found.beyond:
        if not last < start < stop:
            raise ValueError(f"ordinals {start} to {stop} after {last}")
        last = stop
    if found.place.batches > found.ordinal or (not found.begun and (found.place.batches or found.beyond)):
        raise ValueError(f"{found.place.batches} batches of an epoch before batch {found.ordinal}")


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
