"""Tensors of a device: copied late, read only when they are there, never overtaken (B9), brought back in order.

The device is `milepost.pytorch.twin.Twin`: whoever looks too early sees its pattern, whoever is overtaken sees the update.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import milepost
from milepost import CheckpointEngine, Keep
from milepost.engine.arena import Arena
from milepost.engine.capture import capture
from milepost.errors import MismatchError
from milepost.pytorch import leaves
from milepost.pytorch.devices import Transfers, forget_device
from milepost.pytorch.twin import POISON, Twin
from milepost.state import late
from milepost.store.memory import MemoryStore
from tests.soak.ages import writers

SLAB = 1 << 12


@contextmanager
def device(*, opened: bool = True, slabs: int = 4) -> Iterator[tuple[Twin, Transfers]]:
    with Twin(opened=opened) as twin:
        transfers = Transfers(twin, slab_bytes=SLAB, most_bytes=slabs * SLAB)
        leaves.add_device(transfers)
        try:
            yield twin, transfers
        finally:
            forget_device(transfers)
            if torch.version.cuda is None and torch.version.hip is None:
                late._late.clear()


def filled(number: int, *shape: int) -> torch.Tensor:
    return torch.full(shape, float(number))


def staged_bytes(staged: Any) -> list[bytes]:
    return [bytes(staged.data(leaf)) for component in staged.components for leaf in component.leaves]


def test_a_save_returns_while_the_device_still_copies_and_nothing_is_read_before_it_has() -> None:
    with device(opened=False) as (twin, _):
        state = {"policy": {"w": twin.own(filled(1, 100)), "host": filled(2, 100)}}
        staged = capture(state, Arena())
        twin_bytes, host_bytes = staged_bytes(staged)
        assert host_bytes == filled(2, 100).numpy().tobytes()
        assert twin_bytes != filled(1, 100).numpy().tobytes()
        twin.open()
        staged.arrived()
        assert staged_bytes(staged)[0] == filled(1, 100).numpy().tobytes()


def test_an_update_in_place_right_after_a_save_is_not_in_it(tmp_path: Any) -> None:
    with device(opened=False, slabs=64) as (twin, _):
        weights = twin.own(filled(1, 5000))
        engine = CheckpointEngine(tmp_path / "run", state={"policy": {"w": weights}})
        engine.save(1)
        twin.launch(lambda: weights.add_(1))  # the optimizer's step, as a kernel
        assert weights[0] == 1  # and neither has happened yet
        twin.open()
        engine.wait()
        engine.close()
        assert torch.equal(milepost.load(tmp_path / "run")["policy"]["w"], filled(1, 5000))
        assert torch.equal(weights, filled(2, 5000))


@pytest.mark.skipif("process" not in writers(), reason="there is no writer process yet")
def test_a_writer_process_hears_of_a_save_once_the_device_has_copied_it(tmp_path: Any) -> None:
    with device(opened=False, slabs=64) as (twin, _):
        weights = twin.own(filled(1, 5000))
        writer: Any = "process"
        engine = CheckpointEngine(tmp_path / "run", state={"policy": {"w": weights}}, writer=writer)
        opening = threading.Timer(0.3, twin.open)
        opening.start()
        engine.save(1)
        twin.launch(lambda: weights.add_(1))
        engine.wait()
        engine.close()
        opening.join()
        assert torch.equal(milepost.load(tmp_path / "run")["policy"]["w"], filled(1, 5000))


def test_a_state_larger_than_the_pool_goes_through_it_in_turns() -> None:
    with device(slabs=2) as (twin, transfers):
        values = [twin.own(torch.arange(n, n + 3000, dtype=torch.int64)) for n in range(5)]
        for _ in range(3):
            staged = capture({"policy": values}, Arena())
            for value in values:
                twin.launch(lambda value=value: value.add_(1))
            staged.arrived()
            assert staged_bytes(staged) == [(value - 1).numpy().tobytes() for value in settled(twin, values)]
        assert transfers.size_bytes == 2 * SLAB


def settled(twin: Twin, values: list[torch.Tensor]) -> list[torch.Tensor]:
    twin.mark().wait()
    return values


def test_a_save_that_came_to_nothing_delivers_nothing_to_the_next_one() -> None:
    with device(opened=False) as (twin, transfers):
        old, new = bytearray(400), bytearray(400)
        weights = twin.own(filled(1, 100))
        kind = leaves.TensorKind()
        forgotten = kind.begin([(weights, memoryview(old))])
        twin.open()
        arrived = kind.begin([(weights, memoryview(new))])
        arrived()
        forgotten()
        assert new == filled(1, 100).numpy().tobytes()
        assert old == bytes(400)
        assert transfers.size_bytes <= 2 * SLAB


@given(st.lists(st.integers(0, 3 * SLAB), min_size=1, max_size=6), st.integers(1, 4), st.booleans())
def test_whatever_the_sizes_each_byte_arrives_where_it_belongs(sizes: list[int], slabs: int, odd: bool) -> None:
    with device(slabs=slabs) as (twin, _):
        rng = np.random.default_rng(1)
        values = [torch.from_numpy(rng.integers(0, 255, size, np.uint8)) for size in sizes]
        values += [torch.arange(600.0).view(20, 30).t()[::2]] if odd else []
        expected = [value.contiguous().numpy().tobytes() for value in values]
        for value in values:
            if value.numel():
                twin.own(value)
        staged = capture({"policy": values}, Arena())
        staged.arrived()
        assert staged_bytes(staged) == expected


@pytest.mark.parametrize("transposed", [False, True])
def test_what_is_restored_is_on_the_device_before_what_is_asked_of_it_next(transposed: bool) -> None:
    with device(opened=False, slabs=8) as (twin, _):
        store = MemoryStore()
        saved = torch.arange(3000.0).view(50, 60)
        milepost.save(store, {"policy": {"w": saved.t() if transposed else saved}}, step=1)
        live = torch.zeros(60, 50) if transposed else torch.zeros(50, 60)
        live = twin.own(live if not transposed else torch.zeros(50, 60)).t() if transposed else twin.own(live)
        with CheckpointEngine(store, state={"policy": {"w": live}}) as engine:
            engine.resume()
        used: list[torch.Tensor] = []
        twin.launch(lambda: used.append(live.clone()))
        assert not live.any()
        twin.open()
        twin.mark().wait()
        assert torch.equal(used[0], saved.t() if transposed else saved)


def test_a_module_and_its_optimizer_on_a_device_come_back_bit_for_bit(tmp_path: Any) -> None:
    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        net = torch.nn.Linear(70, 50)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        net(torch.ones(1, 70)).sum().backward()
        optimizer.step()
        return net, optimizer

    def on_device(twin: Twin, net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        moments = [value for state in optimizer.state.values() for value in state.values()]
        for tensor in (*net.parameters(), *moments):
            twin.own(tensor.data)

    torch.manual_seed(1)
    net, optimizer = made()
    with device(opened=False, slabs=64) as (twin, _):
        on_device(twin, net, optimizer)
        engine = CheckpointEngine(tmp_path / "run", state={"policy": net, "optimizer": optimizer})
        engine.save(1)
        twin.open()
        engine.close()
        assert twin.copied_bytes > 3 * 4 * 70 * 50
    other, other_optimizer = made()
    with CheckpointEngine(tmp_path / "run", state={"policy": other, "optimizer": other_optimizer}) as engine:
        engine.resume()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
    pairs = zip(optimizer.state.values(), other_optimizer.state.values(), strict=True)
    assert all(torch.equal(one[name], two[name]) for one, two in pairs for name in one)


def test_a_full_disk_at_the_first_file_does_not_have_unread_memory_digested(tmp_path: Any) -> None:
    from milepost.engine.placing import new_bytes

    with device(opened=False) as (twin, _):
        engine = CheckpointEngine(tmp_path / "run", state={"policy": {"w": twin.own(filled(1, 100))}}, keep=Keep(last=2))
        session = engine.claim()
        arena = Arena()
        staged = capture(engine.state, arena)
        opening = threading.Timer(0, twin.open)
        opening.start()
        assert new_bytes(session, staged)[0] == 400
        assert staged_bytes(staged) == [filled(1, 100).numpy().tobytes()]
        opening.join()
        engine.close()


def test_the_twin_shows_who_looks_too_early_and_who_is_overtaken() -> None:
    with Twin(opened=False) as twin:
        weights, page = twin.own(torch.zeros(8, dtype=torch.uint8)), twin.host_memory(8)
        twin.copy(weights, page)
        twin.launch(lambda: weights.add_(1))
        assert set(page.tolist()) == {POISON}
        twin.open()
        twin.mark().wait()
        assert page.tolist() == [0] * 8
        assert weights.tolist() == [1] * 8


def test_generators_of_gpus_that_are_not_here_are_told_before_anything_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [torch.arange(16, dtype=torch.uint8)] * 2
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states)
    store = MemoryStore()
    milepost.save(store, {"rng": milepost.Rng(), "policy": {"w": 1.0}}, step=1)
    monkeypatch.undo()
    policy = {"w": 0.0}
    state = {"rng": milepost.Rng(), "policy": policy}
    with CheckpointEngine(store, state=state) as engine, pytest.raises(MismatchError) as caught:
        engine.resume()
    assert "saved generators of 2 GPUs, here 0 GPUs" in str(caught.value)
    assert policy == {"w": 0.0}


def test_generators_of_gpus_are_saved_and_set_where_there_are_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [torch.arange(16, dtype=torch.uint8), torch.arange(16, 32, dtype=torch.uint8)]
    got: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", got.extend)
    store = MemoryStore()
    milepost.save(store, {"rng": milepost.Rng()}, step=1)
    with CheckpointEngine(store, state={"rng": milepost.Rng()}) as engine:
        engine.resume()
    assert [state.tolist() for state in got] == [state.tolist() for state in states]
