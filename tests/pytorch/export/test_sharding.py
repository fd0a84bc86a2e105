"""Files are laid out so that the library of the format reads them; names, limits and retention are tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, load_file, save

from milepost.errors import UsageError
from milepost.pytorch.export.naming import check_engine, leftover_name, leftover_of, name_of, step_in, trial_directory
from milepost.pytorch.export.retaining import checked_keep, to_remove
from milepost.pytorch.export.sharding import DTYPES, Spec, layout, split
from milepost.pytorch.export.writing import bytes_of
from tests.pytorch.export.made import step


def file_of(tensors: dict[str, torch.Tensor]) -> bytes:
    specs = {name: Spec(tensor.dtype, tuple(tensor.shape), tensor.nbytes) for name, tensor in tensors.items()}
    header, order = layout(specs)
    return header + b"".join(bytes(bytes_of(tensors[name], tensors[name].dtype)) for name in order)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 5)], ids=str)
def test_every_dtype_and_shape_is_read_by_the_library_as_it_was(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(torch.float32).to(dtype)
    data = file_of({"before": torch.ones(3, dtype=torch.uint8), "tensor": tensor})
    found = load(data)["tensor"]
    assert found.dtype == dtype
    assert found.shape == tensor.shape
    assert bytes(bytes_of(found, dtype)) == bytes(bytes_of(tensor, dtype))


def test_it_is_the_file_that_the_library_writes() -> None:
    tensors = {"b": torch.ones(3), "a": torch.zeros(2, 2), "half": torch.ones(5, dtype=torch.float16), "ü": torch.ones(1)}
    assert file_of(tensors) == save(tensors, {"format": "pt"})


def test_views_that_are_not_in_order_are_written_in_order() -> None:
    tensor = torch.arange(12.0).reshape(3, 4).T[1:]
    assert torch.equal(load(file_of({"t": tensor}))["t"], tensor)


def test_a_dtype_that_the_format_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"tensor=`w`.*complex128"):
        file_of({"w": torch.ones(1, dtype=torch.complex128)})


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(1, 40))
def test_files_keep_to_the_limit_and_hold_each_tensor_once(sizes: list[int], limit: int) -> None:
    named = {f"t{number}": size for number, size in enumerate(sizes)}
    found = split(named, limit, "model")
    assert [name for names in found.files.values() for name in names].sort() == list(named).sort()
    for names in found.files.values():
        assert len(names) == 1 or sum(named[name] for name in names) <= limit
    index = found.index()
    if len(found.files) == 1:
        assert index is None
        assert list(found.files) == ["model.safetensors"]
    else:
        assert index is not None
        assert json.loads(index)["weight_map"] == {name: file for file, names in found.files.items() for name in names}
        assert json.loads(index)["metadata"]["total_size"] == sum(sizes)


def test_no_tensors_are_a_file_all_the_same(tmp_path: Path) -> None:
    ((file, names),) = split({}, 10, "model").files.items()
    (tmp_path / file).write_bytes(file_of({}))
    assert names == ()
    assert load_file(tmp_path / file) == {}


def test_the_path_is_the_one_of_a4_and_naming_it_makes_nothing(tmp_path: Path) -> None:
    assert trial_directory(tmp_path, "me", "exp", "one") == str(tmp_path / "checkpoints" / "me" / "exp" / "one")
    assert name_of(step(9)) == "epoch2epochstep1globalstep9"
    assert step_in(name_of(step(9))) == (9, 2, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", ["", ".", "..", "a/b", ".hidden", "a\0"])
def test_a_part_of_the_path_is_one_directory(part: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one directory"):
        trial_directory(tmp_path, "me", part, "one")
    with pytest.raises(UsageError, match="one directory"):
        check_engine(part)


@pytest.mark.parametrize("engine", ["blobs", "generations", "terms", "LATEST", "recover_info", "checkpoint_generations"])
def test_no_engine_has_the_name_of_what_a_run_root_keeps(engine: str) -> None:
    with pytest.raises(UsageError, match="taken in a run root"):
        check_engine(engine)


def test_a_leftover_is_told_by_its_name_and_is_no_export() -> None:
    name = leftover_name(name_of(step(3)), "0123456789abcdef", "old")
    assert step_in(name) is None
    found = leftover_of(name)
    assert found is not None
    assert (found.export, found.state) == (name_of(step(3)), "old")
    assert leftover_of(name_of(step(3))) is None


@given(st.lists(st.integers(0, 20), unique=True, min_size=1), st.integers(1, 5), st.data())
def test_the_newest_export_and_those_that_are_read_never_go(numbers: list[int], keep: int, data: st.DataObject) -> None:
    finished = [name_of(step(number)) for number in sorted(numbers)]
    made = data.draw(st.sampled_from(finished))
    busy = data.draw(st.sets(st.sampled_from(finished)))
    gone = to_remove(finished, keep, made, busy)
    left = [name for name in finished if name not in gone]
    assert made in left
    assert busy <= set(left)
    assert len([name for name in left if name not in busy]) <= keep
    assert len(left) >= min(keep, len(finished))
    assert to_remove(finished, None, made, busy) == ()


@pytest.mark.parametrize("keep", [0, -1, True, 1.5])
def test_keeping_none_is_refused(keep: int) -> None:
    with pytest.raises(UsageError, match="not a number of exports"):
        checked_keep(keep)
