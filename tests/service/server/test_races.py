"""What crosses: each held up by a gate at the very place where it could go wrong. C1, C2, C14"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from milepost.errors import StoreError
from milepost.service import wire
from milepost.service.journal import Journal
from milepost.service.proto import service_pb2 as pb
from milepost.service.settings import ServiceSettings
from milepost.service.snapshots import Snapshot
from milepost.service.tiers.memory import MemoryTier
from tests.service.server.conftest import Hall, until
from tests.service.server.speaking import Speaker, arrived_request, refusal
from tests.service.server.test_calls import DATA, refused

WAIT_S = 120.0


class Gate:
    """Hold a method up, in whichever thread comes, until it is opened. Who waited goes on; who comes later is not held up."""

    def __init__(self, patch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        self.came, self._may_go = threading.Event(), threading.Event()
        method = getattr(kind, name)

        def held(*args: Any, **kwargs: Any) -> Any:
            self.came.set()
            assert self._may_go.wait(WAIT_S)
            return method(*args, **kwargs)

        patch.setattr(kind, name, held)

    def wait(self) -> None:
        assert self.came.wait(WAIT_S)

    def open(self) -> None:
        self._may_go.set()


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    gates: list[Gate] = []

    def gate(kind: type, name: str) -> Gate:
        gates.append(Gate(monkeypatch, kind, name))
        return gates[-1]

    yield gate
    for each in gates:
        each.open()


def later(speaker: Speaker, name: str, request: Any) -> Any:
    return getattr(speaker.stub, name).future(request, metadata=speaker.metadata, timeout=WAIT_S)


def kind_of(call: Any) -> str:
    error = call.exception()
    assert isinstance(error, grpc.RpcError), error
    return refusal(error).kind


def brought(hall: Hall, incarnation: str = "1") -> Speaker:
    trainer = hall.trainer(incarnation, int(incarnation))
    trainer.begin("k", 1, {"weights": DATA})
    trainer.upload("weights", DATA)
    return trainer


def test_nobody_hears_of_a_commit_before_it_is_written_down(served: Hall, gated: Any) -> None:
    trainer, sampler = brought(served), served.sampler()
    gate = gated(Journal, "append")
    trainer.arrived("k", "weights", DATA)
    finished = later(trainer, "Finish", pb.FinishRequest(caller=trainer.caller, key="k", wait_ms=60_000))
    waiting = later(sampler, "Fetch", pb.FetchRequest(caller=sampler.caller, wait_ms=60_000))
    gate.wait()
    assert [*served.shm.glob(f"milepost-*/{trainer.place}/index.json")]  # a kill from here on leaves no version without it
    assert sampler.fetch().HasField("not_modified")
    assert trainer.status().live.key == ""
    assert not finished.done()
    assert not waiting.done()
    gate.open()
    assert finished.result().weights.at == waiting.result().take.weights.at


def test_a_commit_is_given_up_while_its_bytes_are_looked_at_and_its_key_begins_anew_in_a_clean_place(
    served: Hall, gated: Any
) -> None:
    trainer = brought(served)
    looking, erasing = gated(MemoryTier, "wrong"), gated(MemoryTier, "erase")
    arrives = later(trainer, "Arrived", arrived_request(trainer.caller, "k", "weights", DATA))
    looking.wait()
    trainer.say("Abort", pb.AbortRequest(caller=trainer.caller, key="k", reason="changed my mind"))
    erasing.wait()
    again = later(
        trainer, "Begin", pb.BeginRequest(caller=trainer.caller, key="k", step=1, slots=[pb.Slot(slot="w", size_bytes=3)])
    )
    looking.open()
    assert kind_of(arrives) in ("unknown-commit", "not-announced", "aborted")
    assert not again.done()  # what is being erased there is not to be taken for what it is about to bring
    erasing.open()
    assert again.result().slots == ["w"]
    trainer.upload("w", b"abc")
    trainer.arrived("k", "w", b"abc")
    done = trainer.finish("k")
    assert served.sampler().download(done.weights, "w") == b"abc"
    assert [each.name for each in served.shm.glob(f"milepost-*/{trainer.place}/*.safetensors")] == ["w.safetensors"]


def test_a_trainer_is_superseded_while_its_bytes_are_looked_at_and_leaves_nothing(served: Hall, gated: Any) -> None:
    trainer = brought(served)
    looking = gated(MemoryTier, "wrong")
    arrives = later(trainer, "Arrived", arrived_request(trainer.caller, "k", "weights", DATA))
    looking.wait()
    second = served.trainer("2", 2)
    until(lambda: second.status().memory_bytes == 0 and not served.places_in_memory)
    looking.open()
    assert kind_of(arrives) == "superseded"
    until(lambda: second.status().memory_bytes == 0 and not served.places_in_memory)
    assert second.commit("k", 1, {"weights": DATA[::-1]}).weights.incarnation == "2"


def test_bytes_that_come_while_their_commit_is_given_up_come_to_nothing(served: Hall, gated: Any) -> None:
    trainer = served.trainer()
    trainer.begin("k", 1, {"weights": DATA})
    writing = gated(MemoryTier, "new_blob")
    bringing = threading.Thread(target=lambda: kinds.append(refused(lambda: trainer.upload("weights", DATA))), name="test-bring")
    kinds: list[str] = []
    bringing.start()
    writing.wait()
    trainer.say("Abort", pb.AbortRequest(caller=trainer.caller, key="k", reason="changed my mind"))
    writing.open()
    bringing.join(WAIT_S)
    assert kinds[0] in ("unknown-commit", "not-missing")
    until(lambda: trainer.status().memory_bytes == 0 and not served.places_in_memory)


def test_two_who_say_at_once_that_one_part_has_arrived_are_both_answered(served: Hall, gated: Any) -> None:
    trainer = brought(served)
    looking = gated(MemoryTier, "wrong")
    first = later(trainer, "Arrived", arrived_request(trainer.caller, "k", "weights", DATA))
    looking.wait()
    second = later(trainer, "Arrived", arrived_request(trainer.caller, "k", "weights", DATA))
    until(lambda: trainer.status().counts["looking"] == 2)
    looking.open()
    assert (first.result(), second.result()) == (pb.Accepted(),) * 2
    assert trainer.finish("k").weights.at.number == 1


def test_a_version_that_could_not_be_erased_is_erased_later_and_counts_until_then(
    served: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = served.trainer()
    trainer.commit("k1", 1, {"weights": DATA}, durable=True)
    erase = MemoryTier.erase
    is_sick = threading.Event()
    is_sick.set()

    def erase_or_fail(tier: MemoryTier, place: str) -> None:
        if is_sick.is_set():
            raise StoreError("the memory is sick", kind="io", retryable=True)
        erase(tier, place)

    monkeypatch.setattr(MemoryTier, "erase", erase_or_fail)
    trainer.commit("k2", 2, {"weights": DATA}, durable=True)
    until(lambda: "sick" in trainer.status().last_failure)
    assert trainer.status().memory_bytes == 2 * len(DATA)
    is_sick.clear()
    until(lambda: trainer.status().memory_bytes == len(DATA))
    assert len(served.places_in_memory) == 1
    assert not trainer.status().last_failure


def test_what_a_process_brings_after_its_commit_was_given_up_is_swept(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.service.server.running.SWEEP_TICKS", 1)
    hall.serve()
    trainer = hall.trainer()
    kept = trainer.commit("k1", 1, {"weights": DATA}).weights.place
    (directory,) = hall.shm.glob("milepost-*")
    (directory / "000000000009-0123456789abcdef").mkdir()
    (directory / "000000000009-0123456789abcdef" / "weights.safetensors").write_bytes(DATA)
    until(lambda: trainer.status().run_id != "" and hall.places_in_memory == [kept])


def test_a_fault_of_our_own_ends_the_service_with_an_error_and_the_next_one_has_all(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = hall.life()
    life.__enter__()
    trainer = hall.trainer()
    trainer.commit("k1", 1, {"weights": DATA}, durable=True)
    trainer.waits = False
    monkeypatch.setattr("milepost.service.server.storage.Storage.spill", lambda *_: 1 // 0)
    with pytest.raises(grpc.RpcError):
        trainer.commit("k2", 2, {"weights": DATA}, durable=True)
    hall.server.wait()
    with pytest.raises(Exception, match="the service failed") as caught:
        life.__exit__(None, None, None)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    monkeypatch.undo()
    hall.serve()
    assert hall.trainer("2", 2, step=9).status().live.step == 2


def test_time_goes_on_while_a_copy_of_the_journal_is_waited_for(hall: Hall, gated: Any) -> None:
    copying = gated(Snapshot, "keep")
    hall.serve(ServiceSettings(memory_bytes=1 << 20, commit_timeout_s=0.05))
    copying.wait()
    trainer = hall.trainer()
    trainer.begin("k", 1, {"weights": DATA})
    until(lambda: trainer.status().memory_bytes == 0)
    copying.open()


def test_a_commit_whose_parts_do_not_come_in_time_is_given_up(hall: Hall) -> None:
    hall.serve(ServiceSettings(memory_bytes=1 << 20, commit_timeout_s=0.05))
    trainer = hall.trainer()
    trainer.begin("k", 1, {"weights": DATA, "optimizer": DATA})
    assert refused(lambda: trainer.finish("k")) == "commit-timeout"
    until(lambda: trainer.status().memory_bytes == 0 and not hall.places_in_memory)


def test_the_service_is_as_it_was_after_a_thousand_calls_that_were_broken_off(served: Hall, tmp_path: Path) -> None:
    trainer, sampler = served.trainer(), served.sampler()
    first = trainer.commit("k1", 1, {"weights": DATA}, durable=True).weights.at
    before = trainer.status()
    for _ in range(50):
        calls = [later(sampler, "Fetch", pb.FetchRequest(caller=sampler.caller, has=first, wait_ms=60_000)) for _ in range(20)]
        for each in calls:
            each.cancel()
    until(lambda: trainer.status().counts["waiting"] == 0)
    after = trainer.status()
    assert (after.versions, after.memory_bytes, after.live) == (before.versions, before.memory_bytes, before.live)


def test_a_look_whose_call_was_broken_off_speaks_for_the_bytes_that_it_saw_and_no_others(hall: Hall, gated: Any) -> None:
    with hall.life():
        trainer = brought(hall)
        looking = gated(MemoryTier, "wrong")
        first = later(trainer, "Arrived", arrived_request(trainer.caller, "k", "weights", DATA))
        looking.wait()
        first.cancel()
        until(lambda: trainer.status().counts["looking"] == 0)
        second = later(trainer, "Arrived", arrived_request(trainer.caller, "k", "weights", DATA[::-1]))
        until(lambda: trainer.status().counts["looking"] == 1)
        looking.open()
        assert kind_of(second) == "shard-differs"
        trainer.arrived("k", "weights", DATA)
        trainer.finish("k")
    hall.serve()
    sampler = hall.sampler()
    assert sampler.download(sampler.fetch().take.weights) == DATA


def test_of_what_nobody_knows_whether_it_is_written_down_nobody_is_told_that_it_was_not_done(
    hall: Hall, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = hall.life()
    life.__enter__()
    trainer = brought(hall)

    def fail(journal: Journal, _: object) -> None:
        journal._doubt = StoreError("the sync failed", kind="io", retryable=False, hint="")
        raise journal._doubt

    monkeypatch.setattr(Journal, "append", fail)
    finished = later(trainer, "Finish", pb.FinishRequest(caller=trainer.caller, key="k", wait_ms=60_000))
    until(lambda: trainer.status().counts["waiting"] == 1)
    trainer.arrived("k", "weights", DATA)
    error = finished.exception()
    assert isinstance(error, grpc.RpcError)
    # A status without a refusal: the call is made again, to the next one.
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    assert wire.REFUSED not in dict(error.trailing_metadata() or ())
    hall.server.wait()
    with pytest.raises(StoreError, match="the sync failed"):
        life.__exit__(None, None, None)
    assert [*hall.shm.glob(f"milepost-*/{trainer.place}/weights.safetensors")]  # the next one may have to have it


def test_a_fault_in_a_decision_ends_the_service_whoevers_call_it_is(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    life = hall.life()
    life.__enter__()
    trainer = hall.trainer()
    monkeypatch.setattr("milepost.service.core.service.Service._roll_back", lambda *_: 1 // 0)
    trainer.waits = False
    with pytest.raises(grpc.RpcError):
        trainer.say("RollBack", pb.RollBackRequest(caller=trainer.caller, number=1, key="r"))
    with pytest.raises(Exception, match="the service failed") as caught:
        life.__exit__(None, None, None)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_blob_that_was_erased_under_who_brings_it_is_begun_anew(served: Hall) -> None:
    trainer = served.trainer()
    trainer.begin("k", 1, {"weights": DATA})
    trainer.upload("weights", DATA)
    for path in served.shm.glob(f"milepost-*/{trainer.place}/weights.safetensors"):
        path.unlink()
    assert refused(lambda: trainer.upload("weights", DATA)) == "no-such-blob"
    trainer.upload("weights", DATA)
    trainer.arrived("k", "weights", DATA)
    assert trainer.finish("k").weights.at.number == 1
