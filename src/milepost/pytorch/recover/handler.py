"""Save and load a whole training: several engines, data, counters and generators as one generation. A5-A13"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

import torch.distributed as dist

from milepost.clock import Clock, SystemClock
from milepost.engine.mismatch import Answer
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.stopping import Stop
from milepost.pytorch.recover.engines import SaveMode, TrainEngine
from milepost.pytorch.recover.inference import Inference
from milepost.pytorch.steps import StepInfo
from milepost.records import Summary
from milepost.state.protocol import Stateful


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

    @property
    def step(self) -> int:
        """Return the step that was trained last."""
        return self.last_step_info.global_step

    @property
    def exact(self) -> bool:
        """Return whether the run goes on bit for bit, as far as milepost can tell."""
        return not self.inexact


class RecoverHandler:
    """Keep a training of one or several engines alive (skeleton)."""

    def __init__(
        self,
        fileroot: str | os.PathLike[str],
        *,
        experiment: str,
        trial: str,
        user: str | None = None,
        mode: str | bool = "disabled",
        freq_epochs: int | None = None,
        freq_steps: int | None = None,
        freq_secs: float | None = None,
        retries: int = 3,
        keep: Keep | None = None,
        save_mode: SaveMode = "auto",
        staging_bytes: str | int | None = None,
        with_optim: bool = True,
        allow_pickle: bool = False,
        trust_pickle: bool = False,
        key_file: str | os.PathLike[str] | None = None,
        lease_wait: float = 0.0,
        take_over: bool = False,
        on_mismatch: Mapping[str, Answer] | None = None,
        stop: Stop | bool | None = None,
        grace: str | float | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout_s: float = 600.0,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()

    def load(
        self,
        engines: Mapping[str, TrainEngine],
        *,
        dataloader: Stateful | None = None,
        saver: Stateful | None = None,
        evaluator: Stateful | None = None,
        stats_logger: Stateful | None = None,
        extra: Mapping[str, Stateful] | None = None,
        inference: Inference | None = None,
        which: Literal["latest", "best", "never"] | int = "latest",
    ) -> RecoverInfo | None:
        """Bring everything back in place; None if there is nothing, or the handler is disabled."""
        raise NotImplementedError

    def dump(
        self,
        engines: Mapping[str, TrainEngine],
        step: StepInfo,
        *,
        dataloader: Stateful | None = None,
        saver: Stateful | None = None,
        evaluator: Stateful | None = None,
        stats_logger: Stateful | None = None,
        extra: Mapping[str, Stateful] | None = None,
        metrics: Mapping[str, float] | None = None,
        force: bool = False,
    ) -> bool:
        """Save if it is due, as the last thing of a step, and return whether it was."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until what is under way is durable."""
        raise NotImplementedError

    def close(self) -> None:
        """Wait for what is under way, and give the run root up."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def root(self) -> str:
        """Return the run root."""
        raise NotImplementedError

    @property
    def newest(self) -> Summary | None:
        """Return the newest generation of this trial."""
        raise NotImplementedError
