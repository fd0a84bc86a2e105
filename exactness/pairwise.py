"""Choose few cells of a large table so that every pair of values that can stand together does, somewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from math import prod

Cell = tuple[str, ...]
"""One value of each axis, in the order of the axes."""
Group = tuple[tuple[int, str], ...]
"""Values of different axes, each with the number of its axis, in the order of the axes: a pair, if there are two."""


def groups_of(cell: Cell, size: int = 2) -> frozenset[Group]:
    """Return every pair of values in a cell, or every group of another ``size``."""
    return frozenset(combinations(enumerate(cell), size))


def cover(
    axes: Mapping[str, Sequence[str]],
    allowed: Callable[[Cell], bool],
    cost: Callable[[Cell], float] = lambda _: 1.0,
    size: int = 2,
) -> list[Cell]:
    """Return allowed cells in which every pair of values is found that is in any allowed cell at all.

    Greedy: the pairs are gone through from those of the longest axes on; for one that is not covered yet, the cell is taken
    that covers the most pairs not covered so far for its cost. The same axes give the same cells.
    """
    values = list(axes.values())
    chosen: list[Cell] = []
    covered: set[Group] = set()
    for group in _groups(values, size):
        if group in covered:
            continue
        found = max(
            (cell for cell in _cells_with(group, values) if allowed(cell)),
            key=lambda cell: len(groups_of(cell, size) - covered) / cost(cell),
            default=None,
        )
        if found is not None:
            chosen.append(found)
            covered |= groups_of(found, size)
    return chosen


def coverable(axes: Mapping[str, Sequence[str]], allowed: Callable[[Cell], bool], size: int = 2) -> set[Group]:
    """Return every pair that is in an allowed cell, by looking at all cells there are."""
    return {group for cell in product(*axes.values()) if allowed(cell) for group in groups_of(cell, size)}


def _groups(values: Sequence[Sequence[str]], size: int) -> Iterator[Group]:
    by_length = sorted(combinations(range(len(values)), size), key=lambda axes: -prod(len(values[axis]) for axis in axes))
    for axes in by_length:
        for chosen in product(*(values[axis] for axis in axes)):
            yield tuple(zip(axes, chosen, strict=True))


def _cells_with(group: Group, values: Sequence[Sequence[str]]) -> Iterator[Cell]:
    fixed = dict(group)
    return product(*([fixed[axis]] if axis in fixed else options for axis, options in enumerate(values)))
