"""Reach the worker processes of a vector environment by its own public calls, all at once."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

from milepost.errors import MilepostError, ServiceError, UsageError
from milepost.store.process import process_start_time

_UNTIL_GONE_S = 10
_LOOK_S = 0.05
"""How often a worker is looked at that seems to have died, and whose exit code is not there."""


class Line(ABC):
    """Be the way to the workers of one vector env."""

    structure: frozenset[str]
    """Those of the vector env's attributes that are how it is built, and no state."""

    def __init__(self, venv: Any) -> None:
        self.venv = venv

    @abstractmethod
    def is_waiting(self) -> bool:
        """Return whether a step, or something else, was sent to the workers and not yet answered."""

    @abstractmethod
    def put(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of each env, each to its own value."""

    @abstractmethod
    def call(self, name: str, *arguments: Any) -> list[Any]:
        """Call a method of every env. All work at once; returns what each returned."""

    @abstractmethod
    def one_command(self) -> None:
        """Let every worker's loop take one command whose answer it remembers. The gates stand in for the envs."""

    @abstractmethod
    def forget_call(self) -> None:
        """Let the vector env be closed though a call was never answered."""

    def ask(self, name: str, values: Sequence[Any], *arguments: Any) -> list[Any]:
        """Set an attribute of each env and call it."""
        self._check()
        try:
            self.put(name, values)
            return self.call(name, *arguments)
        except (EOFError, ConnectionError) as error:
            self.forget_call()
            raise self._gone() from error

    def _check(self) -> None:
        name = type(self.venv).__name__
        if self.venv.closed:
            raise UsageError("the vector env is closed", kind="env-closed", hint="save before you close it", env=name)
        if any(map(has_ended, self.venv.processes)):
            raise self._gone()
        if self.is_waiting():
            hint = "save or restore between step_wait() and the next step_async()"
            what = "a command is in flight: the envs move while they are read"
            raise UsageError(what, kind="env-in-flight", hint=hint, env=name)

    def _gone(self) -> MilepostError:
        """Return what to say of a worker that ended."""
        processes = list(self.venv.processes)
        ended = wait([process.sentinel for process in processes], _UNTIL_GONE_S)
        # Of a fork server that is gone all workers look as if they were: those that are come first.
        looks = [index for index, process in enumerate(processes) if process.sentinel in ended]
        index = next((index for index in looks if has_ended(processes[index])), next(iter(looks), None))
        if index is not None:
            # Its pipes close a moment before its exit code can be had.
            processes[index].join(_UNTIL_GONE_S)
        code = None if index is None else processes[index].exitcode
        hint = "run the script again: it makes new workers and goes on from the newest checkpoint"
        what = "a worker process of the vector env is gone"
        return ServiceError(what, kind="worker-gone", hint=hint, env=type(self.venv).__name__, index=index, exit_code=code)


def has_ended(process: Any) -> bool:
    """Return whether a worker is gone. One whose fork server is gone lives on, and `multiprocessing` takes it for ended."""
    return process.exitcode is not None and process_start_time(process.pid) is None


class Subproc(Line):
    """Reach the workers of Stable-Baselines3's ``SubprocVecEnv``."""

    structure = frozenset({"remotes", "work_remotes", "processes", "waiting", "closed", "num_envs", "metadata", "render_mode"})

    def is_waiting(self) -> bool:
        return bool(self.venv.waiting)

    def put(self, name: str, values: Sequence[Any]) -> None:
        self._tell("set_attr", [(name, value) for value in values])

    def call(self, name: str, *arguments: Any) -> list[Any]:
        return self._tell("env_method", [(name, arguments, {})] * self.venv.num_envs)

    def forget_call(self) -> None:
        """Do nothing: ``close`` waits for no answer that it has not asked for."""

    def one_command(self) -> None:
        self._tell("reset", [(None, None)] * self.venv.num_envs)

    def _tell(self, command: str, sheets: Sequence[Any]) -> list[Any]:
        """Do what the method of that name does, with something else for each worker, and without waiting for a dead one.

        Forked workers hold each other's pipes open: that of a dead one never ends, and ``env_method`` would wait for ever.
        """
        workers = list(zip(self.venv.remotes, self.venv.processes, strict=True))
        asked, answers = 0, []
        try:
            for (remote, _), sheet in zip(workers, sheets, strict=True):
                remote.send((command, sheet))
                asked += 1
            for remote, process in workers:
                answers.append(self._heard(remote, process))
        except KeyboardInterrupt:
            # An answer that stays in its pipe would be taken for that of the next step.
            for remote, process in workers[len(answers) : asked]:
                self._heard(remote, process)
            raise
        return answers

    def _heard(self, remote: Any, process: Any) -> Any:
        waited, timeout_s = [remote, process.sentinel], None
        while remote not in wait(waited, timeout_s):
            if has_ended(process):
                raise EOFError
            # A worker whose fork server is gone lives on, and answers; of one that has just died the exit code can be had a
            # moment later, and its pipe, which its siblings hold open, never ends.
            waited, timeout_s = [remote], _LOOK_S
        return remote.recv()


class Async(Line):
    """Reach the workers of Gymnasium's ``AsyncVectorEnv``."""

    structure = frozenset(
        {"env_fns", "shared_memory", "copy", "context", "daemon", "worker", "observation_mode", "autoreset_mode", "error_queue"}
        | {"max_concurrency", "num_envs", "metadata", "render_mode", "parent_pipes", "processes", "_state", "spec", "closed"}
    )

    def is_waiting(self) -> bool:
        return bool(self.venv._state.name != "DEFAULT")

    def put(self, name: str, values: Sequence[Any]) -> None:
        self.venv.set_attr(name, list(values))

    def call(self, name: str, *arguments: Any) -> list[Any]:
        return list(self.venv.call(name, *arguments))

    def one_command(self) -> None:
        from gymnasium.vector.utils import create_empty_array

        self.venv.step(create_empty_array(self.venv.single_action_space, self.venv.num_envs))

    def forget_call(self) -> None:
        # Gymnasium does this itself where a worker has told its error. A killed one has not, and close() would wait for it.
        self.venv._state = type(self.venv._state).DEFAULT


_LINES: tuple[tuple[str, str, type[Line]], ...] = (
    ("stable_baselines3.common.vec_env.subproc_vec_env", "SubprocVecEnv", Subproc),
    ("gymnasium.vector.async_vector_env", "AsyncVectorEnv", Async),
)


def line_to(env: Any) -> Line | None:
    """Return the line to the workers of ``env``, or None if it has none."""
    for module, name, line in _LINES:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(env, getattr(loaded, name)):
            return line(env)
    return None
