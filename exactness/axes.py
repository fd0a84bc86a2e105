"""Say what is combined with what, what cannot be, and which cells are run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

from exactness.algorithms import ALGORITHMS
from exactness.pairwise import cover
from exactness.worlds import WORLDS

LOOP = "own loop"
"""The algorithm that is no class of Stable-Baselines3: `exactness.loop`, with Gymnasium's own vector environments."""

VENVS: Mapping[str, int] = {"DummyVecEnv x1": 1, "DummyVecEnv x3": 3, "SubprocVecEnv x2": 2}
GYMNASIUM: Mapping[str, int] = {
    "SyncVectorEnv x2": 2,
    "SyncVectorEnv x2, same step": 2,
    "AsyncVectorEnv x2": 2,
    "AsyncVectorEnv x2, same step": 2,
}
"""Gymnasium's own; they reset an env at the step after its episode, or at the same one."""
WRAPS = ("-", "VecMonitor", "VecNormalize", "VecFrameStack", "all three")
"""Around the vector environment; the last is VecNormalize<VecFrameStack<VecMonitor>>."""
BESIDE = ("-", "EvalCallback")
KILLS = ("mid-rollout", "during a save", "during a restore", "twice in a row")
SLOW = 10.0
"""Worlds that take so many times as long as CartPole do not run with the tests."""
WRITERS = ("thread", "inline", "process")


@dataclass(frozen=True, slots=True)
class Cell:
    """Be one combination: what trains, where, and how it dies."""

    algorithm: str
    world: str
    venv: str = "DummyVecEnv x1"
    wraps: str = "-"
    beside: str = "-"
    kill: str = "mid-rollout"
    writer: str = "inline"

    def __str__(self) -> str:
        return " / ".join(part for part in astuple(self) if part != "-")


AXES: Mapping[str, Sequence[str]] = {
    "algorithm": (*ALGORITHMS, LOOP),
    "world": tuple(WORLDS),
    "venv": (*VENVS, *GYMNASIUM),
    "wraps": WRAPS,
    "beside": BESIDE,
    "kill": KILLS,
    "writer": WRITERS,
}


def can_be(cell: Cell) -> bool:
    """Return whether there is such a run at all: this is the mask."""
    world = WORLDS[cell.world]
    if (cell.algorithm == LOOP) != (cell.venv in GYMNASIUM):
        return False
    if cell.writer == "process" and cell.kill == "during a save":
        return False  # nobody is killed there: the process that writes goes on
    if cell.algorithm == LOOP:
        return cell.wraps == cell.beside == "-" and world.sees in ("vector", "number") and not world.masked
    algorithm = ALGORITHMS[cell.algorithm]
    learns = world.actions in algorithm.actions and world.sees in algorithm.sees and world.masked == algorithm.masks
    stacked = cell.wraps in ("VecFrameStack", "all three")
    if cell.wraps in ("VecNormalize", "all three") and world.sees in ("number", "picture") and algorithm.off_policy:
        return False  # Stable-Baselines3 fails: it indexes a number as an array, and stores a picture as it was not turned
    stacks = world.sees in ("vector", "picture")
    return learns and (stacks or not stacked)


def cells() -> list[Cell]:
    """Return the cells of the whole matrix: every pair of values that can be together is in one of them."""
    return [Cell(*chosen) for chosen in cover(AXES, lambda values: can_be(Cell(*values)), lambda values: _cost(Cell(*values)))]


def subset() -> list[Cell]:
    """Return few cells in which every value of every axis stands that is quick: what runs with the tests."""

    def quick(cell: Cell) -> bool:
        return can_be(cell) and WORLDS[cell.world].seconds < SLOW

    return [Cell(*chosen) for chosen in cover(AXES, lambda one: quick(Cell(*one)), lambda one: _cost(Cell(*one)), size=1)]


def _cost(cell: Cell) -> float:
    """Return about how long a cell takes: a worker process starts slowly, and so do some simulators."""
    algorithm = 1.0 if cell.algorithm == LOOP else ALGORITHMS[cell.algorithm].seconds
    return WORLDS[cell.world].seconds * algorithm * (1.5 if cell.venv.startswith(("Subproc", "Async")) else 1.0)
