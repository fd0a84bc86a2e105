"""A trainer that comes back from a checkpoint, and those who sample: none of them samples with weights that it has left."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from milepost.errors import CorruptError, MismatchError, ServiceError
from milepost.pytorch import TrainEngine, WeightUpdate
from milepost.records import Version
from milepost.service import Client, connect
from milepost.service.core.records import Commit, Shard, Weights
from milepost.service.inference import ServiceInference, came_from
from milepost.service.standing import Standing, VersionStanding
from tests.at_length import AT_LENGTH
from tests.cli.serving import FAILS_AFTER_S, environment, forget, serving
from tests.pytorch.recover.test_refusals import damage
from tests.pytorch.recover.test_round_trips import handler
from tests.pytorch.recover.training import Loader, at, engines, train
from tests.service.leftovers import nothing_outlives_the_tests

__all__ = ["nothing_outlives_the_tests"]  # a fixture, found by its name


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A root with a service of its own process."""
    root = tmp_path / "service-root"
    with serving(root):
        yield root
    forget(root)


@pytest.fixture
def sampler(root: Path) -> Iterator[Client]:
    with connect(root, component="sampler", role="sampler") as client:
        yield client


def trainer_of(root: Path) -> Client:
    return connect(root, component="trainer", role="trainer")


def weights_of(trained: dict[str, TrainEngine]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in trained["default"].model.state_dict().items() if isinstance(value, torch.Tensor)}


def trains(folder: Path, root: Path, steps: int, saved: int) -> dict[str, torch.Tensor]:
    """Train, commit each step, save after ``saved`` of them, and end; return the weights that were saved."""
    trained, loader = engines(), Loader()
    with trainer_of(root) as service, handler(folder) as each:
        each.load(trained)
        for step in range(steps):
            train(trained, loader)
            service.commit(step, weights_of(trained))
            if step == saved - 1:
                each.dump(trained, at(step), force=True)
                was = {name: value.clone() for name, value in weights_of(trained).items()}
        each.wait()
    return was


def same(fetched: Any, state: dict[str, torch.Tensor]) -> bool:
    tensors = fetched.tensors()
    return tensors.keys() >= {*state} and all(torch.equal(tensors[name], value) for name, value in state.items())


def is_held(sampler: Client) -> bool:
    try:
        sampler.fetch()
    except ServiceError as error:
        return error.kind == "held"
    return False


class Watched(ServiceInference):
    """Look at what a sampler is given at each of the three moments."""

    def __init__(self, service: Client, sampler: Client, trained: dict[str, TrainEngine]) -> None:
        super().__init__(service)
        self.sampler, self.trained = sampler, trained
        self.seen: list[object] = []
        self.before = {name: value.clone() for name, value in weights_of(trained).items()}

    def pause(self) -> None:
        super().pause()
        untouched = all(torch.equal(value, self.before[name]) for name, value in weights_of(self.trained).items())
        self.seen.append(("paused", untouched, is_held(self.sampler)))

    def update_weights(self, update: WeightUpdate) -> None:
        held_before = is_held(self.sampler)
        super().update_weights(update)
        self.seen.append(("updated", held_before, is_held(self.sampler)))


def test_the_first_fetch_after_a_load_is_answered_with_the_restored_weights_and_none_before(
    tmp_path: Path, root: Path, sampler: Client
) -> None:
    was = trains(tmp_path, root, steps=4, saved=2)
    newest = sampler.fetch()
    assert newest is not None
    assert newest.step == 3
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(sampler.fetch(FAILS_AFTER_S)), name="milepost-test-waits")
    with trainer_of(root) as service, connect(root, component="looker", role="sampler") as looker, handler(tmp_path) as each:
        waiting.start()
        inference = Watched(service, looker, again := engines(seed=2))
        info = each.load(again, inference=inference)
        assert info is not None
        assert inference.seen == [("paused", True, True), ("updated", True, True)]
        waiting.join(FAILS_AFTER_S)
        (restored,) = got
        assert (restored.step, restored.at) == (1, inference.done.at if inference.done else None)
        assert same(restored, was)
        (first,) = [looker.fetch()]
        assert first is not None
        assert first.at == restored.at
        standing = service.status()
        assert standing.held_by == ""
        assert standing.live is not None
        assert standing.live.parent is not None
        assert standing.live.parent.number == 2  # of step 1: what came after it is a lost branch
        (linked,) = [each.generation for each in standing.versions if each.weights.at == restored.at]
        assert linked == info.generation
        service.commit(2, weights_of(again))  # and training goes on from there


def test_after_a_load_that_has_failed_sampling_stays_held_until_one_succeeds(tmp_path: Path, root: Path, sampler: Client) -> None:
    was = trains(tmp_path, root, steps=2, saved=2)
    with trainer_of(root) as service:
        inference = ServiceInference(service)
        with handler(tmp_path) as each, pytest.raises(MismatchError):
            each.load({"default": TrainEngine(torch.nn.Linear(1, 1))}, inference=inference)
        assert not is_held(sampler)  # nothing was changed
        whole = damaged(tmp_path)
        with handler(tmp_path) as each, pytest.raises(CorruptError):
            each.load(engines(), which=1, inference=inference)
        assert is_held(sampler)
        mend(whole)
        with handler(tmp_path) as each:
            each.load(engines(seed=3), inference=inference)
        restored = sampler.fetch(has=None)
        assert restored is not None
        assert same(restored, was)


def damaged(folder: Path) -> dict[Path, bytes]:
    blobs = {path: path.read_bytes() for path in (Path(handler(folder).root) / "blobs").iterdir()}
    damage(handler(folder).root, 1, "ref/policy")
    return blobs


def mend(blobs: dict[Path, bytes]) -> None:
    for path, data in blobs.items():
        path.write_bytes(data)


COMES_BACK = """
import sys
from pathlib import Path
from milepost.service import connect
from milepost.service.inference import ServiceInference
from tests.pytorch.recover.test_round_trips import handler
from tests.pytorch.recover.training import engines

class Stands(ServiceInference):
    def update_weights(self, update):
        if sys.argv[3] == "before":
            print("here", flush=True)
            sys.stdin.read()
        super().update_weights(update)
        print("here", flush=True)
        sys.stdin.read()

service = connect(sys.argv[2], component="trainer", role="trainer")
with handler(Path(sys.argv[1])) as each:
    each.load(engines(seed=2), inference=Stands(service))
"""


# A trainer of its own, which imports torch: some seconds.
@pytest.mark.parametrize("when", ["before", "after"] if AT_LENGTH else ["before"])
def test_a_trainer_that_is_killed_while_it_loads_leaves_sampling_held_until_the_next_load(
    tmp_path: Path, root: Path, sampler: Client, when: str
) -> None:
    was = trains(tmp_path, root, steps=3, saved=1)
    process = subprocess.Popen(
        [sys.executable, "-c", COMES_BACK, str(tmp_path), str(root), when],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment() | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.kill()
    assert is_held(sampler)
    with trainer_of(root) as service, handler(tmp_path) as each:
        assert is_held(sampler)  # that somebody is there again is not enough
        each.load(engines(seed=3), inference=ServiceInference(service))
    restored = sampler.fetch()
    assert restored is not None
    assert same(restored, was)


def test_ranks_without_a_connection_gather_weights_and_do_nothing_else() -> None:
    asked: list[int] = []

    def state() -> dict[str, torch.Tensor]:
        asked.append(1)
        return {}

    inference = ServiceInference(None)
    inference.pause()
    inference.update_weights(WeightUpdate(3, 2, "run", 1, "default", state))
    inference.resume()
    assert asked == [1]
    assert inference.done is None


def test_restored_weights_come_from_the_newest_version_that_is_no_further_and_not_left() -> None:
    def version(number: int, step: int, *, is_lost: bool = False) -> VersionStanding:
        weights = Weights(Commit(1, number), Version("r", step, 0), (Shard("weights", 1, "d"),), None, "t", "i", str(number))
        return VersionStanding(weights, ("disk",), is_lost)

    standing = Standing("r", 1, None, None, (version(5, 4), version(4, 2, is_lost=True), version(3, 2), version(2, 1)), (), 0, 0)
    assert came_from(standing, 3) == Commit(1, 3)
    assert came_from(standing, 4) == Commit(1, 5)
    assert came_from(standing, 0) is None
