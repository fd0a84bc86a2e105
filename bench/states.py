"""Make the states that are saved: the same bytes for milepost, for its peers and for the floors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

Bytes: TypeAlias = Any
"""A NumPy array of uint8: no type checker here knows it for the buffer that it is."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Hold one state in the forms in which it is asked for; all of them share the same memory."""

    words: str
    tensors: Mapping[str, torch.Tensor]
    """Every array, flat: for safetensors and for the floors."""
    tree: Mapping[str, Any]
    """As a user hands it to ``torch.save``."""
    state: Mapping[str, Any]
    """As a user hands it to milepost."""
    views: tuple[Bytes, ...]
    """The memory of each array, as bytes."""

    @property
    def size_bytes(self) -> int:
        """Return how many bytes of arrays there are."""
        return sum(len(view) for view in self.views)

    def change(self, which: slice = slice(None)) -> None:
        """Change a bit of every array, as training would have: what is unchanged milepost would not write again."""
        # Counted up and not back and forth: several contenders change it between two saves of the same one.
        for view in self.views[which]:
            view[:1] += 1


def bytes_of(tensor: torch.Tensor) -> Bytes:
    """Return a tensor's memory as bytes."""
    return tensor.detach().view(-1).view(torch.uint8).numpy()


def arrays(count: int, total_bytes: int, words: str) -> Workload:
    """Return ``count`` arrays of random fp32, of the same size, in one dict."""
    numbers = max(1, total_bytes // count // 4)
    # Made once and scaled: to draw every number of a gigabyte takes longer than to save it several times.
    drawn = np.random.default_rng(0).standard_normal(max(numbers, min(numbers * count, 1 << 24)), np.float32)
    starts = [n * numbers % (len(drawn) - numbers + 1) for n in range(count)]
    made = [drawn[start : start + numbers] * np.float32(1 + n / count) for n, start in enumerate(starts)]
    tensors = {f"layer{n:06d}.weight": torch.from_numpy(array) for n, array in enumerate(made)}
    return Workload(words, tensors, tensors, {"policy": tensors}, tuple(map(bytes_of, tensors.values())))


def adam(model_bytes: int) -> Workload:
    """Return a network of square layers and its Adam optimizer after one step."""
    width = 1024 if model_bytes > 50_000_000 else 512
    layers = max(1, model_bytes // (4 * (width * width + width)))
    net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    tree = {"policy": net.state_dict(), "optimizer": optimizer.state_dict()}
    tensors = dict(_tensors(tree, ""))
    views = tuple(bytes_of(tensor) for tensor in tensors.values())
    words = f"Adam state of a {model_bytes / 1e6:.0f} MB model, {len(tensors)} arrays"
    return Workload(words, tensors, tree, {"policy": net, "optimizer": optimizer}, views)


def _tensors(value: Any, path: str) -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(path, value)]
    if isinstance(value, Mapping):
        return [found for key, item in value.items() for found in _tensors(item, f"{path}.{key}".lstrip("."))]
    return []
