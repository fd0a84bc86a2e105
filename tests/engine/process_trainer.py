"""Be a trainer with a writer process, in a process of its own that does what it is told, line by line: `Trainer`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

from milepost.engine import provenance
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.lifecycle.retain import Keep
from milepost.store.base import Store
from milepost.store.lock import read_record
from milepost.store.process import Writer
from tests.engine import gated_writer
from tests.engine.training import set_to, state_at, with_logs

LOGS = "MILEPOST_TEST_LOGS"
"""Set in a trainer's environment: its state is to have logs in it."""
CODE = "import sys; from tests.engine.process_trainer import main; main(*sys.argv[1:])"


class Training:
    """Train with an engine that has a writer process, in this process."""

    def __init__(self, root: str | Path | Store, **settings: Any) -> None:
        self.hook = Hook()
        self.state = state_at(0) | {"extra": self.hook}
        settings = {"writer": "process", "keep": Keep(last=2)} | settings
        self.engine = CheckpointEngine(root, state=self.state, **settings)

    def save(self, step: int) -> None:
        set_to(self.state, step)
        self.engine.save(step)


def main(root: str, deadline: str) -> None:
    """Train as the lines on standard input say, and answer each with one."""
    with with_logs() if os.environ.get(LOGS) else nullcontext():
        _train(root, deadline)


def _train(root: str, deadline: str) -> None:
    provenance.git_commit = lambda: ""  # type: ignore[assignment]
    if gated_writer.PLACE in os.environ:
        gated_writer.gate()
    training = Training(Path(root), writer_deadline=deadline)
    training.engine.resume()
    print("ready", flush=True)
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        print(_do(training, word, rest), flush=True)


def _do(training: Training, word: str, rest: str) -> object:
    if word == "save":
        training.save(int(rest))
    elif word == "save-and-die":
        training.save(int(rest))
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "stage-and-hang":
        training.hook.hangs = True
        training.save(int(rest))
    elif word == "wait":
        saved = training.engine.wait()
        return saved and saved.number
    elif word == "fork":
        return _fork()
    elif word == "close":
        training.engine.close()
    return word


def _fork() -> int:
    """Leave an environment worker behind, which outlives us."""
    child = os.fork()
    if child == 0:
        os.close(1)
        signal.pause()
    return child


class Hook:
    """Be a component that can hang while it is staged: the last that is."""

    hangs = False

    def state_dict(self) -> dict[str, int]:
        if self.hangs:
            print("staging", flush=True)
            threading.Event().wait()
        return {"x": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == {"x": 1}


class Trainer:
    """Run one, and tell it what to do."""

    def __init__(self, root: Path, deadline: str = "60s") -> None:
        self.root = root
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE, str(root), deadline], stdin=-1, stdout=-1, text=True, env=environment
        )
        assert self._answer() == "ready"

    def do(self, line: str) -> str:
        """Have it do something, and return its answer; an empty one says that it has ended."""
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)
        answer = self._answer()
        if not answer:
            self.process.wait()
        return answer

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    @property
    def writer(self) -> Writer:
        """Return its writer, as its lock file names it."""
        found = read_record(str(self.root / "writer.lock"))
        assert found is not None
        assert found[1] is not None
        return found[1]

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue
