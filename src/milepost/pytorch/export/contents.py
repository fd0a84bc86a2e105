"""Hold what goes into an export: named tensors, small files, and how the tensors are put into the form of the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from milepost.errors import UsageError

Tensors = Mapping[str, torch.Tensor]


def as_they_are(tensors: Tensors) -> Tensors:
    """Leave tensors as they are."""
    return tensors


@dataclass(frozen=True, slots=True)
class Contents:
    """Be what an export is made of. For trainers whose model is not one of ``transformers``: build it yourself.

    No two names may be of one memory: safetensors has no sharing. ``finish`` may see to it.
    """

    tensors: Tensors
    """By the names that the reader looks for; whole or `DTensor`, on any device."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Small files by their names: ``config.json``, those of a tokenizer."""
    finish: Callable[[Tensors], Tensors] = as_they_are
    """What is done to whole tensors before they are written: names and shapes of the files. Perhaps in another thread."""
    same: Mapping[str, object] = field(default_factory=dict)
    """For names of one tensor the same value: a tied tensor is gathered and copied once. A name that is missing is alone."""
    stem: str = "model"
    """``<stem>.safetensors``, or ``<stem>-00001-of-00002.safetensors`` with an index."""
    split: bool = True
    """Whether the format knows files past a size limit. An adapter is one file."""


def check_tensors(tensors: Tensors) -> None:
    """Raise `UsageError` (kind ``bad-model``) for what is no tensor, or has no bytes that lie in order somewhere."""
    for name, tensor in tensors.items():
        is_tensor = isinstance(tensor, torch.Tensor)
        if not is_tensor or tensor.layout != torch.strided or tensor.device.type == "meta":
            raise UsageError(
                "what is to be exported is no dense tensor with memory behind it",
                kind="bad-model",
                hint="load the model's weights first, and export dense tensors",
                name=ascii(name),
                found=f"{tensor.layout} on {tensor.device}" if is_tensor else type(tensor).__name__,
            )


def stored_bytes(tensor: torch.Tensor, dtype: torch.dtype | None) -> int:
    """Return how many bytes a tensor takes in a file, of floats in ``dtype``."""
    return tensor.numel() * dtype_of(tensor, dtype).itemsize


def dtype_of(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype in which a tensor is written: ``dtype`` for floats, its own for all others."""
    return dtype if dtype is not None and tensor.dtype.is_floating_point else tensor.dtype
