"""Import what every rank needs, once, in the process that all of them are forked from."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor

    import milepost.pytorch.dcp
    import tests.pytorch.dcp.states

__all__ = ["milepost", "tests", "torch"]
