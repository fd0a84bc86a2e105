"""What comes out has the bits of what went in, whatever was between. C6"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.service.delta.applying import apply
from milepost.service.delta.encoding import encode
from milepost.service.delta.forms import Packer, dense, raw, restore, shuffled, sparse
from milepost.service.delta.records import Tensor
from milepost.service.delta.settings import How
from milepost.service.delta.words import gaps_of, join, most_gaps, planes_of, step, steps, where_of
from tests.service.delta.sets import bytes_of, hows, sent, special, tensor, versions

WIDTHS = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=300)
@given(versions(), hows)
def test_any_version_comes_out_of_any_other_with_its_bits_and_neither_is_touched(
    pair: tuple[dict[str, Tensor], dict[str, Tensor]], how: How
) -> None:
    base, new = pair
    before = bytes_of(base), bytes_of(new)
    made = apply(sent(encode(base, new, how)), base)
    assert list(made) == list(new)
    assert bytes_of(made) == before[1]
    assert (bytes_of(base), bytes_of(new)) == before


@given(st.data(), WIDTHS)
def test_each_form_gives_back_each_word(data: st.DataObject, width: int) -> None:
    count = data.draw(st.integers(1, 40))
    words = st.sampled_from(special(width)) | st.integers(0, 2 ** (8 * width) - 1)
    old, new = (np.array(data.draw(st.lists(words, min_size=count, max_size=count)), dtype=f"<u{width}") for _ in range(2))
    packer = Packer()
    told = [dense(old, new, packer), shuffled(new, packer), raw(new)]
    if (old != new).any():
        told.append(sparse(old, new, old != new, packer))
    for piece, planes in told:
        assert all(type(plane) is bytes for plane in planes), "a delta would change with the weights"
        out = np.full_like(new, 0x5A)
        restore(piece, planes, old, out)
        assert out.tobytes() == new.tobytes(), piece


@given(st.data(), WIDTHS)
def test_steps_and_planes_are_undone(data: st.DataObject, width: int) -> None:
    words = st.sampled_from(special(width)) | st.integers(0, 2 ** (8 * width) - 1)
    old, new = (
        np.array(column, dtype=f"<u{width}")
        for column in zip(*data.draw(st.lists(st.tuples(words, words), min_size=1)), strict=True)
    )
    by = steps(old, new)
    again = np.empty_like(by)
    join(list(planes_of(by)), again)
    assert again.tobytes() == by.tobytes()
    out = np.empty_like(old)
    step(old, by, out)
    assert out.tobytes() == new.tobytes()


def test_a_step_of_one_up_or_down_is_a_small_number_at_every_width() -> None:
    for width in (1, 2, 4, 8):
        old = np.array([7, 7, 7, 0], dtype=f"<u{width}")
        new = np.array([7, 8, 6, -1 % 2 ** (8 * width)], dtype=f"<u{width}")
        assert steps(old, new).tolist() == [0, 2, 1, 1]


@given(st.lists(st.one_of(st.integers(0, 3), st.integers(250, 260), st.integers(0, 70_000)), min_size=1, max_size=50))
def test_gaps_of_any_length_are_undone_and_as_few_as_is_said(gaps: list[int]) -> None:
    where = np.cumsum(np.array(gaps) + 1) - 1
    said = gaps_of(where)
    assert where_of(said).tolist() == where.tolist()
    assert len(said) <= most_gaps(len(where), int(where[-1]) + 1)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_a_sign_of_zero_and_a_payload_of_nan_travel(dtype: str) -> None:
    old = np.zeros(50, dtype=dtype)
    new = -old
    new.real[7] = np.nan
    view = new.view(np.uint8)
    view[7 * new.itemsize] = 0x5B
    delta = encode({"w": tensor(old)}, {"w": tensor(new)}, How(incremental_threshold=1.0))
    assert bytes(apply(sent(delta), {"w": tensor(old)})["w"].data) == new.tobytes()
    changed = new.copy()
    view = changed.view(np.uint8)
    view[7 * new.itemsize] = 0x5C
    delta = encode({"w": tensor(new)}, {"w": tensor(changed)})
    assert delta.manifest.tensors[0].pieces[0].changed == 1
    assert bytes(apply(sent(delta), {"w": tensor(new)})["w"].data) == changed.tobytes()


def test_what_is_compared_is_an_element_half_a_complex_one_or_a_byte() -> None:
    widths = {
        ("bool", 1): 1,
        ("bfloat16", 2): 2,
        ("float64", 8): 8,
        ("complex64", 8): 4,
        ("complex128", 16): 8,
        ("<U3", 12): 1,
        ("float128", 16): 1,
    }
    for (dtype, item), width in widths.items():
        assert Tensor(dtype, (3,), bytes(3 * item)).word_bytes == width
    assert Tensor("float32", (0,), b"").word_bytes == 1


def test_what_lies_in_one_memory_is_told_once_and_comes_back_in_one() -> None:
    rng = np.random.default_rng(0)
    embedding = tensor(rng.integers(0, 9, 4000, dtype=np.uint16), "bfloat16")
    other = tensor(np.frombuffer(embedding.data, np.uint16).copy(), "bfloat16")
    delta = encode(
        {}, {"head": embedding, "embed": embedding, "same": other, "empty": tensor(np.zeros(0)), "none": tensor(np.zeros(0))}
    )
    assert [told.tied_to for told in delta.manifest.tensors] == [None, "head", None, None, None]
    assert delta.manifest.size_bytes == 16_000
    made = apply(sent(delta), {})
    assert made["embed"] is made["head"]
    assert made["same"].data.obj is not made["head"].data.obj  # type: ignore[union-attr]


def test_what_was_tied_and_is_not_any_more_is_told_against_what_it_was() -> None:
    shared = np.arange(1000, dtype=np.uint32)
    base = {"a": tensor(shared), "b": tensor(shared)}
    apart = shared.copy()
    apart[3] += 1
    delta = encode(base, {"a": tensor(shared), "b": tensor(apart)})
    assert dict(delta.manifest.forms) == {"skip": 1, "sparse": 1}
    assert bytes_of(apply(sent(delta), base)) == bytes_of({"a": tensor(shared), "b": tensor(apart)})


def test_a_tensor_of_another_shape_or_dtype_is_told_whole_unless_its_bytes_can_be_compared() -> None:
    old = np.arange(600, dtype=np.float32).reshape(20, 30)
    base = {"reshaped": tensor(old), "grown": tensor(old), "cast": tensor(old)}
    new = {
        "reshaped": tensor(old.reshape(600)),
        "grown": tensor(np.zeros((21, 30), np.float32)),
        "cast": tensor(old.view(np.int32)),
    }
    delta = encode(base, new)
    assert [told.pieces[0].form for told in delta.manifest.tensors] == ["skip", "full", "full"]
    assert [bool(told.base_digest) for told in delta.manifest.tensors] == [True, False, False]
    assert bytes_of(apply(sent(delta), base)) == bytes_of(new)
    whole = {name: one for name, one in new.items() if name != "reshaped"}
    assert bytes_of(apply(sent(encode(base, whole)), {})) == bytes_of(whole)  # what is told whole needs no base


def test_bytes_that_lie_at_an_odd_address_are_words_too() -> None:
    room = bytearray(1 + 4 * 100)
    at_odd = memoryview(room)[1:]
    base = {"w": Tensor("float32", (100,), at_odd)}
    new = {"w": tensor(np.arange(100, dtype=np.float32))}
    into = memoryview(bytearray(401))[1:]
    made = apply(sent(encode(base, new, How(incremental_threshold=1.0))), base, {"w": into})
    assert bytes_of(made) == bytes_of(new)
    assert bytes_of(apply(encode(new, base), new)) == bytes_of(base)
