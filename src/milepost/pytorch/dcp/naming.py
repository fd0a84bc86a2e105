"""Say which component a part of a state dict belongs to, and how people read the name of a chunk."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from milepost.engine.components import NAMES, is_name
from milepost.errors import UsageError
from milepost.state.paths import step

INDEX = "dcp"
"""The component that holds what ``torch.distributed.checkpoint`` says of a generation."""
USUAL: Mapping[str, str] = {
    **{name: name for name in NAMES},
    "model": "policy",
    "optim": "optimizer",
    "optimizers": "optimizer",
    "lr_schedulers": "lr_scheduler",
}
"""Which component a key of a state dict is, unless the writer is told otherwise; any other key is part of ``extra``."""

_RANK = re.compile(r"\.rank\.(\d+)-(\d+)\.safetensors\Z", re.ASCII)


def checked(components: Mapping[str, str] | None) -> dict[str, str]:
    """Return which key is which component, the longest keys first. Raises `UsageError` (kind ``unknown-component``)."""
    for key, name in (components or {}).items():
        if not is_name(name):
            raise UsageError(
                "this is not a component's name",
                kind="unknown-component",
                hint=f"use one of {', '.join(NAMES)}, with an engine's name before it where there are several: critic/policy",
                key=key,
                name=name,
            )
    chosen = {**USUAL, **(components or {})}
    return {key: chosen[key] for key in sorted(chosen, key=len, reverse=True)}


def component_of(fqn: str, components: Mapping[str, str]) -> str:
    """Return the component of a value that DCP calls ``fqn``."""
    found = (name for key, name in components.items() if fqn == key or fqn.startswith(f"{key}."))
    return next(found, "extra")


def path_of(component: str, fqn: str, offsets: Sequence[int] = ()) -> str:
    """Return how people read the name of a leaf: with its offsets, where it is one of several chunks."""
    return f"{component}{step(fqn)}" + (f"@{','.join(map(str, offsets))}" if offsets else "")


def is_exact(fqn: str) -> bool:
    """Return whether no other name can have the same path: people's names of long or odd ones are cut short."""
    return bool(fqn) and "@" not in fqn and step(fqn) == f"/{fqn}"


def rows_of(rank: int, ranks: int) -> str:
    """Return what stands in the name of a blob that rank ``rank`` of ``ranks`` has written."""
    return f"rank.{rank}-{ranks}"


def rank_of(blob: str) -> int | None:
    """Return which rank wrote a blob, or None if its name does not say."""
    found = _RANK.search(blob)
    return int(found[1]) if found else None
