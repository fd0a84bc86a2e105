"""Put the attacks together."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.power.runs import replay_runs, small
from tests.sick.injections import faults
from tests.siege.campaign import besiege
from tests.siege.supervised import besiege_runs
from tests.soak.deaths import deaths
from tests.soak.flips import flips
from tests.soak.kills import kills
from tests.soak.tally import Tally


@dataclass(frozen=True)
class Counts:
    """Say how much to try at least."""

    kills: int
    cuts: int
    faults: int
    flips: int
    deaths: int
    strikes: int

    def missing(self, total: Tally) -> str:
        """Return what was tried too little; empty if all was."""
        tried = {
            "kills": (total.crash_points, self.kills),
            "cuts": (total.power_cuts, self.cuts),
            "faults": (total.faults, self.faults),
            "flips": (total.flips, self.flips),
            "deaths": (total.deaths, self.deaths),
            "strikes": (total.strikes, self.strikes),
        }
        return ", ".join(f"{name} {done:,} of {wanted:,}" for name, (done, wanted) in tried.items() if done < wanted)


def siege(place: Path, counts: Counts, seed: int, tell: Callable[[str], object]) -> Tally:
    """Run every attack and return the totals. The same seed makes the same attacks."""
    attacks: dict[str, Callable[[Path], Tally]] = {
        "kills": lambda at: kills(at, counts.kills, seed),
        "power cuts": lambda _: power_cuts(counts.cuts, seed),
        "faults": lambda at: sick_disks(at, counts.faults, seed),
        "flips": lambda at: flips(at, counts.flips, seed),
        "deaths": lambda at: deaths(at, counts.deaths, seed),
        "strikes": lambda at: strikes(at, counts.strikes, seed, tell),
    }
    total = Tally()
    with small():
        for name, attack in attacks.items():
            (place / name).mkdir()
            found = attack(place / name)
            tried = found.crash_points + found.power_cuts + found.faults + found.flips + found.deaths + found.strikes
            tell(f"{name}: {tried:,} tried, {len(found.lost)} lost")
            total += found
    return total


def power_cuts(count: int, seed: int) -> Tally:
    """Cut the power at ``count`` moments of recorded runs."""
    found = replay_runs(count, seed)
    lost = [f"seed {seed}: {failure}" for failure in found.failures]
    return Tally(operations=found.operations, power_cuts=found.cuts, acknowledged=found.acknowledged, lost=lost)


def sick_disks(place: Path, count: int, seed: int) -> Tally:
    """Let disks fall sick until ``count`` faults have struck: a drawn call is not always reached."""
    total = Tally()
    for again in itertools.count():
        (place / str(again)).mkdir()
        total += faults(seed + again, min(count, 200), place / str(again))
        shutil.rmtree(place / str(again))
        if total.faults >= count or total.lost:
            return total
    raise AssertionError("unreachable")


def strikes(place: Path, count: int, seed: int, tell: Callable[[str], object]) -> Tally:
    """Strike trainers with signals ``count`` times, every twentieth time under `milepost run`."""
    total = Tally()
    for name, attack, times in (("alone", besiege, count), ("milepost run", besiege_runs, count // 20)):
        toll = attack(place / name, times, seed)
        tell(f"{name}: {toll}")
        missed = (
            [f"nothing was ever struck in: {', '.join(toll.missed())}"]
            if count >= 100 and attack is besiege and toll.missed()
            else []
        )
        total += Tally(operations=toll.starts, strikes=toll.strikes, lost=toll.lost + missed)
    return total
