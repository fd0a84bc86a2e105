"""Every pair of values that can stand together does, in some cell, and no cell is one that cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from exactness.axes import AXES, Cell, can_be, cells, subset
from exactness.pairwise import cover, coverable, groups_of

SIZES = st.lists(st.integers(1, 4), min_size=2, max_size=4)


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, Sequence[str]], frozenset[tuple[str, ...]]]:
    axes = {f"axis {n}": [f"{n}{value}" for value in range(size)] for n, size in enumerate(draw(SIZES))}
    every = list(product(*axes.values()))
    forbidden = draw(st.sets(st.sampled_from(every), max_size=len(every)))
    return axes, frozenset(every) - forbidden


@given(tables())
def test_every_pair_that_can_be_is_in_a_cell_that_can_be(
    table: tuple[dict[str, Sequence[str]], frozenset[tuple[str, ...]]],
) -> None:
    axes, allowed = table
    chosen = cover(axes, allowed.__contains__)
    assert set(chosen) <= allowed
    assert {pair for cell in chosen for pair in groups_of(cell)} == coverable(axes, allowed.__contains__)


@given(tables(), st.integers(1, 5))
def test_a_cell_is_chosen_once_whatever_cells_cost(
    table: tuple[dict[str, Sequence[str]], frozenset[tuple[str, ...]]], dear: int
) -> None:
    axes, allowed = table
    chosen = cover(axes, allowed.__contains__, lambda cell: dear if cell[0].endswith("0") else 1)
    assert len(chosen) == len(set(chosen))
    assert {pair for cell in chosen for pair in groups_of(cell)} == coverable(axes, allowed.__contains__)


def test_without_a_mask_a_cover_is_far_smaller_than_the_table() -> None:
    axes = {name: [f"{name}{value}" for value in range(5)] for name in "abcd"}
    assert len(cover(axes, lambda _: True)) < 45  # of 625; 25 is the least


def test_every_value_of_every_axis_is_in_the_matrix() -> None:
    chosen = cells()
    for axis, values in AXES.items():
        assert {getattr(cell, axis) for cell in chosen} == set(values), axis


def test_the_cells_that_run_with_the_tests_can_be() -> None:
    assert [cell for cell in subset() if not can_be(cell)] == []
    assert not can_be(Cell("DQN", "Pendulum")), "and there are some that cannot"
