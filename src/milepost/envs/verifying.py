"""Prove of an environment that it is captured exactly: go on here, go on in a new process, and compare every bit.

The checkpoint is a real one, written and read by an engine, and what both sides saw is compared like two runs.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from milepost.clock import SystemClock
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.engine.oneshot import load, save
from milepost.envs.capture import Envs, attach, capture, capture_layer, describe, is_whole
from milepost.envs.driving import driver_of, ends
from milepost.envs.layers import inner_of
from milepost.envs.plain import LeftOut, Recorder
from milepost.envs.ways import way_named
from milepost.errors import MilepostError, UsageError
from milepost.lifecycle.divergence import Divergence, Side, divergences
from milepost.publish import layout
from milepost.publish.manifest import load_record
from milepost.records import Manifest
from milepost.state.clocked import is_clocked
from milepost.state.rng import Rng
from milepost.store.local import LocalStore

_RUN, _EXPECTED, _SEEN, _ANSWER = "run", "expected", "seen", "answer.json"
_AGAIN = "import sys; from milepost.envs.verifying import _again_by_name; _again_by_name(*sys.argv[1:])"
_COUNTED_BYTES = (bytes, bytearray, str)


@dataclass(frozen=True, slots=True)
class Layer:
    """Say how one layer of an environment is captured."""

    name: str
    depth: int
    way: str
    size_bytes: int
    milliseconds: float | None
    """What one capture of it took; None where it lives in another process."""
    whole: bool = True
    """It could be captured; why not, where it could not, ``left_out`` says."""
    count: int = 1
    """How many of them there are, side by side; the numbers are of the first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say how an environment is captured, and whether that is all of it."""

    env: str
    """Its layers in one line."""
    layers: tuple[Layer, ...]
    left_out: tuple[LeftOut, ...]
    whole: bool
    """Every layer was captured. If not, nothing was tried."""
    steps: int
    """How many steps the two were compared for."""
    episodes: int
    """How many episodes ended meanwhile, in all envs together."""
    difference: Divergence | None = None
    """The first thing in which the restored env differed; its path says when, as in ``extra/steps[3]/observation``."""
    error: str = ""
    """Set where it could not even be brought back, or failed after that."""
    size_bytes: int = 0
    capture_ms: float = 0.0
    restore_ms: float = 0.0

    @property
    def exact(self) -> bool:
        """Return whether the restored env gave the same bits to the end, and was left in the same state."""
        return self.whole and self.difference is None and not self.error


@dataclass(slots=True)
class _Trial:
    """Hold what one verification works with."""

    make_env: Callable[[], Any]
    steps: int
    seed: int
    folder: Path
    name: str | None = None
    """How a new process finds the factory; None: it cannot, and a child forked beforehand goes on."""
    clock: SystemClock = field(default_factory=SystemClock)


def verify(make_env: Callable[[], Any], steps: int = 200, seed: int = 0) -> Verdict:
    """Take random steps, capture, go on; restore into a fresh env in a new process; compare all that both give back.

    ``make_env`` returns a Gymnasium env, a Gymnasium vector env or a Stable-Baselines3 ``VecEnv``, with its wrappers. Compared
    are observations, rewards, flags and infos over ``steps`` steps, over a reset and ``steps`` more, and then the whole
    captured state with its generators; not what tells the time of day. A factory that can be imported runs in a new Python;
    any other in a child that was forked before the env was made.

    Raises `UsageError` for a factory that makes no environment.
    """
    return _verified(make_env, steps, seed, _name_of(make_env))


def verify_named(name: str, steps: int = 200, seed: int = 0) -> Verdict:
    """Verify the env that ``module:factory``, or an id that ``gymnasium.make`` knows, stands for."""
    return _verified(factory(name), steps, seed, name)


def factory(name: str) -> Callable[[], Any]:
    """Return the factory called ``module:factory``, or one that makes the env with this id of Gymnasium's.

    Raises `UsageError` (kind ``no-factory``).
    """
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module) if attribute else None
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        return _of_gymnasium(name, error)
    if not callable(found):
        raise UsageError("this is no factory", kind="no-factory", hint="name a function that returns an env", name=name)
    made: Callable[[], Any] = found
    return made


def _of_gymnasium(name: str, error: Exception) -> Callable[[], Any]:
    hint = "write module:function as Python would import it from here, or an id as gymnasium.make takes it"
    try:
        import gymnasium

        module, _, identity = name.rpartition(":")
        if module:
            importlib.import_module(module)  # as gymnasium.make does it
        gymnasium.spec(identity)
    except Exception as unknown:  # what an id may fail with is Gymnasium's, and up to what it imports
        because = error if ":" in name else unknown
        raise UsageError("no such factory or env", kind="no-factory", hint=hint, name=name, because=because) from unknown
    return lambda: gymnasium.make(name)


def _verified(make_env: Callable[[], Any], steps: int, seed: int, name: str | None) -> Verdict:
    if steps < 1:
        raise UsageError("steps has to be at least 1", kind="bad-setting", hint="say 200", steps=steps)
    folder = Path(tempfile.mkdtemp(prefix="milepost-env-"))
    trial = _Trial(make_env, steps, seed, folder, name)
    try:
        with _other(trial) as other:
            return _tried(trial, other)
    except MilepostError:
        raise
    except (Exception, SystemExit) as error:  # what the user's own code may raise
        what = "the env failed by itself, before anything was tried"
        said = f"{type(error).__name__}: {error}"
        raise UsageError(what, kind="env-failed", hint="mend it; -v shows where", env=name, error=said) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tried(trial: _Trial, other: _Other) -> Verdict:
    env = trial.make_env()
    driver = driver_of(env)
    try:
        attach(env)
        actions = driver.actions(trial.seed)
        driver.reset(trial.seed)
        # Over a reset before the capture, too: what outlives one has to be in it.
        for count in (trial.steps // 2, trial.steps - trial.steps // 2):
            driver.reset(None)
            for action in islice(actions, count):
                driver.step(action)
        began_ns = trial.clock.monotonic_ns()
        captured = capture(env)
        capture_ms = (trial.clock.monotonic_ns() - began_ns) / 1e6
        whole = is_whole(captured.tree)
        layers = tuple(_layers(env, captured.tree))
        found = Verdict(describe(env), layers, captured.left_out, whole, 0, 0, capture_ms=capture_ms)
        if not whole:
            return found
        _save_run(trial, env)
        taken = [*islice(actions, 2 * trial.steps)]
        outputs = _go_on(driver, taken)
        _save_seen(trial.folder / _EXPECTED, env, taken, outputs)
    finally:
        env.close()
    return _compared(trial, found, outputs, other.answer())


def _save_run(trial: _Trial, env: Any) -> None:
    with CheckpointEngine(trial.folder / _RUN, state={"envs": Envs(env), "rng": Rng()}) as engine:
        engine.save(0)


def _go_on(driver: Any, actions: list[Any]) -> list[dict[str, Any]]:
    half = len(actions) // 2
    outputs = [driver.step(action) for action in actions[:half]]
    return [*outputs, {"reset": driver.reset(None)}, *(driver.step(action) for action in actions[half:])]


def _save_seen(path: Path, env: Any, actions: list[Any], outputs: list[dict[str, Any]]) -> None:
    recorded = Recorder().value(actions, "actions")
    save(path, {"extra": {"steps": outputs}, "envs": capture(env).tree, "rng": Rng().state_dict(), "rollout": recorded})


def _compared(trial: _Trial, found: Verdict, outputs: list[dict[str, Any]], answer: dict[str, Any]) -> Verdict:
    from dataclasses import replace

    size = _newest(trial.folder / _RUN).manifest.total_bytes
    ended = sum(ends(output) for output in outputs)
    found = replace(found, steps=2 * trial.steps, episodes=ended, size_bytes=size, restore_ms=float(answer.get("restore_ms", 0)))
    if "error" in answer:
        return replace(found, error=str(answer["error"]))
    apart = divergences(_newest(trial.folder / _EXPECTED), _newest(trial.folder / _SEEN), is_clocked)
    return replace(found, difference=apart[0].first if apart else None)


def _newest(path: Path) -> Side:
    store = LocalStore(path, SystemClock())
    return Side(load_record(store, layout.manifest(1), Manifest), store)


# the other process


def _again_by_name(name: str, folder: str, seed: str, *imported: str) -> None:
    """Be the new process: make the env anew, bring it back, go on, and write down what it gave."""
    for module in imported:
        importlib.import_module(module)
    _again(factory(name), Path(folder), int(seed))


def _again(make_env: Callable[[], Any], folder: Path, seed: int) -> None:
    try:
        answer = _answer(make_env, folder, seed)
    except MilepostError as error:
        answer = {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - the env's own code runs here; whatever it raises is what there is to tell
        answer = {"error": f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"}
    (folder / _ANSWER).write_text(json.dumps(answer), encoding="utf-8")


def _answer(make_env: Callable[[], Any], folder: Path, seed: int) -> dict[str, Any]:
    clock = SystemClock()
    actions: Any = load(folder / _EXPECTED, parts=["rollout"])
    env = make_env()
    driver = driver_of(env)
    try:
        attach(env)
        # As a script that starts again does: it has reset its env, from whatever seed, by the time the state comes back.
        driver.reset(seed + 1)
        with CheckpointEngine(folder / _RUN, state={"envs": Envs(env), "rng": Rng()}) as engine:
            began_ns = clock.monotonic_ns()
            engine.resume()
            restore_ms = (clock.monotonic_ns() - began_ns) / 1e6
        outputs = _go_on(driver, actions["rollout"])
        _save_seen(folder / _SEEN, env, actions["rollout"], outputs)
    finally:
        env.close()
    return {"restore_ms": restore_ms}


class _Other(ABC):
    """Be the process that goes on from the checkpoint."""

    def __enter__(self) -> _Other:
        return self

    @abstractmethod
    def __exit__(self, *exc_info: object) -> None:
        """Leave nothing behind."""

    @abstractmethod
    def answer(self) -> dict[str, Any]:
        """Let it go on, and return what it says when it has ended."""


class _New(_Other):
    """Start a new Python, which finds the factory by its name."""

    def __init__(self, trial: _Trial, name: str) -> None:
        self._trial, self._name = trial, name

    def __exit__(self, *exc_info: object) -> None:
        """Do nothing: there is a process only while it is asked."""

    def answer(self) -> dict[str, Any]:
        """Run it, and return what it says."""
        # Whoever imported torch here has its generator saved: there it has to be imported before that can come back.
        imported = [name for name in ("torch",) if name in sys.modules]
        command = [sys.executable, "-c", _AGAIN, self._name, str(self._trial.folder), str(self._trial.seed), *imported]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        return _read_answer(self._trial.folder, f"the new process ended with exit code {done.returncode}\n{done.stderr[-2000:]}")


class _Forked(_Other):
    """Be forked before there is an env, and wait."""

    def __init__(self, trial: _Trial) -> None:
        self._trial = trial
        waiting, self._go = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                os.close(self._go)
                if os.read(waiting, 1):
                    _again(trial.make_env, trial.folder, trial.seed)
                code = 0
            finally:
                os._exit(code)  # after a Ctrl-C, too: it is never to go on as a second of the caller's program
        os.close(waiting)

    def answer(self) -> dict[str, Any]:
        """Wake it, and return what it says."""
        os.write(self._go, b"!")
        status = os.waitpid(self._pid, 0)[1]
        self._pid = 0
        return _read_answer(self._trial.folder, f"the child ended with exit code {os.waitstatus_to_exitcode(status)}")

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._go)
        if self._pid:
            os.waitpid(self._pid, 0)


def _other(trial: _Trial) -> _Other:
    return _Forked(trial) if trial.name is None else _New(trial, trial.name)


def _read_answer(folder: Path, without: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / _ANSWER).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"error": without.strip()}
    return found


def _name_of(make_env: Callable[[], Any]) -> str | None:
    """Return the name by which a new process finds this very factory, or None."""
    module, name = getattr(make_env, "__module__", None), getattr(make_env, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is make_env else None


# what there is to tell


def _layers(env: Any, tree: dict[str, Any], depth: int = 0, count: int = 1) -> Iterator[Layer]:
    live = env is not None
    clock = SystemClock()
    began_ns = clock.monotonic_ns()
    if live and tree["way"] != "elsewhere":
        capture_layer(env, Recorder(), "")
    milliseconds = (clock.monotonic_ns() - began_ns) / 1e6 if live else None
    name = tree["class"].rpartition(".")[2]
    way = way_named(tree["way"])
    yield Layer(name, depth, tree["way"], _size(tree["state"]), milliseconds, way is None or way.whole(tree["state"]), count)
    state = tree["state"]
    if isinstance(state, dict) and state.get("workers"):
        yield from _layers(None, state["workers"][0]["env"], depth + 1, len(state["workers"]))
    inner = list(inner_of(env)) if live else [None] * len(tree["inner"])
    if inner:
        yield from _layers(inner[0], tree["inner"][0], depth + 1, count * len(inner))


def _size(value: Any) -> int:
    """Return about how many bytes of a checkpoint a captured tree takes."""
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    if isinstance(value, _COUNTED_BYTES):
        return len(value)
    return int(getattr(value, "nbytes", 8))
