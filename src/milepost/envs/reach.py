"""Answer, in a worker process, what the parent asks about the environment there: capture it, compare it, bring it back.

The parent sends a `Messenger` by the vector env's ``set_attr`` and calls it by ``env_method`` or ``call``. It finds its env
in the frame of the loop that called it, which is read and never written, or is told by `milepost.envs.Reachable`. What
comes back is bytes: a tensor that went through the pipe as a tensor would share its memory with the live env.
"""

from __future__ import annotations

import copy
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from milepost.envs.capture import attach, capture, describe, differences, restore
from milepost.envs.gate import Gate
from milepost.envs.layers import all_within
from milepost.envs.plain import ABSENT, LeftOut, Recorder, Refiller
from milepost.envs.ways import registrations
from milepost.errors import MilepostError, MismatchError, UsageError
from milepost.records import Difference
from milepost.state.opaque import Opaque, pickled, unpickled
from milepost.state.rng import Rng

NAME = "milepost_messenger"

_LOOPS = {
    "gymnasium.vector.async_vector_env._async_worker": ("autoreset", "observation"),
    "stable_baselines3.common.vec_env.subproc_vec_env._worker": ("reset_info",),
}
"""The loops of worker processes, and the variables in which they remember something from one command to the next."""
_NO_LOOP = "the loop of its worker is not Gymnasium's or Stable-Baselines3's own: what it remembers between steps is not known"


@dataclass(slots=True)
class Messenger:
    """Be one question's way into a worker: an attribute of its env, called once and gone."""

    data: bytes
    registrations: tuple[bytes, ...]
    """What the parent's script registered. A worker that did not run the same script would not know."""
    holder: Any = None
    """The `Reachable` on which it was set."""

    def __call__(self, question: str) -> dict[str, Any]:
        """Return the pickled answer, or an error as data: raised here, it would end the worker."""
        try:
            self._register()
            place = self._place(sys._getframe(1))
            answer = _ANSWERS[question](place, unpickled(self.data, NAME, trust=True).value)
            return {"answer": pickled(Opaque(answer), NAME, allow=True)}
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent has to hear of it
            return {"error": _told(error)}

    def _register(self) -> None:
        for data in self.registrations:
            # A class that cannot be imported here is not that of any env here.
            with suppress(UsageError):
                unpickled(data, NAME, trust=True).value()

    def _place(self, frame: FrameType | None) -> Place:
        while frame is not None:
            env = frame.f_locals.get("env")
            if self._is_on(env):
                break
            frame = frame.f_back
        outermost = self.holder if frame is None else env
        if outermost is None:
            hint = "let the env factory end with milepost.envs.Reachable(env)"
            raise UsageError("the env of this worker process is not reached", kind="unreached", hint=hint)
        # Nobody is to find it there, and what it carries may be large.
        for layer in (outermost, *all_within(outermost)):
            vars(layer).pop(NAME, None)
        if self.holder is not None:
            self.holder.milepost_messenger = None
        return Place(outermost, frame)

    def _is_on(self, env: Any) -> bool:
        return hasattr(env, "has_wrapper_attr") and env.has_wrapper_attr(NAME) and env.get_wrapper_attr(NAME) is self


def messengers(question_about: Sequence[Any]) -> list[Messenger]:
    """Return a messenger for each worker, with what the question is about."""
    calls = tuple(call for call in map(_picklable, registrations()) if call is not None)
    return [Messenger(pickled(Opaque(item), NAME, allow=True), calls) for item in question_about]


def _picklable(call: Any) -> bytes | None:
    """Return a registration's bytes, or None for a function that has no name to be found by, as a lambda."""
    try:
        return pickled(Opaque(call), NAME, allow=True)
    except UsageError:
        return None


@dataclass(slots=True)
class Place:
    """Be the worker: its env, and the frame of its loop where that is known."""

    outermost: Any
    frame: FrameType | None
    gate: Gate = field(init=False)
    env: Any = field(init=False)
    """What is captured: all but an outermost `Reachable`, so that a script may begin to use one."""

    def __post_init__(self) -> None:
        own = vars(self.outermost).get("milepost_gate")
        self.gate = own if own is not None else Gate.before(self.outermost)
        self.env = self.outermost if own is None else self.outermost.env

    def remembered(self) -> dict[str, Any] | None:
        """Return the variables of the loop, or None if it is not known."""
        if self.frame is None:
            return None
        names = _LOOPS.get(f"{self.frame.f_globals.get('__name__')}.{self.frame.f_code.co_name}")
        found = self.frame.f_locals
        return None if names is None or not set(names) <= found.keys() else {name: found[name] for name in names}


def _attach(place: Place, _: Any) -> None:
    attach(place.env)


def _describe(place: Place, _: Any) -> str:
    return describe(place.env)


def _capture(place: Place, _: Any) -> dict[str, Any]:
    with place.gate.aside():
        env = capture(place.env)
    recorder = Recorder()
    loop = _loop(place, recorder)
    left_out = [(left.path, left.reason) for left in (*env.left_out, *recorder.left_out)]
    generators = Rng().state_dict()["process"]
    return {"status": _status(place.env), "loop": loop, "generators": generators, "env": env.tree, "left_out": left_out}


def _loop(place: Place, recorder: Recorder) -> dict[str, Any]:
    remembered = place.remembered()
    if remembered is None:
        recorder.left_out.append(LeftOut("worker", _NO_LOOP))
        return {}
    if "autoreset" in remembered:
        remembered["autoreset"] = remembered["autoreset"] or place.gate.owes_reset
    known = len(recorder.left_out)
    found = {name: recorder.value(value, f"worker.{name}") for name, value in remembered.items()}
    if "reset_info" in remembered:
        # Infos of a reset may hold anything, and few ever look at them: as with a vector env of this process.
        del recorder.left_out[known:]
    return {name: value for name, value in found.items() if value is not ABSENT}


def _status(env: Any) -> dict[str, Any]:
    """Return what is known of the worker's progress, without making a generator where there is none yet."""
    layers = [env, *all_within(env)]
    return {
        "seed": vars(layers[-1]).get("_np_random_seed"),
        "episode_steps": next((vars(layer)["_elapsed_steps"] for layer in layers if "_elapsed_steps" in vars(layer)), None),
        "episodes": next((found for layer in layers if (found := _episodes(vars(layer))) is not None), None),
    }


def _episodes(attributes: dict[str, Any]) -> int | None:
    """Return how many episodes a ``RecordEpisodeStatistics`` or a ``Monitor`` has seen end."""
    count, returns = attributes.get("episode_count"), attributes.get("episode_returns")
    return count if isinstance(count, int) else len(returns) if isinstance(returns, list) else None


def _differences(place: Place, saved: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    generators = {"process": saved["generators"], "named": {}}
    if "torch" in saved["generators"]:
        # Somebody in the saved worker had imported it; here that may come only with the first step.
        import torch  # noqa: F401
    found = differences(place.env, saved["env"]) + list(Rng().state_differences(generators))
    return [_as_data(difference) for difference in found]


def _restore(place: Place, saved: dict[str, Any]) -> bool:
    """Bring the env and the process's generators back; return whether the loop can be told what it remembered, too."""
    restore(place.env, saved["env"])
    Rng().load_state_dict({"process": saved["generators"], "named": {}})
    return place.remembered() is not None


def _ignore(_: Place, signums: Sequence[int]) -> None:
    """Ignore these signals where they would end this process: its trainer is to say when it ends."""
    for signum in signums:
        if signal.getsignal(signum) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(signum, signal.SIG_IGN)


def _stand_in(place: Place, saved: dict[str, Any]) -> None:
    """Prepare the gate to tell the loop, at its next command, what the saved one remembered."""
    remembered = place.remembered()
    assert remembered is not None, "it is asked for only where every loop is known"
    gate, loop = place.gate, {**remembered, **saved}
    observation = Refiller().value(loop.get("observation"), None, "worker.observation")
    if observation is None:
        observation = _empty(place.outermost.observation_space)
    gate.stand_in(observation, loop.get("reset_info") or {})
    gate.owe_reset(bool(loop.get("autoreset")), reset_pays=bool(place.frame and place.frame.f_locals.get("shared_memory")))


def _empty(space: Any) -> Any:
    """Return an observation that has the right shape, and that nobody will look at."""
    from gymnasium.vector.utils import batch_space, create_empty_array, iterate

    # To batch a space makes it a generator, if it has none yet, and the next sample would be another: that of a copy, then.
    return next(iter(iterate(batch_space(copy.deepcopy(space), 1), create_empty_array(space, 1))))


_ANSWERS: dict[str, Callable[[Place, Any], Any]] = {
    "attach": _attach,
    "describe": _describe,
    "capture": _capture,
    "differences": _differences,
    "restore": _restore,
    "stand in": _stand_in,
    "ignore": _ignore,
}


def _as_data(difference: Difference) -> tuple[str, str, str, str]:
    return difference.path, difference.saved, difference.live, difference.kind


def _told(error: Exception) -> dict[str, Any]:
    trace = "".join(traceback.format_exception(error))
    if not isinstance(error, MilepostError):
        return {"class": "", "message": f"{type(error).__name__}: {error}", "trace": trace}
    facts = {name: str(value) for name, value in error.facts.items() if value is not None}
    found = [_as_data(difference) for difference in error.differences] if isinstance(error, MismatchError) else []
    told = {"class": type(error).__name__, "message": error.message, "kind": error.kind, "hint": error.hint}
    return {**told, "facts": facts, "differences": found, "trace": trace}
