"""Choose how much is started again when something has failed: as little as can help, and more where that did not.

- *worker*: one sampler; or, where a rank of a trainer is lost, all ranks of its group, since none can go on alone. From the
  newest checkpoint; nothing else stops.
- *trainer*: the whole trainer. Samplers go on; what they make meanwhile waits until it can be judged.
- *pipeline*: all of it. Pointer, lineage and the batches that are not consumed come back from disk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.service.core.records import Role

Granularity: TypeAlias = Literal["worker", "trainer", "pipeline"]
MOST_TRIES = 2
"""How often the same is tried without any progress before more is started again."""


@dataclass(frozen=True, slots=True)
class Component:
    """Be one of those who are there, or should be."""

    name: str
    role: Role
    group: str = ""
    """Of a rank: which ranks it cannot go on without."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Start these again, together."""

    granularity: Granularity
    components: tuple[str, ...]
    why: str


def choose(components: Collection[Component], failed: Collection[str], tries: Mapping[str, int]) -> tuple[Decision, ...]:
    """Return what is to be started again. ``tries``: how often each component was, without any progress since.

    Progress is a version or a batch that was not there before. Nothing is decided twice for one component.
    """
    lost = [each for each in components if each.name in failed]
    trainers = [each for each in components if each.role == "trainer"]
    lost_trainers = [each for each in lost if each.role == "trainer"]
    if len(lost) == len(components) > 1:
        return (_pipeline(components, "nobody is left"),)
    if any(tries.get(each.name, 0) >= 2 * MOST_TRIES for each in lost_trainers):
        return (_pipeline(components, "to start the trainer alone did not help"),)
    decisions: list[Decision] = []
    if lost_trainers:
        group = {each.group for each in lost_trainers}
        is_part = "" not in group and len(group) == 1 and len(lost_trainers) < len(trainers)
        helps = all(tries.get(each.name, 0) < MOST_TRIES for each in lost_trainers)
        if is_part and helps:
            names = tuple(sorted(each.name for each in trainers if each.group in group))
            decisions.append(Decision("worker", names, "ranks of this group were lost"))
        else:
            names = tuple(sorted(each.name for each in trainers))
            decisions.append(Decision("trainer", names, "the trainer was lost" if not is_part else "its ranks were lost again"))
    decisions += [Decision("worker", (each.name,), "it was lost") for each in sorted(lost, key=_name) if each.role == "sampler"]
    return tuple(decisions)


def _pipeline(components: Collection[Component], why: str) -> Decision:
    return Decision("pipeline", tuple(sorted(each.name for each in components)), why)


def _name(component: Component) -> str:
    return component.name
