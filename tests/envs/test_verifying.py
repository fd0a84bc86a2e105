"""`milepost.envs.verify` and `doctor env`: what is captured exactly passes, and what only seems to be is caught. B10, B20"""

from __future__ import annotations

import functools
import json
import os
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from click.testing import CliRunner, Result

from milepost.cli.main import main
from milepost.envs import Verdict, verify
from milepost.envs.verifying import verify_named
from milepost.errors import UsageError
from tests.envs import wanderers

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
HERE = "tests.envs.wanderers"


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "env", *arguments], prog_name="milepost")


def worst(verdict: Verdict) -> str:
    assert not verdict.exact
    assert verdict.difference is not None
    return verdict.difference.path


@pytest.mark.parametrize("name", ["CartPole-v1"])
def test_an_env_that_is_captured_exactly_is_proven_to_be_in_a_new_process(name: str) -> None:
    verdict = verify_named(name, steps=60)
    assert verdict.exact, verdict
    assert verdict.steps == 120
    assert [layer.way for layer in verdict.layers] == ["plain"] * 4
    assert verdict.layers[-1].depth == 3
    assert verdict.size_bytes > 0


@pytest.mark.parametrize("make", [wanderers.dummy, wanderers.subproc, wanderers.sync, wanderers.asynchronous])
def test_vector_envs_of_both_kinds_are_proven_with_their_workers(make: Any) -> None:
    # Forked children, to spare an import of torch each.
    verdict = verify(functools.partial(make), steps=40)
    assert verdict.exact, verdict
    assert verdict.layers[-1].count == 2
    assert verdict.episodes > 2


def test_a_factory_that_no_other_process_can_find_runs_in_a_child() -> None:
    assert verify(functools.partial(gym.make, "Acrobot-v1"), steps=20).exact
    assert verify(lambda: wanderers.Plain(), steps=20).exact


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_a_child_ends_whatever_is_raised_in_it_and_never_goes_on_as_a_second_caller(raised: type[BaseException]) -> None:
    # A Ctrl-C goes to the whole group: the child would run the rest of the user's script, beside the parent.
    parent = os.getpid()

    def make() -> wanderers.Plain:
        if os.getpid() != parent:
            raise raised
        return wanderers.Plain()

    verdict = verify(make, steps=5)
    assert os.getpid() == parent
    assert not verdict.exact
    assert "the child ended with exit code 1" in verdict.error


def test_a_layer_that_nobody_can_capture_is_named_and_nothing_is_tried() -> None:
    verdict = verify(lambda: wanderers.Unknown(), steps=20)
    assert (verdict.whole, verdict.exact, verdict.steps) == (False, False, 0)
    assert [left.path for left in verdict.left_out] == ["Unknown"]


def test_an_env_whose_own_protocol_forgets_a_generator_is_caught_at_its_first_step() -> None:
    assert worst(verify(lambda: wanderers.ForgetsItsNoise(), steps=20)) == "extra/steps[0]/observation"


def test_an_env_whose_own_protocol_forgets_what_matters_only_at_the_next_reset_is_caught_there() -> None:
    # Until then both see the same: an episode as long as this one does not end by itself.
    assert worst(verify(lambda: wanderers.ForgetsItsLevel(), steps=20)) == "extra/steps[20]/reset/observation"


def test_an_env_that_lies_is_caught_when_it_is_brought_back() -> None:
    verdict = verify(lambda: wanderers.Lies(), steps=20)
    assert not verdict.exact
    assert "shows something else than when it was saved" in verdict.error


def test_a_generator_that_nobody_draws_from_any_more_counts_too() -> None:
    assert worst(verify(lambda: wanderers.LeavesItsGenerator(), steps=20)).startswith("envs/")


def test_an_env_that_draws_from_the_process_is_exact_since_that_is_saved_too() -> None:
    assert verify(lambda: wanderers.DrawsFromTheProcess(), steps=20).exact


def test_an_env_that_keeps_something_in_its_module_is_caught() -> None:
    # In this process it would have been right: what lives in a module goes on here, and is gone there.
    assert worst(verify(wanderers.KeepsItInTheModule, steps=20)) == "extra/steps[0]/observation"


def test_an_env_that_cannot_be_brought_back_is_told_with_its_error() -> None:
    verdict = verify(lambda: wanderers.CannotBeSet(), steps=20)
    assert "no way back" in verdict.error


@pytest.mark.parametrize("name", ["Ant-v5", "ale_py:ALE/Breakout-v5"])
@pytest.mark.slow  # two processes import a simulator
def test_simulators_are_proven(name: str) -> None:
    assert verify_named(name, steps=40).exact


def test_the_verdict_reads_well_and_its_exit_code_says_it() -> None:
    result = doctor("CartPole-v1", "--steps", "30")
    assert result.exit_code == 0, result.output
    assert "exact: brought back in a new process, every bit is the same, over 60 steps" in result.stdout
    assert re.search(r"^      CartPoleEnv +its attributes +\d+ B +\d", result.stdout, re.MULTILINE)
    result = doctor(f"{HERE}:ForgetsItsNoise", "--steps", "30")
    assert result.exit_code == 20
    assert "step 1, observation[0]: " in result.stdout
    assert result.stdout.count("hint: ") == 1
    result = doctor(f"{HERE}:Unknown", "--steps", "5")
    assert result.exit_code == 20
    assert "NOT CAPTURED" in result.stdout
    assert "left out: Unknown (nobody knows its state" in result.stdout


def test_the_document_has_the_same() -> None:
    found = json.loads(doctor(f"{HERE}:ForgetsItsNoise", "--steps", "30", "--json").stdout)
    assert (found["message_type"], found["exact"], found["whole"]) == ("doctor_env", False, True)
    assert found["difference"]["path"] == "extra/steps[0]/observation"
    assert found["layers"][0]["way"] == "own"


def test_a_factory_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_only.py").write_text("import gymnasium\n\ndef make():\n    return gymnasium.make('Pendulum-v1')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert doctor("mine_only:make", "--steps", "20").exit_code == 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Nope-v1", "no-factory"),
        (f"{HERE}:nope", "no-factory"),
        ("nowhere:nope", "no-factory"),
        (f"{HERE}:np", "no-factory"),
        (f"{HERE}:not_an_env", "no-env"),
        (f"{HERE}:raises", "env-failed"),
        (f"{HERE}:exits", "env-failed"),
    ],
)
def test_what_is_no_env_is_one_clear_error(name: str, kind: str) -> None:
    with pytest.raises(UsageError) as caught:
        verify_named(name, steps=5)
    assert caught.value.kind == kind
    assert doctor(name).exit_code == 2


def test_steps_are_at_least_one() -> None:
    with pytest.raises(UsageError):
        verify(wanderers.Plain, steps=0)


def test_verifying_leaves_the_processes_own_generators_alone_but_for_what_the_env_draws() -> None:
    np.random.seed(3)
    verify(lambda: wanderers.Plain(), steps=5)
    assert np.random.rand() == np.random.RandomState(3).rand()
