"""Which form a chunk is told in. No form is wrong: what is asserted here is that the small one is found where it matters. C6"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from milepost.errors import UsageError
from milepost.service.delta.encoding import encode
from milepost.service.delta.records import Delta
from milepost.service.delta.settings import How
from tests.service.delta.sets import tensor

WORDS = 1 << 18
RNG = np.random.default_rng(7)
BASE: NDArray[Any] = (RNG.normal(0, 0.02, WORDS).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def stepped(share: float, size: int = 1) -> NDArray[Any]:
    """Return the base with a share of its words some steps up or down, whichever test comes first."""
    rng = np.random.default_rng((11, size))
    moved = np.where(rng.random(WORDS) < share, rng.integers(1, size + 1, WORDS), 0) * rng.choice([-1, 1], WORDS)
    return (BASE.astype(np.int64) + moved).astype(np.uint16)


def told(new: NDArray[Any], how: How | None = None) -> Delta:
    return encode({"w": tensor(BASE, "bfloat16")}, {"w": tensor(new, "bfloat16")}, how or How())


def form(delta: Delta) -> str:
    return "+".join(sorted(delta.manifest.forms))


def test_what_did_not_change_takes_nothing() -> None:
    delta = told(BASE.copy())
    assert form(delta) == "skip"
    assert delta.size_bytes == 0


@pytest.mark.parametrize(
    ("share", "size", "wanted"),
    [(0.00001, 1, "sparse"), (0.018, 1, "sparse"), (0.12, 2, "sparse"), (0.9, 2, "dense"), (1.0, 30_000, "full")],
)
def test_by_itself_it_takes_the_form_that_fits_how_much_changed(share: float, size: int, wanted: str) -> None:
    assert form(told(stepped(share, size))) == wanted


def test_a_fraction_says_where_what_changed_is_no_longer_told() -> None:
    few, many = stepped(0.2), stepped(0.5)
    how = How(incremental_threshold=0.3)
    assert (form(told(few, how)), form(told(many, how))) == ("sparse", "full")
    assert form(told(few, How(incremental_threshold=0.0))) == "full"
    assert form(told(stepped(1.0, 30_000), How(incremental_threshold=1.0))) == "dense"


def test_on_a_link_that_is_faster_than_packing_nothing_is_packed() -> None:
    new = stepped(0.5)
    delta = told(new, How(link_bytes_s=1e11))
    assert [piece.stored for piece in delta.manifest.tensors[0].pieces] == [(new.nbytes,)]
    assert told(new).size_bytes < new.nbytes / 3


def test_each_chunk_has_the_form_that_fits_it() -> None:
    new = BASE.copy()
    new[70_000] += 1
    new[131_072 : 131_072 + 65_536] = RNG.integers(0, 1 << 16, 65_536)
    delta = told(new, How(chunk_words=1 << 16))
    assert [piece.form for piece in delta.manifest.tensors[0].pieces] == ["skip", "sparse", "full", "skip"]


def test_changes_that_all_lie_where_the_sample_did_not_look_are_told_as_changes() -> None:
    old = RNG.integers(0, 1 << 15, 1 << 20, dtype=np.uint16)
    new = old.copy()
    new[5000:69_000] += 1  # between the first three places that are looked at
    new[75_000:139_000] += 1
    delta = encode({"w": tensor(old)}, {"w": tensor(new)})
    assert form(delta) == "sparse"
    assert delta.size_bytes < new.nbytes / 20


def test_exponents_of_floats_shrink_beside_each_other_and_noise_is_left_as_it_is() -> None:
    weights = encode({}, {"w": tensor(BASE, "bfloat16")})
    assert weights.size_bytes < 0.75 * BASE.nbytes
    noise = RNG.integers(0, 1 << 16, WORDS, dtype=np.uint16)
    assert encode({}, {"w": tensor(noise)}).size_bytes == noise.nbytes


@pytest.mark.parametrize(
    "setting",
    [
        {"incremental_threshold": 1.5},
        {"incremental_threshold": float("nan")},
        {"incremental_threshold": "always"},
        {"link_bytes_s": 0},
        {"link_bytes_s": float("inf")},
        {"chunk_words": 0},
        {"chunk_words": 1 << 30},
    ],
)
def test_a_setting_that_means_nothing_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        How(**setting)
    assert caught.value.kind == "bad-setting"
