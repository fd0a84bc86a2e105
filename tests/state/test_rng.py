"""Generators go on with the very next number."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from milepost.errors import MismatchError, UsageError
from milepost.state.compare import compare
from milepost.state.inflate import inflate
from milepost.state.protocol import Comparable, Stateful
from milepost.state.restore import check_restorable, restore
from milepost.state.rng import Rng
from tests.state.trees import Stored


@pytest.fixture(autouse=True)
def _the_process_keeps_its_numbers() -> Any:
    python, legacy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(legacy)


def process_numbers() -> list[Any]:
    import torch

    torch_numbers = torch.rand(3).tolist() + torch.randn(3).tolist()
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.standard_normal(), *torch_numbers]


def test_the_generators_of_the_process_go_on_where_they_were() -> None:
    process_numbers()  # an odd gaussian is buffered in each of them
    rng = Rng()
    stored = Stored(rng)
    expected = process_numbers()
    process_numbers()
    restore(rng, stored.node, stored.leaves, stored, "rng")
    assert process_numbers() == expected


def test_generators_given_by_name_go_on_where_they_were() -> None:
    import torch

    given = {
        "numpy": np.random.default_rng(1),
        "legacy": np.random.RandomState(2),
        "python": random.Random(3),
        "torch": torch.Generator().manual_seed(4),
    }

    def draw() -> list[Any]:
        numpy, legacy, python = given["numpy"], given["legacy"], given["python"]
        return [
            numpy.integers(0, 9, dtype=np.uint8),
            legacy.standard_normal(),
            python.gauss(0, 1),
            torch.randn(1, generator=given["torch"]).item(),
        ]

    draw()
    rng = Rng(**given)
    stored = Stored(rng)
    expected = draw()
    draw()
    restore(rng, stored.node, stored.leaves, stored, "rng")
    assert draw() == expected


def test_saving_draws_no_number() -> None:
    generator = np.random.default_rng(5)
    rng = Rng(g=generator)
    random.seed(1)
    np.random.seed(1)
    Stored(rng)
    assert random.random() == random.Random(1).random()
    assert np.random.rand() == np.random.RandomState(1).rand()
    assert generator.random() == np.random.default_rng(5).random()


def test_children_handed_out_before_are_not_handed_out_again() -> None:
    parent = np.random.default_rng(1)
    parent.spawn(2)
    stored = Stored([parent])
    expected = [child.random() for child in parent.spawn(2)]
    live = [np.random.default_rng(1)]
    restore(live, stored.node, stored.leaves, stored, "x")
    assert [child.random() for child in live[0].spawn(2)] == expected
    # Grown from another seed, as where the env of a resumed run was reset without one, it is the same object all the same.
    unlike = [np.random.default_rng()]
    kept = unlike[0].bit_generator
    restore(unlike, stored.node, stored.leaves, stored, "x")
    assert unlike[0].bit_generator is kept
    assert unlike[0].random() == np.random.default_rng(1).random()
    assert [child.random() for child in unlike[0].spawn(2)] == expected
    made: Any = inflate(stored.node, stored.leaves, stored)
    assert [child.random() for child in made[0].spawn(2)] == expected


def test_a_generator_seeded_by_a_list_comes_back() -> None:
    parent = np.random.default_rng([1, 2, 2**70])
    stored = Stored(parent)
    made: Any = inflate(stored.node, stored.leaves, stored)
    assert made.spawn(1)[0].random() == parent.spawn(1)[0].random()


def test_rng_is_stateful_comparable_and_a_component() -> None:
    assert isinstance(Rng(), Stateful)
    assert isinstance(Rng(), Comparable)
    check_restorable(Rng(), "rng")
    check_restorable(np.random.default_rng(1), "rng")


def test_what_is_no_generator_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        Rng(exploration=7)
    assert caught.value.facts["path"] == "exploration"


def test_generators_that_do_not_fit_are_listed_and_none_is_set() -> None:
    stored = Stored(Rng(a=np.random.default_rng(1), b=np.random.Generator(np.random.Philox(1)), c=random.Random(1)))
    live = Rng(b=np.random.default_rng(1), c=np.random.RandomState(1), d=random.Random(1))
    differences = compare(live, stored.node, stored.leaves, "rng")
    assert [(each.path, each.kind) for each in differences] == [
        ("rng/named/a", "missing"),
        ("rng/named/b/bit_generator", "type"),
        ("rng/named/c", "type"),
        ("rng/named/d", "unexpected"),
    ]
    before = random.getstate()
    with pytest.raises(MismatchError):
        live.load_state_dict(inflate(stored.node, stored.leaves, stored))
    assert random.getstate() == before


def test_a_generator_of_a_package_that_is_not_imported_here_is_a_difference() -> None:
    state = {"process": {"jaxlike": {}}, "named": {}}
    assert [each.path for each in Rng().state_differences(state)] == ["process/jaxlike"]
