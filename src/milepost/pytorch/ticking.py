"""Say when which engine is exported: each has counters of its own; a changed configuration wins over restored ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from milepost.clock import Clock
from milepost.errors import CorruptError
from milepost.lifecycle.triggers import Reading, Trigger, every
from milepost.pytorch.steps import StepInfo

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Last:
    """Hold what an engine's counters were when it was exported last."""

    steps: int
    epochs: int
    at_ns: int
    """On this process's monotonic clock; before its start for an export of a process before."""


class Ticks:
    """Know of each engine when it was exported last, and whether it is due.

    Steps and epochs are due when a multiple of their interval was *crossed*: after steps 3, 7, 11 for an interval of 4. Time is
    monotonic, counts from the engine's last export, and stands still while nothing runs: a restart does not make it due.
    """

    def __init__(self, epochs: int | None, steps: int | None, seconds: float | None, clock: Clock) -> None:
        given = {"epochs": epochs, "steps": steps, "seconds": seconds}
        self._trigger: Trigger | None = every(**given) if any(value is not None for value in given.values()) else None  # type: ignore[arg-type]
        self.tells_time = seconds is not None
        self._clock = clock
        self._began_ns = clock.monotonic_ns()
        self._last: dict[str, Last] = {}
        self._asked: dict[str, tuple[int, str | None]] = {}
        """After which step each was asked for last in this process, and the answer, while nothing was done about it."""

    def due(self, engine: str, step: StepInfo) -> str | None:
        """Return the words for why an engine is due after a step, or None. Asked again, it answers the same."""
        if self._trigger is None:
            return None
        # One that was never seen, perhaps since its counters were not restored, has crossed no mark before this step.
        last = self._last.setdefault(engine, Last(step.global_step, step.epoch, self._began_ns))
        now = Reading(step=step.global_step + 1, epochs=step.epochs_done, monotonic_ns=self._clock.monotonic_ns())
        why = self._trigger.due(Reading(step=last.steps, epochs=last.epochs, monotonic_ns=last.at_ns), now)
        self.told(engine, step, why)
        return why

    def told(self, engine: str, step: StepInfo, why: str | None) -> None:
        """Note what was answered: of several ranks, the first one's clock decides."""
        self._asked[engine] = (step.global_step, why)

    def exported(self, engine: str, step: StepInfo) -> None:
        """Note that an engine was exported after a step."""
        self._last[engine] = Last(step.global_step + 1, step.epochs_done, self._clock.monotonic_ns())
        self._asked[engine] = (step.global_step, None)

    def unseen(self, step: StepInfo) -> list[str]:
        """Return which engines have been asked for in this process, and not after this step: their counters are of one before."""
        return [] if self._trigger is None else [one for one, (asked, _) in self._asked.items() if asked != step.global_step]

    def undone(self, step: StepInfo) -> list[str]:
        """Return which engines are due after this step, by the answer that was given, and nothing was done."""
        return [one for one, (asked, why) in self._asked.items() if asked == step.global_step and why is not None]

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, and no interval: these are the configuration's."""
        now = self._clock.monotonic_ns()
        engines = {
            name: {"steps": last.steps, "epochs": last.epochs, "since_ns": now - last.at_ns} for name, last in self._last.items()
        }
        return {"version": _VERSION, "engines": engines}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the counters of a process before. Raises `CorruptError` (kind ``bad-counters``), and changes nothing then."""
        now = self._clock.monotonic_ns()
        try:
            if state["version"] != _VERSION:
                raise ValueError(f"version {state['version']}")
            last = {
                str(name): Last(int(one["steps"]), int(one["epochs"]), now - int(one["since_ns"]))
                for name, one in state["engines"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptError(
                "these are not counters by engine",
                kind="bad-counters",
                hint="leave them out: the next is due at the next mark",
                cause=f"{type(error).__name__}: {error}",
            ) from error
        self._last = last
