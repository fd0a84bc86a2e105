"""A part is a plain safetensors file that holds what it was given, bit for bit; and nothing that is no part is read as one."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from milepost.engine.arena import Arena
from milepost.engine.capture import capture
from milepost.errors import CorruptError, NotFoundError, UsageError
from milepost.service.index import CHUNK_BYTES, Chunks
from milepost.service.packing import Parcel, fill, parcel
from milepost.service.tensors import tensors_of, writable
from milepost.service.unpacking import Part
from tests.pytorch.test_devices import device

TORCH = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool]
TORCH += [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
TORCH += [torch.complex64, torch.complex128, torch.float8_e4m3fnuz]
NUMPY = ["?", "u1", "<u2", "<i4", "<i8", "<f2", "<f4", "<f8", ">f4", ">i8", ">c8", "<c16", "<U3", "S4", "<M8[ns]"]

names = st.text(max_size=8)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


def filled(made: Parcel) -> bytearray:
    memory = bytearray(made.size_bytes)
    chunks = fill(made, memoryview(memory))
    assert chunks == Chunks.of(memory)
    return memory


def packed(value: object, dtype: str | None = None) -> Part:
    return Part(memoryview(filled(parcel(value, "weights", dtype))).toreadonly(), "weights")


def bits(value: Any) -> tuple[Any, ...]:
    if isinstance(value, torch.Tensor):
        flat = torch.empty(value.numel(), dtype=value.dtype)
        flat.view(value.shape).copy_(value)
        data = flat.view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return value.dtype, tuple(value.shape), data
    little = value.dtype.newbyteorder("<")
    return little, value.shape, value.astype(little).tobytes()


def numbers(value: torch.Tensor) -> tuple[Any, Any]:
    """Return all that a tensor says but the payloads of its NaNs, which rounding may choose."""
    wide = value.double()
    return bits(wide.nan_to_num(0.5, math.inf, -math.inf)), wide.isnan().tolist()


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype, shape = draw(st.sampled_from(TORCH)), draw(shapes)
    size = math.prod(shape) * dtype.itemsize
    data = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype is torch.bool:
        data = bytearray(byte & 1 for byte in data)
    made = torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(shape) if data else torch.empty(shape, dtype=dtype)
    if draw(st.booleans()) and made.ndim > 1:
        made = made.transpose(0, 1)
    if draw(st.booleans()) and made.ndim and dtype.itemsize > 1:
        made = made[::2]
    return made


@given(state=st.dictionaries(names, tensors(), max_size=6), tie=st.booleans())
def test_a_state_dict_comes_back_bit_for_bit_in_its_order(state: dict[str, torch.Tensor], tie: bool) -> None:
    if tie and state:
        state = {**state, "tied": next(iter(state.values()))}
    part = packed(state)
    found = tensors_of(part)
    assert [*found] == [*state] == [*part.entries] if "__metadata__" not in state else True
    if "__metadata__" not in state:
        assert {name: bits(tensor) for name, tensor in found.items()} == {name: bits(tensor) for name, tensor in state.items()}
    assert {name: bits(tensor) for name, tensor in part.value().items()} == {name: bits(value) for name, value in state.items()}
    for entry in part.entries.values():
        item = entry.size_bytes // (math.prod(entry.shape) or 1)
        assert entry.start % min(entry.size_bytes & -entry.size_bytes or 64, 64) == 0 or not item


@given(state=st.dictionaries(names, st.sampled_from(NUMPY).flatmap(lambda dtype: hnp.arrays(dtype, shapes)), max_size=5))
def test_arrays_come_back_bit_for_bit_as_views_that_cannot_be_written_to(state: dict[str, np.ndarray[Any, Any]]) -> None:
    part = packed(state)
    if "__metadata__" in state:
        return
    for name, array in state.items():
        found = part.array(name)
        assert not found.flags.writeable
        # A big-endian number has the same value here; text and times are as they were.
        assert bits(found) == bits(array)


trees = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4), tensors()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(names, st.integers(), st.tuples(st.integers())), inner, max_size=3),
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and bits(one) == bits(other)
    if isinstance(one, dict):
        return type(one) is type(other) and [*one] == [*other] and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@given(tree=trees)
def test_any_tree_comes_back_as_it_was(tree: Any) -> None:
    assert same(packed(tree).value(), tree)


@given(state=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), tensors(), max_size=6))
def test_it_is_a_file_that_safetensors_reads(state: dict[str, torch.Tensor]) -> None:
    state = {name: tensor for name, tensor in state.items() if tensor.dtype in _THEIRS and name != "__metadata__"}
    made = filled(parcel(state, "weights"))
    theirs = safetensors.torch.load(bytes(made))
    assert {name: bits(tensor) for name, tensor in theirs.items()} == {name: bits(tensor) for name, tensor in state.items()}


_THEIRS = {
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.bool,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
}
_THEIRS |= {torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2}


def test_a_file_of_safetensors_is_a_part() -> None:
    state = {"a": torch.randn(3), "b": torch.randn(2, 2).bfloat16()}
    part = Part(memoryview(safetensors.torch.save(state)), "weights")
    assert {name: bits(tensor) for name, tensor in tensors_of(part).items()} == {name: bits(state[name]) for name in state}
    with pytest.raises(UsageError, match="says nothing of a tree"):
        part.value()


def test_what_is_tied_is_stored_once_and_shares_its_memory_again() -> None:
    weight = torch.randn(100, 100)
    state = {"encoder": weight, "decoder": weight, "turned": weight.t()}
    made = parcel(state, "weights")
    assert made.size_bytes < 2.2 * weight.nbytes
    part = packed(state)
    found = tensors_of(part)
    assert found["encoder"].data_ptr() == found["decoder"].data_ptr()
    assert torch.equal(found["turned"], weight.t())
    again = part.value()
    assert again["encoder"] is again["decoder"]


def test_most_weights_begin_at_64_bytes_wherever_a_file_is_mapped() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(17, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))
    part = packed(model.state_dict())
    assert {name: entry.start % 64 for name, entry in part.entries.items()} == {
        "0.weight": 0,
        "0.bias": 0,
        "2.weight": 0,
        "2.bias": 0,
    }


def test_a_modules_state_dict_keeps_what_torch_notes_on_it() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    found = tensors_of(packed(model.state_dict()))
    assert isinstance(found, OrderedDict)
    assert found._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
    torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)).load_state_dict(found)
    assert {name: bits(tensor) for name, tensor in tensors_of(packed(model)).items()} == {
        name: bits(tensor) for name, tensor in model.state_dict().items()
    }


def test_a_large_part_is_digested_beside_its_copying() -> None:
    state = {f"w{number}": torch.randint(0, 255, (CHUNK_BYTES // 3 + number,), dtype=torch.uint8) for number in range(10)}
    memory = filled(parcel(state, "weights"))
    assert len(memory) > 3 * CHUNK_BYTES
    found = safetensors.torch.load(bytes(memory))
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_what_a_device_has_is_fetched_and_a_save_that_is_on_its_way_from_there_arrives() -> None:
    with device() as (twin, _):
        weights = twin.own(torch.arange(5000.0))
        staged = capture({"policy": {"w": weights}}, Arena())
        part = packed({"w": weights, "host": torch.ones(3)})
        twin.launch(lambda: weights.zero_())
        staged.arrived()
        assert [bytes(staged.data(leaf)) for leaf in staged.components[0].leaves] == [torch.arange(5000.0).numpy().tobytes()]
    assert torch.equal(tensors_of(part)["w"], torch.arange(5000.0))
    assert torch.equal(tensors_of(part)["host"], torch.ones(3))


@pytest.mark.parametrize("target", ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
def test_floats_are_published_as_torch_rounds_them(source: torch.dtype, target: str) -> None:
    bit_patterns = torch.randint(-(2**31), 2**31 - 1, (20_000,), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    values = bit_patterns.view(torch.float32).to(source)
    state = {"w": values, "turned": values[:30].view(5, 6).t(), "n": torch.arange(3), "c": torch.randn(2, dtype=torch.complex64)}
    found = tensors_of(packed(state, target))
    theirs = values.to(getattr(torch, target))
    assert found["w"].dtype == theirs.dtype
    assert numbers(found["w"]) == numbers(theirs)
    assert found["turned"].shape == (6, 5)
    assert bits(found["n"]) == bits(state["n"])
    assert bits(found["c"]) == bits(state["c"])


@pytest.mark.parametrize("target", ["bfloat16", "float16", "float32"])
@given(values=hnp.arrays(np.float32, st.integers(0, 50), elements=st.floats(width=32)))
def test_arrays_are_published_as_torch_rounds_tensors(target: str, values: np.ndarray[Any, Any]) -> None:
    ours = tensors_of(packed({"w": values}, target))["w"]
    theirs = torch.from_numpy(values).to(getattr(torch, target))
    assert ours.dtype == theirs.dtype
    assert numbers(ours) == numbers(theirs)


@given(number=st.integers(0, 0x7F7E), side=st.sampled_from([-1, 0, 1]), sign=st.sampled_from([1.0, -1.0]))
@pytest.mark.parametrize("kind", ["torch", "<f8", ">f8"])
def test_doubles_are_rounded_once(kind: str, number: int, side: int, sign: float) -> None:
    # Halfway between two bfloat16 values, and as little beside it as a double can say: no single can.
    below, above = torch.tensor([number, number + 1], dtype=torch.int16).view(torch.bfloat16).double().tolist()
    value = sign * math.nextafter((below + above) / 2, math.inf * side) if side else sign * (below + above) / 2
    nearest = (below if number % 2 == 0 else above) if side == 0 else (below if side < 0 else above)
    array = np.array([value, 0.0, -0.0, np.inf, np.nan])
    doubles = torch.from_numpy(array) if kind == "torch" else array.astype(kind)
    found = tensors_of(packed({"w": doubles}, "bfloat16"))["w"].double().tolist()
    assert found[0] == sign * nearest
    assert [math.copysign(1, found[1]), math.copysign(1, found[2]), found[3]] == [1, -1, math.inf]
    assert math.isnan(found[4])


@pytest.mark.parametrize("target", ["float16", "bfloat16", "float32"])
def test_a_nan_that_signals_is_rounded_without_a_word(target: str) -> None:
    signalling = np.array([0x7FF0000000000001, 0xFFF0000000000001], np.uint64).view(np.float64)
    for doubles in (signalling, torch.from_numpy(signalling)):
        assert tensors_of(packed({"w": doubles}, target))["w"].isnan().all()


def test_what_is_in_no_dtype_of_torch_or_numpy_is_said_so() -> None:
    part = packed({"text": np.array(["a"]), "small": torch.ones(2).to(torch.float8_e5m2)})
    with pytest.raises(UsageError) as torch_has_not:
        tensors_of(part)
    assert torch_has_not.value.kind == "not-in-torch"
    with pytest.raises(UsageError) as numpy_has_not:
        part.array("small")
    assert numpy_has_not.value.kind == "not-in-numpy"
    with pytest.raises(NotFoundError):
        part.array("large")
    with pytest.raises(UsageError, match="NumPy arrays cannot"):
        parcel({"w": np.zeros(3)}, "weights", "float8_e5m2")


def test_tensors_lie_in_the_part_unless_that_would_harm_others() -> None:
    memory = filled(parcel({"w": torch.ones(16)}, "weights"))
    mine = Part(memoryview(memory).toreadonly(), "weights")
    tensors_of(mine)["w"].zero_()
    assert float(tensors_of(mine)["w"].sum()) == 0
    assert float(tensors_of(mine, copy=True)["w"].fill_(3).sum()) == 48
    fixed = Part(memoryview(bytes(memory)), "weights")
    tensors_of(fixed)["w"].fill_(2)
    assert float(tensors_of(fixed)["w"].sum()) == 0
    assert writable(memoryview(b"")) is None


def header(entries: object, length: int | None = None, data: int = 0) -> memoryview:
    text = json.dumps(entries).encode() if not isinstance(entries, bytes) else entries
    return memoryview((len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data))


def one(**changes: object) -> dict[str, object]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


@pytest.mark.parametrize(
    "data",
    [
        memoryview(b""),
        memoryview(b"\x01\x00"),
        header({}, length=1 << 62),
        header({}, length=200),
        header(b"[1]"),
        header(b"{"),
        header(b"\xff\xfe"),
        header(b'{"w":' + b"[" * 100_000),
        header(one(), data=7),
        header(one(data_offsets=[8, 0]), data=8),
        header(one(data_offsets=[-8, 0]), data=8),
        header(one(data_offsets=[0, 8.5]), data=8),
        header(one(dtype="F33"), data=8),
        header(one(shape=[3]), data=8),
        header(one(shape=[-1, -2]), data=8),
        header(one(shape=[1 << 70, 0]), data=8),
        header(one(shape=[1 << 50] * 64), data=8),
        header(one(shape=[1] * 100_000), data=8),
        header(one(shape="2"), data=8),
        header({"__metadata__": {"milepost": '{"tied":{"v":"u"}}'}, **one()}, data=8),
        header({"__metadata__": {"milepost": '{"tied":{"w":"w"}}'}, **one()}, data=8),
        header({"__metadata__": {"milepost": '{"dtypes":{"w":"<U1"}}'}, **one()}, data=8),
        header({"__metadata__": {"milepost": "{"}, **one()}, data=8),
        header({"__metadata__": {"milepost": 3}, **one()}, data=8),
    ],
)
def test_what_is_no_part_is_refused(data: memoryview) -> None:
    with pytest.raises(CorruptError) as refused:
        Part(data, "weights")
    assert refused.value.kind == "damaged-part"


@pytest.mark.parametrize(
    "notes",
    [
        {"tree": ["dict", [["w", ["array", 0]]]], "leaves": [["v", "torch"]]},
        {"tree": ["dict", [["w", ["array", 7]]]], "leaves": [["w", "torch"]]},
        {"tree": ["dict", [["w", ["opaque"]]]], "leaves": []},
        {"tree": ["list", 3], "leaves": []},
        {"tree": [], "leaves": []},
        {"tree": ["array", 0], "leaves": [["w", "torch"]], "dtypes": {"w": "complex64"}},
    ],
)
def test_a_tree_that_was_made_up_builds_nothing(notes: dict[str, object]) -> None:
    entries = {"w": {"dtype": "U8", "shape": [2, 3], "data_offsets": [0, 6]}}
    part = Part(header({"__metadata__": {"milepost": json.dumps(notes)}, **entries}, data=6), "weights")
    with pytest.raises(CorruptError):
        part.value()


@pytest.mark.parametrize("dtype", ["float64", "<U1000", "bfloat16", "datetime64[ns]", "no such"])
def test_a_dtype_that_was_made_up_is_no_reason_to_read_other_bytes(dtype: str) -> None:
    entries = {"w": {"dtype": "U8", "shape": [2, 3], "data_offsets": [0, 6]}}
    part = Part(header({"__metadata__": {"milepost": json.dumps({"dtypes": {"w": dtype}})}, **entries}, data=6), "weights")
    with pytest.raises(CorruptError):
        part.widened("w", "float32")
    with pytest.raises((CorruptError, UsageError)):
        tensors_of(part)


def test_arrays_of_the_same_bytes_have_each_its_own_shape() -> None:
    entries = {name: {"dtype": "U8", "shape": shape, "data_offsets": [0, 6]} for name, shape in (("v", [2, 3]), ("w", [6]))}
    tensors = tensors_of(Part(header(entries, data=6), "weights"))
    assert [tuple(tensor.shape) for tensor in tensors.values()] == [(2, 3), (6,)]


def test_what_is_done_to_one_value_is_not_seen_in_the_next_of_such_a_part() -> None:
    tree = {"list": [1, [2]], "dict": {"a": {}}, "set": {3}, "bytes": b"4", "array": np.zeros(2)}
    memory = memoryview(filled(parcel(tree, "more")))
    one = Part(memory, "more").value()
    one["list"][1].append(5)
    one["dict"]["a"]["b"] = 6
    one["set"].add(7)
    one["array"][:] = 8
    one.clear()
    again = Part(memory, "more").value()
    assert again.pop("array").tolist() == [0, 0]
    assert again == {"list": [1, [2]], "dict": {"a": {}}, "set": {3}, "bytes": b"4"}


@given(data=st.data())
def test_a_part_of_which_a_byte_was_flipped_is_read_or_refused(data: st.DataObject) -> None:
    memory = filled(parcel({"w": torch.ones(4), "tied": (shared := torch.ones(2)), "v": shared, "t": (1, "a")}, "weights"))
    at = data.draw(st.integers(0, len(memory.rstrip(b"\0"))), label="at")
    memory[min(at, len(memory) - 1)] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    try:
        part = Part(memoryview(memory), "weights")
        for name in part.entries:
            part.array(name)
        part.value()
    except (CorruptError, UsageError):
        pass
