"""The same where a lease takes the place of the lock: a writer stands still until its lease has expired, and wakes. A13, B6

`MemoryStore` with a lease is the model of an object store: conditional writes, and clocks that agree on nothing. The first
writer stands at the door of its store operation N, for all N, and so renews nothing; the second watches for one time to
live, without being told to take over, and goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from milepost.engine import oneshot
from milepost.errors import ConflictError, NotFoundError
from milepost.lifecycle.retain import Keep
from milepost.publish.view import read
from milepost.store.lease import LEASE
from milepost.store.memory import MemoryStore
from milepost.testing.faults import HANG_S, Gate
from tests.engine.training import Training, bits, state_at, without_git
from tests.takeover.machines import HOUR_S, TTL_S, Cluster, Machine
from tests.takeover.scene import check_nothing_is_harmed, contents

Act = Callable[[Machine, Callable[[], None]], object]


def save_and_retire(first: Machine, begin: Callable[[], None]) -> None:
    with first.training(Keep(last=2)) as training:
        training.engine.resume()
        begin()
        first.save(training, 4, 5, 6)


def claim_and_save(first: Machine, begin: Callable[[], None]) -> None:
    begin()
    with first.training(Keep(last=2)) as training:
        training.engine.resume()
        first.save(training, 4, 5, 6)


def roll_back(first: Machine, begin: Callable[[], None]) -> None:
    begin()
    first.rollback(1)


ACTS: dict[str, tuple[Act, int]] = {
    "save and retire": (save_and_retire, 24),
    "claim": (claim_and_save, 42),
    "rollback": (roll_back, 200),
}
"""What the first is about, and how many of its operations belong to that: then come the saves after it."""


def start(pool: ThreadPoolExecutor, first: Machine, act: Act, number: int) -> tuple[Gate, Future[None]]:
    """Let the first begin, and stand before its operation ``number`` from where its act says that it begins."""
    gates: list[Gate] = []
    begun = threading.Event()

    def begin() -> None:
        gates.append(first.store.pause_before(len(first.store.operations) + number))
        begun.set()

    def run() -> None:
        try:
            act(first, begin)
            first.ended = "done"
        except (ConflictError, NotFoundError) as error:
            first.ended = error.kind

    running = pool.submit(run)
    assert begun.wait(HANG_S)
    running.add_done_callback(lambda _: gates[0].reached.set())
    gates[0].wait_until_reached()
    return gates[0], running


def second_goes_on(second: Machine, *, take_over: bool) -> None:
    with second.training(Keep(last=2), take_over=take_over) as training:
        training.engine.resume()
        second.save(training, 11, 12, 13)
    second.rollback(max(read(second.inner).live) - 1, take_over=take_over)


@pytest.mark.parametrize("take_over", [False, True], ids=["expired", "taken over"])
@pytest.mark.parametrize("name", list(ACTS))
def test_a_writer_whose_lease_went_on_without_it_is_fenced_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, take_over: bool
) -> None:
    without_git(monkeypatch)
    act, most = ACTS[name]
    endings: list[str] = []
    # Who is made to wait and who insists differ before the claim only: for the second a sample will do.
    for number in range(0, most, 4 if take_over else 1):
        root = f"{tmp_path}-{number}"
        # Wall clocks: the second's is hours behind that of the first, or hours ahead.
        cluster = Cluster(root)
        first, second = cluster.machine(), cluster.machine(wall_s=(-5 if number % 2 else 5) * HOUR_S)
        with Training(MemoryStore(root), keep=Keep(last=3)) as origin:
            for step in (1, 2, 3):
                origin.save(step)
        with ThreadPoolExecutor(1) as pool:
            gate, running = start(pool, first, act, number)
            try:
                if running.done():
                    break
                point = first.store.operations[-1]
                held, first.is_awake = first.holds_the_lease, False
                began_s = cluster.now_s
                second_goes_on(second, take_over=take_over)
                watched_s = cluster.now_s - began_s
                before = contents(second.inner)
            finally:
                gate.release()
            running.result()
        try:
            assert (watched_s >= TTL_S) == (held and not take_over)
            anew = check_nothing_is_harmed(second.inner, first.acknowledged, second.acknowledged, before)
            assert first.ended in ("fenced", "done", *(["no-such-generation"] if name == "rollback" else []))
            assert not first.holds_the_lease
            third = cluster.machine()
            with third.training(Keep(last=2)) as training:
                restored = training.engine.resume()
                assert restored is not None
                assert anew or restored.generation == max(before)
                third.save(training, 21)
            assert bits(oneshot.load(third.inner)) == bits(state_at(21))
        except AssertionError as error:
            error.add_note(f"{name}: the first stood before its operation {number}, {point}, and ended {first.ended}")
            raise
        endings.append(first.ended)
    assert endings.count("fenced") >= (4 if take_over else 16)


def test_sweep_retire_and_reset_leave_the_lease_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_git(monkeypatch)
    machine = Cluster(str(tmp_path)).machine()
    with machine.training(Keep(last=1)) as training:
        machine.save(training, 1, 2)
        assert machine.renews_the_lease
    with machine.training(Keep(last=1)) as training:
        training.engine.resume()
        assert machine.renews_the_lease
    aside = oneshot.reset(machine.store)
    assert [name for name in (entry.name for entry in machine.inner.list("")) if name.endswith(LEASE)] == [LEASE]
    assert oneshot.verify(machine.store).problems == ()
    with machine.training(Keep(last=1)) as training:
        assert training.engine.resume() is None
        assert machine.renews_the_lease
    assert aside.head == 2
