"""What a save of a replay buffer writes follows the rows that are new, and not the buffer's size. B4"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from stable_baselines3 import DQN

from milepost import Keep, every
from milepost.adapters.sb3 import Checkpointing
from milepost.adapters.sb3.counting import counting
from milepost.publish import layout
from milepost.publish.manifest import decode_manifest
from milepost.publish.view import read
from milepost.store.memory import MemoryStore
from tests.adapters.sb3_runs import env_of, off_policy
from tests.adapters.test_sb3_counting import KINDS, add
from tests.adapters.test_sb3_replay import engine_of


def replay_bytes(store: MemoryStore) -> list[int]:
    """Return how many bytes of leaves of the replay buffer each generation has which the one before had not."""
    found, before = [], set()
    for number in sorted(read(store).live):
        record = decode_manifest(store.read(layout.manifest(number)), layout.manifest(number)).component("replay")
        assert record is not None
        leaves = {(leaf.path, leaf.digest): leaf.size_bytes for leaf in record.leaves}
        found.append(sum(size for leaf, size in leaves.items() if leaf not in before))
        before = leaves.keys()
    return found


def events(store: MemoryStore) -> list[dict[str, Any]]:
    """Return every event of the run."""
    return [json.loads(line) for entry in store.list("events/") for line in store.read(entry.name).splitlines()]


@pytest.mark.parametrize("kind", ["plain", "dict", "lean", "her"])
def test_bytes_follow_the_new_rows_and_not_the_capacity(kind: str) -> None:
    def costs(capacity: int, new: int) -> tuple[list[float], list[float]]:
        store, buffer = MemoryStore(), KINDS[kind](2 * capacity, 2)
        with engine_of(store, buffer) as engine:
            log = counting(buffer).rows.log
            log.piece_bytes = 1 << 20
            for rows in (capacity + 10, new, 0):
                for number in range(rows):
                    add(buffer, number, 3 if number % 10 == 9 else 0)
                engine.save(rows)
                engine.wait()
        row_bytes = counting(buffer).rows.row_bytes
        published = [event for event in events(store) if event["event"] == "published"]
        staged, hashed = ([event[name] / row_bytes for event in published] for name in ("staged_bytes", "hashed_bytes"))
        assert staged == hashed
        return staged, [size / row_bytes for size in replay_bytes(store)]

    (staged, written), (_, written_small) = costs(2000, 100), costs(500, 100)
    assert staged[0] >= written[0] >= 2000
    assert written[1] == written_small[1]
    assert 100 <= written[1] <= 112
    assert staged[1] - written[1] < 2  # its cursors, too, which may be as they were
    assert written[2] == written_small[2] < 1
    assert staged[2] < 2


def test_a_run_writes_each_row_about_once_through_several_calls_of_learn_and_restarts(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()

    def script(model: Any, steps: int) -> Any:
        ours = Checkpointing(store, when=every(steps=200), keep=Keep(last=100), writer="inline")
        model.learn(1_900, callback=ours)
        model.learn(steps, callback=ours, reset_num_timesteps=False)
        return model

    def made() -> DQN:
        return off_policy(DQN, 1, env_of("CartPole-v1"), buffer_size=1_000, learning_starts=10**6)

    with caplog.at_level(logging.WARNING, "milepost"):
        script(made(), 1_000)
        model = script(made(), 2_600)
    assert model.num_timesteps == 4_500
    rows = sum(replay_bytes(store)) / counting(model.replay_buffer).rows.row_bytes
    assert len(read(store).live) > 20
    assert rows < 2 * 4_500  # whole buffers would have been twenty thousand
    assert all("schedule/total_timesteps" in message for message in caplog.messages)  # no doubt was told
