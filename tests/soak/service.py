"""Strike the checkpoint service, its trainer, both and their host, by chance, in every setting; look at all of it after each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tests.service.durability.campaign import Told, told_of
from tests.service.durability.plans import SETTINGS, by_chance

TURNS = 60
"""Of one story. What it has written down is read after each, so that long ones get slow."""


def stories(place: Path, strikes: int, seed: int) -> Iterator[Told]:
    """Tell stories until so many strikes have hit, or something was lost. One that was lost can be looked at below ``place``."""
    dice = random.Random(f"service {seed}")
    place.mkdir()
    number = 0
    while strikes > 0:
        setting = SETTINGS[number % len(SETTINGS)]
        told = told_of(place / str(number), setting, list(by_chance(dice, setting, min(TURNS, strikes))))
        yield told
        if told.lost or not told.strikes:
            return
        strikes -= told.strikes
        number += 1
