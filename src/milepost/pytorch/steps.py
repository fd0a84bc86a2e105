"""Say where in training a step is: its epoch, its place there, and its place in all."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.errors import UsageError


def check_step(step: object) -> None:
    """Raise `UsageError` (kind ``bad-step``) for anything but a `StepInfo`: a bare count does not say which epoch it is."""
    if not isinstance(step, StepInfo):
        raise UsageError(
            "a step is told by a StepInfo",
            kind="bad-step",
            hint="StepInfo(epoch, epoch_step, global_step, steps_per_epoch), all from 0",
            step=repr(step),
        )


@dataclass(frozen=True, slots=True)
class StepInfo:
    """Name one step that was trained; all counts are from 0.

    >>> StepInfo(epoch=0, epoch_step=3, global_step=3, steps_per_epoch=4).next()
    StepInfo(epoch=1, epoch_step=0, global_step=4, steps_per_epoch=4)
    """

    epoch: int
    epoch_step: int
    global_step: int
    steps_per_epoch: int

    def __post_init__(self) -> None:
        counts = (self.epoch, self.epoch_step, self.global_step)
        if min(counts) < 0 or self.steps_per_epoch < 1 or self.epoch_step >= self.steps_per_epoch:
            raise UsageError(
                "not a step of any training",
                kind="bad-step",
                hint="all counts are from 0, and epoch_step is less than steps_per_epoch",
                epoch=self.epoch,
                epoch_step=self.epoch_step,
                global_step=self.global_step,
                steps_per_epoch=self.steps_per_epoch,
            )

    @property
    def epochs_done(self) -> int:
        """Return how many epochs are complete once this step is trained."""
        return self.epoch + (self.epoch_step + 1 == self.steps_per_epoch)

    def next(self) -> StepInfo:
        """Return the step that is trained after this one."""
        over = self.epoch_step + 1 == self.steps_per_epoch
        return StepInfo(self.epoch + over, 0 if over else self.epoch_step + 1, self.global_step + 1, self.steps_per_epoch)
