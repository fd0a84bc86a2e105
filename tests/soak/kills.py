"""Kill a trainer, or an operator's command, before a random file operation, again and again on the same run root."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from milepost.clock import SystemClock
from milepost.engine import oneshot
from milepost.errors import MilepostError, NotFoundError
from milepost.lifecycle.retain import Keep
from milepost.publish import pins
from milepost.publish.signed import open_root
from milepost.publish.view import View, read
from milepost.store.posix import Posix
from milepost.testing.faults import KILLED, kill_before, run_in_child
from tests.crash.test_kill_everywhere import Scene, check_nothing_is_left_over
from tests.engine.training import Training, bits, local, state_at
from tests.soak.tally import Tally

KILLS_PER_ROOT = 25
"""Every claim leaves a term for good, and reading them costs time."""
OPERATIONS_MAX = 90
"""About as many file operations as the longest of these acts does."""


class Siege:
    """Hold one run root under attack, and what was acknowledged there. Acknowledgements are noted beside the root."""

    def __init__(self, place: Path, chance: random.Random) -> None:
        self.scene = Scene(place)
        self.chance = chance
        self.step = 0
        self.run_id = ""
        self.acknowledged_before = 0
        place.mkdir(parents=True)

    def kill_once(self) -> bool:
        """Do something, dying at some point of it; return whether it died before it was done."""
        act = self.chance.choice(ACTS)
        self.step += 10
        posix = kill_before(self.chance.randrange(OPERATIONS_MAX))
        status = run_in_child(lambda: act(self, posix))
        if status not in (0, KILLED):
            raise AssertionError(f"{act.__name__} failed by itself")
        return status == KILLED

    def check(self) -> None:
        """Hold the root to what was acknowledged there since the last reset that took place."""
        store = local(self.scene.root)
        try:
            view = read(store)
        except NotFoundError:
            assert not self.scene.acknowledged
            return
        if view.run_id != self.run_id:
            self._check_reset(view)
        assert oneshot.verify(store).problems == ()
        for number, summary in view.live.items():
            assert bits(oneshot.load(store, which=number)) == bits(state_at(summary.step)), f"generation {number} is a mix"
        newest = max(self.scene.acknowledged, default=0)
        if newest:
            assert view.head is not None, f"generation {newest} was acknowledged, and nothing is left"
            assert view.head.number >= newest, f"generation {newest} was acknowledged, and {view.head.number} is the newest"

    def _check_reset(self, view: View) -> None:
        if self.run_id:
            assert view.terms.resets, "another run is here, and nobody reset the old one"
            self.acknowledged_before += len(self.scene.acknowledged)
            (self.scene.place / "acknowledged").unlink(missing_ok=True)
        self.run_id = view.run_id

    def start(self) -> None:
        """Let the next start go on, and save."""
        with Training(self.scene.root) as training:
            restored = training.engine.resume()
            check_nothing_is_left_over(self.scene.root)
            if restored is not None:
                assert training.is_at(restored.step)
                assert restored.skipped == ()
            self.run_id = read(training.store).run_id
            self.step += 1
            self.scene.acknowledge(training.save(self.step))


def train(siege: Siege, posix: Posix) -> None:
    last = siege.chance.randrange(1, 4)
    with Training(local(siege.scene.root, posix), keep=Keep(last=last)) as training:
        training.engine.resume()
        for more in (1, 2):
            siege.scene.acknowledge(training.save(siege.step + more))


def go_back(siege: Siege, posix: Posix) -> None:
    store = local(siege.scene.root, posix)
    with Training(store) as training:
        line = read(store).line
        training.engine.resume(min(line) if line else "latest")
        siege.scene.acknowledge(training.save(siege.step + 1))


def start_anew(siege: Siege, posix: Posix) -> None:
    with Training(local(siege.scene.root, posix)) as training:
        training.engine.resume("never")
        siege.scene.acknowledge(training.save(siege.step + 1))


def roll_back(siege: Siege, posix: Posix) -> None:
    store = local(siege.scene.root, posix)
    view = read(store)
    others = sorted(view.live.keys() - {view.head.number if view.head else 0})
    if others:
        siege.scene.acknowledge(oneshot.rollback(store, siege.chance.choice(others)))


def pin_and_unpin(siege: Siege, posix: Posix) -> None:
    store = open_root(local(siege.scene.root, posix), SystemClock(), None)
    view = read(store)
    for number in view.pins:
        pins.unpin(store, number)
    if view.live:
        pins.pin(store, siege.chance.choice(sorted(view.live)))
    train(siege, posix)


def reset(siege: Siege, posix: Posix) -> None:
    oneshot.reset(local(siege.scene.root, posix))


ACTS: tuple[Callable[[Siege, Posix], None], ...] = (train, train, train, go_back, start_anew, roll_back, pin_and_unpin, reset)


def kills(place: Path, count: int, seed: int) -> Tally:
    """Kill ``count`` times; return what was tried and what was lost."""
    chance, total = random.Random(seed), Tally()
    while total.crash_points < count and not total.lost:
        siege = Siege(place / str(total.crash_points), chance)
        # Every third root is a signed one: its records pass through one more store.
        key = {"MILEPOST_KEY": "a key of this siege's own"} if chance.random() < 1 / 3 else {}
        with mock.patch.dict(os.environ, key):
            _lay_siege(siege, total, f"seed {seed}, root {total.crash_points}{', signed' if key else ''}")
        total.acknowledged += siege.acknowledged_before + len(siege.scene.acknowledged)
        shutil.rmtree(siege.scene.place, ignore_errors=bool(total.lost))
    return total


def _lay_siege(siege: Siege, total: Tally, where: str) -> None:
    try:
        siege.start()
        for _ in range(KILLS_PER_ROOT):
            died = siege.kill_once()
            total.operations += 1
            total.crash_points += died
            siege.check()
            if siege.chance.random() < 0.3:
                siege.start()
                total.operations += 1
    except (AssertionError, MilepostError) as error:
        total.lost.append(f"{where}: {error}")
