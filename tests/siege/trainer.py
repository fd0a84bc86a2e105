"""Train under milepost as an order says, and note beside the run what an outsider should know: `main`.

Run as a process of its own, ``python -m tests.siege.trainer ORDER``, or forked from the `tests.siege.nursery`.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import milepost
from milepost import CheckpointEngine, Keep, Stop, every
from milepost.clock import SystemClock
from milepost.engine import provenance, writer_child
from milepost.engine.requests import listener
from milepost.publish.view import read
from milepost.store.local import LocalStore
from tests.siege.strikes import Late, Slots, Strike, Watch
from tests.siege.training import Training

ORDER = "MILEPOST_TEST_ORDER"
START = "import sys; sys.path += sys.argv[2:]; from tests.siege.trainer import write; write(int(sys.argv[1]))"
"""What a writer process runs: it is struck where it writes, and strikes the trainer from there."""
REFUSED = 11
"""The exit status of who finds another writer at work."""


class Notes:
    """Write lines that outlive a kill: each by one call of the system. Several processes may write to one file."""

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def __call__(self, *words: object) -> None:
        os.write(self._descriptor, (json.dumps([self._name, *words]) + "\n").encode())


def prepare(order: dict[str, Any], target: int) -> tuple[Watch, Notes]:
    """Watch this process, which strikes ``target``."""
    place = Path(order["place"])
    note = Notes(place / "notes", order["name"])
    strikes = [Strike(*strike) for strike in order["strikes"]]
    slots = Slots(place / f"slots-{order['name']}")
    watch = Watch(strikes, slots, note, target, counting=order.get("counting", False))
    watch.watch_all()
    return watch, note


def main(order: dict[str, Any]) -> None:
    """Train. Ends as a script would: by the exceptions that milepost or Python raises."""
    live(order, lambda watch, note: Run(order, watch, note).train)


def of_this_attempt(order: dict[str, Any]) -> dict[str, Any]:
    """Return what this start of a command is to do, whose starts are struck one after the other."""
    attempt = int(os.environ["MILEPOST_ATTEMPT"])
    strikes = order["attempts"][attempt - 1 : attempt]
    return order | {"name": f"{order['name']}.{attempt}", "strikes": strikes[0] if strikes else []}


def live(order: dict[str, Any], begun: Callable[[Watch, Notes], Callable[[], object]]) -> None:
    """Have a trainer made and train, watched from its first line until the interpreter is taken apart."""
    stacks = (Path(order["place"]) / "stacks").open("a")
    faulthandler.register(signal.SIGQUIT, file=stacks, all_threads=True)
    provenance.git_commit = lambda: ""  # type: ignore[assignment]
    watch, note = prepare(order, os.getpid())
    if order.get("writer") == "process":
        os.environ[ORDER] = json.dumps(order)
        writer_child.START = START  # type: ignore[misc]
        writer_child._NEEDED = (*writer_child._NEEDED, "tests")  # type: ignore[assignment]
    global _late
    _late = Late(watch)
    atexit.register(at_exit, watch)
    note("pid", os.getpid())
    try:
        with watch.during("start"):
            train = begun(watch, note)
        train()
    except milepost.ConflictError as error:
        note("refused", str(error)[:200])
        sys.exit(REFUSED)
    except SystemExit as end:
        note("left", end.code, getattr(end, "path", ""))
        raise
    finally:
        watch.slots.put(0, "ended")


_late: Late | None = None


def warm_up(scratch: str) -> None:
    """Import what a start imports, by training once; starts no thread and listens to no signal."""
    training = Training()
    state = {"replay": {"ring": milepost.Rows({"rewards": training.rewards})}, "rng": milepost.Rng(own=training.own)}
    with CheckpointEngine(Path(scratch) / "warm", state=state, writer="inline") as engine:
        engine.resume()
        engine.save(1)
        engine.resume()
    listener()


def at_exit(watch: Watch) -> None:
    with watch.during("exit"):
        sorted(map(str, range(20)))
        json.dumps([1, 2, 3], indent=1)


def write(descriptor: int) -> None:
    """Be a writer process: the trainer is struck from here while it writes, publishes and deletes."""
    order = json.loads(os.environ[ORDER])
    watch, _ = prepare(order, os.getppid())
    watch.main = 0  # all that is done here is done beside training
    from milepost.engine.writer_process import main as serve

    serve(descriptor)


class Run:
    """Be one start of the run."""

    def __init__(self, order: dict[str, Any], watch: Watch, note: Notes) -> None:
        self.order, self.watch, self.note = order, watch, note
        self.training = training = Training(lambda: self.ring.advance())
        self.ring = milepost.Rows({"observations": training.observations, "rewards": training.rewards})
        policy = {"weights": training.weights, "moments": training.moments, "frozen": training.frozen}
        acting: dict[str, Any] = {"policy": policy, "rng": milepost.Rng(own=training.own), "counters": training.counters}
        replay = {"ring": self.ring}
        states = {"run": acting | {"replay": replay}}
        if "roots" in order:
            states = {"actor": acting, "critic": {"replay": replay, "counters": training.counters}}
        self.engines = {name: self.engine(name, state) for name, state in states.items()}

    def engine(self, name: str, state: dict[str, Any]) -> CheckpointEngine:
        known = ("writer", "grace", "lease_wait", "take_over")
        settings = {key: self.order[key] for key in known if key in self.order}
        keep = Keep(last=3 if "roots" in self.order else 2)
        return CheckpointEngine(
            Path(self.order["place"]) / name,
            state=state,
            when=every(steps=self.order.get("every", 1)),
            keep=keep,
            stop=Stop(grace=self.order.get("leaves", "10m")),
            **settings,
        )

    def train(self) -> None:
        with ExitStack() as held:
            for engine in self.engines.values():
                held.enter_context(engine)
            self.note("claimed")
            if self.order.get("worker"):
                self.asked = Worker()
            self.resume()
            while self.training.steps < self.order["until"]:
                with self.watch.during("training"):
                    self.training.step()
                    if self.order.get("worker"):
                        self.asked.ask(self.training.steps)
                self.safe_point()
                if self.training.steps == self.order.get("stuck"):
                    self.be_stuck()
            self.end()

    def be_stuck(self) -> None:
        """Be in a rollout that does not end before the deadline does."""
        self.training.weights += 1.0
        os.kill(os.getpid(), self.order["signal"])
        self.note("stuck")
        threading.Event().wait()

    def resume(self) -> None:
        """Bring every engine back to the newest step that all of them have."""
        found = [engine.peek() for engine in self.engines.values()]
        step = min(summary.step if summary else 0 for summary in found)
        for engine, summary in zip(self.engines.values(), found, strict=True):
            at_the_same = summary is not None and summary.step == step
            engine.resume("latest" if at_the_same or not summary else self.generation_at(engine, step) or "never")
        self.note("resumed", self.training.steps, self.training.bits())
        assert self.ring.count == self.training.steps

    def generation_at(self, engine: CheckpointEngine, step: int) -> int:
        live = read(LocalStore(engine._store.url, SystemClock())).live if step else {}
        return max((number for number, summary in live.items() if summary.step == step), default=0)

    def safe_point(self) -> None:
        step = self.training.steps
        for name, engine in self.engines.items():
            self.note("safe", name, step)
            engine.save_if_due(step, counters={"told": step})
        if step % 3 == 0 or len(self.engines) > 1 or "stuck" in self.order:
            self.wait()  # while a save is in flight nothing is saved and nothing is staged

    def wait(self) -> None:
        for name, engine in self.engines.items():
            saved = engine.wait()
            if saved is not None:
                self.note("acknowledged", name, saved.number, saved.step)

    def end(self) -> None:
        step = self.training.steps
        for name, engine in self.engines.items():
            self.note("safe", name, step)
            engine.save(step)
        self.wait()
        self.note("end", step, self.training.bits())


class Worker:
    """Be an environment in a process of its own, forked beside the engine's threads as `SubprocVecEnv` does it."""

    def __init__(self) -> None:
        forks = multiprocessing.get_context("fork")
        self._pipe, its = forks.Pipe()
        self._process = forks.Process(target=serve, args=(its, self._pipe), daemon=True)
        self._process.start()
        its.close()

    def ask(self, number: int) -> None:
        """Have it take a step. Raises `EOFError` if it is not there any more."""
        self._pipe.send(number)
        assert self._pipe.recv() == -number


def serve(pipe: Connection, other: Connection) -> None:
    other.close()
    with suppress(EOFError):
        while True:
            pipe.send(-pipe.recv())


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    main(of_this_attempt(given) if "attempts" in given else given)
