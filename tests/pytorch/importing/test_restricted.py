"""A pickle of somebody else's is data here: it runs nothing, and takes no more memory than a few times its own size. A11"""

from __future__ import annotations

import io
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.errors import CorruptError, MilepostError, UsageError
from milepost.pytorch.importing.restricted import read_pickle, read_torch

HERE = Path("state.pkl")


def read(data: bytes, *, trust: bool = False) -> Any:
    return read_pickle(data, HERE, trust=trust, what="the state")


def read_saved(data: bytes, *, trust: bool = False) -> Any:
    return read_torch(io.BytesIO(data), HERE, trust=trust, what="the state", size_bytes=len(data))


REFUSALS = ("damaged-source", "pickle-not-trusted")


def kind_of_refusal(reader: Callable[[bytes], Any], data: bytes) -> str | None:
    try:
        reader(data)
    except MilepostError as error:
        return error.kind
    return None


def saved(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def same(found: Any, wanted: Any) -> bool:
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, np.ndarray | np.generic):
        return found.dtype == wanted.dtype and found.shape == wanted.shape and found.tobytes() == wanted.tobytes()
    if isinstance(wanted, torch.Tensor):
        return found.dtype == wanted.dtype and found.shape == wanted.shape and torch.equal(found, wanted)
    if isinstance(wanted, dict):
        return list(found) == list(wanted) and all(same(found[key], wanted[key]) for key in wanted)
    return bool(found == wanted)


VALUES: dict[str, Any] = {
    "float64": np.float64(1.5),
    "array": np.arange(3),
    "text array": np.array(["a", "bc"]),
    "complex array": np.array([1 + 2j]),
    "big endian": np.array([1, 2], dtype=">i4"),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "no rows": np.zeros((0, 3)),
    "0-d": np.array(3.0),
    "date": np.datetime64("2020-01-01"),
    "dates": np.array(["2020-01-01", "NaT"], dtype="datetime64[ns]"),
    "set": {1, 2},
    "frozenset": frozenset([3]),
    "bytes": b"\x00\xff",
    "no bytes": b"",
    "bytearray": bytearray(b"xy"),
    "complex": 1j,
    "ordered": OrderedDict(b=1, a=2),
    "tensor": torch.arange(6.0).reshape(2, 3).t(),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "empty tensor": torch.empty(0, 3),
    "size": torch.Size([1, 2]),
    "dtype": torch.bfloat16,
    "generator state": torch.Generator().manual_seed(3).get_state(),
    "numpy's generator": np.random.default_rng(3).bit_generator.state,
    "legacy generator": np.random.RandomState(3).get_state(),
}


@pytest.mark.parametrize("name", VALUES)
def test_plain_data_arrays_and_tensors_come_back_as_they_were(name: str) -> None:
    value = {"it": VALUES[name], "again": [VALUES[name]]}
    if name != "legacy generator":
        for protocol in (2, 3, 4, 5):
            assert same(read(pickle.dumps(value, protocol))["it"], value["it"]), protocol
        assert same(read_saved(saved(value))["it"], value["it"])
    else:
        assert same(read(pickle.dumps(value))["it"][1], value["it"][1])
        assert same(read_saved(saved(value))["it"][1], value["it"][1])


def test_a_queue_comes_back_from_a_pickle() -> None:
    assert read(pickle.dumps(deque([1, 2], maxlen=5))) == deque([1, 2], maxlen=5)
    assert read(pickle.dumps(deque([1, 2], maxlen=5))).maxlen == 5


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(value=PLAIN, protocol=st.sampled_from((2, 4, 5)))
def test_any_plain_data_comes_back(value: Any, protocol: int) -> None:
    found = read(pickle.dumps(value, protocol))
    assert (found, repr(found)) == (value, repr(value))


def test_a_container_that_stands_in_two_places_is_one() -> None:
    shared = [1]
    found = read(pickle.dumps({"a": shared, "b": shared}))
    assert found["a"] is found["b"]


# --- what is hostile ---


class Calls:
    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.made = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.made


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("reader", [read, read_saved])
def test_a_pickle_that_runs_a_command_is_refused_by_its_name_and_runs_nothing(
    reader: Callable[[bytes], Any], protocol: int, tmp_path: Path
) -> None:
    value = {"epoch": Calls(os.system, f"touch {tmp_path / 'ran'}")}
    data = pickle.dumps(value, protocol) if reader is read else saved(value)
    with pytest.raises(UsageError) as caught:
        reader(data)
    assert caught.value.kind == "pickle-not-trusted"
    assert caught.value.facts["calls"] == "posix.system"
    assert "--trust-pickle" in caught.value.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("reader", [read, read_saved])
def test_one_that_is_trusted_runs(reader: Callable[..., Any], tmp_path: Path) -> None:
    value = {"epoch": Calls(os.system, f"touch {tmp_path / 'ran'}")}
    reader(pickle.dumps(value) if reader is read else saved(value), trust=True)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "function",
    [eval, exec, __import__, getattr, type, open, print, list, range, map, np.load, np.fromfile, torch.load, bytes.fromhex],
)
def test_no_function_that_is_not_on_the_list_is_called(function: Callable[..., Any]) -> None:
    with pytest.raises(UsageError) as caught:
        read(pickle.dumps(Calls(function, "1")))
    assert caught.value.kind == "pickle-not-trusted"


def test_a_name_is_no_way_to_an_attribute_of_what_is_on_the_list() -> None:
    for name in ("dtype.__class__", "ndarray.__reduce__", "dtype.type.__subclasses__"):
        data = b"\x80\x04\x8c\x05numpy\x8c" + bytes([len(name)]) + name.encode() + b"\x93."
        with pytest.raises(UsageError):
            read(data)


BOMBS: dict[str, bytes] = {
    "a thousand million zeros": pickle.dumps(Calls(bytearray, 10**12)),
    "a queue of nothing but a length": pickle.dumps(Calls(deque, (), 10**18)),
    "a memo of four thousand million places": b"\x80\x02]r\xff\xff\xff\xffq\x00.",
    "bytes of more than there are": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
    "text of more than there is": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x.",
    "a frame of more than there is": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
    "an array without bytes": pickle.dumps(np.zeros(8)).replace(struct.pack("<d", 0.0) * 8, b"")[:-3],
    "an array of a large shape": pickle.dumps(np.zeros((2, 4)), 2).replace(b"K\x02K\x04", b"J\xff\xff\xff\x7fK\x04"),
    "a scalar of two gigabytes": pickle.dumps(Calls(np._core.multiarray.scalar, np.dtype("S2000000000"))),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_takes_no_more_memory_than_it_has_bytes(name: str) -> None:
    tracemalloc.start()
    try:
        kind = kind_of_refusal(read, BOMBS[name])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kind in (None, *REFUSALS)
    assert most < 1 << 20


def test_a_list_of_lists_of_lists_that_would_be_ten_thousand_million_values_is_refused() -> None:
    value: list[Any] = [1]
    for _ in range(12):
        value = [value] * 10
    data = pickle.dumps(value)
    assert len(data) < 1000
    with pytest.raises(CorruptError, match="far more than its bytes"):
        read(data)


@pytest.mark.parametrize("deep", [200, 100_000])
def test_containers_without_end_are_refused(deep: int) -> None:
    with pytest.raises(CorruptError, match="nest without end"):
        read(b"\x80\x04" + b"]" * deep + b"a" * (deep - 1) + b".")
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(CorruptError, match="nest without end"):
        read(pickle.dumps(itself))


def test_a_tensor_that_stands_for_far_more_than_its_storage_is_refused() -> None:
    one = torch.zeros(1)
    with pytest.raises(CorruptError, match="larger than the file"):
        read_saved(saved(one.expand(1 << 40)))
    with pytest.raises(CorruptError, match="larger than the file"):
        read(pickle.dumps(one.expand(1 << 40)))


def test_a_torch_whose_reader_can_be_made_to_run_code_reads_only_what_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    for reader, data in ((read, pickle.dumps(torch.ones(2))), (read_saved, saved(torch.ones(2)))):
        with pytest.raises(UsageError) as caught:
            reader(data)
        assert (caught.value.kind, "2.6" in caught.value.hint) == ("torch-too-old", True)
        assert torch.equal(reader(data, trust=True), torch.ones(2))
    assert same(read(pickle.dumps(np.arange(3))), np.arange(3))


def test_arrays_and_tensors_of_another_size_than_their_bytes_are_refused() -> None:
    whole = pickle.dumps(np.zeros((2, 4)), 2)
    for shape in (b"K\x01K\x04", b"K\x03K\x04", b"J\xff\xff\xff\xffK\x04"):
        with pytest.raises(CorruptError):
            read(whole.replace(b"K\x02K\x04", shape))
    whole = pickle.dumps(torch.zeros(4), 2)
    for size in (b"K\x05\x85", b"J\xff\xff\xff\xff\x85"):
        assert whole.count(b"K\x04\x85") == 1
        with pytest.raises(CorruptError):
            read(whole.replace(b"K\x04\x85", size))


def test_an_archive_that_is_compressed_is_refused_unread() -> None:
    original = zipfile.ZipFile(io.BytesIO(saved(torch.zeros(1 << 20))))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in original.infolist():
            archive.writestr(entry.filename, original.read(entry))
    assert len(stream.getvalue()) < 20_000
    with pytest.raises(CorruptError, match="compressed"):
        read_saved(stream.getvalue())


@pytest.mark.parametrize("data", [b"", b"PK", b"PK\x03\x04" + b"\0" * 100, b"\x80\x02", b"no pickle at all"])
def test_what_is_no_file_of_torch_is_refused(data: bytes) -> None:
    with pytest.raises(MilepostError):
        read_saved(data)


_WHOLE = pickle.dumps({name: value for name, value in VALUES.items() if not isinstance(value, torch.Tensor)}, 4)
_SAVED = saved({"w": torch.arange(4.0), "a": np.arange(3), "n": 1})


@settings(max_examples=150)
@given(data=st.data())
def test_whatever_changes_in_a_pickle_it_is_read_or_refused(data: st.DataObject) -> None:
    reader, whole = data.draw(st.sampled_from([(read, _WHOLE), (read_saved, _SAVED)]))
    bent = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        bent[data.draw(st.integers(0, len(bent) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(bent)) | st.just(len(bent)))
    assert kind_of_refusal(reader, bytes(bent[:cut])) in (None, *REFUSALS)
