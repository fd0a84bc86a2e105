"""Several ranks save and load as one, and fail as one: FSDP2 and DDP, copies and live tensors. A6, A9, A14

A launch of ranks takes seconds: all that two of them do is checked in one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import milepost
from milepost.errors import MilepostError, StoreError
from milepost.pytorch import RecoverInfo, TrainEngine, WeightUpdate, dcp
from milepost.pytorch.dcp.holding import is_held
from milepost.pytorch.recover import loading
from milepost.pytorch.recover.staging import Copies
from tests.pytorch.dcp.ranks import run as launch
from tests.pytorch.recover.gates import Gate, failing_blobs, held_blobs
from tests.pytorch.recover.test_refusals import Counter, Sampler, damage
from tests.pytorch.recover.test_round_trips import handler
from tests.pytorch.recover.training import Loader, at, digest, engines, run, train

MIXED = {"default": "async", "critic": "sync", "ref": "async"}
FULL = StoreError("no space left on device", kind="disk-full", retryable=False)


def made(rank: int, modes: Any = MIXED, seed: int = 0) -> tuple[dict[str, TrainEngine], Loader]:
    trained, loader = engines(shard=True, modes=modes, seed=seed), Loader(rank)
    torch.manual_seed(rank)
    train(trained, loader)
    return trained, loader


def told(act: Callable[[], object]) -> tuple[str, str]:
    """Return which error something raises on this rank: its class and kind."""
    try:
        act()
    except MilepostError as error:
        return type(error).__name__, error.kind
    return "", ""


def goes_on(rank: int, place: str, until: int) -> tuple[str, RecoverInfo | None]:
    """Train as far as ``until`` from wherever there is something, and return what each rank ends with."""
    trained, loader = engines(shard=True, modes=MIXED), Loader(rank)
    torch.manual_seed(rank)
    with handler(Path(place), keep=milepost.Keep(last=2)) as each:
        info = each.load(trained, dataloader=loader, extra={"mine": Counter(), "ours": Counter()})
        things = {"mine": Counter(rank), "ours": Counter(7)}
        run(each, trained, loader, until, info.last_step_info.next().global_step if info else 0, extra=things)
    return digest(trained, loader), info


def has_its_own_things(rank: int, place: Path) -> Any:
    trained, loader = made(rank)
    things = {"mine": Counter(rank), "ours": Counter(7), f"of rank {rank}": Counter(3)}
    with handler(place) as each:
        each.dump(trained, at(0), dataloader=loader, extra=things, force=True)
        each.wait()
        dist.barrier()
        fresh = {name: Counter(9) for name in things}
        info = each.load(trained, dataloader=loader, extra=fresh)
    assert info is not None
    return [fresh[name].value - things[name].value for name in things], info.inexact, info.warnings


def fails_while_staging(rank: int, place: Path) -> Any:
    trained, loader = made(rank)
    real = Copies.make

    def make(self: Copies, tensors: Any) -> Any:
        if rank == 1:
            raise MemoryError("no memory for copies")
        return real(self, tensors)

    with handler(place) as each:
        with mock.patch.object(Copies, "make", make):
            first = told(lambda: each.dump(trained, at(0), dataloader=loader, force=True))
        return first, each.newest, each.dump(trained, at(0), dataloader=loader, force=True)


def fails_while_captured(rank: int, place: Path) -> Any:
    trained, _loader = made(rank)

    class Broken(Loader):
        def state_dict(self) -> dict[str, Any]:
            if rank == 0:
                raise ValueError("no state")
            return super().state_dict()

    with handler(place) as each:
        return told(lambda: each.dump(trained, at(0), dataloader=Broken(), force=True)), each.newest


def fails_while_training_waits(rank: int, place: Path) -> Any:
    trained, loader = made(rank)
    with handler(place) as each:
        with failing_blobs(FULL, nth=1 if rank == 1 else 99):
            first = told(lambda: each.dump(trained, at(0), dataloader=loader, force=True))
        return first, each.newest, each.dump(trained, at(0), dataloader=loader, force=True)


def fails_beside_training(rank: int, place: Path) -> Any:
    trained, loader = made(rank)
    found: list[Any] = []
    with handler(place) as each:
        with failing_blobs(FULL, nth=2 if rank == 1 else 99):
            found.append(told(lambda: each.dump(trained, at(0), dataloader=loader, force=True)))
            assert each._saving._flight is not None
            each._saving._flight.join()
        train(trained, loader)  # whoever notices first: all raise at the same dump, due or not
        found.append(told(lambda: each.dump(trained, at(1), dataloader=loader)))
        found.append(told(each.wait))
        return found, each.newest, each.dump(trained, at(2), dataloader=loader, force=True)


def fails_after_the_first_change_of_a_load(rank: int, place: Path) -> Any:
    trained, loader = made(rank)
    with handler(place) as each:
        each.dump(trained, at(0), dataloader=loader, force=True)
        each.wait()

        def put(*_: Any) -> None:
            if rank == 1:
                raise ValueError("a hook of the model's own")

        sampler = Sampler()
        with mock.patch.object(loading, "put_model", put):
            found = [told(lambda: each.load(trained, dataloader=loader, inference=sampler))]
        found.append(told(lambda: each.dump(trained, at(1), dataloader=loader, force=True)))
        loaded = each.load(trained, dataloader=loader, inference=sampler)
        assert loaded is not None
        return found, [one if isinstance(one, str) else one[0] for one in sampler.told], loaded.step


def does_not_fit_on_one_rank(rank: int, place: Path) -> Any:
    trained, loader = made(rank)
    with handler(place) as each:
        each.dump(trained, at(0), dataloader=loader, force=True)
        each.wait()
        if rank == 1:
            trained["critic"] = TrainEngine(trained["critic"].model)
        before = digest(trained, loader)
        found = told(lambda: each.load(trained, dataloader=loader))
        return found, digest(trained, loader) == before


def sharded(trained: dict[str, TrainEngine], loader: Loader) -> str:
    """Return the digest of what is not DDP's: there each rank gets the buffers of rank 0."""
    return digest({name: trained[name] for name in ("critic", "ref")}, loader)


def is_damaged(rank: int, place: Path) -> Any:
    trained, loader = made(rank)
    with handler(place, keep=milepost.Keep(last=2)) as each:
        for step in (0, 1):
            each.dump(trained, at(step), dataloader=loader, force=True)
            if step == 0:
                was = sharded(trained, loader)
            train(trained, loader)
        each.wait()  # the last of it is written beside training
        dist.barrier()
        if rank == 0:
            damage(each.root, 2, "critic/policy")
        dist.barrier()
        info = each.load(trained, dataloader=loader)
        assert info is not None
        return info.step, len(info.skipped), sharded(trained, loader) == was


def is_published_at_once(rank: int, place: Path) -> Any:
    trained, loader = made(rank, None)
    with handler(place, save_mode="async") as each:
        with held_blobs() as gate:
            each.dump(trained, at(0), dataloader=loader, force=True)
            gate.wait()
            train(trained, loader)
            dist.barrier()
            before = each.newest
            dist.barrier()
        assert each._saving._flight is not None
        each._saving._flight.join()
        assert each.newest is not None
        return before, each.newest.number, each.staged_bytes > 0


def leaves_at_another_step(rank: int, place: Path) -> Any:
    trained, loader = made(rank)
    with handler(place) as each:
        return told(lambda: each.dump(trained, at(rank), dataloader=loader))


class Failing(Sampler):
    """Fail on rank 1 before it asks for weights that are sharded."""

    def update_weights(self, update: WeightUpdate) -> None:
        if dist.get_rank() == 1:
            raise OSError("no connection to the sampling side")
        super().update_weights(update)


def fails_to_hand_over(rank: int, place: Path) -> Any:
    model = torch.nn.Linear(4, 2)
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
    trained = {"default": TrainEngine(model, save_mode="sync")}
    with handler(place) as each:
        each.dump(trained, at(0), force=True)
        first = told(lambda: each.load(trained, inference=Failing()))
        again = Sampler()
        each.load(trained, inference=again)
        return first, [one if isinstance(one, str) else one[4]["weight"].shape for one in again.told]


SCENES = (
    fails_to_hand_over,
    fails_while_staging,
    fails_while_captured,
    fails_while_training_waits,
    fails_beside_training,
    fails_after_the_first_change_of_a_load,
    does_not_fit_on_one_rank,
    is_damaged,
    is_published_at_once,
    leaves_at_another_step,
    has_its_own_things,
)


def scenes(rank: int, place: str) -> dict[str, Any]:
    os.environ.pop("MILEPOST_STOP", None)
    return {scene.__name__: scene(rank, Path(place) / scene.__name__) for scene in SCENES}


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    place = tmp_path_factory.mktemp("scenes")
    return launch(2, scenes, place, str(place))


LOST = ("ServiceError", "rank-failed")
ON_BOTH = {
    fails_to_hand_over: (("UsageError", "ranks-apart"), ["pause", torch.Size([2, 4]), "resume"]),
    fails_while_staging: (LOST, None, True),
    fails_while_captured: (LOST, None),
    fails_while_training_waits: (("StoreError", "disk-full"), None, True),
    fails_beside_training: ([("", ""), ("SaveFailed", "disk-full"), ("", "")], None, True),
    fails_after_the_first_change_of_a_load: (
        [LOST, ("UsageError", "half-loaded")],
        ["pause", "pause", 1, "resume"],
        0,
    ),
    does_not_fit_on_one_rank: (("MismatchError", "missing"), True),
    is_damaged: (0, 1, True),
    is_published_at_once: (None, 1, True),
    leaves_at_another_step: ("UsageError", "ranks-apart"),
    has_its_own_things: ([0, 0, 0], (), ()),
}


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_what_one_rank_meets_all_of_them_are_told(on_two_ranks: list[dict[str, Any]], scene: Callable[..., Any]) -> None:
    assert [found[scene.__name__] for found in on_two_ranks] == [ON_BOTH[scene]] * 2


def weights(rank: int, place: str) -> tuple[dict[str, Any], RecoverInfo | None]:
    trained, loader = engines(shard=dist.is_initialized(), seed=5), Loader(rank)
    with handler(Path(place)) as each:
        things = {"mine": Counter(9), "ours": Counter(9)}
        info = each.load(trained, dataloader=loader, extra=things)
    found: dict[str, Any] = {"position": loader.position, **{name: thing.value for name, thing in things.items()}}
    for name, engine in trained.items():
        moments = engine.optimizer.state_dict()["state"] if engine.optimizer else {}
        tensors = {
            **engine.model.state_dict(),
            **{f"{n}.{key}": value for n, state in moments.items() for key, value in state.items()},
        }
        for key, value in tensors.items():
            if isinstance(value, torch.Tensor):
                whole = value.full_tensor() if isinstance(value, DTensor) else value
                found[f"{name}.{key.removeprefix('module.')}"] = whole.detach().float().tolist()
    return found, info


# Five launches of ranks, each some seconds: that a run is resumed exactly needs one which was not, one before, one after.
def test_ranks_go_on_bit_for_bit_and_other_numbers_of_ranks_load_the_same(tmp_path: Path) -> None:
    alone = launch(2, goes_on, tmp_path / "a", str(tmp_path / "a"), 10)
    launch(2, goes_on, tmp_path / "b", str(tmp_path / "b"), 7)
    resumed = launch(2, goes_on, tmp_path / "b", str(tmp_path / "b"), 10)
    assert [found for found, _ in resumed] == [found for found, _ in alone]
    infos = [info for _, info in resumed]
    assert infos[0] == infos[1]
    assert infos[0] is not None
    assert infos[0].exact
    assert infos[0].step == 5
    four = launch(4, weights, tmp_path / "b", str(tmp_path / "b"))
    one = launch(1, weights, tmp_path / "b", str(tmp_path / "b"))
    assert four[0][0] == one[0][0]
    assert all(found == four[0] for found in four)
    info = four[0][1]
    assert info is not None
    assert not info.exact
    assert {text.partition(":")[0] for text in info.inexact} >= {"rng", "extra/mine"}
    assert (four[0][0]["mine"], four[0][0]["ours"]) == (9, 7)  # one is kept, the other was the same on all ranks
    assert one[0][0]["position"] == 9  # both ranks were at the same place


def ends_its_groups(rank: int, place: str) -> Any:
    """End all process groups before the thread of a save has begun, and make new ones; return what is told of that."""
    trained, loader = made(rank, dict.fromkeys(MIXED, "async"))
    gate, real, told_of = Gate(), dcp.save, []

    def late(*args: Any, **more: Any) -> Any:
        gate.pass_through()
        return real(*args, **more)

    each = handler(Path(place))
    each.load(trained, dataloader=loader)
    with mock.patch.object(dcp, "save", late):
        each.dump(trained, at(0), dataloader=loader, force=True)
        gate.wait()
        dist.destroy_process_group()
        gate.open()
        told_of.append(told(each.wait))
    told_of.append(told(lambda: each.dump(trained, at(1), dataloader=loader, force=True)))
    dist.init_process_group("gloo", init_method=f"file://{place}-again", rank=rank, world_size=2)
    told_of.append(told(lambda: each.dump(trained, at(1), dataloader=loader, force=True)))
    told_of.append(told(each.close))
    dist.barrier()
    return told_of, each.newest, is_held(each.root)


def test_no_rank_saves_by_itself_once_the_process_groups_are_gone(tmp_path: Path) -> None:
    for errors, newest, is_still_held in launch(2, ends_its_groups, tmp_path / "meet", str(tmp_path / "root")):
        assert errors == [("SaveFailed", "group-gone"), *[("UsageError", "group-gone")] * 2, ("", "")]
        assert newest is None
        assert not is_still_held
