"""Make small contents of exports, and read what came of them with the library that defines the format."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from milepost.pytorch import Contents, StepInfo


def step(number: int, steps_per_epoch: int = 4) -> StepInfo:
    return StepInfo(number // steps_per_epoch, number % steps_per_epoch, number, steps_per_epoch)


def weights(value: float) -> dict[str, torch.Tensor]:
    return {
        "embed": torch.full((5, 4), value),
        "norm": torch.full((3,), value, dtype=torch.bfloat16),
        "count": torch.tensor(round(value)),
        "empty": torch.empty((0, 4)),
        "transposed": torch.arange(6.0).reshape(2, 3).T + value,
    }


def contents(value: float) -> Contents:
    return Contents(weights(value), {"config.json": json.dumps({"value": value}).encode(), "code/model.py": b"# nothing\n"})


def read(path: str | Path) -> dict[str, torch.Tensor]:
    """Read an export as ``from_pretrained`` does: by the index where there is one."""
    directory = Path(path)
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return load_file(directory / "model.safetensors")
    where: dict[str, str] = json.loads(index.read_text())["weight_map"]
    assert {file.name for file in directory.glob("*.safetensors")} == set(where.values())
    found = {name: tensor for file in set(where.values()) for name, tensor in load_file(directory / file).items()}
    assert set(found) == set(where)
    return found


def value_of(path: str | Path) -> float:
    """Return which contents an export is of; fails where it is not whole."""
    value: float = json.loads((Path(path) / "config.json").read_text())["value"]
    found, expected = read(path), weights(value)
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    assert (Path(path) / "code" / "model.py").read_bytes() == b"# nothing\n"
    return value
