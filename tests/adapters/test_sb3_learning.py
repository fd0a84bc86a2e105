"""The same script, run again, does what its user expects: extension, several learn() calls, logs, changed scripts."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, EveryNTimesteps, StopTrainingOnMaxEpisodes
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from milepost.adapters.sb3 import Checkpointing
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import MismatchError, UsageError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.triggers import every
from tests.adapters.sb3_runs import KILLED, NET, KillAt, env_of, in_child, off_policy, pieces, ppo_model

Script = Callable[[Path, int | None], Any]


def saving(folder: Path, steps: int = 64, **options: Any) -> Checkpointing:
    return Checkpointing(folder / "run", when=every(steps=steps), writer="inline", **options)


# A larger total


def _sac(seed: int) -> Any:
    from stable_baselines3 import SAC

    return off_policy(SAC, seed, env_of("Pendulum-v1"), use_sde=True, train_freq=8)


def _dqn(seed: int) -> Any:
    return off_policy(DQN, seed, env_of("CartPole-v1"), exploration_initial_eps=0.2, exploration_final_eps=0.2)


LONGER: dict[str, tuple[Callable[[int], Any], int]] = {
    "ppo": (lambda seed: ppo_model(seed, Path(), env=env_of("Pendulum-v1", 2), use_sde=True, n_steps=32), 192),
    "dqn": (
        lambda seed: off_policy(DQN, seed, env_of("CartPole-v1"), exploration_initial_eps=0.2, exploration_final_eps=0.2),
        120,
    ),
    "sac": (_sac, 96),
}


@pytest.mark.parametrize("name", LONGER)
def test_a_finished_run_with_a_larger_total_equals_the_longer_run(name: str, tmp_path: Path) -> None:
    make, total = LONGER[name]

    def script(steps: int, seed: int, attached: bool) -> Any:
        model = make(seed)
        # The straight run passes the first total, too, but its progress there is another: no schedule depends on it here.
        model.learn(steps, callback=[saving(tmp_path)] if attached else None)
        return pieces(model)

    straight = in_child(lambda: script(2 * total, 1, False))
    in_child(lambda: script(total, 1, True))
    assert in_child(lambda: script(2 * total, 2, True)) == straight


def test_a_run_stopped_by_a_callback_is_over_until_more_is_asked_for(tmp_path: Path) -> None:
    def script(total: int) -> int:
        model = ppo_model(1, tmp_path)
        model.learn(total, callback=[StopTrainingOnMaxEpisodes(4), saving(tmp_path)])
        return int(model.num_timesteps)

    stopped = in_child(lambda: script(1000))
    assert stopped < 1000
    assert in_child(lambda: script(1000)) == stopped
    assert in_child(lambda: script(1200)) > stopped


# Several learn() calls


def two_calls(reset: bool, shared: bool) -> Script:
    def script(folder: Path, kill_at: int | None) -> Any:
        model = ppo_model(1, folder, env=env_of("CartPole-v1", 2), n_steps=16)
        ours = saving(folder, 32)
        calls = CountCalls()
        model.learn(128, callback=[ours, calls, KillAt(kill_at if kill_at and kill_at < 128 else None)])
        between = np.random.random()
        second = ours if shared else saving(folder, 32)
        late = None if kill_at is None or kill_at < 128 else kill_at - (128 if reset else 0)
        model.learn(96, callback=[second, calls, KillAt(late)], reset_num_timesteps=reset)
        return pieces(model), model.num_timesteps, calls.steps, between

    return script


class CountCalls(BaseCallback):
    """Remember at which steps it was asked. Its list comes back with the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    def _on_step(self) -> bool:
        self.steps.append(self.num_timesteps)
        return True


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("reset", [True, False])
def test_two_calls_in_one_script_are_resumed_in_the_right_one(reset: bool, shared: bool, tmp_path: Path) -> None:
    script = two_calls(reset, shared)
    straight = in_child(lambda: script(tmp_path / "alone", None))
    assert straight[1] == (96 if reset else 224)
    killed = tmp_path / "killed"
    assert in_child(lambda: script(killed, 70)) == KILLED
    assert in_child(lambda: script(killed, 128 + 10)) == KILLED
    assert in_child(lambda: script(killed, 128 + 70)) == KILLED
    assert in_child(lambda: script(killed, None))[:3] == straight[:3]
    assert in_child(lambda: script(killed, None))[:3] == straight[:3]


def test_what_lies_between_two_calls_sees_what_the_first_one_left_until_the_second_has_saved(tmp_path: Path) -> None:
    script = two_calls(reset=True, shared=True)
    straight = in_child(lambda: script(tmp_path / "alone", None))
    assert in_child(lambda: script(tmp_path / "killed", 128 + 10)) == KILLED
    assert in_child(lambda: script(tmp_path / "killed", None)) == straight


def test_an_interrupted_call_goes_on_in_the_same_process(tmp_path: Path) -> None:
    class Interrupt(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps >= 150:
                raise KeyboardInterrupt
            return True

    def script() -> Any:
        model = ppo_model(1, tmp_path)
        with contextlib.suppress(KeyboardInterrupt):
            model.learn(320, callback=[saving(tmp_path), Interrupt()])
        model = ppo_model(2, tmp_path)
        return pieces(model.learn(320, callback=saving(tmp_path)))

    straight = in_child(lambda: pieces(ppo_model(1, tmp_path).learn(320)))
    assert in_child(script) == straight


# Logs


def without_clocks(text: str) -> list[str]:
    return [re.sub(r",[\d.e-]+$", "", line) for line in text.splitlines() if not line.startswith("#")]


def test_monitor_files_go_on_and_hold_each_episode_once(tmp_path: Path) -> None:
    # research/rlframeworks.md 2.1: the Monitor of a restarted script truncates its file.
    def script(folder: Path, kill_at: int | None) -> Any:
        folder.mkdir(exist_ok=True)
        model = ppo_model(1, folder, env=env_of("CartPole-v1", 2, monitor=folder), n_steps=32)
        model.learn(512, callback=[saving(folder), KillAt(kill_at)])
        return [(folder / f"{index}.monitor.csv").read_text() for index in range(2)]

    straight = in_child(lambda: script(tmp_path / "alone", None))
    assert in_child(lambda: script(tmp_path / "killed", 300)) == KILLED
    before = (tmp_path / "killed" / "0.monitor.csv").read_text()
    resumed = in_child(lambda: script(tmp_path / "killed", None))
    assert len(without_clocks(straight[0])) > 5
    assert [without_clocks(text) for text in resumed] == [without_clocks(text) for text in straight]
    assert resumed[0].splitlines()[:3] == before.splitlines()[:3]
    assert in_child(lambda: script(tmp_path / "killed", None)) == resumed


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("time/")]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


def test_tensorboard_goes_on_in_its_directory_without_a_step_twice(tmp_path: Path) -> None:
    def script(folder: Path, kill_at: int | None) -> Any:
        model = ppo_model(1, folder, tensorboard_log=str(folder / "tb"))
        model.learn(512, callback=[saving(folder, 128), KillAt(kill_at)])
        model.logger.close()
        return model.logger.dir

    in_child(lambda: script(tmp_path / "alone", None))
    killed = tmp_path / "killed"
    assert in_child(lambda: script(killed, 250)) == KILLED
    assert in_child(lambda: script(killed, 450)) == KILLED
    assert in_child(lambda: script(killed, None)) == str(killed / "tb" / "PPO_1")
    expected = scalars(tmp_path / "alone" / "tb" / "PPO_1")
    assert len(expected["train/loss"]) == 7
    assert scalars(killed / "tb" / "PPO_1") == expected
    files = sorted(os.listdir(killed / "tb" / "PPO_1"))
    assert in_child(lambda: script(killed, None)) == str(killed / "tb" / "PPO_1")
    assert os.listdir(killed / "tb") == ["PPO_1"]
    assert sorted(os.listdir(killed / "tb" / "PPO_1")) == files


def test_the_files_of_a_configured_logger_go_on(tmp_path: Path) -> None:
    def script(folder: Path, kill_at: int | None) -> Any:
        model = ppo_model(1, folder)
        model.set_logger(configure(str(folder / "log"), ["json", "csv", "log"]))
        model.learn(384, callback=[saving(folder), KillAt(kill_at)])
        model.logger.close()
        rows = (folder / "log" / "progress.json").read_text().splitlines()
        return rows, len((folder / "log" / "progress.csv").read_text().splitlines())

    def steps(rows: list[str]) -> list[str]:
        return [re.search(r'total_timesteps": (\d+)', row).group(1) for row in rows]  # type: ignore[union-attr]

    straight = in_child(lambda: script(tmp_path / "alone", None))
    assert in_child(lambda: script(tmp_path / "killed", 300)) == KILLED
    resumed = in_child(lambda: script(tmp_path / "killed", None))
    assert steps(resumed[0]) == steps(straight[0])
    assert resumed[1] == straight[1] == 7


# Evaluation


def test_evaluations_are_reported_with_their_step_and_the_best_is_kept(tmp_path: Path) -> None:
    def script() -> Any:
        model = ppo_model(1, tmp_path, learning_rate=1e-2)
        evaluate = EvalCallback(env_of("CartPole-v1", seed=4), eval_freq=50, n_eval_episodes=2, verbose=0)
        keep = Keep(last=1, best=1, by="eval/mean_reward")
        seen: list[tuple[int, float]] = []
        model.learn(512, callback=[evaluate, saving(tmp_path, keep=keep), Collect(evaluate, seen)])
        return seen

    seen = in_child(script)
    best = max(score for _, score in seen)
    with CheckpointEngine(tmp_path / "run", state={"counters": {}}, keep=Keep(last=1, best=1, by="eval/mean_reward")) as engine:
        found = engine.peek("best")
    assert found is not None
    metric = found.metrics["eval/mean_reward"]
    assert (metric.step, metric.number) in seen
    assert metric.number == best


class Collect(BaseCallback):
    """Note each evaluation as it happens."""

    def __init__(self, source: EvalCallback, seen: list[tuple[int, float]]) -> None:
        super().__init__()
        self.source, self.seen = source, seen

    def _on_step(self) -> bool:
        if self.source.n_calls % self.source.eval_freq == 0:
            self.seen.append((self.num_timesteps, self.source.last_mean_reward))
        return True


# Changed scripts


def refused(folder: Path, make: Callable[[], Any]) -> Any:
    def script() -> Any:
        model = make()
        copies = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
        with pytest.raises(MismatchError) as caught:
            model.learn(192, callback=saving(folder))
        assert all((copies[name] == tensor).all() for name, tensor in model.policy.state_dict().items())
        return [(difference.path, difference.kind) for difference in caught.value.differences]

    return in_child(script)


def test_a_changed_script_is_refused_with_every_difference_and_nothing_is_changed(tmp_path: Path) -> None:
    def first() -> None:
        off_policy(DQN, 1, env_of("CartPole-v1", 2)).learn(80, callback=saving(tmp_path, 20))

    in_child(first)
    fewer = refused(tmp_path, lambda: off_policy(DQN, 1, env_of("CartPole-v1")))
    assert ("envs/DummyVecEnv/num_envs", "env") in fewer
    larger = refused(tmp_path, lambda: off_policy(DQN, 1, env_of("CartPole-v1", 2), buffer_size=600))
    assert any("observations" in path and kind == "shape" for path, kind in larger)
    wider = refused(tmp_path, lambda: off_policy(DQN, 1, env_of("CartPole-v1", 2), policy_kwargs={"net_arch": [32]}))
    assert any(path.startswith("policy") and kind == "shape" for path, kind in wider)


def test_another_algorithm_is_refused(tmp_path: Path) -> None:
    env: Any = lambda: env_of("CartPole-v1")  # noqa: E731
    in_child(lambda: bool(PPO("MlpPolicy", env(), n_steps=64, policy_kwargs=dict(NET)).learn(128, callback=saving(tmp_path))))
    found = refused(tmp_path, lambda: A2C("MlpPolicy", env(), policy_kwargs=dict(NET)))
    assert ("counters/algorithm", "type") in [(path, kind) for path, kind in found]


def test_a_changed_setting_wins_and_one_that_a_callback_moved_comes_back(tmp_path: Path) -> None:
    class Curriculum(BaseCallback):
        def _on_step(self) -> bool:
            self.model.ent_coef = 0.5 - self.num_timesteps / 1000  # type: ignore[attr-defined]
            return True

    def script(kill_at: int | None, gamma: float) -> Any:
        model = ppo_model(1, tmp_path, gamma=gamma)
        seen: list[float] = []
        model.learn(192, callback=[First(seen.append), Curriculum(), saving(tmp_path), KillAt(kill_at)])
        # What a callback's function holds comes back, too: the 128 steps that were seen before the save.
        return model.gamma, seen[128]

    assert in_child(lambda: script(140, 0.9)) == KILLED
    assert in_child(lambda: script(None, 0.8)) == (0.8, 0.5 - 128 / 1000)


class First(BaseCallback):
    """Tell the entropy coefficient of each step."""

    def __init__(self, tell: Callable[[float], None]) -> None:
        super().__init__()
        self.tell = tell

    def _on_step(self) -> bool:
        self.tell(self.model.ent_coef)  # type: ignore[attr-defined]
        return True


# What cannot be captured, and where the callback stands


class Opaque(gym.Env[Any, Any]):
    """An env that nobody knows."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(-1, 1, (2,))

    def reset(self, **_: Any) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}


@contextlib.contextmanager
def warnings_told() -> Iterator[list[str]]:
    """Collect what milepost's log warns of."""
    told: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    handler, log = Collect(logging.WARNING), logging.getLogger("milepost")
    log.addHandler(handler)
    yield told
    log.removeHandler(handler)


def test_what_a_checkpoint_lacks_is_said_once_and_stands_in_the_manifest(tmp_path: Path) -> None:
    def script() -> Any:
        model = ppo_model(1, tmp_path, env=DummyVecEnv([Opaque]))
        with warnings_told() as told:
            model.learn(192, callback=saving(tmp_path))
        with CheckpointEngine(tmp_path / "run", state={"counters": {}}) as engine:
            found: Any = engine.peek()
        exactness = {component.name: component.exactness for component in found.components}
        return [text for text in told if "DummyVecEnv/Opaque" in text], exactness

    told, exactness = in_child(script)
    assert len(told) == 1
    assert told[0].startswith("a resumed run may differ from this one: `envs` is saved without")
    assert exactness.pop("envs") == "not captured"
    assert set(exactness.values()) == {"exact"}


def test_an_env_that_cannot_be_brought_back_begins_a_new_episode_with_its_own_observation(tmp_path: Path) -> None:
    # research/rlframeworks.md 8, bug 5: a stale last observation against an env that stands elsewhere.
    def script(kill_at: int | None) -> Any:
        model = ppo_model(1, tmp_path, env=Growing())
        seen: list[Any] = []
        with warnings_told() as told:
            model.learn(192, callback=[Watch(seen.append), saving(tmp_path), KillAt(kill_at)])
        assert any("Growing" in text for text in told)
        return seen[128]  # the list comes back with what was seen before the save

    assert in_child(lambda: script(140)) == KILLED
    assert in_child(lambda: script(None)) == (129, 0.0, True, 1)


class Growing(Opaque):
    """An env whose observation is the number of its steps."""

    observation_space = gym.spaces.Box(0, 1e6, (1,))
    count = 0

    def reset(self, **_: Any) -> Any:
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.full(1, self.count, np.float32), 0.0, False, False, {}


class Watch(BaseCallback):
    """Tell step, last observation, episode start, and how many rewards the Monitor has seen."""

    def __init__(self, tell: Callable[[Any], None]) -> None:
        super().__init__()
        self.tell = tell

    def _on_step(self) -> bool:
        model: Any = self.model
        rewards = model.env.envs[0].rewards
        self.tell((self.num_timesteps, float(model._last_obs[0, 0]), bool(model._last_episode_starts[0]), len(rewards)))
        return True


def test_a_callback_that_would_not_see_rollouts_is_refused(tmp_path: Path) -> None:
    model = ppo_model(1, tmp_path)
    with pytest.raises(UsageError, match="does not see the rollouts"):
        model.learn(64, callback=EveryNTimesteps(10, saving(tmp_path)))
    with pytest.raises(UsageError, match="two Checkpointing"):
        model.learn(64, callback=[saving(tmp_path), saving(tmp_path / "b")])
    assert not (tmp_path / "run").exists()
