"""Write down what an env is told since its last reset, so that it can be told the same again.

It draws no number and changes no argument and no result. What it cannot follow makes the episode unknown, with the reason,
until the next reset: never a guess.
"""

from __future__ import annotations

import copy
import struct
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from milepost.envs.actionlog import ActionLog, NotAnAction, Pieces
from milepost.envs.inplace import InPlace, standing_in, take_away
from milepost.envs.plain import ABSENT, Recorder
from milepost.envs.replayed import Replayed

UNSEEN = "its episode began before milepost saw it: it is captured from its next reset on"
Mark = tuple[int, ...]
"""How a PCG64 stands: state, increment, whether half a word is left, and which. Empty: there is no generator yet."""

_EVENT = struct.Struct("<q48s")
_HALF = struct.Struct("<qq")
_DRAWN = bytes(48)
"""No generator stands like this, since increments are odd: so the env was drawn (rendered) at this moment."""


class Tap(InPlace):
    """Tell a recording of each call of a method."""

    def __init__(self, owner: Any, name: str, recording: Recording) -> None:
        super().__init__(owner, name)
        self.recording = recording
        self._tell = getattr(recording, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.call(self.owner)
        return call(*args, **kwargs) if self.recording.inside else self._tell(call, args, kwargs)


class Recording:
    """Hold what one env was told since its last reset, and what it showed last."""

    def __init__(self, env: Any, kind: Replayed) -> None:
        self._env = weakref.ref(env)
        self.kind = kind
        self.made_with = settings_of(env, kind)
        self.inside = False
        """One of the env's own methods is at work, and what it calls is a part of it."""
        self.begun, self.start = True, dict[str, Any]()
        self.unknown = UNSEEN
        """Why the episode cannot be told again; empty if it can."""
        self.shown: Any = ABSENT
        self.after: Mark | None = ()
        """How the generator stood when the env had shown that."""
        self._mark: Mark | None = ()
        self._pulse: object = None
        self._forget()

    # What the taps tell.

    def reset(self, call: Any, args: Any, kwargs: Any) -> Any:
        """Begin an episode: note what it begins with, and let it begin."""
        env = self._live()
        start = start_of(env, self.kind, args, kwargs)
        result = self._let("reset", call, args, kwargs)
        if isinstance(start, str):
            self.give_up(start)
            return result
        if start["np_random"] is None and kwargs.get("seed") is None:
            start["np_random"] = _made_meanwhile(env)
        self.begin(start, observation_in(result))
        return result

    def step(self, call: Any, args: Any, kwargs: Any) -> Any:
        """Note an action, and let it be taken."""
        self._note(args, kwargs)
        result = self._let("step", call, args, kwargs)
        if not self.unknown:
            self.saw(observation_in(result))
        return result

    def render(self, call: Any, args: Any, kwargs: Any) -> Any:
        """Note that the env is drawn at this moment."""
        self.look()
        if self.begun and not self.unknown:
            self._events.append(_EVENT.pack(self.actions.steps, _DRAWN))
        return self._let("render", call, args, kwargs)

    # What the way asks.

    def begin(self, start: dict[str, Any], observation: Any) -> None:
        """Take an episode to have begun so, and to show this."""
        self._forget()
        self.begun, self.unknown, self.start = True, "", start
        self.saw(observation)
        if self._mark is None:
            self._forget()
            self.unknown = "its generator is not a PCG64, the only one that is followed: give it milepost_get_state"

    def not_begun(self) -> None:
        """Take the env to have never been reset."""
        self._forget()
        self.begun, self.unknown, self.start = False, "", {}

    def again(self, start: dict[str, Any], actions: ActionLog, events: Pieces, observation: Any) -> None:
        """Take an episode to have been told again, and to show this."""
        self.begin(start, observation)
        self.actions, self._events = actions, events

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Let the env be told things that are not noted."""
        self.inside = True
        try:
            yield
        finally:
            self.inside = False

    def moved(self) -> None:
        """Take it that the generator is where somebody else had left it."""
        self._mark = mark_of(self._live())

    def saw(self, observation: Any) -> None:
        """Note what the env has shown, by value, and how it stands."""
        env = self._live()
        self.shown = observation.copy() if type(observation) is np.ndarray else _by_value(observation)
        self.after = self._mark = mark_of(env)
        self._pulse = vars(env).get(self.kind.pulse)

    def give_up(self, reason: str) -> None:
        """Note that this episode cannot be told again."""
        self._forget()
        self.begun, self.unknown = True, f"{reason}: it is captured from its next reset on"

    def look(self) -> None:
        """Note what somebody else has done to the env since its last call."""
        if self.unknown or not self.begun:
            return
        env = self._live()
        if vars(env).get(self.kind.pulse) is not self._pulse:
            self.give_up("it was stepped past its own `step`")
        elif (mark := mark_of(env)) != self._mark:
            if not mark:
                self.give_up("its generator was replaced")
                return
            # Wrappers that repeat actions or add noise draw from the env's generator, between its steps.
            self._events.append(_EVENT.pack(self.actions.steps, packed(mark)))
            self._mark = mark

    def tree(self) -> dict[str, Any]:
        """Return the episode as a plain tree."""
        return {"start": self.start, "actions": self.actions.tree(), "events": self._events.pieces()}

    def changed_setting(self) -> str:
        """Return a setting that was changed after the episode had begun, if any."""
        if not self.begun or self.unknown:
            return ""
        now, before = settings_of(self._live(), self.kind), self.start["carried"]
        return next((name for name in now if now[name] != before[name]), "")

    def _note(self, args: Any, kwargs: Any) -> None:
        self.look()
        if self.unknown:
            return
        if not self.begun or len(args) != 1 or kwargs:
            self.give_up("it was stepped otherwise than by `step(action)` after a reset")
            return
        if self.actions.steps >= self.kind.longest:
            self.give_up(f"its episode is longer than {self.kind.longest} actions")
            return
        try:
            self.actions.append(args[0])
        except NotAnAction as error:
            self.give_up(f"an action is not made of numbers ({error})")

    def _let(self, name: str, call: Any, args: Any, kwargs: Any) -> Any:
        self.inside = True
        try:
            return call(*args, **kwargs)
        except BaseException:
            # Half of it may have been done.
            self.give_up(f"a call of `{name}` was broken off")
            raise
        finally:
            self.inside = False

    def _forget(self) -> None:
        self.actions, self._events = ActionLog(), Pieces()
        self.shown, self.after, self._mark, self._pulse = ABSENT, (), (), None

    def _live(self) -> Any:
        env = self._env()
        assert env is not None, "its dict holds what holds this"
        return env


def attach(env: Any, kind: Replayed) -> Recording:
    """Return the recording of ``env``; begin one if there is none."""
    if (found := recording_of(env)) is not None:
        return found
    recording = Recording(env, kind)
    names = ["reset", "step"]
    if kind.rendering_moves and env.render_mode is not None:
        names.append("render")
    for name in names:
        Tap(env, name, recording).put()
    return recording


def detach(env: Any) -> None:
    """Leave ``env`` as it was before `attach`."""
    take_away(env, Tap)


def recording_of(env: Any) -> Recording | None:
    """Return the recording of ``env``, if it has one that hears of every step."""
    found = next((tap for tap in standing_in(env, "step") if isinstance(tap, Tap)), None)
    return None if found is None else found.recording


def start_of(env: Any, kind: Replayed, args: Any = (), kwargs: Any = {}) -> dict[str, Any] | str:  # noqa: B006
    """Return what an episode begins with that is begun now, with these arguments; or why that cannot be said."""
    recorder = Recorder()
    told = recorder.value({"args": list(args), "kwargs": dict(kwargs)}, "reset")
    carried = recorder.value({name: getattr(env, name, None) for name in (*kind.settings, *kind.carries)}, "env")
    if told is ABSENT or carried is ABSENT:
        return f"{recorder.left_out[0]}, and an episode begins with it"
    generator, seed = getattr(env, "_np_random", None), getattr(env, "_np_random_seed", None)
    state = Recorder().value(generator, "np_random")
    return {"np_random": state, "np_random_seed": seed, "reset": copy.deepcopy(told), "carried": copy.deepcopy(carried)}


def settings_of(env: Any, kind: Replayed) -> dict[str, Any]:
    """Return what the script has set."""
    return {name: getattr(env, name) for name in kind.settings}


def mark_of(env: Any) -> Mark | None:
    """Return how the env's generator stands, or None if it is one that cannot be followed."""
    generator = getattr(env, "_np_random", None)
    if generator is None:
        return ()
    state = generator.bit_generator.state
    if state["bit_generator"] not in ("PCG64", "PCG64DXSM"):
        return None
    words = state["state"]
    return words["state"], words["inc"], state["has_uint32"], state["uinteger"]


def packed(mark: Mark) -> bytes:
    """Return a mark as 48 bytes, or none for no generator."""
    return mark[0].to_bytes(16, "little") + mark[1].to_bytes(16, "little") + _HALF.pack(*mark[2:]) if mark else b""


def move(env: Any, mark: bytes) -> None:
    """Let the env's generator stand where a packed mark says."""
    generator = env._np_random.bit_generator
    half, word = _HALF.unpack(mark[32:])
    words = {"state": int.from_bytes(mark[:16], "little"), "inc": int.from_bytes(mark[16:32], "little")}
    generator.state = {**generator.state, "state": words, "has_uint32": half, "uinteger": word}


def observation_in(result: Any) -> Any:
    """Return the observation in what ``reset`` or ``step`` has returned."""
    return result[0] if isinstance(result, tuple) and result else result


def events_of(log: Pieces) -> Iterator[tuple[int, bytes | None]]:
    """Yield before which action the generator was moved (to what), or the env drawn (None)."""
    for record in log.records(_EVENT.size, len(log) // _EVENT.size):
        index, mark = _EVENT.unpack(record)
        yield index, None if mark == _DRAWN else mark


def _by_value(observation: Any) -> Any:
    """Return a copy, of plain data alone: an object's own copying may do anything."""
    tree = Recorder().value(observation, "observation")
    return tree if tree is ABSENT else copy.deepcopy(tree)


def _made_meanwhile(env: Any) -> Any:
    """Return how a generator began that a reset without a seed has made, of entropy which Gymnasium keeps as its seed."""
    generator: Any = getattr(env, "_np_random", None)
    seeds: Any = None if generator is None else generator.bit_generator.seed_seq
    if generator is None or type(seeds) is not np.random.SeedSequence:
        return None
    untouched = np.random.SeedSequence(seeds.entropy, spawn_key=seeds.spawn_key, pool_size=seeds.pool_size)
    return Recorder().value(np.random.Generator(type(generator.bit_generator)(untouched)), "np_random")
