"""A server ends, is killed, and begins anew: what was acknowledged is there, and clients find it again. C4, C5, C13, C14"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from milepost.clock import SystemClock
from milepost.errors import ConflictError, CorruptError, MilepostError, NotFoundError, StoreError, UsageError
from milepost.service import wire
from milepost.service.endpoint import ENDPOINT, TOKEN, read_endpoint, read_token
from milepost.service.index import Chunks
from milepost.service.proto import service_pb2 as pb
from milepost.service.resting import at_rest
from milepost.service.server import running
from milepost.service.server.serving import Server
from milepost.service.settings import ServiceSettings
from milepost.service.tiers.memory import MemoryTier
from tests.service.server.conftest import SETTINGS, Hall, until
from tests.service.server.process import Process
from tests.service.server.speaking import CHUNK, Speaker, refusal
from tests.service.server.test_calls import DATA, refused


def _term(speaker: Speaker) -> int:
    """Return the term of the server; 0 where none answers just now."""
    try:
        return speaker.status().term
    except grpc.RpcError:
        return 0


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    with Process(tmp_path / "run", tmp_path / "shm") as process:
        yield process


def tiers(hall: Hall) -> dict[int, list[str]]:
    with hall.speaker("anybody") as anybody:
        return {each.weights.at.number: [*each.tiers] for each in anybody.status().versions}


def test_a_server_that_begins_anew_has_what_was_in_memory_and_on_disk(hall: Hall) -> None:
    with hall.life():
        trainer = hall.trainer()
        first = trainer.commit("k1", 1, {"weights": DATA}, durable=True).weights
        second = trainer.commit("k2", 2, {"weights": DATA[::-1]}).weights
        port = hall.server.endpoint.port
    hall.serve()
    assert (hall.server.endpoint.port, hall.server.endpoint.term) == (port, 2)
    sampler = hall.sampler()
    taken = sampler.fetch().take
    assert taken.weights == second
    assert sampler.download(taken.weights) == DATA[::-1]
    assert sampler.download(sampler.fetch(want="exact", at=first.at).take.weights) == DATA


def test_a_root_that_was_moved_has_what_it_had(hall: Hall) -> None:
    with hall.life():
        hall.trainer().commit("k1", 1, {"weights": DATA}, durable=True)
    before, hall.root = hall.root, hall.root.with_name("moved")
    before.rename(hall.root)
    assert at_rest(str(hall.root), SystemClock(), memory_base=str(hall.shm)).durable is not None
    with hall.life():
        sampler = hall.sampler()
        assert sampler.download(sampler.fetch().take.weights) == DATA
    assert not before.exists()


def test_what_the_host_took_with_it_is_lost_and_the_durable_version_is_live(hall: Hall) -> None:
    with hall.life(ServiceSettings(memory_bytes=1 << 20, retry_s=3600)):
        trainer = hall.trainer()
        trainer.commit("k1", 1, {"weights": DATA}, durable=True)
        versions = hall.root / "service" / "versions"
        versions.rename(versions.with_name("aside"))
        versions.write_text("no directory")
        trainer.commit("k2", 2, {"weights": DATA})
        until(lambda: bool(trainer.status().last_failure))
    versions.unlink()
    versions.with_name("aside").rename(versions)
    shutil.rmtree(hall.shm)
    hall.shm.mkdir()
    hall.serve()
    status = hall.trainer("2", 2, step=1).status()
    assert (status.live.key, status.durable.key, tiers(hall)) == ("k1", "k1", {1: ["disk"]})


def test_a_disk_that_refuses_is_told_and_commits_go_on_in_memory(served: Hall) -> None:
    trainer = served.trainer()
    versions = served.root / "service" / "versions"
    versions.mkdir(exist_ok=True)
    shutil.rmtree(versions)
    versions.write_text("no directory")
    assert trainer.commit("k1", 1, {"weights": DATA}).weights.at.number == 1
    assert refused(lambda: trainer.finish("k1", durable=True)) == "not-durable"
    status = trainer.status()
    assert status.last_failure.startswith("spill: ")
    assert (status.live.key, status.durable.key) == ("k1", "")
    assert trainer.commit("k2", 2, {"weights": DATA}).weights.at.number == 2
    versions.unlink()
    done = trainer.finish("k2", durable=True, wait_ms=60_000)
    assert done.durable
    until(lambda: not trainer.status().last_failure)


def test_a_journal_that_cannot_be_written_refuses_the_commit_and_takes_the_next_once_it_can(process: Process) -> None:
    with process.speaker("trainer") as trainer, process.speaker("sampler") as sampler:
        trainer.hello()
        trainer.commit("k1", 1, {"weights": DATA}, durable=True)
        sampler.hello("sampler")
        unlimited = resource.prlimit(process.popen.pid, resource.RLIMIT_FSIZE, (4096, -1))
        assert refused(lambda: trainer.commit("k2", 2, {"weights": DATA})) == "not-written"
        assert "journal: " in trainer.status().last_failure
        assert sampler.fetch().take.weights.key == "k1"
        resource.prlimit(process.popen.pid, resource.RLIMIT_FSIZE, unlimited)
        assert trainer.commit("k2", 2, {"weights": DATA}).weights.at.number == 2
        assert not trainer.status().last_failure


def test_a_kill_loses_nothing_that_was_acknowledged_and_leaves_an_endpoint_that_is_known_to_be_dead(tmp_path: Path) -> None:
    root, shm = tmp_path / "run", tmp_path / "shm"
    with Process(root, shm) as first:
        with first.speaker("trainer") as trainer:
            trainer.hello()
            trainer.commit("k1", 1, {"weights": DATA}, durable=True)
            trainer.commit("k2", 2, {"weights": DATA})
            trainer.begin("k3", 3, {"weights": DATA})
            trainer.upload("weights", DATA)
            token = read_token(root)
            assert not read_endpoint(root).is_dead
            first.kill()
        assert read_endpoint(root).is_dead
        assert not read_endpoint(root).has_ended
    with Process(root, shm) as second, second.speaker("trainer", "2") as trainer:
        assert second.endpoint is not None
        assert first.endpoint is not None
        assert (second.endpoint.port, read_token(root)) == (first.endpoint.port, token)
        trainer.hello(epoch=2, step=2)
        status = trainer.status()
        assert (status.live.key, status.term, status.memory_bytes) == ("k2", 2, len(DATA))
        assert len([*shm.glob("milepost-*/0*")]) == 1  # what was on its way was swept


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_answers_whoever_waits_and_ends_it_in_good_order(process: Process, number: int) -> None:
    with process.speaker("trainer") as trainer, process.speaker("sampler") as sampler:
        trainer.hello()
        sampler.hello("sampler")
        waiting = sampler.stub.Fetch.future(
            pb.FetchRequest(caller=sampler.caller, wait_ms=60_000), metadata=sampler.metadata, timeout=120
        )
        news = sampler.say("Watch", pb.WatchRequest(caller=sampler.caller), timeout_s=120)
        next(news)
        until(lambda: trainer.status().counts["waiting"] == 1)
        process.popen.send_signal(number)
        assert refused(waiting.result) == "ending"
        assert [*news] == []
        assert process.wait() == 0
    assert read_endpoint(process.root).has_ended


def test_a_commit_that_a_signal_strikes_is_acknowledged_and_there_or_neither(tmp_path: Path) -> None:
    root, shm = tmp_path / "run", tmp_path / "shm"
    said = 0
    for life, is_acknowledged_first in ((1, False), (2, True)):
        with Process(root, shm) as process, process.speaker("trainer", str(life)) as trainer:
            trainer.hello(epoch=life, step=said)
            assert trainer.status().live.step == said
            trainer.begin(f"k{life}", life, {"weights": DATA})
            trainer.upload("weights", DATA)
            shard = wire.pack_shard("weights", Chunks.of(DATA, CHUNK))
            said_arrived = pb.ArrivedRequest(caller=trainer.caller, key=f"k{life}", shard=shard)
            arrived = trainer.stub.Arrived.future(said_arrived, metadata=trainer.metadata)
            finish = pb.FinishRequest(caller=trainer.caller, key=f"k{life}", durable=True, wait_ms=60_000)
            finished = trainer.stub.Finish.future(finish, metadata=trainer.metadata)
            if is_acknowledged_first:
                arrived.exception()
            process.popen.send_signal(signal.SIGTERM)
            if finished.exception() is None:
                said = life
            assert process.wait() == 0
        with Process(root, shm) as process, process.speaker("anybody") as anybody:
            step = anybody.status().live.step
            assert step in (said, life)
            said = step
            process.kill()


def test_memory_that_is_taken_away_under_it_is_noticed_and_it_goes_on_from_disk(hall: Hall) -> None:
    hall.serve()
    trainer = hall.trainer()
    trainer.commit("k1", 1, {"weights": DATA}, durable=True)
    for directory in hall.shm.glob("milepost-*"):
        shutil.rmtree(directory)
    until(lambda: _term(trainer) == 2)
    trainer.hello(step=1)
    assert tiers(hall) == {1: ["disk"]}
    assert trainer.commit("k2", 2, {"weights": DATA}).weights.at.number == 2


def test_two_servers_on_one_root_are_one_and_the_other_is_told_whose_it_is(served: Hall) -> None:
    with pytest.raises(ConflictError) as caught, Server(served.root, SETTINGS, memory_base=str(served.shm)):
        pass
    assert (caught.value.kind, caught.value.exit_code, caught.value.facts["pid"]) == ("held", 11, os.getpid())
    assert served.trainer().commit("k", 1, {"weights": DATA}).weights.at.number == 1


def test_a_server_whose_root_another_has_taken_says_no_more_and_ends(hall: Hall) -> None:
    server = hall.life()
    trainer = (server.__enter__(), hall.trainer())[1]
    trainer.commit("k1", 1, {"weights": DATA})
    other = sqlite3.connect(hall.root / "service" / "journal.sqlite3", isolation_level=None)
    other.execute("UPDATE last SET number = number + 1")
    other.close()
    trainer.waits = False
    said = (hall.root / "service" / ENDPOINT).read_bytes()
    with pytest.raises(grpc.RpcError) as broken:
        trainer.commit("k2", 2, {"weights": DATA})
    # The next service is to be asked: it may take the commit, or have it already.
    assert broken.value.code() == grpc.StatusCode.UNAVAILABLE
    assert wire.REFUSED not in dict(broken.value.trailing_metadata() or ())
    hall.server.wait()
    with pytest.raises(ConflictError) as caught:
        server.__exit__(None, None, None)
    assert (caught.value.kind, caught.value.exit_code) == ("fenced", 11)
    assert (hall.root / "service" / ENDPOINT).read_bytes() == said  # which is the other's to write


@pytest.mark.parametrize("is_asked_to_end", [False, True])
def test_a_server_whose_root_another_has_taken_finds_out_by_itself(
    hall: Hall, monkeypatch: pytest.MonkeyPatch, is_asked_to_end: bool
) -> None:
    monkeypatch.setattr(running, "FENCE_TICKS", 10**9 if is_asked_to_end else 1)
    server = hall.life()
    server.__enter__()
    said = (hall.root / "service" / ENDPOINT).read_bytes()
    with closing(sqlite3.connect(hall.root / "service" / "journal.sqlite3", isolation_level=None)) as other:
        other.execute("UPDATE last SET number = number + 1")
    if is_asked_to_end:
        hall.server.end()
    hall.server.wait()
    with pytest.raises(ConflictError) as caught:
        server.__exit__(None, None, None)
    assert caught.value.kind == "fenced"
    assert (hall.root / "service" / ENDPOINT).read_bytes() == said


def test_what_memory_has_no_room_for_goes_to_disk_and_older_versions_leave(hall: Hall) -> None:
    hall.serve(ServiceSettings(memory_bytes=2 * len(DATA), disk_keep_versions=2))
    trainer = hall.trainer()
    for step in (1, 2, 3):
        trainer.commit(f"k{step}", step, {"weights": DATA}, durable=True)
    until(lambda: tiers(hall) == {3: ["memory", "disk"], 2: ["disk"]})
    until(lambda: len(hall.places_in_memory) == 1)
    assert trainer.begin("big", 4, {"weights": bytes(3 * len(DATA))}).tier == "disk"
    trainer.upload("weights", bytes(3 * len(DATA)))
    trainer.arrived("big", "weights", bytes(3 * len(DATA)))
    assert trainer.finish("big").durable
    assert tiers(hall)[4] == ["disk"]
    sampler = hall.sampler()
    taken = sampler.fetch().take
    assert taken.sources[0].transport == "files"
    assert sampler.download(taken.weights) == bytes(3 * len(DATA))


def test_a_rollback_to_what_only_the_disk_has_is_fetched_from_there(hall: Hall) -> None:
    hall.serve()
    trainer, sampler = hall.trainer(), hall.sampler()
    trainer.commit("k1", 1, {"weights": DATA}, durable=True)
    newest = trainer.commit("k2", 2, {"weights": DATA[::-1]}, durable=True).weights.at
    until(lambda: tiers(hall) == {2: ["memory", "disk"], 1: ["disk"]})
    trainer.say("RollBack", pb.RollBackRequest(number=1, reason="it diverged"))
    taken = sampler.fetch(newest).take
    assert (taken.weights.step, sampler.download(taken.weights)) == (1, DATA)
    assert refused(lambda: trainer.begin("k3", 3, {"weights": DATA})) == "lost-branch"


def test_the_bytes_of_a_version_that_is_let_go_of_are_read_to_their_end_by_who_had_begun(hall: Hall) -> None:
    hall.serve(ServiceSettings(memory_bytes=64 << 20, disk_keep_versions=1, heartbeat_s=0.001, lease_s=0.002))
    trainer, sampler = hall.trainer(), hall.sampler()
    big = os.urandom(9 << 20)
    trainer.begin("k1", 1, {"weights": big})
    trainer.upload("weights", big, piece=1 << 20)
    trainer.arrived("k1", "weights", big)
    trainer.finish("k1", durable=True)
    weights = sampler.fetch().take.weights
    asked = pb.DownloadRequest(caller=sampler.caller, place=weights.place, blob="weights.safetensors", size_bytes=len(big))
    pieces = sampler.say("Download", asked)
    came = next(pieces).data
    trainer.commit("k2", 2, {"weights": DATA}, durable=True)
    until(lambda: [*tiers(hall)] == [2])
    until(lambda: weights.place not in [*hall.places_in_memory, *os.listdir(hall.root / "service" / "versions")])
    assert came + b"".join(piece.data for piece in pieces) == big
    assert refused(lambda: sampler.download(weights)) == "no-such-blob"


def test_a_flood_of_calls_is_told_to_come_again_and_the_others_go_on(hall: Hall) -> None:
    hall.serve(ServiceSettings(memory_bytes=1 << 20, max_calls=8))
    sampler = hall.sampler()
    asked = pb.FetchRequest(caller=sampler.caller, wait_ms=60_000)
    waiting = [sampler.stub.Fetch.future(asked, metadata=sampler.metadata, timeout=120) for _ in range(40)]
    ended = threading.Semaphore(0)
    for each in waiting:
        each.add_done_callback(lambda _: ended.release())
    assert all(ended.acquire(timeout=120) for _ in range(32))
    refusals = {each.exception().code() for each in waiting if each.done()}
    assert refusals == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert sampler.status().counts["refused.too-many"] == 32
    sampler.say("Heartbeat", pb.HeartbeatRequest(caller=sampler.caller))
    for each in waiting:
        each.cancel()
    until(lambda: _term(sampler) == 1)


def test_two_hundred_clients_hear_of_a_commit(hall: Hall) -> None:
    hall.serve()
    trainer = hall.trainer()
    samplers = [hall.sampler(f"sampler-{at}") for at in range(200)]
    waiting = [
        each.stub.Fetch.future(pb.FetchRequest(caller=each.caller, wait_ms=60_000), metadata=each.metadata, timeout=120)
        for each in samplers
    ]
    news = [each.say("Watch", pb.WatchRequest(caller=each.caller), timeout_s=120) for each in samplers]
    for each in news:
        next(each)
    done = trainer.commit("k", 1, {"weights": DATA})
    assert {each.result().take.weights.at.number for each in waiting} == {done.weights.at.number}
    assert {next(each).live.at.number for each in news} == {1}
    assert trainer.status().versions[0].readers == 200
    for each in news:
        each.cancel()


# Where it listens.


def test_the_token_is_its_owners_alone_and_stays_over_restarts(hall: Hall) -> None:
    with hall.life() as server:
        token = server.token
        assert token == read_token(hall.root)
        assert token is not None
        assert len(token) >= 32
        path = hall.root / "service" / TOKEN
        assert path.stat().st_mode & 0o777 == 0o600
    written_ns = path.stat().st_mtime_ns
    with hall.life() as server:
        assert server.token == token
        assert path.stat().st_mtime_ns == written_ns  # who reads it while a service begins finds it whole
    path.write_text("cut")
    path.chmod(0o644)
    with hall.life() as server:
        assert server.token not in ("cut", token)
        assert path.stat().st_mode & 0o777 == 0o600
    with hall.life(ServiceSettings(memory_bytes=1, token="of-the-operators-own")) as server:
        assert (server.token, read_token(hall.root)) == ("of-the-operators-own",) * 2
    with hall.life(ServiceSettings(memory_bytes=1, token=None)):
        assert read_token(hall.root) is None
        assert hall.speaker("a").hello("sampler").run_id


def test_a_port_that_another_has_taken_is_left_to_it(hall: Hall, tmp_path: Path) -> None:
    with hall.life() as server:
        port = server.endpoint.port
    other = tmp_path / "other"
    with Server(other, ServiceSettings(memory_bytes=1, port=port), memory_base=str(hall.shm)):
        with hall.life() as server:
            assert server.endpoint.port != port
        with pytest.raises(UsageError) as caught, hall.life(ServiceSettings(memory_bytes=1, port=port)):
            pass
    assert caught.value.kind == "cannot-listen"


def test_where_nobody_has_served_and_where_the_record_is_damaged_that_is_said(hall: Hall) -> None:
    with pytest.raises(NotFoundError) as caught:
        read_endpoint(hall.root)
    assert "milepost serve" in caught.value.hint
    with hall.life():
        pass
    (hall.root / "service" / ENDPOINT).write_text("{}")
    with pytest.raises(CorruptError):
        read_endpoint(hall.root)
    hall.serve()
    assert not read_endpoint(hall.root).is_dead


def test_who_listens_at_all_addresses_is_reached_from_here_and_from_elsewhere_by_its_name(hall: Hall) -> None:
    with hall.life(ServiceSettings(memory_bytes=1, host="0.0.0.0", insecure=True)):
        here = read_endpoint(hall.root)
        assert here.reach == f"localhost:{here.port}"
        with Speaker(here.reach, read_token(hall.root), "a") as speaker:
            assert speaker.hello("sampler").run_id == here.run_id
        assert replace(here, boot_id="another", machine="gpu-3").reach == f"gpu-3:{here.port}"
        assert replace(here, address="gpu-4:5", boot_id="another").reach == "gpu-4:5"


def test_of_a_process_of_another_container_nobody_says_that_it_is_dead(served: Hall) -> None:
    gone = replace(read_endpoint(served.root), start_time=1)
    assert gone.is_dead
    assert not replace(gone, namespace="pid:[1]").is_dead
    assert not replace(gone, boot_id="another").is_dead


def test_a_run_has_one_name_for_good(hall: Hall) -> None:
    with hall.life(run_id="ppo-7"):
        assert hall.speaker("a").hello("sampler", run_id="ppo-7").run_id == "ppo-7"
    with hall.life(run_id="another"):
        assert hall.speaker("a").hello("sampler").run_id == "ppo-7"


def test_a_root_that_cannot_be_written_is_an_error_before_anybody_comes(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(MilepostError) as caught, Server(tmp_path / "run", SETTINGS, memory_base=str(tmp_path)):
        pass
    assert isinstance(caught.value, StoreError | UsageError)


def test_the_trailing_refusal_is_what_the_status_says_in_short(served: Hall) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        served.speaker("nobody").fetch()
    assert refusal(caught.value).kind == "not-joined"
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION  # type: ignore[attr-defined]


def test_while_others_take_the_machines_memory_versions_are_brought_to_disk(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    hall.serve()
    trainer = hall.trainer()
    monkeypatch.setattr(MemoryTier, "free_bytes", lambda _: 1000)
    trainer.commit("one", 1, {"weights": b"1" * 5000})
    assert [list(each.tiers) for each in trainer.status().versions] == [["disk"]]
    monkeypatch.undo()
    trainer.commit("two", 2, {"weights": b"2" * 5000})
    assert "memory" in trainer.status().versions[0].tiers
    reader = hall.sampler()
    assert reader.download(reader.fetch().take.weights) == b"2" * 5000
