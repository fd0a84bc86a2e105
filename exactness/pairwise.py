"""Choose few cells of a large table so that every pair of values that can stand together does, somewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product

Cell = tuple[str, ...]
"""One value of each axis, in the order of the axes."""
Pair = tuple[tuple[int, str], tuple[int, str]]
"""Two values, each with the number of its axis, the lower number first."""


def pairs_of(cell: Cell) -> frozenset[Pair]:
    """Return every pair of values in a cell."""
    return frozenset(combinations(enumerate(cell), 2))  # type: ignore[arg-type]


def cover(
    axes: Mapping[str, Sequence[str]], allowed: Callable[[Cell], bool], cost: Callable[[Cell], float] = lambda _: 1.0
) -> list[Cell]:
    """Return allowed cells in which every pair of values is found that is in any allowed cell at all.

    Greedy: the pairs are gone through from the two longest axes on; for one that is not covered yet, the cell is taken that
    covers the most pairs not covered so far for its cost. The same axes give the same cells.
    """
    values = list(axes.values())
    chosen: list[Cell] = []
    covered: set[Pair] = set()
    for pair in _pairs(values):
        if pair in covered:
            continue
        found = max(
            (cell for cell in _cells_with(pair, values) if allowed(cell)),
            key=lambda cell: len(pairs_of(cell) - covered) / cost(cell),
            default=None,
        )
        if found is not None:
            chosen.append(found)
            covered |= pairs_of(found)
    return chosen


def coverable(axes: Mapping[str, Sequence[str]], allowed: Callable[[Cell], bool]) -> set[Pair]:
    """Return every pair that is in an allowed cell, by looking at all cells there are."""
    return {pair for cell in product(*axes.values()) if allowed(cell) for pair in pairs_of(cell)}


def _pairs(values: Sequence[Sequence[str]]) -> Iterator[Pair]:
    by_size = sorted(combinations(range(len(values)), 2), key=lambda axes: -len(values[axes[0]]) * len(values[axes[1]]))
    for first, second in by_size:
        for one, other in product(values[first], values[second]):
            yield (first, one), (second, other)


def _cells_with(pair: Pair, values: Sequence[Sequence[str]]) -> Iterator[Cell]:
    fixed = dict(pair)
    return product(*([fixed[axis]] if axis in fixed else options for axis, options in enumerate(values)))
