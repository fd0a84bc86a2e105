"""Kill a trainer, its writer process, or both, at any moment, again and again: what was staged is saved, and nobody is left."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from contextlib import suppress
from pathlib import Path
from unittest import mock

from milepost.engine import oneshot
from milepost.errors import MilepostError
from milepost.store.process import has_ended
from tests.engine.process_trainer import LOGS, Trainer, Training
from tests.engine.training import bits, state_at, with_logs
from tests.soak.tally import Tally

STARTS_PER_ROOT = 12
SAVES_PER_START = 4
_LONGEST_S = 0.03
"""About as long as such a save takes: a blow falls anywhere in it, or just after."""
_WRITER_ENDS_S = 30.0


class Run:
    """Hold one run root, what was promised of it, and what may be there besides."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root = root
        self.chance = chance
        self.step = 0
        self.promised = 0
        """The step of the newest save that must be there."""
        self.possible = 0
        """The step of one that may be there, too: whoever was to write it was killed."""
        self.acknowledged = 0
        self.blows = 0
        self.struck: list[int] = []
        """The writers of this start that were killed, as pidfds: on a busy machine one takes a while to die."""

    def start(self) -> None:
        """Train until one blow or another ends it; look at what is left."""
        self.struck = []
        with Trainer(self.root) as trainer:
            writers: dict[int, int] = {}
            try:
                for _ in range(SAVES_PER_START):
                    if not self.save(trainer, writers):
                        break
                trainer.kill()
                assert all(has_ended(writer, _WRITER_ENDS_S) for writer in writers.values()), "a writer lives on for ever"
            finally:
                for writer in writers.values():
                    os.close(writer)
        self.check()

    def save(self, trainer: Trainer, writers: dict[int, int]) -> bool:
        """Save once, and strike somebody; return whether the trainer lives. ``writers``: pidfds, by pid."""
        self.step += 1
        blow = self.chance.choice(("none", "trainer", "writer", "both", "half"))
        self.blows += blow != "none"
        if blow == "half":
            assert trainer.do(f"stage-and-hang {self.step}") == "staging"
            return False
        # Nobody promises a save that was posted to one that is dying, if the trainer is killed before it has seen that.
        is_sure = all(has_ended(writer, 0.0) for writer in self.struck)
        assert trainer.do(f"save {self.step}") == "save", "a save was refused"
        self.possible = self.step
        pid = trainer.writer.pid
        if pid not in writers:
            writers[pid] = os.pidfd_open(pid)
        threading.Event().wait(self.chance.random() * _LONGEST_S)
        if blow in ("writer", "both"):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(writers[pid], signal.SIGKILL)
            self.struck.append(writers[pid])
        if blow in ("trainer", "both"):
            if blow == "trainer" and is_sure:
                self.promised = self.step
            trainer.kill()
            return False
        assert trainer.do("wait"), "the trainer ended while it waited for its writer"
        self.promised = self.step
        self.acknowledged += 1
        return True

    def check(self) -> None:
        """Start as the next process would: it waits for a writer that is still at work, and goes on from what must be there."""
        training = Training(self.root, writer="inline")
        with training.engine as engine:
            restored = engine.resume()
            found = restored.step if restored else 0
            assert found in {self.promised, max(self.promised, self.possible)}, f"{found} of {self.promised}, {self.possible}"
            assert {name: bits(training.state[name]) for name in state_at(0)} == bits(state_at(found)), "it is a mix"
        assert oneshot.verify(self.root).ok
        self.promised = self.possible = found


def deaths(place: Path, count: int, seed: int) -> Tally:
    """Strike ``count`` times; return what was tried and what was lost."""
    chance, total = random.Random(seed), Tally()
    with mock.patch.dict(os.environ, {LOGS: "1"}), with_logs():
        while total.deaths < count and not total.lost:
            where = f"seed {seed}, death {total.deaths}"
            run = Run(place / str(total.deaths), chance)
            try:
                for _ in range(STARTS_PER_ROOT):
                    run.start()
                    total.operations += 1
                    if total.deaths + run.blows >= count:
                        break
            except (AssertionError, MilepostError) as error:
                total.lost.append(f"{where}: {error}")
            total.deaths += run.blows
            total.acknowledged += run.acknowledged
            if not total.lost:
                shutil.rmtree(run.root)
    return total
