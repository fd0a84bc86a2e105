"""The finite scan sees what the framework sees, for every kind of number that has a not-a-number (B16)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from milepost.lifecycle.health import is_finite, is_scanned
from milepost.state.dtypes import dtype_name

TORCH = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
ONE_BYTE = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
NUMPY = ["f2", "f4", "f8", ">f2", ">f4", ">f8", "g", "c8", "c16", ">c8", "G"]
WHOLE = ["bool", "int8", "uint8", "int64", "uint16", "S3", "<U2", "datetime64[ns]", "timedelta64[s]"]


def torch_dtype(name: str) -> Any:
    return getattr(torch, name)


def bits_of(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).numpy())


@pytest.mark.parametrize("name", ONE_BYTE)
def test_each_of_the_256_patterns_of_a_small_float_is_judged_as_torch_judges_it(name: str) -> None:
    patterns = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    finite = torch.isfinite(patterns.view(torch_dtype(name)).to(torch.float32)).tolist()
    assert [is_finite(name, bytes([pattern])) for pattern in range(256)] == finite
    assert not all(finite)


def test_the_patterns_of_bfloat16_are_judged_as_torch_judges_them() -> None:
    patterns = torch.arange(0, 1 << 16, 3, dtype=torch.int32).to(torch.int16)
    finite = torch.isfinite(patterns.view(torch.bfloat16)).tolist()
    assert [is_finite("bfloat16", pattern.tobytes()) for pattern in patterns.numpy()] == finite
    assert not all(finite)


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_number_anywhere_is_found(name: str, bad: float) -> None:
    for position in (0, 517, 1023):
        numbers = torch.zeros(1024, dtype=torch_dtype(name))
        assert is_finite(name, bits_of(numbers))
        numbers[position] = bad
        assert not is_finite(name, bits_of(numbers))


def test_half_complex_numbers_are_looked_at() -> None:
    halves = np.array([1, 2, 3, 4], np.float16)
    assert is_finite("complex32", halves.tobytes())
    halves[3] = np.inf
    assert not is_finite("complex32", halves.tobytes())


@pytest.mark.parametrize("code", NUMPY)
def test_a_bad_number_of_any_numpy_float_is_found(code: str) -> None:
    numbers = np.ones(100, code)
    name = dtype_name(numbers.dtype)
    assert is_finite(name, numbers.tobytes())
    for bad in (np.nan, np.inf, -np.inf):
        numbers[99] = bad
        assert not is_finite(name, numbers.tobytes())


@pytest.mark.parametrize("code", WHOLE)
def test_what_has_no_infinity_is_finite(code: str) -> None:
    dtype = np.dtype(code)
    assert is_finite(dtype_name(dtype), b"\xff" * dtype.itemsize * 8)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e5m2", "int64", "float4_e2m1fn_x2", "of another library"])
def test_nothing_at_all_is_finite(name: str) -> None:
    assert is_finite(name, b"")


def test_the_end_of_a_leaf_longer_than_one_piece_is_looked_at() -> None:
    numbers = np.zeros((1 << 20) + 3, np.float16)
    assert is_finite("float16", numbers.tobytes())
    numbers[-1] = np.nan
    assert not is_finite("float16", numbers.tobytes())
    narrow = np.zeros((1 << 20) + 3, np.uint8)
    narrow[-1] = 0x7F
    assert not is_finite("float8_e4m3fn", narrow.tobytes())


@given(hnp.arrays(st.sampled_from([np.float16, np.float32, np.float64, np.complex64]), st.integers(0, 20)))
def test_the_scan_agrees_with_numpy(numbers: np.ndarray[Any, Any]) -> None:
    assert is_finite(str(numbers.dtype), numbers.tobytes()) == bool(np.isfinite(numbers).all())


@pytest.mark.parametrize(
    ("component", "scanned"),
    [
        *(("policy", True), ("value", True), ("target", True), ("optimizer", True), ("critic/optimizer", True)),
        *(("replay", False), ("normalizer", False), ("extra", False), ("policy/extra", False)),
    ],
)
def test_weights_and_moments_are_scanned_and_nothing_else(component: str, scanned: bool) -> None:
    assert is_scanned(component) is scanned
