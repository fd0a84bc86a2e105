"""Know the names a component may have, and which of them a resume cannot do without (DESIGN 1; B12)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from milepost.errors import UsageError
from milepost.state.kinds import as_component
from milepost.state.restore import check_restorable

NAMES = (
    "policy",
    "value",
    "target",
    "optimizer",
    "lr_scheduler",
    "replay",
    "rollout",
    "normalizer",
    "rng",
    "envs",
    "sampler",
    "counters",
    "evaluation",
    "workers",
    "lineage",
    "queue",
    "extra",
)
ESSENTIAL = frozenset({"policy", "value", "target", "optimizer", "counters"})
"""Missing from the saved or the live state, these are an error; the others a warning, unless the caller is strict."""

_NAME = re.compile(rf"^(?:[A-Za-z0-9_.-]+/)?(?:{'|'.join(NAMES)})$")


def is_name(name: object) -> bool:
    """Return whether ``name`` is a component's: one of `NAMES`, with an engine's name before it where there are several."""
    return isinstance(name, str) and bool(_NAME.match(name))


def is_essential(name: str) -> bool:
    """Return whether a resume without this component is refused."""
    return name.rpartition("/")[2] in ESSENTIAL


def can_be_left_out(name: str) -> bool:
    """Return whether a generation that is saved in a hurry may do without this component: it is what takes the time."""
    return name.rpartition("/")[2] == "replay"


def components_of(state: Mapping[str, object]) -> dict[str, object]:
    """Return the components by name; environments stand wrapped in what knows how to save them.

    Raises `UsageError` unless every one has a known name and can be brought back in place.
    """
    if not isinstance(state, Mapping) or not state:
        raise UsageError(
            "state maps component names to what is to be saved",
            kind="no-state",
            hint='state={"policy": net, "optimizer": optimizer, ...}',
        )
    found = {name: as_component(value) for name, value in state.items()}
    for name, value in found.items():
        if not is_name(name):
            raise UsageError(
                "this is not a component's name",
                kind="unknown-component",
                hint=f"use one of {', '.join(NAMES)}; your own things go into extra={{...}}; several engines: critic/policy",
                name=name,
            )
        check_restorable(value, name)
    return found
