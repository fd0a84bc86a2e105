"""A run whose replay buffer or environments rotted on the disk trains on with what is sound, and says so. B8"""

from __future__ import annotations

import logging
from pathlib import Path

import gymnasium as gym
import pytest
from stable_baselines3 import DQN

from milepost import Keep, every
from milepost.adapters.sb3 import Checkpointing
from milepost.engine import oneshot
from milepost.publish import layout
from milepost.publish.manifest import decode_manifest
from milepost.publish.view import read
from milepost.store.base import Store
from milepost.store.memory import MemoryStore


def dqn() -> DQN:
    return DQN("MlpPolicy", gym.make("CartPole-v1"), seed=3, buffer_size=500, learning_starts=20, batch_size=8)


def learn(store: Store, steps: int) -> DQN:
    model = dqn()
    model.learn(steps, callback=Checkpointing(store, when=every(steps=50), keep=Keep(last=1)))
    return model


def rot(store: Store, component: str) -> None:
    """Flip a bit of a component of the only generation."""
    [number] = read(store).live
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
