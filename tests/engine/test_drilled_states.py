"""The states that kills, power cuts and sick disks are tried on: they have in them what is to be tried."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.publish.view import read
from milepost.store.posix import Posix
from tests.engine.logs import move_queue, move_ring, queue_at, ring_at
from tests.engine.training import Training, bits, local, with_logs


@settings(max_examples=40)
@given(steps=st.lists(st.integers(0, 14), max_size=8))
def test_a_log_is_what_its_step_says_whatever_steps_were_before(steps: list[int]) -> None:
    ring, queue = ring_at(0), queue_at(0)
    for step in steps:
        move_ring(ring, step)
        move_queue(queue, step)
        assert bits(ring) == bits(ring_at(step))
        assert bits(queue) == bits(queue_at(step))


class Counting(Posix):
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def perform(self, name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.calls[name] += 1
        return function(*args, **kwargs)


def test_a_dozen_saves_keep_cover_merge_and_pack_pieces_and_write_some_blobs_directly(tmp_path: Path) -> None:
    posix = Counting()
    with with_logs(), Training(local(tmp_path / "run", posix)) as training:
        for step in range(1, 13):
            training.save(step)
        blobs = [blob for summary in read(training.store).live.values() for blob in summary.blobs]
    lines = (tmp_path / "run" / "events" / "0001.jsonl").read_text().splitlines()
    saves = [event for event in map(json.loads, lines) if event["event"] == "published"]
    assert sum(save["pieces_kept"] for save in saves) > 10
    assert sum(save["pieces_merged"] for save in saves) > 5
    assert {bool(blob.frames) for blob in blobs} == {False, True}
    assert posix.calls["preallocate"] > 5
    assert posix.calls["set_direct"] > 5
