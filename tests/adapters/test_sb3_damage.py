"""A run whose replay buffer or environments rotted on the disk trains on with what is sound, and says so. B8"""

from __future__ import annotations

import logging
from pathlib import Path

import gymnasium as gym
import pytest
import torch
from stable_baselines3 import DQN

from milepost import Keep, every
from milepost.adapters.sb3 import Checkpointing
from milepost.engine import oneshot, reader
from milepost.publish import layout
from milepost.publish.manifest import decode_manifest
from milepost.publish.view import read
from milepost.store.base import Store
from milepost.store.memory import MemoryStore


def dqn() -> DQN:
    return DQN("MlpPolicy", gym.make("CartPole-v1"), seed=3, buffer_size=500, learning_starts=20, batch_size=8)


def learn(store: Store, steps: int, keep: Keep | None = None) -> DQN:
    model = dqn()
    model.learn(steps, callback=Checkpointing(store, when=every(steps=50), keep=keep or Keep(last=1)))
    return model


def rot(store: Store, component: str) -> None:
    """Flip a bit of a component of the newest generation."""
    number = max(read(store).live)
    manifest = decode_manifest(store.read(layout.manifest(number)), layout.manifest(number))
    record = manifest.component(component)
    assert record is not None
    leaf = max(record.leaves, key=lambda leaf: leaf.size_bytes)
    name = manifest.blobs[leaf.blob].name
    data = bytearray(store.read(name))
    data[(leaf.start + leaf.stop) // 2] ^= 1
    store.replace(name, bytes(data))


@pytest.mark.parametrize("component", ["replay", "rng"])
def test_training_goes_on_without_what_is_damaged_and_heals_the_run(
    tmp_path: Path, component: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    trained = learn(store, 120)
    rot(store, component)
    with caplog.at_level(logging.INFO, "milepost"):
        model = learn(store, 200)
    assert model.num_timesteps == 200
    assert f"generation=3 exact=no ({component}: damaged in generation 3" in caplog.text
    assert oneshot.verify(store).resume_from == max(read(store).live)
    assert trained.num_timesteps == 120


@pytest.mark.parametrize("where", ["held", "in place"])
@pytest.mark.parametrize("total", [200, 260])
def test_a_run_whose_end_rotted_trains_its_last_part_again_to_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, total: int, where: str
) -> None:
    """What decides how the call begins is looked at before its bytes are: they may turn out to be those of another step."""
    straight, store = learn(MemoryStore(), total), MemoryStore()
    trained = learn(store, 200, Keep(last=9))
    assert trained.num_timesteps == 200
    ends = max(read(store).live)
    rot(store, "policy")
    if where == "in place":
        monkeypatch.setattr(reader, "HELD_BYTES", 0)
    model = learn(store, total, Keep(last=9))
    assert model.num_timesteps == total
    again = read(store).live
    assert sorted(again)[0] == 1
    assert max(again) > ends
    assert again[ends + 1].step > again[ends - 1].step, "it went on from the one before"
    assert str(again[ends + 1].rollback_to) == str(ends - 1)
    for name, tensor in straight.policy.state_dict().items():
        assert torch.equal(tensor, model.policy.state_dict()[name]), name
