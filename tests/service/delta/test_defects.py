"""What others' deltas got wrong, as research found it in their code. C6

D3 and D5 are in `test_applying`. D6, a file of state that was neither synced nor renamed into place, has no counterpart: there
are no files here.
"""

from __future__ import annotations

import numpy as np
import pytest

from milepost.errors import MismatchError
from milepost.service.delta.applying import apply
from milepost.service.delta.encoding import encode
from milepost.service.delta.records import Tensor
from milepost.service.delta.settings import How
from tests.at_length import AT_LENGTH
from tests.service.delta.sets import sent, tensor

BEYOND = (1 << 32) + 3


def test_d1_zero_that_becomes_minus_zero_is_a_change() -> None:
    old = np.zeros(4096, dtype=np.float32)
    new = old.copy()
    new[17] = -0.0
    delta = encode({"w": tensor(old)}, {"w": tensor(new)})
    assert delta.manifest.tensors[0].pieces[0].changed == 1
    assert bytes(apply(sent(delta), {"w": tensor(old)})["w"].data) == new.tobytes()


def test_d1_a_nan_that_stays_is_no_change() -> None:
    old = np.full(4096, np.nan, dtype=np.float32)
    assert encode({"w": tensor(old)}, {"w": tensor(old.copy())}).size_bytes == 0


def test_d2_nothing_that_comes_out_lies_in_the_base_and_a_base_that_is_refused_was_not_changed() -> None:
    old = np.arange(4096, dtype=np.uint16)
    new = old.copy()
    new[5] = 0
    base = {"w": tensor(old), "same": tensor(old + 1)}
    delta = sent(encode(base, {"w": tensor(new), "same": base["same"]}))
    made = apply(delta, base)
    for name in made:
        assert not np.shares_memory(np.frombuffer(made[name].data, np.uint8), np.frombuffer(base[name].data, np.uint8))
    other = old.copy()
    other[9] += 1
    wrong = other.copy()
    with pytest.raises(MismatchError):
        apply(delta, {**base, "w": tensor(wrong)})
    assert (wrong == other).all()


def test_d4_positions_are_those_within_a_chunk_however_many_chunks_lie_before_it() -> None:
    old = np.zeros(70_000, dtype=np.uint16)
    new = old.copy()
    new[[0, 65_535, 65_536, 69_999]] = 9
    for chunk_words in (255, 256, 1 << 16, 1 << 24):
        delta = encode({"w": tensor(old)}, {"w": tensor(new)}, How(chunk_words=chunk_words))
        assert bytes(apply(sent(delta), {"w": tensor(old)})["w"].data) == new.tobytes()


@pytest.mark.slow
@pytest.mark.skipif(not AT_LENGTH, reason="at length: 8 GiB of memory, ten seconds")
def test_d4_a_change_beyond_four_gibibytes_lands_where_it_was_made() -> None:
    """Slow: a tensor of more than 2^32 elements is compared, hashed four times, and written once, 4 GiB of memory."""
    old, new = (np.zeros(BEYOND + 1, dtype=np.uint8) for _ in range(2))
    new[[3, BEYOND]] = 7, 9
    base = {"w": Tensor("uint8", old.shape, old.data)}
    delta = sent(encode(base, {"w": Tensor("uint8", new.shape, new.data)}))
    assert delta.manifest.forms["sparse"] == 2
    made = np.frombuffer(apply(delta, base)["w"].data, dtype=np.uint8)
    assert (made[3], made[BEYOND], int(np.count_nonzero(made))) == (7, 9, 2)
