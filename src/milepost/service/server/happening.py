"""Say what happens in a service beside what it writes down: who is in touch, and what the disk says. Data, and a look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from milepost.errors import MilepostError
from milepost.service.core.events import Caller, Tick
from milepost.service.core.records import Entry
from milepost.service.core.service import Service


@dataclass(frozen=True, slots=True)
class Left:
    """A component has said that it ends."""

    component: str


@dataclass(frozen=True, slots=True)
class Silent:
    """A component was not heard of for as long as a lease lasts: what it reads is kept for it no more."""

    component: str
    lease_s: float


@dataclass(frozen=True, slots=True)
class InTouch:
    """A component is heard of again: after a silence, or by a service that began since it joined."""

    component: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Something cannot be done, and is tried again: ``spill``, ``journal``, ``erase``, ``sweep``, ``snapshot``."""

    what: str
    error: MilepostError


@dataclass(frozen=True, slots=True)
class Mended:
    """What could not be done is done."""

    what: str


Happening: TypeAlias = Entry | Left | Silent | InTouch | Failed | Mended | Tick
"""A `Tick` only says that time has passed."""


class Attendance:
    """Know who was in touch at the last look."""

    def __init__(self) -> None:
        self._is_heard: dict[Caller, bool] = {}

    def look(self, core: Service, now_ns: int, lease_ns: int) -> Iterator[Silent | InTouch]:
        """Yield, once each, who has fallen silent since the last look, and who is heard of again."""
        is_heard: dict[Caller, bool] = {}
        for name, joined in core.catalogue.current.items():
            caller = Caller(name, joined.incarnation)
            heard_ns = core.heard_ns(caller)
            if heard_ns is not None:
                is_heard[caller] = now_ns - heard_ns < lease_ns
        before, self._is_heard = self._is_heard, is_heard
        for caller, now in is_heard.items():
            if now and not before.get(caller, False):
                yield InTouch(caller.component)
            elif before.get(caller, False) and not now:
                yield Silent(caller.component, lease_ns / 1e9)
