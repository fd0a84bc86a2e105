"""List what is captured though training does not need it, each with the reason; `exactness.forgetting` checks each of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

ALL = ("PPO", "RecurrentPPO", "DQN", "SAC, gSDE", "TD3", "SAC, HER")
EFFECTS = {"logs": ("logs",), "recomputed": ("nothing",), "constant": ("nothing",), "clock": ("nothing", "logs")}
"""Why something may be on the list, and what may differ without it."""


@dataclass(frozen=True)
class Listed:
    """Say of some items why they are captured."""

    pattern: str
    """A path; ``*`` stands for anything within a step of it, ``**`` for any steps."""
    why: str
    """``logs``: it only tells of the run. ``recomputed``: made anew before it is read. ``constant``: here, a run that has
    just started has the same. ``clock``: no two runs have it equal."""
    text: str
    runs: tuple[str, ...] = field(default=ALL)

    def matches(self, name: str) -> bool:
        """Return whether an item is meant."""
        return self._expression.fullmatch(name) is not None

    def allows(self, effect: str, *, constant: bool) -> bool:
        """Return whether an item that is meant may have this effect when it is lost."""
        return effect in EFFECTS[self.why] and (constant or self.why != "constant")

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        parts = (
            ".*" if part == "**" else r"[^/]*" if part == "*" else re.escape(part) for part in re.split(r"(\*+)", self.pattern)
        )
        return re.compile("".join(parts))


LISTED: tuple[Listed, ...] = ()
