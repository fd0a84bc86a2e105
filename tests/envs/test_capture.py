"""Environments come back bit for bit, in place, and what cannot is named."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import (
    ClipReward,
    DelayObservation,
    FrameStackObservation,
    NormalizeObservation,
    NormalizeReward,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    StickyAction,
    TimeAwareObservation,
)

from milepost import envs
from milepost.envs.plain import ABSENT, Recorder, Refiller
from milepost.errors import MismatchError

WARM_UP, CHECK = 157, 300


def wrapped_cartpole() -> gym.Env[Any, Any]:
    env = NormalizeObservation(RecordEpisodeStatistics(gym.make("CartPole-v1", max_episode_steps=60)))
    return ClipReward(NormalizeReward(FrameStackObservation(env, 3)), -1, 1)


def delayed() -> gym.Env[Any, Any]:
    return TimeAwareObservation(DelayObservation(gym.make("MountainCar-v0"), 2))


FACTORIES: dict[str, Callable[[], gym.Env[Any, Any]]] = {
    **{
        name: (lambda name=name: gym.make(name))
        for name in ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1", "Pendulum-v1")
    },
    **{name: (lambda name=name: gym.make(name)) for name in ("FrozenLake-v1", "CliffWalking-v1", "Taxi-v4", "Blackjack-v1")},
    "wrapped CartPole": wrapped_cartpole,
    "sticky Acrobot": lambda: StickyAction(gym.make("Acrobot-v1"), 0.3, (2, 4)),
    "delayed MountainCar": delayed,
    "rescaled Pendulum": lambda: gym.wrappers.RescaleAction(gym.make("Pendulum-v1", max_episode_steps=70), -1, 1),
}


def run(env: Any, steps: int) -> list[Any]:
    seen = []
    for _ in range(steps):
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        info = {key: value for key, value in info.items() if key != "episode"}
        seen.append(copy.deepcopy((observation, reward, terminated, truncated, info)))
        if terminated or truncated:
            seen.append(copy.deepcopy(env.reset()))
    return seen


def text(seen: object) -> str:
    with np.printoptions(floatmode="unique", threshold=100_000):
        return repr(seen)


@pytest.mark.parametrize("name", FACTORIES)
def test_a_restored_env_goes_on_like_the_original(name: str) -> None:
    original = FACTORIES[name]()
    original.action_space.seed(1)
    original.reset(seed=7)
    run(original, WARM_UP)
    state = envs.capture(original)
    assert state.left_out == ()
    saved = copy.deepcopy(state.tree)
    expected = text(run(original, CHECK))

    fresh = FACTORIES[name]()
    fresh.action_space.seed(99)
    fresh.reset(seed=12345)
    run(fresh, 31)
    assert text(run(fresh, 3)) != ""
    envs.restore(fresh, saved)
    assert text(run(fresh, CHECK)) == expected


def test_a_vector_env_goes_on_like_the_original() -> None:
    def build() -> Any:
        fns = [lambda: gym.make("CartPole-v1"), lambda: gym.make("CartPole-v1")]
        return gym.wrappers.vector.RecordEpisodeStatistics(gym.vector.SyncVectorEnv(fns))

    def play(env: Any, steps: int) -> list[Any]:
        return [copy.deepcopy(env.step(env.action_space.sample())[:4]) for _ in range(steps)]

    original = build()
    original.action_space.seed(3)
    original.reset(seed=1)
    play(original, 100)
    part = envs.Envs(original)
    assert part.left_out() == ()
    saved = copy.deepcopy(part.state_dict())
    expected = text(play(original, 200))
    fresh = build()
    fresh.reset(seed=55)
    envs.Envs(fresh).load_state_dict(saved)
    assert text(play(fresh, 200)) == expected


def test_a_space_that_was_never_sampled_keeps_no_generator() -> None:
    env = gym.make("CartPole-v1")
    env.reset(seed=0)
    saved = copy.deepcopy(envs.capture(env).tree)
    env.action_space.sample()
    assert env.action_space._np_random is not None
    envs.restore(env, saved)
    assert env.action_space._np_random is None


def test_a_dict_space_keeps_the_generator_of_every_part() -> None:
    def space() -> spaces.Space[Any]:
        return spaces.Dict({"a": spaces.Discrete(100), "b": spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.MultiBinary(3)))})

    one, other = space(), space()
    one.seed(4)
    one.sample()
    saved = copy.deepcopy(Recorder().value(one, "space"))
    expected = text([one.sample() for _ in range(5)])
    other.seed(1000)
    Refiller().value(saved, other, "space")
    assert text([other.sample() for _ in range(5)]) == expected


class Corridor(gym.Env[Any, Any]):
    """An env nobody knows."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Discrete(10)

    def __init__(self) -> None:
        self.place = 0

    def reset(self, **kwargs: Any) -> Any:
        super().reset(seed=kwargs.get("seed"))
        self.place = 0
        return 0, {}

    def step(self, action: Any) -> Any:
        self.place += int(action)
        return self.place, 0.0, self.place > 8, False, {}


class OpenCorridor(Corridor):
    """An env that speaks for itself."""

    def milepost_get_state(self) -> Any:
        return {"place": self.place}

    def milepost_set_state(self, state: Any) -> None:
        self.place = state["place"]


@envs.register_plain
class PlainCorridor(Corridor):
    """An env that was declared to be plain."""


def test_an_unknown_env_is_named_and_never_guessed() -> None:
    env = gym.wrappers.TimeLimit(Corridor(), 5)
    state = envs.capture(env)
    assert [left.path for left in state.left_out] == ["TimeLimit/Corridor"]
    assert "milepost_get_state" in state.left_out[0].reason


@pytest.mark.parametrize("cls", [OpenCorridor, PlainCorridor])
def test_a_user_env_can_speak_for_itself_or_be_declared_plain(cls: type[Corridor]) -> None:
    env = gym.wrappers.TimeLimit(cls(), 5)
    env.reset()
    env.step(1)
    state = envs.capture(env)
    assert state.left_out == ()
    env.step(1)
    envs.restore(env, state.tree)
    assert env.unwrapped.place == 1
    assert env._elapsed_steps == 1


def test_another_wrapper_chain_is_refused_before_anything_changes() -> None:
    saved = envs.capture(gym.make("CartPole-v1")).tree
    other = gym.make("CartPole-v1", disable_env_checker=True)
    other.reset(seed=0)
    before = copy.deepcopy(other.unwrapped.state)
    with pytest.raises(MismatchError) as caught:
        envs.restore(other, saved)
    assert caught.value.differences[0].kind == "env"
    assert np.array_equal(other.unwrapped.state, before)


def test_a_changed_constructor_argument_wins_over_the_saved_one() -> None:
    env = gym.make("CartPole-v1", max_episode_steps=100)
    env.reset(seed=0)
    changed = gym.make("CartPole-v1", max_episode_steps=30)
    envs.restore(changed, envs.capture(env).tree)
    assert changed.get_wrapper_attr("_max_episode_steps") == 30


def test_describe_names_the_whole_chain() -> None:
    fns = [lambda: gym.make("CartPole-v1")] * 3
    assert envs.describe(gym.vector.SyncVectorEnv(fns)) == (
        "SyncVectorEnv<3 x TimeLimit<OrderEnforcing<PassiveEnvChecker<CartPoleEnv(CartPole-v1)>>>>"
    )


class Holder:
    """Anything with attributes."""


def test_what_is_shared_stays_shared_and_what_was_apart_comes_apart() -> None:
    saved_from, live = Holder(), Holder()
    saved_from.a = saved_from.b = [1]
    saved_from.c, saved_from.d = [2], [3]
    live.a, live.b = [], []
    live.c = live.d = kept = [0]
    Refiller().attributes(live, copy.deepcopy(Recorder().attributes(saved_from, "x")), "x")
    assert live.a is live.b
    assert (live.a, live.c, live.d) == ([1], [2], [3])
    assert live.c is kept


def test_an_object_that_stands_in_for_a_function_is_not_taken_for_a_setting() -> None:
    class Fading:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, reward: Any) -> Any:
            self.calls += 1
            return reward / self.calls

    assert envs.capture(gym.wrappers.TransformReward(gym.make("Pendulum-v1"), lambda reward: reward / 2)).left_out == ()
    left = envs.capture(gym.wrappers.TransformReward(gym.make("Pendulum-v1"), Fading())).left_out
    assert [str(each) for each in left] == ["TransformReward.func (a `Fading` is not plain data)"]


def test_containers_are_refilled_in_place_and_keep_their_kind() -> None:
    saved_from, live = Holder(), Holder()
    saved_from.queue, saved_from.names, saved_from.table = deque([1, (2, "x")], maxlen=3), {"b", "a"}, {(1, 2): 3.5, "$kind": 1}
    live.queue, live.names, live.table = deque(maxlen=3), set(), {}
    kept = live.queue
    Refiller().attributes(live, copy.deepcopy(Recorder().attributes(saved_from, "x")), "x")
    assert live.queue is kept
    assert vars(live) == vars(saved_from)


def test_what_is_not_plain_is_reported_with_its_path_and_nothing_refers_into_it() -> None:
    owner = Holder()
    inner = [1, 2]
    owner.bad = [inner, object()]
    owner.good = inner
    owner.loop = []
    owner.loop.append(owner.loop)
    recorder = Recorder()
    state = recorder.attributes(owner, "owner")
    assert state == {"good": [1, 2]}
    assert [left.path for left in recorder.left_out] == ["owner.bad[1]", "owner.loop[0]"]
    assert recorder.value(object(), "x") is ABSENT


def test_arrays_that_lie_over_the_same_memory_are_reported_and_neighbours_are_not() -> None:
    owner = Holder()
    board = np.zeros((3, 3))
    owner.row, owner.board, owner.rest = board[0], board, board[1:]
    recorder = Recorder()
    assert list(recorder.attributes(owner, "owner")) == ["row", "board", "rest"]
    assert [str(left) for left in recorder.left_out] == [
        "owner.board (it shares its memory with owner.row, and after a resume it would not)",
        "owner.rest (it shares its memory with owner.board, and after a resume it would not)",
    ]
    owner = Holder()
    owner.halves = np.split(np.arange(4), 2)
    recorder = Recorder()
    recorder.attributes(owner, "owner")
    assert recorder.left_out == []


def test_numpy_generators_keep_their_half_used_words() -> None:
    for make in (np.random.default_rng, np.random.RandomState):
        saved_from, live = Holder(), Holder()
        saved_from.rng, live.rng = make(1), make(2)
        saved_from.rng.normal()
        getattr(saved_from.rng, "integers", getattr(saved_from.rng, "randint", None))(10, dtype=np.uint32)
        saved = copy.deepcopy(Recorder().attributes(saved_from, "x"))
        kept, expected = live.rng, saved_from.rng.normal(size=5)
        Refiller().attributes(live, saved, "x")
        assert live.rng is kept
        assert np.array_equal(live.rng.normal(size=5), expected)


def without(tree: dict[str, Any], name: str) -> dict[str, Any]:
    rest = {key: value for key, value in tree.items() if key != name}
    return {**rest, "inner": [without(node, name) for node in tree["inner"]]}


def test_a_tree_of_an_earlier_version_which_names_no_spaces_comes_back() -> None:
    env = gym.make("CartPole-v1")
    env.action_space.seed(1)
    env.reset(seed=3)
    env.step(1)
    saved = copy.deepcopy(without(envs.capture(env).tree, "spaces"))
    expected = text(run(env, 3))
    fresh = gym.make("CartPole-v1")
    fresh.reset(seed=4)
    envs.restore(fresh, saved)
    assert text(run(fresh, 3)) == expected


def test_what_an_earlier_version_could_not_capture_is_still_to_be_reset() -> None:
    env = gym.wrappers.TimeLimit(PlainCorridor(), 5)
    saved = envs.capture(env).tree
    saved["inner"][0] |= {"way": "none", "state": None}
    assert not envs.is_whole(saved)
    assert envs.differences(env, saved) == []
    envs.restore(env, saved)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda: FrameStackObservation(gym.make("CartPole-v1"), 4), "FrameStackObservation.observation_space"),
        (lambda: FrameStackObservation(_with_actions(gym.make("CartPole-v1"), 3), 3), "CartPoleEnv.action_space"),
    ],
)
def test_a_changed_space_is_refused_with_both_sides_before_anything_changes(
    change: Callable[[], gym.Env[Any, Any]], path: str
) -> None:
    saved = envs.capture(FrameStackObservation(gym.make("CartPole-v1"), 3)).tree
    other = change()
    other.reset(seed=0)
    before = text(envs.capture(other).tree)
    with pytest.raises(MismatchError) as caught:
        envs.restore(other, saved)
    (found,) = caught.value.differences
    assert found.path.endswith(path)
    assert found.saved != found.live
    assert text(envs.capture(other).tree) == before


def test_another_number_of_envs_is_refused_with_both_sides_before_anything_changes() -> None:
    saved = envs.capture(gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)).tree
    other = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3)
    other.reset(seed=0)
    before = text(envs.capture(other).tree)
    with pytest.raises(MismatchError, match="num_envs: saved 2, here 3"):
        envs.restore(other, saved)
    assert text(envs.capture(other).tree) == before


def _with_actions(env: gym.Env[Any, Any], count: int) -> gym.Env[Any, Any]:
    env.unwrapped.action_space = spaces.Discrete(count)
    return env


class Sealed(Corridor):
    """An env that somebody else wrote."""


def test_functions_that_were_registered_speak_for_a_class() -> None:
    envs.register_snapshotter(Sealed, lambda env: {"place": env.place}, lambda env, state: setattr(env, "place", state["place"]))
    env = Sealed()
    env.reset()
    env.step(1)
    state = envs.capture(env)
    assert (state.left_out, state.tree["way"]) == ((), "snapshot")
    fresh = Sealed()
    envs.restore(fresh, state.tree)
    assert fresh.place == 1


def test_a_class_that_can_say_nothing_at_this_moment_is_named_and_not_whole() -> None:
    class Busy(OpenCorridor):
        def milepost_get_state(self) -> Any:
            return None

    state = envs.capture(Busy())
    assert "moment" in state.left_out[0].reason
    assert not envs.is_whole(state.tree)


@envs.register_plain
class Talkative(gym.Env[Any, Any]):
    """Put what is no data into its infos."""

    observation_space = spaces.Box(0, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.np_random.random(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.np_random.random(2, np.float32), 0.0, False, False, {"object": object()}


def test_a_checker_that_has_lost_what_it_compares_with_does_not_fail_at_the_next_step() -> None:
    # Saved after the first step of all, and brought back into an env that nobody has reset yet.
    original, fresh = (PassiveEnvChecker(Talkative()) for _ in range(2))
    original.reset(seed=1)
    original.step(0)
    saved = envs.capture(original)
    assert saved.left_out == ()
    expected = original.step(1)[0].tobytes()
    envs.restore(fresh, saved.tree)
    assert fresh.step(1)[0].tobytes() == expected


class Speaking(OpenCorridor):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(2)


class Scripted(Corridor):
    """Somebody else's."""


class Told(Corridor):
    """Made by what it was told."""


class Jar(Corridor):
    """Pickled."""


class Unknown(Corridor):
    """Of which nobody knows anything."""


def registered() -> None:
    envs.register_snapshotter(
        Scripted,
        lambda env: {"place": env.place, "rng": env.np_random.bit_generator.state},
        lambda env, state: (
            setattr(env, "place", state["place"]),
            setattr(env.np_random.bit_generator, "state", state["rng"]),
        ),
    )
    envs.register_replayed(Told)
    envs.allow_pickle(Jar)


@pytest.mark.parametrize("cls", [OpenCorridor, Speaking, PlainCorridor, Scripted, Told, Jar, Unknown])
def test_sampling_goes_on_where_it_was_by_whichever_way_an_env_is_captured(cls: type[Corridor]) -> None:
    # A space of the class is no attribute of the env, and an env that speaks for itself does not speak of its spaces.
    registered()
    env = gym.wrappers.TimeLimit(cls(), 50)
    envs.attach(env)
    env.action_space.seed(3)
    env.reset(seed=1)
    env.step(env.action_space.sample())
    tree = copy.deepcopy(envs.capture(env).tree)
    expected = [env.action_space.sample() for _ in range(40)]
    fresh = gym.wrappers.TimeLimit(cls(), 50)
    envs.attach(fresh)
    fresh.action_space.seed(8)
    fresh.reset(seed=2)
    envs.restore(fresh, tree)
    assert [fresh.action_space.sample() for _ in range(40)] == expected


def counting_reward() -> Callable[[Any], Any]:
    count = 0

    def counted(reward: Any) -> Any:
        nonlocal count
        count += 1
        return reward + count

    return counted


def test_what_a_function_counts_comes_back_though_nobody_saw_its_beginning() -> None:
    env = gym.wrappers.TransformReward(gym.make("CartPole-v1"), counting_reward())
    env.reset(seed=1)
    for _ in range(5):
        env.step(0)
    saved = envs.capture(env)
    other = gym.wrappers.TransformReward(gym.make("CartPole-v1"), counting_reward())
    other.reset(seed=2)
    envs.restore(other, saved.tree)
    assert saved.left_out == ()
    assert other.step(1)[1] == env.step(1)[1] == 7.0
