"""Say which weights are current, hand them out, and know which weights made which data.

The names below are the public ones. Each is imported when it is first used: a process that only passes by pays nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from milepost.errors import MissingExtraError

if TYPE_CHECKING:
    from milepost.service.client.client import Client, connect
    from milepost.service.client.committing import Done
    from milepost.service.client.target import Tls
    from milepost.service.client.watching import News
    from milepost.service.client.weights import Weights

_HOMES = {
    "Client": "milepost.service.client.client",
    "Done": "milepost.service.client.committing",
    "News": "milepost.service.client.watching",
    "Tls": "milepost.service.client.target",
    "Weights": "milepost.service.client.weights",
    "connect": "milepost.service.client.client",
}
_EXTRA = {"grpc", "google", "google.protobuf"}

__all__ = ["Client", "Done", "News", "Tls", "Weights", "connect"]


def __getattr__(name: str) -> object:
    """Import a public name from its home at its first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'milepost.service' has no attribute {name!r}")
    try:
        value: object = getattr(importlib.import_module(home), name)
    except ImportError as error:
        if error.name not in _EXTRA:
            raise
        # Imported by name at the top of a script that may never connect: it is said where it is called.
        return _missing(error.name or "grpc")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _missing(module: str) -> object:
    def missing(*_: object, **__: object) -> None:
        raise MissingExtraError("service", module)

    return missing
