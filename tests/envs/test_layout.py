"""An array comes back as it lay in memory, and a tensor in the memory it had. B20"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from milepost.envs.layout import laid_out, strides_of
from milepost.envs.plain import Recorder, Refiller, same
from milepost.errors import CorruptError

SHAPES = st.lists(st.integers(0, 4), min_size=0, max_size=4)


@given(shape=SHAPES, data=st.data(), kind=st.sampled_from(["numpy", "torch"]))
def test_an_array_whose_axes_were_swapped_lies_so_again(shape: list[int], data: st.DataObject, kind: str) -> None:
    axes = data.draw(st.permutations(range(len(shape))))
    made: Any = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    array = made.transpose(axes) if kind == "numpy" else torch.from_numpy(made).permute(axes)
    saved = copy.deepcopy(Recorder().value(array, "x"))
    if isinstance(saved, dict):  # in C order, as an engine's store keeps it
        saved["state"] = np.ascontiguousarray(saved["state"]) if kind == "numpy" else saved["state"].contiguous()
    back = Refiller().value(saved, None, "x")
    assert back.shape == array.shape
    assert same(np.asarray(back).copy(), np.asarray(array).copy())
    assert not np.asarray(array).size or _steps(back) == _steps(array)


def _steps(array: Any) -> tuple[int, ...]:
    return tuple(array.strides) if isinstance(array, np.ndarray) else tuple(array.stride())


def test_an_axis_of_length_one_keeps_its_stride_though_numpy_calls_the_array_contiguous() -> None:
    pictures = np.zeros((1, 36, 36, 1), np.uint8).transpose(0, 3, 1, 2)
    assert pictures.flags.c_contiguous
    back = Refiller().value(copy.deepcopy(Recorder().value(pictures, "x")), None, "x")
    assert torch.from_numpy(back).stride() == torch.from_numpy(pictures).stride()


@pytest.mark.parametrize("order", ["usual", "swapped"])
def test_a_tensor_is_overwritten_only_where_it_lies_as_the_saved_one_did(order: str) -> None:
    live = torch.zeros(2, 3) if order == "usual" else torch.zeros(3, 2).t()
    for saved in (torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2).t()):
        back = Refiller().value(Recorder().value(saved, "x"), live, "x")
        assert torch.equal(back, saved)
        assert back.stride() == saved.stride()
        assert (back is live) == (live.stride() == saved.stride())


def test_a_slice_with_gaps_is_saved_by_its_values_alone() -> None:
    gaps = np.arange(8)[::2]
    assert strides_of(gaps) is None
    assert Recorder().value(gaps, "x") is gaps


@given(strides=st.lists(st.integers(-9, 9) | st.just(2**40), max_size=3))
def test_planted_strides_never_lead_outside(strides: list[int]) -> None:
    saved = np.arange(6).reshape(2, 3)
    reach = sum((length - 1) * step for length, step in zip(saved.shape, strides, strict=False))
    if len(strides) == 2 and min(strides) >= 0 and reach == 5:
        assert laid_out(saved, tuple(strides)).size == 6
    else:
        with pytest.raises(CorruptError):
            laid_out(saved, tuple(strides))
