"""Strike `milepost run`, and what it runs: the end is the same, and nobody is left."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.siege.campaign import KINDS, MOST_STEPS, Kind, Toll, lines_of
from tests.siege.judge import LONGEST_S, End, Root, check_steps, read_notes, wait_for_the_end_of
from tests.siege.nursery import Nursery
from tests.siege.plans import Plans
from tests.siege.training import alone

MARK = "MILEPOST_TEST_SIEGE"
ATTEMPTS = 3
"""How many starts of a command are struck, one after the other."""
OUTSIDE = (None, None, None, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL)
"""What strikes `milepost run` itself. None: nothing, and it has to bring the run to its end."""
ENDS = {signal.SIGTERM: 75, signal.SIGUSR1: 75, signal.SIGINT: 130}
_LIVES_S = 2.0
RUN = (sys.executable, "-c", "import sys; from milepost.cli.main import main; sys.exit(main())", "run")
SETTINGS = ("--backoff", "0.01s..0.02s", "--max-failures", "-1", "--max-infrastructure", "-1", "--grace", "10m")


class Supervised:
    """Be one run that `milepost run` looks after."""

    def __init__(self, place: Path, kind: Kind, hashes: dict[int, str]) -> None:
        place.mkdir(parents=True)
        self.place, self.kind, self.hashes = place, kind, hashes
        self.roots = {name: Root(place / name) for name in kind.settings.get("roots", ["run"])}
        self.starts = 0

    def start(self, attempts: list[Any], until: int) -> subprocess.Popen[bytes]:
        self.starts += 1
        order = {"place": str(self.place), "name": str(self.starts), "until": until, "attempts": attempts, **self.kind.settings}
        command = [*RUN, *SETTINGS, "--log", str(self.place / "log"), "--", sys.executable, "-m", "tests.siege.trainer"]
        environment = {**os.environ, MARK: str(self.place), "PYTHONPATH": os.pathsep.join(sys.path)}
        with (self.place / "output").open("a") as output:
            return subprocess.Popen(
                [*command, json.dumps(order)], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )

    def strike(self, attempts: list[Any], until: int, blow: int | None, moment: float, hasty: bool) -> list[End]:
        """Run it, with the attempts struck as planned and `milepost run` at a moment; judge what is left.

        ``hasty``: where that was killed nothing is waited for, and the next one finds a command that still leaves.
        """
        said = self.said_bytes()
        process = self.start(attempts, until)
        if blow is not None:
            while self.said_bytes() == said and process.poll() is None:
                threading.Event().wait(0.01)  # an interpreter that a Ctrl-C strikes as it begins ends in its own ways
            threading.Event().wait(moment * _LIVES_S)
            process.send_signal(blow)
        code = self.end_of(process)
        if hasty and code == -signal.SIGKILL:
            return []
        wait_for_the_end_of(f"{MARK}={self.place}")
        notes = read_notes(self.place / "notes")
        # It may have been done before the blow fell.
        allowed = {0} if blow is None else {-9, 0} if blow == signal.SIGKILL else {0, ENDS[blow], -blow}
        if any(number == signal.SIGINT for strikes in attempts for *_, number in strikes):
            allowed |= {ENDS[signal.SIGINT]}  # somebody has pressed Ctrl-C, and does not want it started again
        assert code in allowed, f"milepost run ended with {code} instead of {allowed}:\n{self.told()}"
        for name, root in self.roots.items():
            root.look()
            root.check_acknowledged([note.rest[1:3] for note in notes if note.word == "acknowledged" and note.rest[0] == name])
        check_steps(notes, self.hashes)
        names = dict.fromkeys(note.name for note in notes if note.name.startswith(f"{self.starts}."))
        ended = [note.rest for note in notes if note.word == "end" and note.name in names]
        assert code != 0 or ended[-1:] == [(until, self.hashes[until])], f"it says that it is done, and is not:\n{self.told()}"
        return [End(name, code, [note for note in notes if note.name == name], True) for name in names]

    def end_of(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"milepost run did not end:\n{self.told()}") from None

    def said_bytes(self) -> int:
        log = self.place / "log"
        return log.stat().st_size if log.exists() else 0

    def told(self) -> str:
        return (self.place / "output").read_text()[-3000:]


def besiege_runs(place: Path, count: int, seed: int, *, tell: Callable[[str], object] = lambda _: None) -> Toll:
    """Strike ``count`` times; return what was struck and what was lost."""
    place.mkdir(exist_ok=True)
    chance, toll, hashes = random.Random(seed), Toll(), dict(enumerate(alone(MOST_STEPS)))
    drawn = Plans(chance)
    kinds = [KINDS["thread"], KINDS["process"]]
    with Nursery(place) as nursery:
        lines = [lines_of(place / "lines", kind, nursery) for kind in kinds]
    number = 0
    while toll.strikes < count and not toll.lost:
        run = Supervised(place / str(number), kinds[number % 2], hashes)
        try:
            while True:
                attempts = [struck(drawn, lines[number % 2]) for _ in range(ATTEMPTS)]
                blow = chance.choice(OUTSIDE)
                ends = run.strike(attempts, 10 * (number % 3 + 1), blow, chance.random(), chance.random() < 0.5)
                toll.count(ends)
                toll.strikes += blow is not None
                if any(end.all_of("end") for end in ends):
                    break
            shutil.rmtree(run.place)
        except AssertionError as error:
            toll.lost.append(f"seed {seed}, root {number}, start {run.starts}: {error}")
        tell(f"milepost run: {toll.strikes:,} strikes so far")
        number += 1
    return toll


def struck(drawn: Plans, lines: dict[str, int]) -> list[tuple[Any, ...]]:
    """Draw what one attempt is struck with. Not to be stopped: nobody would let it go on."""
    while True:
        plan = drawn.draw(lines)
        if signal.SIGSTOP not in plan.signals:
            return [dataclasses.astuple(strike) for strike in plan.strikes]
