"""Say to a command, by its environment, which attempt it is, that somebody listens, and where it is to go on from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from milepost.engine.supervised import ATTEMPT, NOTICE, RESUME, SKIP, STOP, STOP_AT, SUPERVISED
from milepost.lifecycle.grace import GRACE

Marked: TypeAlias = tuple[tuple[str, int], ...]
"""Generations: run id and number of each."""

OF_EACH_START = (ATTEMPT, STOP, GRACE, SUPERVISED, RESUME, SKIP)
"""What is said anew to each start of a command: a value that somebody else has set is not passed on."""

_RESERVE = 0.1
_MOST_RESERVE_S = 2.0


@dataclass(frozen=True, slots=True)
class Way:
    """Say where attempts go on from, as far as that is not simply their latest generation."""

    resume: str = ""
    """As in `RESUME`: holds until something new is published, or the next attempt would lose that again."""
    skip: str = ""
    """As in `SKIP`: holds for good."""

    @classmethod
    def given(cls, environment: Mapping[str, str]) -> Way:
        """Return what whoever started us wants of the first attempt: another `milepost run`, or a person."""
        return cls(environment.get(RESUME, ""), environment.get(SKIP, ""))

    def after(self, *, published: bool, resume: Marked, skip: Marked) -> Way:
        """Return what holds for the next attempt."""
        return replace(
            self,
            resume=text_of(resume) if resume else "" if published else self.resume,
            skip=",".join(dict.fromkeys(filter(None, [*self.skip.split(","), *text_of(skip).split(",")]))),
        )


def text_of(marked: Iterable[tuple[str, int]]) -> str:
    """Return generations as a variable holds them.

    >>> text_of([("3f2a", 17), ("9c1b", 4)])
    '3f2a:17,9c1b:4'
    """
    return ",".join(f"{run_id}:{number}" for run_id, number in marked)


def environment_of(
    base: Mapping[str, str], *, number: int, grace_s: float, way: Way, notice: str | None = None, stop_at_s: float | None = None
) -> dict[str, str]:
    """Return the environment of attempt ``number``, from 1. ``grace_s``: what a signal leaves; it is told a little less."""
    environment = {**base, ATTEMPT: str(number), STOP: "1", GRACE: f"{told_grace_s(grace_s):.3f}"}
    # What an outer `milepost run` has said to us is said for one start of ours, and not for each of this command.
    for name, value in ((RESUME, way.resume), (SKIP, way.skip)):
        environment.pop(name, None)
        if value:
            environment[name] = value
    if notice is not None:
        environment[NOTICE] = notice
    if stop_at_s is not None:
        environment[STOP_AT] = f"{stop_at_s:.3f}"
    return environment


def told_grace_s(grace_s: float) -> float:
    """Return how long a command is told that it has: what comes after its end needs some time, too."""
    return grace_s - min(_MOST_RESERVE_S, grace_s * _RESERVE)
