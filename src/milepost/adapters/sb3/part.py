"""Be one component of a Stable-Baselines3 run: read and written by functions of `milepost.adapters.sb3.parts`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from milepost.adapters.sb3.subject import Subject
from milepost.envs.plain import LeftOut, Recorder
from milepost.records import Difference
from milepost.state.kinds import register_in_place

_WHY = "not captured"


def not_captured(reason: str) -> dict[str, str]:
    """Return the tree of a component that nobody could capture: it says why, and a resume leaves the live objects as they are."""
    return {_WHY: reason}


def is_captured(state: Any) -> bool:
    """Return whether a component's tree holds anything."""
    return not (isinstance(state, dict) and state.keys() == {_WHY})


@dataclass(frozen=True, slots=True)
class Part:
    """Be one component of the state: read by ``capture``, written in place by ``restore``."""

    name: str
    subject: Subject
    capture: Callable[[Subject, Recorder], Any]
    restore: Callable[[Subject, Any], None]
    without: Callable[[Subject], None] = field(default=lambda _: None, kw_only=True)
    """What is to be done instead where the component was not captured."""

    def state_dict(self) -> Any:
        """Return the component's tree, and note what is not in it."""
        recorder = Recorder()
        state = self.capture(self.subject, recorder)
        self.subject.left_out[self.name] = tuple(recorder.left_out)
        return state

    def left_out(self) -> tuple[LeftOut, ...]:
        """Return what the last `state_dict` did not hold."""
        return self.subject.left_out.get(self.name, ())

    def load_state_dict(self, state: Any, /) -> None:
        """Overwrite the live objects."""
        if is_captured(state):
            self.restore(self.subject, state)
        else:
            self.without(self.subject)


@dataclass(frozen=True, slots=True)
class FreePart(Part):
    """Be a component whose live shape says nothing about the saved one; it knows itself what does not fit."""

    compare: Callable[[Subject, Any], list[Difference]]

    def state_differences(self, saved: Any, /) -> list[Difference]:
        """Return what does not fit."""
        return self.compare(self.subject, saved) if is_captured(saved) else []


class ArrayPart(FreePart):
    """Be a component whose arrays are the live objects' own, so that bytes can be read straight to where they belong."""


register_in_place(ArrayPart)
