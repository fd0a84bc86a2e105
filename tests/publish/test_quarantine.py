"""Marks: `damaged` is a memory that each claim checks again, `kills-loader` stands until an operator takes it away."""

from __future__ import annotations

import numpy as np
import pytest

from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import CorruptError
from milepost.publish import layout, quarantine
from milepost.publish.manifest import decode
from milepost.records import QuarantineMark, Restored
from tests.publish.world import World


def two_generations(world: World) -> str:
    a = world.open()
    a.save(1)
    a.save(2)
    return a.session.run_id


def resume(world: World, which: object = "latest") -> Restored:
    state = {"policy": {"w": np.zeros(8)}, "replay": {"rows": np.zeros(512)}}
    with CheckpointEngine(world.plain(), state=state, writer="inline", clock=world.clock()) as engine:
        restored = engine.resume(which)  # type: ignore[arg-type]
    assert restored is not None
    return restored


def flip(world: World, name: str) -> None:
    data = bytearray(world.plain().read(name))
    data[-1] ^= 1
    world.plain().replace(name, bytes(data))


def test_damage_that_a_resume_finds_is_marked_with_its_reason(world: World) -> None:
    run_id = two_generations(world)
    blob = world.view().live[2].blobs[0].name
    flip(world, blob)
    assert resume(world).generation == 1
    mark = decode(world.plain().read(layout.mark(2)), QuarantineMark, "")
    assert (mark.run_id, mark.number, mark.kind, mark.term) == (run_id, 2, "damaged", 2)
    assert blob in mark.reason
    assert 2 in world.view().live  # its number stays taken, and its files stay


def test_what_verifies_again_is_taken_and_its_mark_cleared(world: World) -> None:
    two_generations(world)
    blob = world.view().live[2].blobs[0].name
    flip(world, blob)
    resume(world)
    flip(world, blob)  # the medium has recovered
    assert resume(world).generation == 2
    assert world.names(layout.QUARANTINE) == []


def test_a_mark_that_a_paused_old_writer_writes_late_keeps_nobody_from_a_sound_generation(world: World) -> None:
    run_id = two_generations(world)
    quarantine.mark(world.plain(), world.clock(), run_id=run_id, term=1, number=2, kind="damaged", reason="a bad cable")
    assert resume(world).generation == 2


def test_what_kills_its_loader_is_skipped_until_an_operator_clears_it(world: World) -> None:
    run_id = two_generations(world)
    quarantine.mark(world.plain(), world.clock(), run_id=run_id, term=1, number=2, kind="kills-loader", reason="three deaths")
    restored = resume(world)
    assert (restored.generation, restored.skipped) == (1, ("generation 2 kills-loader: three deaths",))
    with pytest.raises(CorruptError) as caught:
        resume(world, 2)
    assert caught.value.kind == "nothing-valid"
    quarantine.clear(world.plain(), 2)
    assert resume(world).generation == 2


def test_clearing_what_is_not_marked_is_no_error(world: World) -> None:
    two_generations(world)
    before = world.names()
    quarantine.clear(world.plain(), 1)
    assert world.names() == before
