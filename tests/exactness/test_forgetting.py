"""Nothing is captured in vain, nothing that is needed is missed, and the list of what is not needed is true."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from click.testing import CliRunner

import milepost
from exactness.forgetting import QUICK, Item, forget_each, judged
from exactness.listed import LISTED, Listed
from exactness.trees import NOTHING, at, items_of, replaced, text_of
from milepost.adapters.sb3 import Checkpointing
from milepost.cli.main import main as cli

LIST = (Listed("logs/*", "logs", "tells", ("run",)), Listed("**/seed", "constant", "set once", ("run",)))


@pytest.mark.slow
@pytest.mark.parametrize("run", QUICK)
def test_every_item_of_a_generation_is_needed_or_on_the_list_with_its_reason(run: str) -> None:
    # B20. Half a minute: a short run for each item that is not what a fresh run has. `make exactness` has more runs of it.
    assert forget_each(run).faults == ()


def test_a_listed_item_that_changes_training_is_a_fault() -> None:
    found = [Item("logs/a", "training"), Item("envs/seed", "nothing", constant=True)]
    assert judged("run", found, LIST).faults == ("logs/a: the list says `logs`, but lost, it changes training",)


def test_an_item_that_nothing_needs_and_that_is_not_listed_is_a_fault() -> None:
    found = [Item("logs/a", "logs"), Item("envs/seed", "nothing", constant=True), Item("policy/w", "nothing")]
    assert judged("run", found, LIST).faults == ("policy/w: lost, it changes nothing; not on the list",)


def test_an_item_listed_as_constant_that_is_not_is_a_fault() -> None:
    found = [Item("logs/a", "logs"), Item("envs/seed", "nothing")]
    assert len(judged("run", found, LIST).faults) == 1


def test_a_listed_item_that_is_not_there_any_more_is_a_fault() -> None:
    found = [Item("logs/a", "logs")]
    assert judged("run", found, LIST).faults == ("**/seed: on the list, and not there",)


def test_a_pattern_means_whole_names() -> None:
    entry = Listed("envs/**/state/_seeds", "constant", "", ("run",))
    assert entry.matches("envs/inner[0]/state/_seeds")
    assert entry.matches("envs/inner[0]/inner[1]/state/_seeds")
    assert entry.matches("envs/state/_seeds")
    assert not entry.matches("envs/inner[0]/state/_seeds/more")
    assert not dataclasses.replace(entry, pattern="envs/*").matches("envs/inner[0]/state")


def test_every_entry_has_a_reason_and_a_run() -> None:
    assert [entry.pattern for entry in LISTED if not entry.text or not entry.runs] == []


def test_a_tree_is_walked_attribute_by_attribute() -> None:
    tree = {
        "class": "x.Env",
        "state": {"a": 1, "rms": {"$kind": "object", "state": {"mean": 2}}, "queue": {"$kind": "deque", "items": [1]}},
        "inner": [{"class": "y.Env", "state": {"b": (1, 2)}}],
    }
    paths = list(items_of(tree))
    names = ["state/a", "state/rms/state/mean", "state/queue", "inner[0]/state/b"]
    assert [text_of(path) for path in paths] == names
    other = replaced(tree, paths[1], 5)
    assert at(other, paths[1]) == 5
    assert at(tree, paths[1]) == 2
    assert at(replaced(tree, paths[0], NOTHING), paths[0]) is NOTHING


class Counting(gym.Wrapper[Any, Any, Any, Any]):
    """Be somebody's wrapper, whose state nobody knows."""


def test_what_the_walk_could_not_capture_is_named_at_the_first_save_and_in_the_manifest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", Counting(gym.make("CartPole-v1")), n_steps=8, batch_size=8, device="cpu", seed=1)
    model.note = object()
    model.learn(16, callback=Checkpointing(tmp_path / "run", when=milepost.every(steps=8), writer="inline"))
    told = [record.getMessage() for record in caplog.records if "is saved without" in record.getMessage()]
    assert sum("Counting" in line for line in told) == 1, "once, and not at every save"
    assert sum("model.note" in line for line in told) == 1
    shown = CliRunner().invoke(cli, ["show", str(tmp_path / "run")], prog_name="milepost").output
    assert "Counting" in shown
    assert "model.note" in shown


@pytest.mark.slow
@pytest.mark.parametrize("run", ["PPO", "RecurrentPPO", "SAC, gSDE"])
def test_no_weight_and_no_moment_is_saved_twice(run: str, tmp_path: Path) -> None:
    # An LSTM lists its weights a second time, and a policy holds its optimizer: both are components of their own.
    from exactness import script
    from exactness.forgetting import RUNS

    script.train(RUNS[run], tmp_path / "logs", 1, [script.checkpointing(RUNS[run], str(tmp_path / "run"))])
    tree: Any = milepost.load(tmp_path / "run", parts=["extra"])
    assert [text_of(path) for path in items_of(tree["extra"]["modules"])] == []
