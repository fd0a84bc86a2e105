"""Processes of a pipeline that are none: a test says when each ends, and time stands still until it is told otherwise."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milepost.clock import FakeClock
from milepost.supervise.causes import End
from milepost.supervise.member import Launch
from milepost.supervise.pipeline import Pipeline
from milepost.supervise.policy import Limits
from milepost.supervise.roles import Plan, Role
from tests.supervise.attempts import Told


@dataclass
class Stand:
    """Be one process. It obeys what it is asked at the next look unless it is told to be stubborn."""

    launch: Launch
    pid: int
    clock: FakeClock
    stubborn: bool = False
    obeys_with: int = 75
    ends: End | None = None
    asked_s: list[float] = field(default_factory=list)
    killed: bool = False
    newest: int = 0
    _kill_ns: int | None = None

    def poll(self) -> End | None:
        if self._kill_ns is not None and self.clock.monotonic_ns() >= self._kill_ns:
            self.kill()
        return self.ends

    def stop(self, grace_s: float) -> None:
        self.asked_s.append(grace_s)
        self._kill_ns = self.clock.monotonic_ns() + round(grace_s * 1e9)
        if not self.stubborn and self.ends is None:
            self.ends = End(self.obeys_with, None)

    def kill(self) -> None:
        self.killed = True
        self.ends = self.ends or End(None, signal.SIGKILL)

    def newest_generation(self) -> int:
        return self.newest


class Stage:
    """Be a pipeline whose processes a test holds in its hand."""

    def __init__(self, *roles: Role, backoff_s: float = 0.0, **limits: Any) -> None:
        self.clock, self.told, self.plan = FakeClock(prefix="8"), Told(), Plan(roles)  # draws halves
        self.there: dict[str, Stand] = {}
        self.history: list[str] = []
        self.stubborn: set[str] = set()
        self.pipeline = Pipeline(
            self.plan, self.start, self.clock, self.told, limits=Limits(backoff_s=(backoff_s, backoff_s), **limits)
        )

    def start(self, launch: Launch) -> Stand:
        name = str(launch.place)
        assert name not in self.there or self.there[name].ends is not None, f"{name} runs twice"
        stand = Stand(launch, len(self.history) + 100, self.clock, name in self.stubborn)
        self.there[name] = stand
        self.history.append(name)
        return stand

    def turn(self, times: int = 1, *, seconds: float = 0.0) -> None:
        for _ in range(times):
            self.clock.advance(seconds=seconds)
            self.pipeline.turn()

    def ends(self, *names: str, code: int | None = 1, signal: int | None = None, turns: int = 8, **more: Any) -> None:
        """Have processes end by themselves, all before the next look."""
        for name in names:
            self.there[name].ends = End(code if signal is None else None, signal, **more)
        self.turn(turns)

    def pids(self) -> dict[str, int]:
        return {name: stand.pid for name, stand in self.there.items() if stand.ends is None}

    def standings(self) -> dict[str, str]:
        return {f"{each.role}.{each.index}": each.standing for each in self.pipeline.standings}


def role(name: str, **settings: Any) -> Role:
    return Role(name, (name,), Path("/"), **settings)
