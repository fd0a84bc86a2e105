"""Let contenders do the same work in turn, in a new random order each round, and keep every figure.

A machine that others use, too, slows down for seconds at a time. Whoever runs ten rounds of one thing and then ten of
another measures the neighbours; interleaved, each contender gets its share of them, and the median leaves most of it out.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["floor", "peer", "milepost"]
"""A floor is what the machine needs for the bytes alone; a peer is what somebody would use instead."""

LEAST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Contender:
    """Take part in a benchmark: ``sample`` does the work once and returns what it measured, by quantity.

    A sample prepares what it needs before it looks at the clock, and removes what it left after.
    """

    name: str
    kind: Kind
    sample: Callable[[], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Row:
    """Hold every figure of one quantity of one contender. Times are in seconds, sizes in bytes."""

    contender: str
    kind: Kind
    quantity: str
    values: tuple[float, ...]
    unit: Literal["s", "bytes", "s/GB"] = "s"

    @property
    def median(self) -> float:
        """Return the middle figure: the one that goals are judged by."""
        return statistics.median(self.values)

    @property
    def mad(self) -> float:
        """Return the median distance from the median: how far a typical round was off."""
        middle = self.median
        return statistics.median(abs(value - middle) for value in self.values)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Hold what one benchmark found."""

    benchmark: str
    workload: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def row(self, contender: str, quantity: str) -> Row | None:
        """Return the row of a contender, or None if it was not measured."""
        return next((row for row in self.rows if (row.contender, row.quantity) == (contender, quantity)), None)


@dataclass(frozen=True, slots=True)
class Setting:
    """Say how much to measure, and where the files go."""

    place: Path
    """A directory of the benchmark's own, on the file system that is measured."""
    quick: bool = False
    rounds: int | None = None
    seed: int = 0

    def scaled(self, full: int, quick: int) -> int:
        """Return the size or count for this kind of run."""
        return quick if self.quick else full


Measure = Callable[[Setting], Outcome]


def interleave(
    contenders: Sequence[Contender],
    setting: Setting,
    *,
    rounds: int,
    budget_s: float,
    units: Mapping[str, Literal["bytes", "s/GB"]] | None = None,
    settle: Callable[[], object] | None = None,
) -> tuple[Row, ...]:
    """Take a sample of each contender per round and return all figures.

    ``rounds`` holds unless the setting says otherwise. A contender whose samples took more than its share of ``budget_s``
    sits out the rest, but not before the third round: what is slow on this machine takes rounds from itself, and not the
    evening from everybody. ``settle`` runs before each sample instead of `settled`.
    """
    order = random.Random(setting.seed)  # noqa: S311 - an order that can be had again
    share_s, spent_s = budget_s / len(contenders), dict.fromkeys(contenders, 0.0)
    found: dict[tuple[str, Kind, str], list[float]] = {}
    for number in range(setting.rounds or rounds):
        playing = [one for one in contenders if number < LEAST_ROUNDS or spent_s[one] < share_s]
        for contender in order.sample(playing, len(playing)):
            started = time.perf_counter()
            (settle or settled)()
            for quantity, value in contender.sample().items():
                found.setdefault((contender.name, contender.kind, quantity), []).append(value)
            spent_s[contender] += time.perf_counter() - started
    place = {contender.name: index for index, contender in enumerate(contenders)}
    what = list(dict.fromkeys(quantity for name in place for owner, _, quantity in found if owner == name))
    known: Mapping[str, Literal["bytes", "s/GB"]] = {"written": "bytes", **(units or {})}
    rows = [
        Row(name, kind, quantity, tuple(values), known.get(quantity, "s")) for (name, kind, quantity), values in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (what.index(row.quantity), place[row.contender])))


def settled() -> None:
    """Leave nothing to the next contender: no garbage, and no bytes of a save that did not wait for the disk to have them."""
    gc.collect()
    os.sync()


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds ``work`` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def quiet() -> None:
    """Use one thread for arithmetic, and leave out what torch and others say at each call. Before they are imported.

    Two threads on two cores wait for each other as soon as a third wants one of them, and every figure is of that.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.filterwarnings("ignore", module=r"torch\..*")
    logging.getLogger("torch").setLevel(logging.ERROR)
