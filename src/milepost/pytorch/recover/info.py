"""Say what a load has brought back."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.pytorch.steps import StepInfo


@dataclass(frozen=True, slots=True)
class RecoverInfo:
    """Say what a load brought back. Training goes on at ``last_step_info.next().global_step``."""

    last_step_info: StepInfo
    generation: int
    run_id: str
    inexact: tuple[str, ...] = ()
    """Why the run may not go on bit for bit; empty when it does."""
    skipped: tuple[str, ...] = ()
    """Newer generations that were passed over, and why."""
    warnings: tuple[str, ...] = ()
    """What differs and was let pass, and what stayed as it was since nothing was saved of it."""

    @property
    def step(self) -> int:
        """Return the step that was trained last."""
        return self.last_step_info.global_step

    @property
    def exact(self) -> bool:
        """Return whether the run goes on bit for bit, as far as milepost can tell."""
        return not self.inexact
