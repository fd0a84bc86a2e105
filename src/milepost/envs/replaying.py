"""Capture an env by what it was told since its last reset, and bring it back by telling it the same again.

The state of some simulators lies where nobody can read it. Where nothing outlives a reset, the generator as it stood before
it, the arguments of the reset and the actions since are the state, too. It is the innermost layer alone that is told: under
running normalizers a replay would feed them the episode twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from milepost.envs import box2d, recording
from milepost.envs.actionlog import ActionLog, Pieces
from milepost.envs.compare import first_difference
from milepost.envs.inplace import standing_in
from milepost.envs.layers import inner_of
from milepost.envs.plain import ABSENT, LeftOut, Recorder, Refiller, same
from milepost.envs.recording import Recording
from milepost.envs.replayed import Replayed, registered
from milepost.envs.way import Way
from milepost.errors import MismatchError
from milepost.records import Difference


@dataclass(frozen=True, slots=True)
class ReplayCost:
    """Say what it costs to bring one env back by telling it everything again."""

    path: str
    steps: int
    """How many actions a restore takes again."""
    size_bytes: int
    """What is kept of them in a checkpoint."""

    def __str__(self) -> str:
        return f"{self.path}: {self.steps} actions, {self.size_bytes} bytes"


def replay_costs(tree: dict[str, Any], path: str = "") -> Iterator[ReplayCost]:
    """Yield the cost of every env in a captured tree that comes back by replay."""
    here = f"{path}/{tree['class'].rpartition('.')[2]}".lstrip("/")
    if tree["way"] == Replay.name and tree["state"] is not None and tree["state"]["begun"]:
        pieces = [piece for run in tree["state"]["actions"] for piece in run["data"]] + tree["state"]["events"]
        yield ReplayCost(here, sum(run["count"] for run in tree["state"]["actions"]), sum(map(len, pieces)))
    in_workers = tree["state"]["workers"] if tree["way"] == "workers" and tree["state"] is not None else []
    within = [*tree["inner"], *(worker["env"] for worker in in_workers)]
    for index, inner in enumerate(within):
        yield from replay_costs(inner, here if len(within) == 1 else f"{here}[{index}]")


class Replay(Way):
    """Tell an env again what it was told since its last reset."""

    name = "replay"

    def fits(self, env: Any) -> bool:
        """Return whether its class is known or registered."""
        return _kind(env) is not None

    def attach(self, env: Any) -> None:
        """Listen at the env. An episode that has begun is known if another env, made alike, begins alike."""
        kind = _kind_of(env)
        if not _refused(env) and recording.recording_of(env) is None:
            _explain_beginning(env, recording.attach(env, kind))

    def capture(self, env: Any, recorder: Recorder, path: str) -> Any:
        """Return what it was told, and what it has shown."""
        if reason := _refused(env):
            recorder.left_out.append(LeftOut(path, reason))
            return None
        self.attach(env)
        found = _recording(env)
        found.look()
        if name := found.changed_setting():
            found.give_up(f"`{name}` was changed in the middle of its episode")
        if found.unknown:
            recorder.left_out.append(LeftOut(path, found.unknown))
            return None
        state = {"begun": found.begun, "made_with": found.made_with}
        if found.begun:
            return {**state, **found.tree(), "proof": _proof(env, found)}
        start = recording.start_of(env, found.kind)
        assert not isinstance(start, str), "what is known to be carried is plain"
        return {**state, "start": start}

    def restore(self, env: Any, state: Any, refiller: Refiller, path: str) -> None:  # noqa: ARG002
        """Tell it again."""
        self.attach(env)
        found = _recording(env)
        _set_before(env, state["start"], path)
        if state["begun"]:
            _tell_again(env, found, state, path)
        else:
            found.not_begun()

    def observed(self, env: Any) -> Any:
        """Return the last observation."""
        found = recording.recording_of(env)
        return ABSENT if found is None else found.shown

    def unlike(self, env: Any, state: Any, path: str) -> Difference | None:
        """Return where the generator, or what can be read of the live state, is not what it was."""
        return first_difference(state["proof"], _proof(env, _recording(env)), path) if state["begun"] else None

    def differences(self, env: Any, state: Any, path: str) -> list[Difference]:
        """Return the settings that are not those of the saved env: told the same, it would do something else."""
        if reason := _refused(env):
            return [Difference(path, "captured by replay", reason, "env")]
        saved, found = state["made_with"], recording.recording_of(env)
        live = recording.settings_of(env, _kind_of(env)) if found is None else found.made_with
        names = [name for name in saved if name in live and saved[name] != live[name]]
        return [Difference(f"{path}.{name}", repr(saved[name]), repr(live[name]), "env") for name in names]


def _kind(env: Any) -> Replayed | None:
    return registered(type(env)) or box2d.known(env)


def _kind_of(env: Any) -> Replayed:
    kind = _kind(env)
    assert kind is not None, "asked of no env that this way does not fit"
    return kind


def _refused(env: Any) -> str:
    """Return why ``env`` cannot come back by replay, or an empty text."""
    if next(inner_of(env), None) is not None:
        return "it holds another env, and only the innermost can be told again: give it milepost_get_state, or register_plain"
    return _kind_of(env).refused(env)


def _recording(env: Any) -> Recording:
    found = recording.recording_of(env)
    assert found is not None, "attached before"
    return found


def _explain_beginning(env: Any, found: Recording) -> None:
    """Find out how an episode began that nobody listened to, on another env: the live one is only looked at.

    Gymnasium keeps the seed. An env made with the same arguments and reset with it (or once more, without) that then equals
    the live one in everything that can be read, generator included, has begun as it did, and was not stepped.
    """
    kind = found.kind
    if not kind.begun(env):
        found.not_begun()
        return
    seed, other = getattr(env, "_np_random_seed", None), kind.sibling(env)
    if other is None or type(seed) is not int or seed < 0:
        return
    try:
        for arguments in ({"seed": seed}, {}):
            start = recording.start_of(other, kind, (), arguments)
            observation, _ = other.reset(**arguments)
            if not isinstance(start, str) and same(_readable(other, kind), _readable(env, kind)):
                found.begin(start, observation)
                return
    finally:
        other.close()


def _readable(env: Any, kind: Replayed) -> Any:
    now = recording.start_of(env, kind)
    return [kind.witness(env), recording.packed(recording.mark_of(env) or ()), now if isinstance(now, str) else now["carried"]]


def _proof(env: Any, found: Recording) -> dict[str, Any]:
    """Return what a replay must end with, beside the observation: the generator, and what can be read of the live state."""
    return {"np_random": recording.packed(found.after or ()), "live": found.kind.witness(env)}


def _set_before(env: Any, start: dict[str, Any], path: str) -> None:
    """Put everything back to where it stood before the reset."""
    Refiller().attributes(env, start["carried"], path)
    if hasattr(env, "_np_random"):
        env._np_random = Refiller().value(start["np_random"], env._np_random, f"{path}.np_random")
        env._np_random_seed = start["np_random_seed"]


def _tell_again(env: Any, found: Recording, state: Any, path: str) -> None:
    """Reset the env and take the actions, unheard."""
    told, actions, events = (
        Refiller().value(state["start"]["reset"], None, "reset"),
        ActionLog(state["actions"], found.kind.longest),
        Pieces(state["events"]),
    )
    reset, step, render = (_unheard(env, name) for name in ("reset", "step", "render"))
    try:
        with found.unheard():
            result = reset(*told["args"], **told["kwargs"])
            happened = deque(recording.events_of(events))
            for index, action in enumerate(actions):
                _let_happen(env, happened, index, render)
                result = step(action)
            found.again(state["start"], actions, events, recording.observation_in(result))
            _let_happen(env, happened, actions.steps, render)
    except Exception as error:
        found.give_up("it could not be told again")
        difference = Difference(path, f"{actions.steps} actions after a reset", f"{type(error).__name__}: {error}", "env")
        raise MismatchError("an env cannot be told again what it was told", [difference], kind="env-lies") from error
    found.moved()


def _let_happen(env: Any, happened: deque[tuple[int, bytes | None]], index: int, render: Any) -> None:
    """Do what had been done to the env before the action ``index``: move its generator, draw it."""
    while happened and happened[0][0] == index:
        _, mark = happened.popleft()
        if mark is None:
            render()
        else:
            recording.move(env, mark)


def _unheard(env: Any, name: str) -> Any:
    """Return the method that the tap stands in for."""
    tap = next((tap for tap in standing_in(env, name) if isinstance(tap, recording.Tap)), None)
    return getattr(env, name, None) if tap is None else tap.call(env)
