"""Capture vector environments whose envs live in worker processes: each worker is asked by its index, and all at once.

Of a worker all that its future depends on is kept: the env with its wrappers, by the ways of this package; the
generators of its process, which an env may draw from; what its loop remembers between two commands; and what is known
of its progress, for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from milepost.envs.layers import all_within
from milepost.envs.lines import Line, line_to
from milepost.envs.plain import LeftOut, Recorder, Refiller
from milepost.envs.way import Way
from milepost.errors import CorruptError, MilepostError, MismatchError, UsageError
from milepost.records import Difference
from milepost.state.opaque import unpickled

_UNREACHED = (
    "its worker processes are not reached: their loop is not one that is known, and keeps its env where it is not found. "
    "Let the env factory end with milepost.envs.Reachable(env)"
)


class Workers(Way):
    """Ask the workers."""

    name = "workers"

    def fits(self, env: Any) -> bool:
        """Return whether its envs are in worker processes."""
        return line_to(env) is not None

    def attach(self, env: Any) -> None:
        """Make every worker's env ready."""
        _ask(env, "attach")

    def within(self, env: Any) -> list[str]:
        """Return the layers in each worker."""
        return [str(line) for line in _ask(env, "describe") or ["?"] * env.num_envs]

    def capture(self, env: Any, recorder: Recorder, path: str) -> Any:
        """Return what is the vector env's own, and each worker's state."""
        answers = _ask(env, "capture", path=path)
        if answers is None:
            return recorder.left_out.append(LeftOut(path, _UNREACHED))
        for index, answer in enumerate(answers):
            recorder.left_out += [LeftOut(f"{path}[{index}]/{inner}", reason) for inner, reason in answer.pop("left_out")]
            answer["status"]["index"] = index
        own = recorder.attributes(env, path, skip=_line(env).structure, optional={"reset_infos"})
        return {"own": own, "workers": answers}

    def restore(self, env: Any, state: Any, refiller: Refiller, path: str) -> None:
        """Bring every worker back by its index; then let their loops hear what they remembered; then the vector env itself."""
        workers = state["workers"]
        if all(_ask(env, "restore", workers, path=path) or [False]):
            _ask(env, "stand in", [worker["loop"] for worker in workers], path=path)
            _line(env).one_command()
        own = {name: _in_place(vars(env).get(name), value) for name, value in state["own"].items()}
        refiller.attributes(env, own, path)

    def whole(self, state: Any) -> bool:
        """Return whether every layer in every worker was captured."""
        from milepost.envs.capture import is_whole

        return state is not None and all(is_whole(worker["env"]) for worker in state["workers"])

    def differences(self, env: Any, state: Any, path: str) -> list[Difference]:
        """Return another number of envs, or what the workers say does not fit."""
        saved = state["workers"]
        if len(saved) != env.num_envs:
            return [Difference(f"{path}/num_envs", str(len(saved)), str(env.num_envs), "env")]
        answers = _ask(env, "differences", saved, path=path)
        if answers is None:
            return [Difference(path, "workers that were reached", "workers that are not", "env")]
        return [_within(path, index, *found) for index, answer in enumerate(answers) for found in answer]


def have_workers_ignore(env: Any, signums: Sequence[int]) -> None:
    """Have the workers of ``env``, and of all envs within it, ignore these signals, where they are reached.

    Raises `MilepostError` where a worker is gone, or is asked something else just now.
    """
    for layer in (env, *all_within(env)):
        if line_to(layer) is not None:
            _ask(layer, "ignore", [list(signums)] * layer.num_envs)


class _InWorker(Exception):
    """Show the stack of the worker process below the error that came from there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _reach() -> Any:
    """Import who answers. Not above: it captures whole chains, by all the ways there are, of which this is one."""
    from milepost.envs import reach

    return reach


def _line(env: Any) -> Line:
    line = line_to(env)
    assert line is not None, "way_of asks fits() first"
    return line


def _ask(env: Any, question: str, about: Sequence[Any] | None = None, path: str = "") -> list[Any] | None:
    """Return every worker's answer by its index, or None if they are not reached. ``about`` has something for each."""
    reach = _reach()
    answers = _line(env).ask(reach.NAME, reach.messengers(about or [None] * env.num_envs), question)
    errors = {index: answer["error"] for index, answer in enumerate(answers) if "error" in answer}
    if any(error.get("kind") == "unreached" for error in errors.values()):
        return None
    if errors:
        raise _raised(errors, path or type(env).__name__)
    return [unpickled(answer["answer"], path, trust=True).value for answer in answers]


def _raised(errors: dict[int, dict[str, Any]], path: str) -> MilepostError:
    """Return the error to raise for what went wrong in the workers: all that differs, or else the first."""
    index, first = next(iter(errors.items()))
    differences = [_within(path, at, *found) for at, told in errors.items() for found in told.get("differences", ())]
    error = _made(first, index, differences)
    error.__cause__ = _InWorker(first["trace"])
    return error


def _made(told: dict[str, Any], index: int, differences: list[Difference]) -> MilepostError:
    if not told["class"]:
        hint = "mend the env, or give it milepost_get_state and milepost_set_state"
        return UsageError("an env failed in its worker process", kind="env-failed", hint=hint, index=index, error=told["message"])
    facts = {**told["facts"], "index": index}
    if told["class"] == "MismatchError":
        return MismatchError(told["message"], differences, kind=told["kind"], hint=told["hint"], **facts)
    kind = CorruptError if told["class"] == "CorruptError" else UsageError
    return kind(told["message"], kind=told["kind"], hint=told["hint"], **facts)


def _within(path: str, index: int, inner: str, saved: str, live: str, kind: str) -> Difference:
    return Difference(f"{path}[{index}]/{inner}", saved, live, kind)


def _in_place(live: Any, saved: Any) -> Any:
    """Copy arrays into those that are there: workers write their observations into shared memory that lies under them."""
    if isinstance(live, np.ndarray) and isinstance(saved, np.ndarray) and live.shape == saved.shape and live.dtype == saved.dtype:
        live[...] = saved
        return live
    if isinstance(live, dict) and isinstance(saved, dict) and live.keys() == saved.keys():
        return {name: _in_place(live[name], saved[name]) for name in live}
    if isinstance(live, tuple) and isinstance(saved, tuple) and len(live) == len(saved):
        return tuple(_in_place(one, other) for one, other in zip(live, saved, strict=True))
    return saved
