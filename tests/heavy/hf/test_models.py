"""What is exported opens with `from_pretrained`, and computes the same. A1"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from hypothesis import given
from hypothesis import strategies as st
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from milepost.errors import UsageError
from milepost.pytorch import Saver
from milepost.pytorch.export.sharding import split
from tests.heavy.hf.models import CONFIGS, IDS, logits, model_of, tokenizer
from tests.pytorch.export.made import read, step

# What the libraries warn each other of.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def export(model: Any, place: Path, **settings: Any) -> str:
    tokens = settings.pop("tokenizer", None)
    with Saver(place, user="me", experiment="e", trial="t", **settings) as saver:
        return saver.save(model, step(0), tokenizer=tokens)


def files_of(directory: str | Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(directory).iterdir()}


def opened(path: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(path).eval()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_kind_of_model_opens_and_computes_the_same_bits(kind: str, mode: str, tmp_path: Path) -> None:
    model = model_of(kind)
    path = export(model, tmp_path, mode=mode, tokenizer=tokenizer())
    assert torch.equal(logits(opened(path)), logits(model))
    assert AutoTokenizer.from_pretrained(path)("to be or not").input_ids == tokenizer()("to be or not").input_ids
    assert GenerationConfig.from_pretrained(path).temperature == 0.7
    assert opened(path).generation_config.do_sample


@pytest.mark.parametrize("kind", CONFIGS)
def test_it_is_what_save_pretrained_writes(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    for limit, name in ((40_000, "split"), (10**9, "whole")):
        path = export(model, tmp_path / name, max_shard=str(limit))
        reference = tmp_path / f"{name}-reference"
        model.save_pretrained(reference, max_shard_size=limit)
        ours, theirs = files_of(path), files_of(reference)
        small = [file for file in theirs if not file.endswith((".safetensors", ".index.json"))]
        assert [file for file in ours if file not in small and not file.endswith((".safetensors", ".index.json"))] == []
        assert all(ours[file] == theirs[file] for file in small)
        mine, his = read(path), read(reference)
        assert mine.keys() == his.keys()
        assert all(torch.equal(mine[key], his[key]) for key in his)
        # Experts that are views of one tensor it puts into one file, over the limit or not; ours keep to it.
        if "moe" not in kind:
            assert ours.keys() == theirs.keys()


def test_an_export_holds_no_optimizer_and_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    model = model_of("tied")
    optimizer = torch.optim.Adam(model.parameters())
    model(IDS, labels=IDS).loss.backward()
    optimizer.step()
    before, settings = {name: value.clone() for name, value in model.state_dict().items()}, model.config.to_dict()
    path = export(model, tmp_path, mode="async", dtype=torch.float16)
    assert sorted(files_of(path)) == ["config.json", "generation_config.json", "model.safetensors"]
    stored = load_file(f"{path}/model.safetensors")
    assert "lm_head.weight" not in stored
    assert len(stored) == len(list(model.parameters()))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.config.to_dict() == settings


def test_a_tied_model_takes_the_memory_of_its_weights_once(tmp_path: Path) -> None:
    model = model_of("tied")
    with Saver(tmp_path, user="me", experiment="e", trial="t", mode="async") as saver:
        saver.save(model, step(0))
        parameters = list(model.parameters())
        assert saver.staged_bytes <= sum(-(-p.nbytes // 4096) * 4096 for p in parameters)


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_another_dtype_is_in_the_files_and_in_the_configuration(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    for mode in ("sync", "async"):
        path = export(model, tmp_path / mode, mode=mode, dtype=torch.bfloat16)
        assert AutoConfig.from_pretrained(path).dtype == torch.bfloat16
        again = opened(path)
        assert again.dtype == torch.bfloat16
        assert torch.equal(logits(again), logits(model_of(kind).bfloat16()))
    assert model.dtype == torch.float32


def test_an_async_export_is_of_the_moment_it_was_asked_at(tmp_path: Path) -> None:
    model = model_of("moe")
    before = logits(model)
    with Saver(tmp_path, user="me", experiment="e", trial="t", mode="async") as saver:
        path = saver.save(model, step(0))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
    assert torch.equal(logits(opened(path)), before)


def test_what_wraps_a_model_is_taken_off(tmp_path: Path) -> None:
    model = model_of("dense")
    path = export(torch.compile(model, backend="eager"), tmp_path)
    assert torch.equal(logits(opened(path)), logits(model))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_adapter_is_exported_alone_and_opens_over_its_base(mode: str, tmp_path: Path) -> None:
    base = export(model_of("dense"), tmp_path / "base")
    settings = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    torch.manual_seed(1)
    model = get_peft_model(opened(base), settings).eval()
    path = export(model, tmp_path / "adapter", mode=mode, max_shard="1K", tokenizer=tokenizer())
    assert torch.equal(logits(AutoPeftModelForCausalLM.from_pretrained(path).eval()), logits(model))
    assert torch.equal(logits(opened(path)), logits(model))
    reference = tmp_path / "reference"
    model.save_pretrained(reference)
    ours, theirs = load_file(f"{path}/adapter_model.safetensors"), load_file(reference / "adapter_model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert files_of(path)["adapter_config.json"] == files_of(reference)["adapter_config.json"]
    assert AutoTokenizer.from_pretrained(path).eos_token == "</s>"


def test_what_cannot_be_exported_is_told(tmp_path: Path) -> None:
    model = get_peft_model(model_of("dense"), LoraConfig(r=2, target_modules=["q_proj"]))
    model.add_adapter("second", LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(UsageError, match="several adapters"):
        export(model, tmp_path)
    with pytest.raises(UsageError, match="no model of transformers"):
        export(torch.nn.Linear(2, 2), tmp_path)
    own = model_of("dense")
    own._hf_peft_config_loaded = True
    with pytest.raises(UsageError, match="adapters of its own"):
        export(own, tmp_path)
    assert not any(files for _, _, files in os.walk(tmp_path))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 40))
def test_tensors_are_split_as_the_hubs_own_library_does(sizes: list[int], limit: int) -> None:
    tensors = {f"t{number}": torch.zeros(size, dtype=torch.uint8) for number, size in enumerate(sizes)}
    theirs = split_torch_state_dict_into_shards(tensors, filename_pattern="model{suffix}.safetensors", max_shard_size=limit)
    ours = split({name: tensor.nbytes for name, tensor in tensors.items()}, limit, "model")
    # Empty files, which theirs writes after a tensor larger than the limit, are left out by ours.
    assert list(map(list, ours.files.values())) == [n for n in theirs.filename_to_tensors.values() if n]
