"""Judge by heartbeats who is well: suspect after some that did not come, failed after more, failed at once where a death is seen.

The service judges, and not the component: who hangs says nothing of it. And it judges itself first: beats that came while it did
not run it hears only afterwards, so time in which nobody looked counts against nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.errors import UsageError
from milepost.service.core.events import Caller

State: TypeAlias = Literal["well", "suspect", "failed"]
Evidence: TypeAlias = Literal["silence", "death", "heard"]


@dataclass(frozen=True, slots=True)
class Health:
    """Say how often a component is to be heard, and how much silence means what."""

    heartbeat_ns: int = 5 * 10**9
    suspect_after: int = 3
    """After so many beats that did not come."""
    failed_after: int = 6

    def __post_init__(self) -> None:
        if not (self.heartbeat_ns > 0 and 0 < self.suspect_after < self.failed_after):
            raise UsageError(
                "nobody can be judged by these settings",
                kind="bad-setting",
                hint="a heartbeat takes more than no time; suspect_after is at least 1, and less than failed_after",
                heartbeat_ns=self.heartbeat_ns,
                suspect_after=self.suspect_after,
                failed_after=self.failed_after,
            )


@dataclass(frozen=True, slots=True)
class Change:
    """Say that a process is judged otherwise from now on, and by what."""

    caller: Caller
    before: State
    now: State
    silent_ns: int
    evidence: Evidence


@dataclass(slots=True)
class _Pulse:
    heard_ns: int
    state: State = "well"


class Pulses:
    """Be what was heard of each component that is there. Times are of one monotonic clock."""

    def __init__(self, settings: Health) -> None:
        self._settings = settings
        self._pulses: dict[Caller, _Pulse] = {}
        self._looked_ns: int | None = None

    def state(self, caller: Caller) -> State | None:
        """Return how a process is judged; None for one that is not there."""
        pulse = self._pulses.get(caller)
        return None if pulse is None else pulse.state

    def hear(self, caller: Caller, now_ns: int) -> list[Change]:
        """Hear of a process that is the one that its component is now. One that was given up, too: it was only cut off."""
        pulse = self._pulses.setdefault(caller, _Pulse(now_ns))
        silent_ns, pulse.heard_ns = max(now_ns - pulse.heard_ns, 0), max(now_ns, pulse.heard_ns)
        return self._judge(caller, pulse, "well", silent_ns, "heard")

    def died(self, caller: Caller, now_ns: int) -> list[Change]:
        """Hear for sure that a process has ended, and not because it was done."""
        pulse = self._pulses.get(caller)
        return [] if pulse is None else self._judge(caller, pulse, "failed", max(now_ns - pulse.heard_ns, 0), "death")

    def leave(self, caller: Caller) -> None:
        """Let go of a process that has said goodbye, or that another has replaced."""
        self._pulses.pop(caller, None)

    def look(self, now_ns: int) -> list[Change]:
        """Judge everybody. Is to be called several times a heartbeat."""
        settings, slept_ns = self._settings, self._slept_ns(now_ns)
        self._looked_ns = now_ns
        changes: list[Change] = []
        for caller, pulse in self._pulses.items():
            pulse.heard_ns = min(pulse.heard_ns + slept_ns, now_ns)
            silent_ns = now_ns - pulse.heard_ns
            missed = silent_ns // settings.heartbeat_ns
            if missed >= settings.failed_after:
                changes += self._judge(caller, pulse, "failed", silent_ns, "silence")
            elif missed >= settings.suspect_after and pulse.state == "well":
                changes += self._judge(caller, pulse, "suspect", silent_ns, "silence")
        return changes

    def _slept_ns(self, now_ns: int) -> int:
        """Return for how long nobody has looked who should have: stopped, suspended, or starved of a processor."""
        gap_ns = 0 if self._looked_ns is None else now_ns - self._looked_ns
        return gap_ns if gap_ns > self._settings.heartbeat_ns else 0

    def _judge(self, caller: Caller, pulse: _Pulse, state: State, silent_ns: int, evidence: Evidence) -> list[Change]:
        before, pulse.state = pulse.state, state
        return [] if before == state else [Change(caller, before, state, silent_ns, evidence)]
