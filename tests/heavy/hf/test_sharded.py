"""A model that FSDP2 has sharded is exported while it trains, and opens in one process. A1, A2, A14"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.pytorch.dcp.ranks import run
from tests.pytorch.export.made import step


def export(rank: int, place: str, ranks: int, kind: str, mode: Any) -> tuple[str, Any, int]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from milepost.pytorch import Saver
    from tests.heavy.hf.models import IDS, logits, model_of

    mesh = init_device_mesh("cpu", (ranks,))
    model = model_of("dense" if kind == "lora" else kind)
    if kind == "lora":
        from peft import LoraConfig, get_peft_model

        with Saver(place, user="me", experiment="base", trial="t", mode="sync") as saver:
            base = saver.save(model, step(0))
        model.name_or_path = base
        torch.manual_seed(1)
        settings = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
        model = get_peft_model(model, settings)
    layers = model.get_base_model().model.layers if kind == "lora" else model.model.layers
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with Saver(place, user="me", experiment="e", trial="t", mode=mode, max_shard="30K", freq_steps=2) as saver:
        path = None
        for number in range(2):
            model(IDS, labels=IDS).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            path = saver.save_if_due(model, step(number)) or path
        found = logits(model.eval()).numpy()
        staged = saver.staged_bytes
        saver.wait()
    assert path is not None
    return path, found, staged


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("kind", ["dense", "tied", "moe", "lora"])
def test_a_sharded_model_is_exported_as_it_was_trained(kind: str, mode: str, tmp_path: Path) -> None:
    from tests.heavy.hf.models import logits
    from tests.heavy.hf.test_models import opened

    outcomes = run(2, export, tmp_path, str(tmp_path), 2, kind, mode)
    again = opened(outcomes[0][0])
    assert type(again).__name__.startswith("FSDP") is False
    assert np.array_equal(logits(again).numpy(), outcomes[0][1])
    assert np.array_equal(outcomes[0][1], outcomes[1][1])
    files = [file.stat().st_size for file in Path(outcomes[0][0]).glob("*.safetensors")]
    for _, _, staged in outcomes:
        # Of small tensors each takes a page. An adapter is one file.
        assert staged <= (mode == "async") * (sum(files) / 2 + max(files) + 80 * 4096)
    assert len(files) > 2 or kind == "lora"
