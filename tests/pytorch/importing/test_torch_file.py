"""Files that ``torch.save`` has written come bit for bit, or are refused with what is wrong; nothing in them is run."""

from __future__ import annotations

import argparse
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import milepost
from milepost import CheckpointEngine, CorruptError, MismatchError, Rng, UsageError
from milepost.pytorch.importing.base import Imported, Options
from milepost.pytorch.importing.torch_file import TorchFiles
from milepost.pytorch.importing.usual_keys import component_of, sort_out

KIND = TorchFiles()
WEIGHTS = {"w": torch.ones(1)}


def trainee(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.StepLR]:
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)


def train(net: Any, optimizer: Any, scheduler: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(16, 4) * float(np.random.rand()) + random.random()).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()


def as_people_save_it(net: Any, optimizer: Any, scheduler: Any) -> dict[str, Any]:
    return {
        "epoch": 2,
        "global_step": 5,
        "model_state_dict": net.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "torch_rng_state": torch.get_rng_state(),
        "numpy_rng_state": np.random.get_state(),
        "python_rng_state": random.getstate(),
        "best_loss": 0.5,
        "config": {"layers": [8, 2], "name": "net"},
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("torch") / "last.pt"
    parts = trainee(0)
    train(*parts, 5)
    torch.save(as_people_save_it(*parts), path)
    return path


def bring(path: Path, root: Path, **options: Any) -> Imported:
    assert KIND.recognise(path)
    return KIND.bring(path, str(root), Options(**options))


def bits(*objects: Any) -> list[Any]:
    found: list[Any] = []
    for value in objects:
        state = value.state_dict() if hasattr(value, "state_dict") else value
        if isinstance(state, torch.Tensor):
            found.append(
                (str(state.dtype), tuple(state.shape), state.detach().reshape(-1).contiguous().view(torch.uint8).tolist())
            )
        elif isinstance(state, dict):
            found += [(key, bits(item)) for key, item in state.items()]
        elif isinstance(state, list | tuple):
            found.append([bits(item) for item in state])
        else:
            found.append(state)
    return found


def test_a_run_that_torch_save_has_saved_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    alone = trainee(0)
    train(*alone, 5)
    torch.save(as_people_save_it(*alone), tmp_path / "last.pt")
    train(*alone, 4)

    came = bring(tmp_path / "last.pt", tmp_path / "run")
    assert (came.step, came.generation) == (5, 1)
    net, optimizer, scheduler = trainee(1)
    counters = {"epoch": 0, "global_step": 0}
    state = {"policy": net, "optimizer": optimizer, "lr_scheduler": scheduler, "counters": counters, "rng": Rng()}
    with CheckpointEngine(tmp_path / "run", state=state) as engine:
        restored = engine.resume()
        assert restored is not None
        assert (restored.step, counters) == (5, {"epoch": 2, "global_step": 5})
        train(net, optimizer, scheduler, 4)
        assert bits(net, optimizer, scheduler) == bits(*alone)
        engine.save(9)
    assert milepost.verify(tmp_path / "run").ok


def test_what_is_loaded_is_what_torch_loads_bit_for_bit(saved: Path, tmp_path: Path) -> None:
    bring(saved, tmp_path / "run")
    theirs = torch.load(saved, weights_only=False)
    ours: Any = milepost.load(tmp_path / "run")
    assert bits(ours["policy"]) == bits(theirs["model_state_dict"])
    assert bits(ours["optimizer"]) == bits(theirs["optimizer_state_dict"])
    assert ours["lr_scheduler"] == theirs["scheduler"]
    assert ours["counters"] == {"epoch": 2, "global_step": 5}
    assert ours["extra"] == {"best_loss": 0.5, "config": {"layers": [8, 2], "name": "net"}}
    assert ours["policy"]._metadata == theirs["model_state_dict"]._metadata


def test_whoever_gives_too_little_to_resume_is_told_what_to_give(saved: Path, tmp_path: Path) -> None:
    bring(saved, tmp_path / "run")
    net, optimizer, _ = trainee(1)
    with CheckpointEngine(tmp_path / "run", state={"policy": net, "optimizer": optimizer}) as engine:
        with pytest.raises(MismatchError, match=r"add counters to state=, or load the others alone with resume\(parts="):
            engine.resume()
        assert engine.resume(parts=["policy", "optimizer"]) is not None
    assert bits(net) == bits(torch.load(saved, weights_only=False)["model_state_dict"])


@pytest.mark.parametrize("new_format", [True, False])
def test_a_bare_state_dict_is_the_policy(tmp_path: Path, new_format: bool) -> None:
    net, optimizer, scheduler = trainee(3)
    torch.save(net.state_dict(), tmp_path / "net.pth", _use_new_zipfile_serialization=new_format)
    came = bring(tmp_path / "net.pth", tmp_path / "run", step=7)
    assert (came.components, came.step) == (("policy",), 7)
    assert bool(came.left_out) != new_format, "what cannot be checked is said"
    other = trainee(4)[0]
    with CheckpointEngine(tmp_path / "run", state={"policy": other}) as engine:
        engine.resume()
    assert bits(other) == bits(net)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    torch.save(scheduler.state_dict(), tmp_path / "scheduler.pt")
    added = bring(tmp_path / "optimizer.pt", tmp_path / "run", add=True)
    assert (added.components, added.step) == (("optimizer",), 0)
    assert added.left_out[-1] == "the step: the file does not say it, so it is 0; --step says another"
    assert bring(tmp_path / "scheduler.pt", tmp_path / "run", add=True).components == ("lr_scheduler",)


def test_lightnings_checkpoints_come_with_their_optimizer_as_one(tmp_path: Path) -> None:
    net, optimizer, scheduler = trainee(0)
    train(net, optimizer, scheduler, 2)
    lightning = {
        "epoch": 1,
        "global_step": 2,
        "pytorch-lightning_version": "2.4.0",
        "state_dict": net.state_dict(),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"current": {"ready": 1}}}},
        "callbacks": {},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [scheduler.state_dict()],
    }
    torch.save(lightning, tmp_path / "epoch=1.ckpt")
    assert bring(tmp_path / "epoch=1.ckpt", tmp_path / "run").step == 2
    live = trainee(9)
    state = {"policy": live[0], "optimizer": live[1], "lr_scheduler": live[2], "counters": {"epoch": 0, "global_step": 0}}
    with CheckpointEngine(tmp_path / "run", state=state) as engine:
        engine.resume()
    assert bits(*live) == bits(net, optimizer, scheduler)


@pytest.mark.parametrize(
    ("key", "value", "component"),
    [
        ("model_state_dict", WEIGHTS, "policy"),
        ("state_dict", WEIGHTS, "policy"),
        ("model", {"layers": WEIGHTS}, "policy"),
        ("model", {"layers": 3}, "extra"),
        ("Actor", WEIGHTS, "policy"),
        ("policy", WEIGHTS, "policy"),
        ("q_network", WEIGHTS, "policy"),
        ("critic_state_dict", WEIGHTS, "value"),
        ("value", WEIGHTS, "value"),
        ("value", 3.0, "extra"),
        ("target_net", WEIGHTS, "target"),
        ("critic_target", WEIGHTS, "target"),
        ("target_kl", 0.1, "extra"),
        ("random_crop", True, "rng"),
        ("optim", {"state": {}, "param_groups": []}, "optimizer"),
        ("critic_optimizer", {"state": {}, "param_groups": []}, "optimizer"),
        ("optimizer", "adam", "extra"),
        ("scheduler", {"last_epoch": 1}, "lr_scheduler"),
        ("lr_schedulers", [{"last_epoch": 1}], "lr_scheduler"),
        ("epoch", 3, "counters"),
        ("num_timesteps", np.int64(3), "counters"),
        ("step", torch.tensor(3), "counters"),
        ("step", 0.5, "extra"),
        ("epoch", True, "extra"),
        ("cuda_rng_state", [], "rng"),
        ("model_config", {}, "extra"),
        ("args", {}, "extra"),
    ],
)
def test_the_usual_keys_are_the_components_they_stand_for(key: str, value: Any, component: str) -> None:
    assert component_of(key, value) == component


def test_a_key_is_the_component_that_it_is_said_to_be(saved: Path, tmp_path: Path) -> None:
    came = bring(saved, tmp_path / "run", components={"model_state_dict": "actor/policy", "best_loss": "evaluation"})
    assert {"actor/policy", "evaluation"} <= set(came.components)
    assert "policy" not in came.components
    with pytest.raises(UsageError, match="no such key") as found:
        bring(saved, tmp_path / "other", components={"modle": "policy"})
    assert "model_state_dict" in str(found.value)
    with pytest.raises(UsageError, match="not a component's name"):
        bring(saved, tmp_path / "other", components={"config": "settings"})
    with pytest.raises(UsageError, match="a counter is a whole number"):
        bring(saved, tmp_path / "other", components={"best_loss": "counters"})
    assert not (tmp_path / "other").exists()


def test_two_networks_and_two_optimizers_are_one_component_each_by_their_keys() -> None:
    optimizer = {"state": {}, "param_groups": []}
    weights = [{"w": torch.ones(1)}, {"w": torch.zeros(1)}]
    found = sort_out({"qf1": weights[0], "qf2": weights[1], "actor_optimizer": optimizer, "q_optimizer": optimizer}, {})
    assert {key: value.state for key, value in found.state["value"].items()} == {"qf1": weights[0], "qf2": weights[1]}
    assert list(found.state["optimizer"]) == ["actor_optimizer", "q_optimizer"]


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("new_format", [True, False])
def test_a_file_that_would_run_something_is_refused_by_the_name_of_what_it_calls(tmp_path: Path, new_format: bool) -> None:
    value = {"model": trainee(0)[0].state_dict(), "hook": Evil(tmp_path / "ran")}
    torch.save(value, tmp_path / "evil.pt", _use_new_zipfile_serialization=new_format)
    with pytest.raises(UsageError, match=r"(?s)calls=`posix\.system.*--trust-pickle") as found:
        bring(tmp_path / "evil.pt", tmp_path / "run")
    assert found.value.kind == "pickle-not-trusted"
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "run").exists()


def test_of_a_trusted_file_comes_what_is_data_and_the_rest_is_named(tmp_path: Path) -> None:
    net = trainee(0)[0]
    torch.save({"model": net, "args": argparse.Namespace(lr=0.1), "epoch": 3}, tmp_path / "all.pt")
    with pytest.raises(UsageError, match="pickle"):
        bring(tmp_path / "all.pt", tmp_path / "run")
    came = bring(tmp_path / "all.pt", tmp_path / "run", trust_pickle=True)
    assert came.components == ("policy", "counters")
    assert [text.partition(":")[0] for text in came.left_out] == ["args"]
    live = trainee(5)[0]
    with CheckpointEngine(tmp_path / "run", state={"policy": live, "counters": {"epoch": 0}}) as engine:
        engine.resume()
    assert bits(live) == bits(net)


def _places(data: bytes, path: Path) -> list[tuple[str, int, int]]:
    """Return the records of an archive, each with where its bytes lie."""
    found = []
    for entry in zipfile.ZipFile(path).infolist():
        at = entry.header_offset
        at += 30 + int.from_bytes(data[at + 26 : at + 28], "little") + int.from_bytes(data[at + 28 : at + 30], "little")
        found.append((entry.filename, at, at + entry.file_size))
    return found


def test_a_damaged_tensor_is_named_and_nothing_is_written(saved: Path, tmp_path: Path) -> None:
    data = bytearray(saved.read_bytes())
    records = {name.rpartition("/")[2]: start for name, start, _ in _places(bytes(data), saved)}
    data[records["0"] + 5] ^= 1
    (tmp_path / "flipped.pt").write_bytes(data)
    torch.load(tmp_path / "flipped.pt", weights_only=False)  # torch sees nothing
    with pytest.raises(CorruptError, match=r"tensors=`model_state_dict/0\.weight`.*damaged=`1`") as found:
        bring(tmp_path / "flipped.pt", tmp_path / "run")
    assert found.value.kind == "damaged-source"
    assert not (tmp_path / "run").exists()


def test_any_byte_of_a_record_that_is_not_what_it_was_is_told(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    place, whole = tmp_path_factory.mktemp("flips"), saved.read_bytes()
    inside = [at for _, start, end in _places(whole, saved) for at in range(start, end)]

    @settings(max_examples=60, deadline=None)
    @given(at=st.sampled_from(inside), bit=st.integers(0, 7))
    def flip(at: int, bit: int) -> None:
        data = bytearray(whole)
        data[at] ^= 1 << bit
        (place / "x.pt").write_bytes(data)
        with pytest.raises(CorruptError):
            KIND.bring(place / "x.pt", str(place / "run"), Options())
        assert not (place / "run").exists()

    flip()


@pytest.mark.parametrize("new_format", [True, False])
def test_a_file_that_was_cut_off_anywhere_is_told_and_nothing_is_written(
    new_format: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("cuts")
    torch.save({"model": trainee(0)[0].state_dict(), "epoch": 1}, place / "x.pt", _use_new_zipfile_serialization=new_format)
    whole = (place / "x.pt").read_bytes()

    @settings(max_examples=60, deadline=None)
    @given(length=st.integers(64, len(whole) - 1))
    def cut(length: int) -> None:
        (place / "x.pt").write_bytes(whole[:length])
        assert KIND.recognise(place / "x.pt"), "what is damaged is to be told, and not to be unknown"
        with pytest.raises(CorruptError):
            KIND.bring(place / "x.pt", str(place / "run"), Options())
        assert not (place / "run").exists()

    cut()


def test_a_file_without_checksums_comes_and_that_is_said(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(trainee(0)[0].state_dict(), tmp_path / "x.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert "checksums" in bring(tmp_path / "x.pt", tmp_path / "run").left_out[0]


def test_a_small_file_that_stands_for_a_terabyte_is_refused(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.zeros(1).expand(1 << 40)}}, tmp_path / "x.pt")
    with pytest.raises(CorruptError, match="larger than the file"):
        bring(tmp_path / "x.pt", tmp_path / "run")
    torch.save({"model": {"w": torch.zeros(1 << 20)}}, tmp_path / "y.pt")
    with zipfile.ZipFile(tmp_path / "y.pt") as whole, zipfile.ZipFile(tmp_path / "z.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for entry in whole.infolist():
            packed.writestr(entry.filename, whole.read(entry))
    with pytest.raises(CorruptError, match="compressed"):
        bring(tmp_path / "z.pt", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_root_with_generations_is_refused_unless_one_is_to_be_added(saved: Path, tmp_path: Path) -> None:
    bring(saved, tmp_path / "run")
    with pytest.raises(UsageError, match="there is a run"):
        bring(saved, tmp_path / "run")
    for number in range(2, 12):
        milepost.save(tmp_path / "run", {"counters": {"step": number}}, step=number, keep=milepost.Keep(last=100))
    assert bring(saved, tmp_path / "run", add=True, step=6).generation == 12
    there = [milepost.load(tmp_path / "run", parts=["counters"], which=number) for number in range(1, 13)]
    assert len(there) == 12, "what was there stays"


def test_a_dry_run_says_what_would_come_and_writes_nothing(saved: Path, tmp_path: Path) -> None:
    came = bring(saved, tmp_path / "run", dry_run=True)
    assert (came.generation, came.run_id, came.step) == (0, "", 5)
    assert "optimizer" in came.components
    assert not (tmp_path / "run").exists()


def test_other_files_are_not_taken_for_torchs(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("data", "{}")
    (tmp_path / "b.pt").write_bytes(b"PK")
    (tmp_path / "link.pt").symlink_to(tmp_path / "none.pt")
    for path in (tmp_path, tmp_path / "a.zip", tmp_path / "b.pt", tmp_path / "link.pt", tmp_path / "none.pt"):
        assert not KIND.recognise(path)


def test_a_link_to_the_newest_file_is_followed(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").symlink_to(saved)
    assert bring(tmp_path / "last.ckpt", tmp_path / "run").step == 5


def test_a_value_of_no_usual_shape_comes_as_it_is(tmp_path: Path) -> None:
    torch.save([torch.arange(3), "text", (1, 2.5)], tmp_path / "x.pt")
    assert bring(tmp_path / "x.pt", tmp_path / "run").components == ("extra",)
    loaded: Any = milepost.load(tmp_path / "run")
    assert (loaded[0].tolist(), loaded[1:]) == ([0, 1, 2], ["text", (1, 2.5)])


def test_what_is_called_a_generator_and_is_none_is_kept_as_it_is() -> None:
    found = sort_out(
        {"random_crop": True, "rng_state": torch.zeros(5, dtype=torch.uint8), "rng": {"torch": torch.get_rng_state()}}, {}
    )
    assert list(found.state["rng"].state["process"]) == ["torch"]
    assert list(found.state["extra"]) == ["random_crop", "rng_state"]
