"""Import what every rank needs, once, in the process that all of them are forked from."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pytest
    import torch
    import torch._dynamo  # by DDP and FSDP at their first use
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor

    import milepost.pytorch
    import milepost.pytorch.dcp
    import milepost.pytorch.recover.handler
    import tests.pytorch.dcp.states

__all__ = ["milepost", "pytest", "tests", "torch"]
