"""What an export's tensors will be is told from shapes, and shared out so that no rank keeps much more than another. A2"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from milepost.engine.arena import Arena
from milepost.pytorch import Contents
from milepost.pytorch.export.contents import Tensors
from milepost.pytorch.export.forming import forms_of
from milepost.pytorch.export.gathering import stage
from milepost.pytorch.export.planning import fingerprint, plan
from milepost.pytorch.export.sharding import shares

MODEL = {
    "embed": torch.arange(20.0).reshape(5, 4),
    "a.experts": torch.arange(24.0).reshape(3, 4, 2),
    "a.q": torch.ones(2, 3),
    "a.k": torch.zeros(4, 3),
    "head": torch.arange(20.0).reshape(5, 4),
    "count": torch.tensor(7),
}
SAME = {"embed": 1, "head": 1}


def disk_form(found: Tensors) -> Tensors:
    """Do what conversions do: leave out what is tied, rename, take apart, put together."""
    made: dict[str, torch.Tensor] = {}
    for name, tensor in found.items():
        if name.endswith("experts"):
            made |= {f"{name}.{number}": each.T.contiguous() for number, each in enumerate(tensor.unbind(0))}
        elif name == "a.q":
            made["a.qk"] = torch.cat([tensor, found["a.k"]])
        elif name == "count":
            made["steps"] = tensor
        elif name not in ("a.k", "head"):
            made[name] = tensor
    return made


def test_only_what_is_made_of_several_tensors_is_gathered_together() -> None:
    forms = forms_of(Contents(MODEL, finish=disk_form, same=SAME), None)
    assert list(forms.specs) == list(disk_form(MODEL))
    assert [(part.names, tuple(part.specs)) for part in forms.parts] == [
        (("embed", "head"), ("embed",)),
        (("a.experts",), ("a.experts.0", "a.experts.1", "a.experts.2")),
        (("a.q", "a.k"), ("a.qk",)),
        (("count",), ("steps",)),
    ]
    assert {name: source for part in forms.parts for name, source in part.as_they_are.items()} == {
        "embed": "embed",
        "steps": "count",
    }


@given(st.integers(1, 4), st.integers(1, 200), st.sampled_from([None, torch.bfloat16]))
def test_what_the_ranks_keep_is_together_what_the_whole_model_becomes(
    ranks: int, most_bytes: int, dtype: torch.dtype | None
) -> None:
    contents = Contents(MODEL, finish=disk_form, same=SAME)
    decided = plan(forms_of(contents, dtype), most_bytes, "model", range(ranks))
    whole, seen = disk_form(MODEL), list[str]()
    for rank in range(ranks):
        mine, memory = decided.tensors_of(rank), Arena()
        for name, tensor in stage(contents, decided.forms.parts, mine, memory).items():
            expected = whole[name].to(dtype) if dtype and whole[name].is_floating_point() else whole[name]
            assert torch.equal(tensor, expected)
            assert tensor.dtype == expected.dtype
            seen.append(name)
        assert memory.size_bytes == decided.room_of(rank)
    assert sorted(seen) == sorted(whole)


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 1000)), st.sets(st.integers(0, 9), min_size=1))
def test_no_rank_has_more_than_its_share_and_one_file(sizes: dict[str, int], writers: set[int]) -> None:
    owners = shares(sizes, sorted(writers))
    assert owners.keys() == sizes.keys()
    for rank in writers:
        has = sum(size for file, size in sizes.items() if owners[file] == rank)
        assert has <= sum(sizes.values()) / len(writers) + max(sizes.values(), default=0)


def reads_data(found: Tensors) -> Tensors:
    return {name: tensor for name, tensor in found.items() if tensor.sum().item() >= 0}


def wants_all(found: Tensors) -> Tensors:
    return {"w": found["embed"] * 2, "count": found["count"] + 1}


@pytest.mark.parametrize("finish", [reads_data, wants_all])
def test_what_cannot_be_told_from_shapes_is_formed_as_a_whole(finish: Callable[[Tensors], Tensors]) -> None:
    contents = Contents(MODEL, finish=finish)
    (part,) = (forms := forms_of(contents, None)).parts
    assert part.names == tuple(MODEL)
    staged = stage(contents, forms.parts, frozenset(forms.specs), Arena())
    expected = finish(MODEL)
    assert staged.keys() == expected.keys()
    assert all(torch.equal(staged[name], tensor) for name, tensor in expected.items())


def test_a_tensor_that_is_made_of_none_is_there_once() -> None:
    contents = Contents({"a": torch.ones(2), "b": torch.ones(3)}, finish=lambda found: {**found, "zero": torch.zeros(1)})
    forms = forms_of(contents, None)
    assert [tuple(part.specs) for part in forms.parts] == [("a", "zero"), ("b",)]
    assert forms_of(Contents({}), None).parts == ()


def test_ranks_that_export_different_things_differ_in_their_fingerprint() -> None:
    forms = [forms_of(Contents({"w": torch.ones(shape)}), dtype) for shape, dtype in ((2, None), (3, None), (2, torch.half))]
    assert len({fingerprint(each) for each in forms} | {fingerprint(forms[0], 1)}) == 4
