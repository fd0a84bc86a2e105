"""A worker's loop goes on after a restore as if it were the saved one, whatever either was told before and is told next."""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import _async_worker
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.envs import Reachable, register_plain
from milepost.envs.reach import NAME, messengers
from milepost.state.opaque import unpickled
from tests.envs.test_capture import text

STEP, RESET, NOOP = ("step", 1), ("reset", {"seed": None, "options": None}), ("reset-noop", None)


@register_plain
class Short(gym.Env[Any, Any]):
    """End an episode at every other step or so, and go on all the same if it is stepped after that."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.episodes = self.place = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.episodes, self.place = self.episodes + 1, 0
        return self.np_random.random(2), {"episode": self.episodes}

    def step(self, action: Any) -> Any:
        self.place += int(action)
        chance = self.np_random.random()
        return self.np_random.random(2), self.place + 0.5, chance < 0.5, chance > 0.9, {"place": self.place}


class Pipe:
    """Give a loop its commands, and keep its answers with what lies in the shared memory by then."""

    def __init__(self, commands: Sequence[Any], memory: Any) -> None:
        self.commands, self.answers, self.memory = iter(commands), [], memory

    def recv(self) -> Any:
        return next(self.commands)

    def send(self, answer: Any) -> None:
        seen = None if self.memory is None else read_from_shared_memory(Short.observation_space, self.memory, n=1).copy()
        self.answers.append(copy.deepcopy((answer, seen)))

    def close(self) -> None:
        pass


def loop(commands: Sequence[Any], mode: AutoresetMode, *, shared: bool, reachable: bool) -> list[Any]:
    """Run Gymnasium's own loop over commands, and return its answers."""
    memory = create_shared_memory(Short.observation_space, n=1, ctx=multiprocessing.get_context("fork")) if shared else None
    pipe, errors = Pipe([*commands, ("close", None)], memory), SimpleQueue()
    make = (lambda: Reachable(Short())) if reachable else Short
    _async_worker(0, make, pipe, pipe, memory, errors, mode, None)
    assert errors.empty(), errors.get()
    return pipe.answers[:-1]


def asking(question: str, about: Any = None) -> list[Any]:
    return [("_setattr", (NAME, messengers([about])[0])), ("_call", (NAME, (question,), {}))]


def answer_of(answers: list[Any]) -> Any:
    ((told, success), _) = answers[-1]
    assert success
    assert "error" not in told, told["error"]["trace"]
    return unpickled(told["answer"], "", trust=True).value


COMMANDS = st.lists(st.sampled_from([STEP, STEP, STEP, RESET, NOOP]), min_size=1, max_size=6)
MODES = [AutoresetMode.NEXT_STEP, *AutoresetMode]  # one of them has more to remember than the others


@settings(max_examples=200)
@given(
    st.sampled_from(MODES),
    st.booleans(),
    st.booleans(),
    COMMANDS,
    COMMANDS,
    COMMANDS,
    st.integers(0, 5),
    st.booleans(),
)
def test_a_loop_goes_on_as_the_saved_one_would_have(
    mode: AutoresetMode, shared: bool, reachable: bool, before: Any, other: Any, after: Any, seed: int, twice: bool
) -> None:
    def run(commands: Sequence[Any]) -> list[Any]:
        return loop(commands, mode, shared=shared, reachable=reachable)

    began = [("reset", {"seed": seed, "options": None}), *before]
    saved = answer_of(run([*began, *asking("capture")]))
    expected = run([*began, *after])[len(began) :]

    there = [("reset", {"seed": seed + 7, "options": None}), *other]
    back = [*asking("restore", saved), *asking("stand in", saved["loop"]), STEP]
    # Saved again at once, and brought back from that: nothing is lost on the way.
    commands = [*there, *back, *(asking("capture") if twice else [])]
    answers = run([*commands, *after])
    if twice:
        again = answer_of(answers[: len(commands)])
        assert text(again["loop"]) == text(saved["loop"])
        answers = run([*there, *asking("restore", again), *asking("stand in", again["loop"]), STEP, *after])
        commands = [*there, *back]
    assert text(told(answers[len(commands) :])) == text(told(expected))


def told(answers: list[Any]) -> list[Any]:
    """Return what was answered; what lies in the shared memory is brought back by the parent, and counts from the first answer
    that writes there."""
    found, written = [], False
    for (answer, _), seen in answers:
        written = written or len(answer) == 5 or answer[1] != {}
        found.append((answer, seen if written else None))
    return found
