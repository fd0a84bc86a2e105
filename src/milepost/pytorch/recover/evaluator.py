"""Say when to evaluate, the same whatever kills and resumes. A3, A6"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from milepost.clock import Clock, SystemClock
from milepost.pytorch.ranks import Ranks
from milepost.pytorch.steps import StepInfo
from milepost.pytorch.ticking import Ticks

_NAME = "evaluator"


class Evaluator:
    """Be due after steps at which an interval was crossed; None everywhere is never.

    Ask `due` after each step, evaluate, and say `evaluated`; only then save. A checkpoint that is made between a step and its
    evaluation has that evaluation missing: a run that goes on from it would evaluate late, and later again with each resume.
    With several ranks all of them call, and get the same answer.
    """

    def __init__(
        self,
        *,
        freq_epochs: int | None = None,
        freq_steps: int | None = None,
        freq_secs: float | None = None,
        process_group: dist.ProcessGroup | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._ticks = Ticks(freq_epochs, freq_steps, freq_secs, clock or SystemClock())
        self._ranks = Ranks(process_group)

    def due(self, step: StepInfo) -> str | None:
        """Return the words for why an evaluation is due after a step, or None. Asked again, it answers the same."""
        why = self._ticks.due(_NAME, step)
        if self._ticks.tells_time:
            why = self._ranks.told_by_first(why)  # each rank's clock is its own
            self._ticks.told(_NAME, step, why)
        return why

    def evaluated(self, step: StepInfo) -> None:
        """Note that an evaluation was made after a step, due or not."""
        self._ticks.exported(_NAME, step)

    def pending(self, step: StepInfo) -> tuple[str, ...]:
        """Return what is left to do before this can be saved with a step: see `milepost.pytorch.recover.seen`."""
        unseen = [f"due() was not asked after step {step.global_step}" for _ in self._ticks.unseen(step)]
        return (
            *unseen,
            *(f"an evaluation is due after step {step.global_step}: call evaluated()" for _ in self._ticks.undone(step)),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the counters; the intervals are the configuration's."""
        return self._ticks.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the counters of a run before. Raises `CorruptError` (kind ``bad-counters``), and changes nothing then."""
        self._ticks.load_state_dict(state)
