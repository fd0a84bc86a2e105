"""Kill ranks of a training at random, in whatever phase they are: each run is to end as one that nothing befell."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import milepost
from tests.pytorch.recover.launched import AGENT, ROOT, ends_of, ran, resumed
from tests.pytorch.recover.trained import POINTS, STEPS

FIRST = ("claim", "publish", "retire")
"""What only rank 0 does."""
OFTEN = ("exchange", "stage", "plan", "write", "blob")
"""What a rank does at each dump, or each save."""
AT_ONCE = 10
"""How many orders a run gets. Not each of them comes to pass: a point may never be reached again."""


def orders(chance: random.Random) -> list[dict[str, Any]]:
    """Draw what befalls the attempts of one run."""
    return [_order(chance) for _ in range(AT_ONCE)]


def _order(chance: random.Random) -> dict[str, Any]:
    rank, does = chance.randrange(2), "SIGTERM" if chance.random() < 0.1 else "SIGKILL"
    if chance.random() < 0.2:
        return {"rank": rank, "point": "step", "nth": chance.randrange(STEPS), "does": does}
    point, when = chance.choice(sorted(POINTS)), chance.choice(("before", "after"))
    rank = 0 if point in FIRST else rank
    nth = chance.choice((1, 1, 2, 3)) if point in OFTEN else 1
    return {"rank": rank, "point": point, "when": when, "nth": nth, "does": does}


def struck(place: Path, strikes: int, seed: int) -> Iterator[tuple[int, list[str]]]:
    """Yield of each run how many strikes it has had, and what was lost."""
    chance, done, number = random.Random(seed), 0, 0
    whole = place / "undisturbed"
    whole.mkdir(parents=True)
    ran(whole, [])
    while done < strikes:
        number += 1
        folder = place / f"run-{number}"
        folder.mkdir()
        told = orders(chance)
        hit, lost = _to_its_end(folder, told, ends_of(whole))
        done += hit
        yield hit, [f"{folder}: {each}; {told}" for each in lost]


def _to_its_end(folder: Path, told: list[dict[str, Any]], whole: list[str]) -> tuple[int, list[str]]:
    """Start it until it is done, as an operator does: so many kills in a row are a crash loop, which `milepost run` ends."""
    hit, lost = 0, []
    while True:
        run = ran(folder, told, AGENT, "--max-failures", "-1")
        struck = [*folder.glob("struck-*")]
        lost += [f"attempt {n}: ranks went on from {each}" for n, each in resumed(folder).items() if len(set(each)) > 1]
        if run.process.returncode == 0 or not struck:
            return hit + len(struck), [*lost, *_lost(folder, run.process.returncode, whole)]
        hit += len(struck)
        told = told[sum(each["event"] == "started" for each in run.events()) :]
        for path in (*struck, *folder.glob("resumed-*"), folder / "log"):
            path.unlink()


def _lost(folder: Path, code: int, whole: list[str]) -> Iterator[str]:
    if code:
        yield f"it ended with {code}, and nobody has killed it"
        return
    if ends_of(folder) != whole:
        yield "it has not ended as a run that nothing befell"
    if not milepost.verify(folder / ROOT).ok:
        yield "what is left does not verify"
