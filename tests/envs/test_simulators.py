"""MuJoCo and Atari go on bit by bit in a fresh env, and the ways that are silently wrong are found to be."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from gymnasium.envs.mujoco.ant_v5 import AntEnv

from milepost import envs
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.envs.likeness import unlike
from milepost.envs.pickles import Pickled
from milepost.envs.plain import Recorder, Refiller
from milepost.envs.proof import prove
from milepost.envs.ways import way_of
from milepost.errors import MismatchError
from tests.envs.worlds import FACTORIES, play, started

WARM_UP, CHECK = 157, 300


@pytest.mark.parametrize("name", FACTORIES)
def test_a_simulator_goes_on_in_a_fresh_env_as_in_the_original(name: str) -> None:
    original = started(FACTORIES[name](), 7, WARM_UP)
    state = envs.capture(original)
    assert state.left_out == ()
    assert envs.is_whole(state.tree)
    saved = copy.deepcopy(state.tree)
    expected = play(original, CHECK)
    fresh = started(FACTORIES[name](), 1234, 31)
    envs.restore(fresh, saved)
    assert play(fresh, CHECK) == expected
    assert play(original, 10) == play(fresh, 10)


def pickled(env: Any) -> Any:
    return pickle.loads(pickle.dumps(env))


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "Breakout", "Pong, stacked"])
@pytest.mark.parametrize("duplicate", [pickled, copy.deepcopy])
def test_a_simulator_that_was_pickled_or_copied_is_silently_another_and_is_found_out(
    name: str, duplicate: Callable[[Any], Any]
) -> None:
    original = started(FACTORIES[name](), 7, WARM_UP).unwrapped
    other = duplicate(original)
    assert type(other) is type(original)
    assert unlike(original, other, (), "it") is not None
    assert play(other, 30) != play(original, 30)


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "Breakout"])
def test_the_pickle_of_a_simulator_is_refused_even_where_it_was_allowed(name: str) -> None:
    recorder = Recorder()
    assert Pickled().capture(started(FACTORIES[name](), 7, 20).unwrapped, recorder, "it") is None
    assert "EzPickle" in recorder.left_out[0].reason


def only_integrated(original: Any, fresh: Any, *, forward: bool) -> None:
    way, base = way_of(original.unwrapped), fresh.unwrapped
    saved = copy.deepcopy(way.capture(original.unwrapped, Recorder(), "it"))
    mujoco.mj_setState(base.model, base.data, saved["integration"], mujoco.mjtState.mjSTATE_INTEGRATION)
    Refiller().attributes(base, saved["attributes"], "it")
    if forward:
        mujoco.mj_forward(base.model, base.data)


@pytest.mark.parametrize("name", ["Ant-v5", "Humanoid-v5"])
@pytest.mark.parametrize("forward", [False, True])
def test_the_integration_state_alone_is_not_enough_and_the_proof_finds_it(name: str, forward: bool) -> None:
    original = started(gym.make(name), 7, 40)
    fresh = started(gym.make(name), 1234, 31)
    tree = copy.deepcopy(envs.capture(original).tree)
    only_integrated(original, fresh, forward=forward)
    fresh.action_space.seed(1)
    original.action_space.seed(1)
    with pytest.raises(MismatchError, match="shows something else") as caught:
        prove(fresh, tree)
    found = caught.value.differences[0]
    assert re.search(r"Env (observation\[\d+\]|arrays\['float64'\]\[\d+\])$", found.path)
    assert found.saved != found.live
    assert play(fresh, 20) != play(original, 20)


def test_the_emulators_state_alone_is_not_enough_where_actions_are_repeated() -> None:
    """The action that a frame repeats is in no state that the emulator gives."""

    def build(seed: int) -> Any:
        return started(gym.make("ALE/Breakout-v5", repeat_action_probability=0.9), seed, 40)

    gone_astray = []
    for seed in range(2):
        original, fresh = build(seed), build(seed + 100)
        tree = copy.deepcopy(envs.capture(original).tree)
        expected = play(original, 30)
        envs.restore(fresh, tree)
        assert play(fresh, 30) == expected
        envs.restore(fresh, alone(tree))
        gone_astray.append(play(fresh, 30) != expected)
    assert any(gone_astray)


def alone(tree: dict[str, Any]) -> dict[str, Any]:
    state = tree["state"]
    if "emulator" in state:
        state = {
            **state,
            "acts": {**state["acts"], "begin": state["emulator"], "actions": np.zeros(0, np.int16), "strengths": np.zeros(0)},
        }
    return {**tree, "state": state, "inner": [alone(node) for node in tree["inner"]]}


def test_an_emulator_whose_last_action_is_not_known_says_so_until_it_is() -> None:
    env = gym.make("ALE/Breakout-v5")
    env.reset(seed=1)
    assert envs.capture(env).left_out == ()
    env = gym.make("ALE/Breakout-v5")
    env.reset(seed=1)
    env.step(2)
    assert "attach" in envs.capture(env).left_out[0].reason
    for _ in range(20):
        env.step(1)
    assert envs.capture(env).left_out == ()
    env = gym.make("ALE/Breakout-v5", repeat_action_probability=0.0)
    env.reset(seed=1)
    env.step(2)
    assert envs.capture(env).left_out == ()
    assert type(env.unwrapped.ale).__name__ == "ALEInterface"


@pytest.mark.parametrize("chance", [0.25, 0.97, 1.0])
def test_what_an_emulator_remembers_does_not_grow_and_is_enough_after_a_second_restore(chance: float) -> None:
    def build(seed: int, steps: int) -> Any:
        return started(gym.make("ALE/Breakout-v5", repeat_action_probability=chance), seed, steps)

    original = build(1, 400)
    tree = copy.deepcopy(envs.capture(original).tree)
    second = build(2, 3)
    envs.restore(second, tree)
    assert play(second, 2) == play(original, 2)
    again = copy.deepcopy(envs.capture(second).tree)
    third = build(3, 4)
    envs.restore(third, again)
    assert play(third, 40) == play(original, 40)
    assert len(original.unwrapped.ale.remembered()[1]) <= (512 if chance < 0.5 else 8192)


def test_a_state_that_was_damaged_on_its_way_is_found_by_what_the_env_shows() -> None:
    env = started(gym.make("Ant-v5"), 7, 40)
    saved = copy.deepcopy(envs.capture(env).tree)
    base = saved["inner"][0]["inner"][0]["inner"][0]
    base["state"]["integration"][3] += 0.5
    base["state"]["data"]["float64"] += 0.5
    with pytest.raises(MismatchError) as caught:
        envs.restore(env, saved)
    assert caught.value.kind == "env-lies"
    assert "AntEnv observation[0]" in str(caught.value)


def test_another_game_and_another_model_are_refused_with_both_sides_before_anything_changes(tmp_path: Any) -> None:
    saved = envs.capture(gym.make("ALE/Breakout-v5", full_action_space=True)).tree
    other = gym.make("ALE/Pong-v5", full_action_space=True)
    with pytest.raises(MismatchError, match=r"game: saved breakout .* here pong "):
        envs.restore(other, saved)
    model = gym.make("Ant-v5").unwrapped.model
    path = tmp_path / "ant.xml"
    mujoco.mj_saveLastXML(str(path), model)
    text = path.read_text()
    path.write_text(text.replace("<worldbody>", '<worldbody><site name="mark" pos="0 0 1"/>', 1))
    with pytest.raises(MismatchError, match="AntEnv arrays: saved "):
        envs.restore(gym.make("Ant-v5", xml_file=str(path)), envs.capture(gym.make("Ant-v5")).tree)


class Randomized(AntEnv):
    """An env of somebody's own, which changes its model at every reset, and notes what it did."""

    def __init__(self) -> None:
        super().__init__()
        self.notes = {"falls": 0, "gravity": 0.0}

    def reset_model(self) -> Any:
        self.model.body_mass[1] = 1 + self.np_random.random()
        self.model.opt.gravity[2] = self.notes["gravity"] = -9 - self.np_random.random()
        self.model.opt.timestep = 0.01 + self.np_random.random() / 1000
        self.notes["falls"] += 1
        return super().reset_model()


def test_a_class_of_ones_own_that_changes_its_model_comes_back_with_it() -> None:
    def build() -> gym.Env[Any, Any]:
        return gym.wrappers.TimeLimit(Randomized(), 40)

    original = started(build(), 3, 100)
    state = envs.capture(original)
    assert state.left_out == ()
    saved = copy.deepcopy(state.tree)
    fresh = started(build(), 4, 10)
    envs.restore(fresh, saved)
    assert play(fresh, 200) == play(original, 200)


def test_capturing_changes_no_bit_of_what_comes_after() -> None:
    for name in ("Humanoid-v5", "Breakout, stacked"):
        one, other = (started(FACTORIES[name](), 5, 20) for _ in range(2))
        for _ in range(5):
            envs.attach(one)
            envs.capture(one)
            assert play(one, 5) == play(other, 5)


def test_what_is_saved_is_not_the_live_memory() -> None:
    env = started(gym.make("HalfCheetah-v5"), 5, 20)
    saved = envs.capture(env).tree["inner"][0]["inner"][0]["inner"][0]["state"]
    before = {name: array.copy() for name, array in saved["data"].items()}
    play(env, 5)
    assert all(np.array_equal(saved["data"][name], array) for name, array in before.items())


def test_simulators_come_back_from_a_run_root(tmp_path: Path) -> None:
    names = {"a/envs": "Humanoid-v5", "b/envs": "Pusher-v5", "c/envs": "Breakout, as SB3 does"}

    def build(seed: int, steps: int) -> dict[str, Any]:
        return {part: started(FACTORIES[name](), seed, steps) for part, name in names.items()}

    with CheckpointEngine(tmp_path / "run", state=(state := build(1, 60))) as engine:
        engine.save(1)
        assert engine.wait() is not None
    expected = {part: play(env, 60) for part, env in state.items()}
    with CheckpointEngine(tmp_path / "run", state=(state := build(2, 9))) as engine:
        assert engine.resume() is not None
        assert {part: play(env, 60) for part, env in state.items()} == expected
