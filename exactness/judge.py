"""Run a cell: without milepost, with it and left alone, and killed and resumed; compare what the three have ended with."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from exactness import script
from exactness.algorithms import ALGORITHMS
from exactness.axes import LOOP, Cell
from exactness.children import ChildFailedError, bury, in_child
from exactness.hashes import digest, hashes_of
from exactness.strikes import KILLS, Strike
from exactness.worlds import WORLDS

EXACT, DIFFERS, FAILED, TOLD, NOT_RUN = "exact", "differs", "failed", "not exact, and says so", "not run"
BAD = frozenset({DIFFERS, FAILED})


@dataclass(frozen=True, slots=True)
class Verdict:
    """Hold what came of one cell."""

    cell: Cell
    outcome: str
    detail: str = ""
    kills: int = 0
    resumes: int = 0
    seconds: float = 0.0


def judge(cell: Cell, place: Path | None = None) -> Verdict:
    """Run a cell and judge it. Its files lie in a folder below ``place``, which stays only if the cell fails."""
    missing = missing_for(cell)
    if missing:
        return Verdict(cell, NOT_RUN, f"needs {missing}")
    folder = Path(tempfile.mkdtemp(prefix="exactness-", dir=place))
    started = time.perf_counter()
    try:
        outcome, detail, kills = _judged(cell, folder)
    except ChildFailedError as error:
        outcome, detail, kills = FAILED, str(error), 0
    finally:
        bury()
    found = Verdict(cell, outcome, detail, kills, len(script.resumes(folder / "killed")), time.perf_counter() - started)
    if outcome not in BAD or place is None:
        shutil.rmtree(folder)
    return found


def missing_for(cell: Cell) -> str:
    """Return the name of the package that a cell lacks here; empty if it lacks none."""
    world = WORLDS[cell.world]
    if cell.algorithm != LOOP and ALGORITHMS[cell.algorithm].missing:
        return ALGORITHMS[cell.algorithm].where.partition(":")[0]
    return world.needs if world.missing else ""


def _judged(cell: Cell, folder: Path) -> tuple[str, str, int]:
    plain, alone, killed = (folder / name for name in ("plain", "alone", "killed"))
    for where in (plain, alone, killed):
        where.mkdir()
    _to_the_end(cell, plain, attached=False)
    _to_the_end(cell, alone, attached=True)
    strikes = KILLS[cell.kill](script.steps_of(cell))
    for start, strike in enumerate(strikes):
        if not _start(cell, killed, start=start, strike=strike):
            return FAILED, f"start {start + 1} came to its end, where it was to be killed: {strike}", start
    _to_the_end(cell, killed, start=len(strikes))
    ends = [script.leave(where) for where in (plain, alone, killed)]
    return (*_compared(WORLDS[cell.world].not_exact, script.resumes(killed), *ends), len(strikes))


def _compared(not_exact: str, resumes: list[dict[str, Any]], plain: Any, alone: Any, killed: Any) -> tuple[str, str]:
    said = all(resume["exact"] for resume in resumes)
    if plain_difference := first_difference(plain, alone):
        return DIFFERS, f"attaching changed something: {plain_difference}"
    if len(resumes) < 2:
        return FAILED, f"only {len(resumes)} of its starts went on from a checkpoint"
    difference = first_difference(alone, killed)
    if not_exact:
        return (TOLD, not_exact) if not said else (FAILED, f"milepost calls exact what cannot be: {not_exact}")
    if difference:
        return DIFFERS, difference if said else f"{difference} (and says so: {'; '.join(resumes[-1]['inexact'])})"
    return (EXACT, "") if said else (FAILED, f"the same bits, but it says: {'; '.join(resumes[-1]['inexact'])}")


def _to_the_end(cell: Cell, folder: Path, *, attached: bool = True, start: int = 0) -> None:
    if _start(cell, folder, attached=attached, start=start):
        raise ChildFailedError("killed by somebody else")


def _start(cell: Cell, folder: Path, *, attached: bool = True, start: int = 0, strike: Strike | None = None) -> bool:
    return in_child(
        lambda: script.run(cell, folder, attached=attached, start=start, strike=strike), folder / f"start-{start}.txt"
    )


def first_difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Return where two ends differ first, with both values; empty where they are equal to the bit."""
    ours, theirs = hashes_of(one), hashes_of(other)
    names = [name for name in ours if ours[name] != theirs.get(name)]
    if not names:
        return ""
    where = next(iter(_differences(one[names[0]], other.get(names[0]), names[0])), names[0])
    return f"{where} (of {', '.join(names)})"


def _differences(one: Any, other: Any, path: str) -> Iterator[str]:
    if digest(one) == digest(other):
        return
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from _differences(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, (list, tuple)) and type(one) is type(other) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differences(left, right, f"{path}[{index}]")
    else:
        yield f"{path}: {_text(one)} and {_text(other)}"


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray) and value.size > 4:
        return f"{value.dtype}{list(value.shape)} {value.ravel()[:3]}..."
    text = repr(value)
    return text if len(text) < 120 else f"{text[:117]}..."
