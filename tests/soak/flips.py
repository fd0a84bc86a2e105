"""Flip one bit of a run root at random: `verify` names the file, and what loads is what was saved. B8"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from milepost.engine import oneshot
from milepost.errors import CorruptError, NotFoundError
from milepost.publish.view import read
from tests.damage.damaged import files_of, flip, make_run, make_run_with_logs, state_at
from tests.engine import training
from tests.engine.training import bits, local, with_logs
from tests.soak.tally import Tally


def flips(place: Path, count: int, seed: int) -> Tally:
    """Flip ``count`` bits, one at a time; return how many, and those that were not found or spoilt what was loaded."""
    total, chance = Tally(), random.Random(seed)
    plain, logs = place / "run", place / "logs"
    make_run(plain)
    total += _flip(plain, count - count // 2, chance, f"seed {seed}", [bits(state_at(step)) for step in (4, 5, 6)])
    with with_logs():
        steps = chance.randrange(6, 14)
        make_run_with_logs(logs, steps)
        saved = [bits(training.state_at(step)) for step in range(1, steps + 1)]
        total += _flip(logs, count // 2, chance, f"seed {seed}, logs", saved)
    return total


def _flip(root: Path, count: int, chance: random.Random, where: str, saved: list[Any]) -> Tally:
    total, sizes = Tally(), {file: (root / file).stat().st_size for file in files_of(root)}
    blobs = [{blob.name for blob in summary.blobs} for summary in read(local(root)).live.values()]
    shared = set.intersection(*blobs)
    for _ in range(count):
        file = chance.choice(list(sizes))
        byte, bit = chance.randrange(sizes[file]), chance.randrange(8)
        what = f"{where}: bit {bit} of byte {byte} in {file} was flipped"
        flip(root / file, byte, bit)
        total.flips += 1
        try:
            named = {problem.name for problem in oneshot.verify(root).problems}
        except CorruptError as error:
            named = {str(error.facts["name"])}
        if named != {file}:
            total.lost.append(f"{what}, and verify named {sorted(named)}")
        try:
            loaded = oneshot.load(root)
        except (CorruptError, NotFoundError) as error:
            if file not in shared:  # what all generations need is gone from all of them
                total.lost.append(f"{what}, and nothing loads: {error}")
        else:
            if bits(loaded) not in saved:
                total.lost.append(f"{what}, and what loads is another state")
        flip(root / file, byte, bit)
    return total
