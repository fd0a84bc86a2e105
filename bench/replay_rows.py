"""Save a large replay buffer of which some rows are new: what that costs by rows added, and by capacity."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch

from bench.atari import Played, Saving, arrays_of, frames, shrinks
from bench.floors import Counting
from bench.goals import SAVE, SB3_SAVE
from bench.machine import files_below
from bench.measure import Contender, Outcome, Row, Setting, interleave
from bench.savers import Finish, phases
from milepost import CheckpointEngine, Keep
from milepost.clock import SystemClock
from milepost.store.local import LocalStore

FULL_SAVE = "full save"
SHARES = {"milepost, 0.1%": 0.001, "milepost": 0.01, "milepost, 10%": 0.1}
SMALLER = 10
"""The other capacity: a tenth, with as many new rows."""


@dataclass(frozen=True, slots=True)
class _Saver:
    """Save one buffer by one way, and count what is written."""

    start: Callable[[], Finish]
    counting: Counting
    close: Callable[[], object]

    def sample(self) -> dict[str, float]:
        """Save once."""
        self.counting.take()
        started = time.perf_counter()
        finish = self.start()
        stalled = time.perf_counter()
        finish()
        durable = time.perf_counter() - started
        return {"stall": stalled - started, "durable": durable, "written": float(self.counting.take())}


def measure(setting: Setting) -> Outcome:
    """Save a buffer of 4 GB with 0.1%, 1% and 10% new rows; and one of 0.4 GB with as many rows as are 1% of the other."""
    size = setting.scaled(4_000_000_000, 400_000_000)
    place = setting.place
    large, small = _played(size), _played(size // SMALLER)
    capacity = large.buffer.buffer_size
    new = capacity // 100
    ours = {one: _ours(one, place / name) for one, name in ((large, "milepost"), (small, "milepost-small"))}
    full = {one: _full(one, place / name) for one, name in ((large, "full"), (small, "full-small"))}

    def both(savers: Mapping[Played, _Saver], rows: int) -> Mapping[str, float]:
        small.play(rows)
        smaller = savers[small].sample()["durable"]
        large.play(rows)
        return {**savers[large].sample(), _small(size): smaller}

    def added(rows: int) -> Mapping[str, float]:
        large.play(rows)
        return ours[large].sample()

    shares = [
        Contender(name, "milepost", partial(added, max(1, round(share * capacity))))
        for name, share in SHARES.items()
        if name != "milepost"
    ]
    contenders = [
        Contender("milepost", "milepost", lambda: both(ours, new)),
        *shares,
        Contender(FULL_SAVE, "milepost", lambda: both(full, 1)),
        Contender(SB3_SAVE, "peer", lambda: _sb3(large, place)),
        Contender(SAVE, "peer", lambda: _torch(large, place)),
    ]
    try:
        rows = interleave(
            contenders, setting, rounds=setting.scaled(9, 3), budget_s=setting.scaled(120, 15), units={"written": "bytes"}
        )
    finally:
        for saver in (*ours.values(), *full.values()):
            saver.close()
    words = f"replay buffer of {size / 1e9:g} GB uint8 (84 × 84 × 1, optimize_memory_usage); 1% of its rows new, or as named"
    slopes = [_against_capacity(rows, name, size) for name in ("milepost", FULL_SAVE)]
    return Outcome("replay-rows", words, (*rows, *slopes, _against_rows(rows, large)), _notes(place))


def _played(size: int) -> Played:
    return Played(size, policy="MlpPolicy", stacked=1, lean=True, policy_kwargs={"net_arch": [8]})


def _ours(played: Played, root: Path) -> _Saver:
    counting = Counting()
    saving = Saving(played.model, root, counting)
    return _Saver(saving.start, counting, saving.close)


def _full(played: Played, root: Path) -> _Saver:
    """Return milepost for the same arrays without a word about rows: one that has changed is written whole."""
    counting = Counting()
    state = {"replay": arrays_of(played.buffer), "policy": played.model.policy}
    engine = CheckpointEngine(LocalStore(root, SystemClock(), posix=counting), state=state, keep=Keep(last=1))
    engine.claim()
    steps = count()

    def start() -> Finish:
        engine.save(next(steps))
        return engine.wait

    start()()
    return _Saver(start, counting, engine.close)


def _sb3(played: Played, place: Path) -> Mapping[str, float]:
    model, replay = place / "model.zip", place / "replay.pkl"

    def save() -> None:
        played.model.save(model)
        played.model.save_replay_buffer(replay)

    return _peer(save, [model, replay])


def _torch(played: Played, place: Path) -> Mapping[str, float]:
    file = place / "replay.pt"
    tree: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays_of(played.buffer).items()}
    return _peer(lambda: torch.save(tree, file), [file])


def _peer(save: Callable[[], object], files: Sequence[Path]) -> Mapping[str, float]:
    started = time.perf_counter()
    save()
    stalled = time.perf_counter() - started
    written = sum(path.stat().st_size for file in files for path in files_below(file))
    for file in files:
        file.unlink()
    return {"stall": stalled, "written": float(written)}


def _small(size: int) -> str:
    return f"durable, {size / SMALLER / 1e9:g} GB"


def _against_capacity(rows: Sequence[Row], name: str, size: int) -> Row:
    """Return what a GB of capacity costs, the new rows being as many: the difference of the two buffers, by round."""
    found = {row.quantity: row.values for row in rows if row.contender == name}
    pairs = zip(found["durable"], found[_small(size)], strict=True)
    return Row(name, "milepost", "slope", tuple((one - other) / ((size - size / SMALLER) / 1e9) for one, other in pairs), "s/GB")


def _against_rows(rows: Sequence[Row], played: Played) -> Row:
    """Return what a GB of new rows costs: the line through the three shares, by round."""
    rowbytes = sum(array.nbytes for array in arrays_of(played.buffer).values()) / 1e9
    durable = [next(row for row in rows if (row.contender, row.quantity) == (name, "durable")) for name in SHARES]
    sizes = [share * rowbytes for share in SHARES.values()]
    figures = zip(*(row.values for row in durable), strict=False)
    return Row(
        "milepost", "milepost", "slope, rows", tuple(statistics.linear_regression(sizes, one).slope for one in figures), "s/GB"
    )


def _notes(place: Path) -> tuple[str, ...]:
    return (
        f"zstd makes these frames {shrinks(frames()):.3g} times smaller at level 1",
        "full save: milepost for the same arrays as ordinary ones; slope: a GB of capacity more; slope, rows: a GB of new rows",
        phases(place / "milepost"),
    )
