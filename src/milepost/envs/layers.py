"""Walk the layers of an environment: wrappers, vector environments, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def inner_of(env: Any) -> Iterator[Any]:
    """Yield the layers right within this one: one, or as many as a vector env has."""
    attributes = vars(env)
    for name in ("env", "venv"):
        if hasattr(attributes.get(name), "reset"):
            yield attributes[name]
            return
    if isinstance(attributes.get("envs"), (list, tuple)):
        yield from attributes["envs"]


def all_within(env: Any) -> Iterator[Any]:
    """Yield every layer within this one, however deep."""
    for layer in inner_of(env):
        yield layer
        yield from all_within(layer)


def names_within(here: str, inner: list[Any]) -> list[str]:
    """Return the path of each layer right within the one at ``here``, less its class."""
    return [here] if len(inner) == 1 else [f"{here}[{index}]" for index in range(len(inner))]


def join(path: str, name: str) -> str:
    """Return the path of the layer ``name`` within ``path``."""
    return f"{path}/{name}" if path else name
