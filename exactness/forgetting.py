"""Leave one captured item out at a time, and see what of the run differs: nothing is captured in vain.

The items are those of the tree that a generation holds, attribute by attribute. To lose one is to find, after a resume, what
a run that has just started has in its place. What then changes nothing of training is on the list of `exactness.listed`, with
the reason why it is captured all the same; what is on that list and does change training is as much a fault as what is not.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import milepost
from exactness import script
from exactness.axes import Cell
from exactness.hashes import digest, hashes_of
from exactness.listed import LISTED, Listed
from exactness.trees import Path_, at, items_of, kind_of, replaced
from milepost import CheckpointEngine, Keep, MilepostError
from milepost.adapters.sb3 import checkpointing as adapter
from milepost.adapters.sb3.part import Part
from milepost.lifecycle.triggers import every

RUNS: Mapping[str, Cell] = {
    "PPO": Cell("PPO", "CartPole", "DummyVecEnv x3", "all three", "EvalCallback"),
    "RecurrentPPO": Cell("RecurrentPPO", "Pendulum"),
    "DQN": Cell("DQN", "CartPole", wraps="VecNormalize", beside="EvalCallback"),
    "SAC, gSDE": Cell("SAC, gSDE", "Pendulum"),
    "TD3": Cell("TD3", "MountainCarContinuous", wraps="VecNormalize"),
    "SAC, HER": Cell("SAC, HER", "goals", "DummyVecEnv x3"),
}
"""What is left out of which run."""
QUICK = ("PPO",)
TRAINING = ("parameters", "optimizers", "generators", "buffer", "noise")
"""Parts of a run's end (`exactness.hashes.parts_of`) which say that it was trained otherwise; the others tell of it."""


EFFECTS = ("nothing", "logs", "training", "refused")
"""What is otherwise without an item, the least first; at last, the run does not even go on."""


@dataclass(frozen=True, slots=True)
class Item:
    """Hold what became of a run that has lost one item."""

    name: str
    effect: str
    constant: bool = False
    """A run that has just started has the same bits there: to lose it changes nothing."""
    listed: str = ""
    """The pattern on the list that it is under."""
    reason: str = ""

    @property
    def weight(self) -> tuple[int, bool]:
        """Return how much it shows that the item is needed."""
        return EFFECTS.index(self.effect), not self.constant


@dataclass(frozen=True, slots=True)
class Forgot:
    """Hold what became of one run without each of its items, and what of that is not as the list says."""

    run: str
    items: tuple[Item, ...]
    faults: tuple[str, ...] = ()

    def count(self, *effects: str) -> int:
        """Return how many items have one of these effects."""
        return sum(item.effect in effects for item in self.items)


EVERY = 7
"""Steps between saves: so that there are generations enough to choose from, after odd and even numbers of updates."""


def forget_each(run: str, generations: int = 6) -> Forgot:
    """Resume a run without each of its items in turn, train it to its end, and compare with the list.

    From several generations, since at one of them an item may be what it is in a fresh run, or be saved by chance.
    """
    torch.set_num_threads(1)
    cell = RUNS[run]
    found: dict[str, Item] = {}
    with tempfile.TemporaryDirectory(prefix="exactness-") as folder, _quiet():
        place = Path(folder)
        whole = hashes_of(script.train(cell, place / "logs", 1, [_saving(cell, place / "run")]))
        for number in _middle(place / "run", generations):
            scene = _Scene(cell, place, number, whole)
            scene.look()
            for item in scene.items(found):
                found[item.name] = max(found.get(item.name, item), item, key=lambda one: one.weight)
    return judged(run, list(found.values()))


def judged(run: str, found: Sequence[Item], listed: Sequence[Listed] = LISTED) -> Forgot:
    """Hold the items of a run against the list."""
    mine = [entry for entry in listed if run in entry.runs]
    items, faults, seen = [], [], set()
    for item in found:
        entry = next((entry for entry in mine if entry.matches(item.name, constant=item.constant)), None)
        if entry is None and item.effect in ("nothing", "logs"):
            faults.append(f"{item.name}: lost, it changes {item.effect}{' (it is constant)' * item.constant}; not on the list")
        elif entry is not None and not entry.allows(item.effect, constant=item.constant):
            faults.append(f"{item.name}: the list says `{entry.why}`, but lost, it changes {item.effect}")
        seen.add(entry)
        items.append(item if entry is None else dataclasses.replace(item, listed=entry.pattern, reason=entry.text))
    faults += [f"{entry.pattern}: on the list, and not there" for entry in mine if entry not in seen]
    return Forgot(run, tuple(items), tuple(faults))


@dataclass(slots=True)
class _Scene:
    """Resume one run again and again from one generation."""

    cell: Cell
    place: Path
    generation: int
    whole: Mapping[str, str]
    fresh: Mapping[str, Any] = field(default_factory=dict)
    """What a run that has just started has in each component, before anything is brought back."""

    def look(self) -> None:
        """Resume with every item, and remember what was there before."""
        seen: dict[str, Any] = {}
        effect = self._resumed(lambda state: seen.update(copy.deepcopy(_tree_of(dict(state)))), None)
        if effect != "nothing":
            raise AssertionError(f"with all of its items a resumed run is not exact: {effect} differs")
        self.fresh = seen

    def items(self, known: Mapping[str, Item]) -> Iterator[Item]:
        """Yield what becomes of the run without each item that is not known to be needed."""
        tree = milepost.load(str(self.place / "run"), which=self.generation)
        for path in items_of(tree):
            name = kind_of(path)
            if name in known and known[name].effect in ("training", "refused"):
                continue
            if digest([at(tree, path)]) == digest([at(self.fresh, path)]):
                yield Item(name, "nothing", constant=True)
            else:
                yield Item(name, self._resumed(None, path))

    def _resumed(self, look: Callable[[Mapping[str, Any]], None] | None, path: Path_ | None) -> str:
        """Return what differs at the end from the run that was not interrupted."""
        again = self.place / "again"
        shutil.copytree(self.place / "run", again / "run")
        try:
            with mock.patch.object(adapter, "CheckpointEngine", _losing(look, path, self.fresh)):
                callback = script.checkpointing(self.cell, str(again / "run"), which=self.generation, keep=Keep(last=1))
                ended = hashes_of(script.train(self.cell, again / "logs", 7, [callback]))
        except (MilepostError, LookupError, TypeError, ValueError, RuntimeError, AttributeError, AssertionError):
            return "refused"
        finally:
            shutil.rmtree(again)
        different = {name for name in ended if ended[name] != self.whole[name]}
        return "training" if different.intersection(TRAINING) else "logs" if different else "nothing"


def _losing(look: Callable[[Mapping[str, Any]], None] | None, path: Path_ | None, fresh: Mapping[str, Any]) -> type:
    """Return an engine whose resume loses one item: it finds there what a fresh run has."""

    class Losing(CheckpointEngine):
        def resume(self, *args: Any, **kwargs: Any) -> Any:
            if look is not None:
                look(self.state)
            if path is None:
                return super().resume(*args, **kwargs)
            part, inner, old = self.state[path[0]], path[1:], at(fresh, path)
            if isinstance(part, Part) and inner[0] != "rows":
                restore = part.restore
                # Past its being frozen: the engine has chosen already whom it tells.
                object.__setattr__(part, "restore", lambda subject, saved: restore(subject, replaced(saved, inner, old)))
                return super().resume(*args, **kwargs)
            restored = super().resume(*args, **kwargs)
            _put_into(part, inner, old)
            return restored

    return Losing


def _tree_of(live: Any) -> Any:
    """Return a live tree in the form that is stored: what has a state of its own gives it."""
    if isinstance(live, dict):
        return {name: _tree_of(value) for name, value in live.items()}
    return live.state_dict() if hasattr(live, "state_dict") else live


def _put_into(live: Any, path: Path_, fresh: Any) -> None:
    """Let a component that was brought back have the fresh value at the place."""
    while isinstance(live, dict):
        live, path = live[path[0]], path[1:]
    if isinstance(live, torch.Tensor):
        live.data.copy_(fresh)
    elif isinstance(live, Part):
        live.state_dict()["rows"].arrays[path[1]][...] = fresh
    else:
        live.load_state_dict(replaced(copy.deepcopy(live.state_dict()), path, fresh))


def _saving(cell: Cell, root: Path) -> Any:
    return script.checkpointing(cell, str(root), keep=Keep(last=100), when=every(steps=EVERY))


def _middle(root: Path, count: int) -> list[int]:
    """Return generations from the middle of a run on: what is made, used and logged by then is there, and more is to come."""
    numbers = sorted(int(path.stem) for path in (root / "generations").glob("*.json"))
    first = max(len(numbers) // 2 - 1, 1)
    return numbers[first : min(first + count, len(numbers) - 1)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Say nothing of rows that were changed, and nobody said so: it was us."""
    log = logging.getLogger("milepost")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
