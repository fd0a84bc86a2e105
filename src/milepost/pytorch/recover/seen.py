"""Refuse to save a step that a saver or an evaluator has not seen: its counters would be those of the step before. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from milepost.errors import UsageError
from milepost.pytorch.steps import StepInfo


@runtime_checkable
class Ticking(Protocol):
    """Be something that is told of each step."""

    def pending(self, step: StepInfo) -> tuple[str, ...]:
        """Return, as sentences, what is to happen before this is saved with a step; empty if nothing, or if that is not known."""


def check_seen(step: StepInfo, objects: Mapping[str, object]) -> None:
    """Raise `UsageError` (kind ``dumped-early``) if one of the objects, by name, has not seen the step. Others are not asked."""
    found = [f"{name}: {one}" for name, each in objects.items() if isinstance(each, Ticking) for one in each.pending(step)]
    if found:
        raise UsageError(
            f"this step is not over yet\n  {'; '.join(found)}",
            kind="dumped-early",
            hint="call dump() as the last thing of a step, when everything that counts steps has seen it",
            step=step.global_step,
        )
