"""Flip one bit of a run root at random: `verify` names the file, and what loads is what was saved. B8"""

from __future__ import annotations

import random
from pathlib import Path

from milepost.engine import oneshot
from milepost.errors import CorruptError, NotFoundError
from tests.damage.damaged import files_of, flip, make_run, state_at
from tests.engine.training import bits
from tests.soak.tally import Tally


def flips(place: Path, count: int, seed: int) -> Tally:
    """Flip ``count`` bits, one at a time; return how many, and those that were not found or spoilt what was loaded."""
    chance, total, root = random.Random(seed), Tally(), place / "run"
    make_run(root)
    sizes = {file: (root / file).stat().st_size for file in files_of(root)}
    saved = {step: bits(state_at(step)) for step in (4, 5, 6)}
    for _ in range(count):
        file = chance.choice(list(sizes))
        byte, bit = chance.randrange(sizes[file]), chance.randrange(8)
        flip(root / file, byte, bit)
        total.flips += 1
        try:
            named = {problem.name for problem in oneshot.verify(root).problems}
        except CorruptError as error:
            named = {str(error.facts["name"])}
        if named != {file}:
            total.lost.append(f"seed {seed}: bit {bit} of byte {byte} in {file} was flipped, and verify named {sorted(named)}")
        try:
            loaded = oneshot.load(root)
        except (CorruptError, NotFoundError) as error:
            total.lost.append(f"seed {seed}: bit {bit} of byte {byte} in {file} was flipped, and nothing loads: {error}")
        else:
            if bits(loaded) not in saved.values():
                total.lost.append(f"seed {seed}: bit {bit} of byte {byte} in {file} was flipped, and what loads is another state")
        flip(root / file, byte, bit)
    return total
