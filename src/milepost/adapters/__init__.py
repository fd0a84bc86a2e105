"""Attach milepost to training frameworks, one module a framework, imported when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from milepost.adapters import sb3 as sb3

_ADAPTERS = ("sb3",)


def __getattr__(name: str) -> object:
    """Import an adapter at its first use (PEP 562)."""
    if name in _ADAPTERS:
        return importlib.import_module(f"milepost.adapters.{name}")
    raise AttributeError(f"module 'milepost.adapters' has no attribute {name!r}")
