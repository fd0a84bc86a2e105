"""A service that is killed in the middle of any call costs time only; of one that stays away it is said what is certain."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost.clock import FakeClock, SystemClock
from milepost.errors import ConflictError, NotFoundError, ServiceError, StoreError, UsageError
from milepost.service.client import client as client_module
from milepost.service.client.calls import Calls
from milepost.service.client.client import Client, connect
from milepost.service.client.line import Broken, Line
from milepost.service.client.target import Tls
from milepost.service.client.until import Until
from tests.service.client.running import Running, running

Strike = Callable[[str, str], list[str]]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("run")) as service:
        yield service


class Ahead(SystemClock):
    """Be ahead of time as soon as a test says so."""

    ahead_ns = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.ahead_ns


@pytest.fixture
def strike(service: Running, monkeypatch: pytest.MonkeyPatch) -> Strike:
    """Return what has the service killed, and started again, once: just before a call of this name, or just after it was done."""
    really = Line.call

    def prepare(method: str, when: str) -> list[str]:
        heard: list[str] = []

        def call(self: Line, name: str, request: Any, timeout_s: float) -> Any:
            is_struck = name == method and method not in heard
            if name not in ("Heartbeat", "Release"):
                heard.append(name)
            if is_struck and when == "before":
                service.restart()
            answer = really(self, name, request, timeout_s)
            if is_struck and when == "after":
                service.restart()
                raise Broken("the answer was lost")
            return answer

        monkeypatch.setattr(Line, "call", call)
        return heard

    return prepare


@pytest.fixture
def trainer(service: Running, request: pytest.FixtureRequest) -> Iterator[Client]:
    with service.client(f"{request.node.name[:60]}-trainer", "trainer") as client:
        yield client


@pytest.fixture
def sampler(service: Running, request: pytest.FixtureRequest) -> Iterator[Client]:
    with service.client(f"{request.node.name[:60]}-sampler") as client:
        yield client


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["Begin", "Arrived", "Finish"])
def test_a_service_that_is_killed_within_a_commit_has_it_once(
    strike: Strike, trainer: Client, sampler: Client, method: str, when: str
) -> None:
    before = trainer.commit(1, {"w": np.zeros(10)})
    live = np.arange(300_000)
    heard = strike(method, when)
    done = trainer.commit(2, {"w": live}, parts={"more": {"m": np.ones(3)}})
    live[:] = 0
    assert method in heard
    assert done.at.number == before.at.number + 1
    weights = sampler.fetch(parts=("weights", "more"))
    assert weights is not None
    assert weights.at == done.at
    assert np.array_equal(weights["w"], np.arange(300_000))
    assert weights.part("more")["m"].tolist() == [1, 1, 1]
    assert trainer.wait_durable(done).durable
    # It goes on where it was, and leaves nothing behind.
    after = trainer.commit(3, {"w": np.zeros(10)})
    standing = trainer.status()
    assert standing.live is not None
    assert (standing.live.at, standing.live.parent) == (after.at, done.at)
    assert not any(version.is_lost for version in standing.versions)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("way", ["auto", "bulk"])
def test_a_service_that_is_killed_within_a_fetch_answers_it(
    service: Running, strike: Strike, trainer: Client, when: str, way: str
) -> None:
    done = trainer.commit(1, {"w": np.arange(1000)})
    with service.client("reader", transport=way) as sampler:
        strike("Fetch", when)
        weights = sampler.fetch()
        assert weights is not None
        assert weights.at == done.at
        assert np.array_equal(weights["w"], np.arange(1000))


def test_who_waits_for_news_hears_it_from_the_next_service(service: Running, trainer: Client, sampler: Client) -> None:
    trainer.commit(1, {"w": np.zeros(1)})
    sampler.fetch()
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(sampler.fetch(timeout=60)), name="milepost-test-waits")
    waiting.start()
    service.restart()
    done = trainer.commit(2, {"w": np.ones(1)})
    waiting.join(60)
    assert [weights.at for weights in found] == [done.at]


def test_who_watches_goes_on_with_the_next_service(service: Running, trainer: Client, sampler: Client) -> None:
    one = trainer.commit(1, {"w": np.zeros(1)})
    with sampler.watch() as news:
        first = next(news)
        assert first.at == one.at
        service.restart()
        began = next(news)
        assert (began.at, began.term) == (one.at, first.term + 1)
        two = trainer.commit(2, {"w": np.zeros(1)})
        assert next(each for each in news if each.at == two.at).reason


def test_a_watch_that_is_closed_ends_also_while_the_service_is_away(service: Running, sampler: Client) -> None:
    watch = sampler.watch(timeout=1e6)
    heard = threading.Event()

    def listen() -> None:
        for _ in watch:
            heard.set()

    listening = threading.Thread(target=listen, name="milepost-test-listens")
    listening.start()
    assert heard.wait(60)
    service.kill()
    watch.close()
    listening.join(60)
    assert not listening.is_alive()
    service.start()


def test_a_service_that_has_another_token_now_is_found_again(service: Running, trainer: Client, sampler: Client) -> None:
    trainer.commit(1, {"w": np.zeros(1)})
    service.stop()
    (service.root / "service" / "token").unlink()
    service.start()
    done = trainer.commit(2, {"w": np.zeros(1)})
    weights = sampler.fetch(timeout=60)
    assert weights is not None
    assert weights.at == done.at


def test_a_trainer_that_forgets_where_it_goes_on_from_is_told_what_that_does(
    service: Running, trainer: Client, caplog: pytest.LogCaptureFixture
) -> None:
    at = trainer.commit(1, {"w": np.zeros(1)}).at
    with service.client("again", "trainer", step=1):
        assert caplog.messages == []
    with service.client("again", "trainer"):
        assert f"leaves {at} behind" in caplog.text


def test_views_outlive_the_service(service: Running, trainer: Client, sampler: Client) -> None:
    trainer.commit(1, {"w": np.arange(100_000)})
    weights = sampler.fetch()
    assert weights is not None
    service.restart()
    assert np.array_equal(weights["w"], np.arange(100_000))
    again = sampler.fetch(has=None)
    assert again is not None
    assert again.at == weights.at


def test_a_service_that_stays_away_is_told_of_with_what_is_certain(service: Running) -> None:
    with (
        service.client("impatient", "trainer", commit_timeout=0.5, fetch_timeout=0.5) as trainer,
        service.client("reader", fetch_timeout=0.5) as sampler,
        service.client("patient", "trainer") as patient,
    ):
        patient.commit(1, {"w": np.zeros(10)})
        service.kill()
        try:
            with pytest.raises(ServiceError, match="cannot be reached") as nothing:
                trainer.commit(2, {"w": np.zeros(10)})
            assert nothing.value.kind == "unreachable"
            assert nothing.value.facts["certain"] == "nothing was made visible"
            assert nothing.value.facts["address"] == trainer.address
            with pytest.raises(ServiceError) as unread:
                sampler.fetch()
            assert unread.value.facts["certain"] == "nothing was changed"
            with pytest.raises(ServiceError):
                sampler.status()
        finally:
            service.start()
        assert patient.commit(2, {"w": np.zeros(10)}).at


def test_a_commit_of_which_nobody_knows_whether_it_is_visible_says_so_and_is_found_by_its_key(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = Line.call

    def call(self: Line, name: str, request: Any, timeout_s: float) -> Any:
        answer = really(self, name, request, timeout_s)
        if name == "Arrived":
            really(self, "Finish", client_module.pb.FinishRequest(caller=request.caller, key=request.key, wait_ms=60_000), 60)
            service.kill()
            clock.ahead_ns = 10**12  # it has waited for long enough
            raise Broken("the answer was lost")
        return answer

    clock = Ahead()
    with service.client("unsure", "trainer", clock=clock) as trainer:
        monkeypatch.setattr(Line, "call", call)
        with pytest.raises(ServiceError, match="unsure-step-1") as unsure:
            trainer.commit(1, {"w": np.zeros(10)}, key="unsure-step-1")
        assert "may have been made visible" in str(unsure.value)
        monkeypatch.undo()
        service.start()
        live = trainer.status().live
        assert live is not None
        assert trainer.commit(1, {"w": np.zeros(10)}, key="unsure-step-1").at == live.at


def test_a_service_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    found: list[Client] = []
    root = tmp_path / "run"
    waiting = threading.Thread(
        target=lambda: found.append(connect(root, component="early", role="sampler")), name="milepost-test-waits"
    )
    waiting.start()
    with running(root):
        waiting.join(60)
        assert found[0].fetch() is None
        found[0].close()


def test_what_is_no_service_is_told_at_once_or_soon(service: Running, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no service has begun"):
        connect(tmp_path, component="a", role="sampler", timeout=0.1)
    with pytest.raises(UsageError, match="MILEPOST_SERVICE"):
        connect(component="a", role="sampler")
    with pytest.raises(UsageError) as token:
        service.client("a", token="not the token of it")
    assert token.value.kind == "bad-token"
    with pytest.raises(UsageError) as other:
        service.client("a", run_id="another")
    assert other.value.kind == "other-run"
    with pytest.raises(UsageError, match="a role is"):
        service.client("a", "judge")
    with pytest.raises(UsageError, match="no such transport"):
        service.client("a", transport="pigeon")
    with pytest.raises(ServiceError) as nobody:
        connect("127.0.0.1:9", component="a", role="sampler", timeout=0.1)
    assert nobody.value.kind == "unreachable"
    with pytest.raises(StoreError, match="certificate"):
        connect("127.0.0.1:9", component="a", role="sampler", timeout=0.1, tls=str(tmp_path / "none.pem"))


def test_an_address_and_a_token_are_enough(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with service.client("a") as known:
        address = known.address
    token = (service.root / "service" / "token").read_text().strip()
    with connect(address, component="b", role="sampler", token=token) as client:
        assert client.run_id
    monkeypatch.setenv("MILEPOST_SERVICE", address)
    monkeypatch.setenv("MILEPOST_SERVICE_TOKEN", token)
    with connect(component="b", role="sampler") as client:
        client.fetch()


def test_an_earlier_process_hears_that_it_was_replaced_also_by_its_own_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()
    supersede = Calls.supersede

    def hear(self: Calls, error: ConflictError) -> None:
        supersede(self, error)
        told.set()

    monkeypatch.setattr(Calls, "supersede", hear)
    with (
        running(tmp_path, '{"heartbeat_s": 0.05}') as service,
        service.client("trainer", "trainer") as first,
        service.client("trainer", "trainer"),
    ):
        assert told.wait(60)
        with pytest.raises(ConflictError) as superseded:
            first.commit(1, {"w": np.zeros(1)})
        assert superseded.value.kind == "superseded"
        heartbeat = first._heartbeat._thread
        first.close()
        assert not heartbeat.is_alive()


def test_a_child_that_was_forked_is_refused_and_gives_nothing_back(service: Running, trainer: Client) -> None:
    at = trainer.commit(1, {"w": np.zeros(10)}).at
    with service.client("forking") as sampler:
        weights = sampler.fetch()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                sampler.fetch()
            except UsageError as error:
                code = 0 if error.kind == "forked" else 2
            del weights
            sampler.close()
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert weights is not None
        assert [version.readers for version in trainer.status().versions if version.weights.at == at] == [1]
        assert sampler.fetch() is None


def test_a_program_that_forgets_to_close_ends_and_says_goodbye(service: Running, sampler: Client) -> None:
    script = "import sys, milepost; kept = milepost.service.connect(sys.argv[1], component='forgetful', role='sampler')"
    subprocess.run([sys.executable, "-c", script, str(service.root)], check=True, timeout=120)
    assert [each.silent_s for each in sampler.status().components if each.component == "forgetful"] == [None]


def test_without_grpc_it_is_said_what_to_install() -> None:
    script = """
import sys
sys.modules["grpc"] = None
import milepost
from milepost.service import Client, connect
try:
    connect("runs/ppo", component="trainer", role="trainer")
except milepost.MissingExtraError as error:
    assert "pip install 'milepost[service]'" in str(error), error
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_importing_the_service_imports_nothing_heavy() -> None:
    script = (
        "import sys, milepost; milepost.service; print([m for m in ('grpc', 'numpy', 'torch', 'msgspec') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n"


def test_what_is_missing_is_named(service: Running, trainer: Client, sampler: Client) -> None:
    trainer.commit(1, {"weight": np.zeros(1)})
    weights = sampler.fetch()
    assert weights is not None
    with pytest.raises(NotFoundError, match="first_names=`weight`"):
        weights["wieght"]
    assert "wieght" not in weights


def test_bytes_that_somebody_has_removed_are_what_is_said_to_be_missing_and_not_time(service: Running, trainer: Client) -> None:
    trainer.commit(1, {"weight": np.zeros(1)}, durable=True)
    # Moved away at once: the service may be dropping older ones meanwhile.
    (service.root / "service" / "versions").rename(service.root / "gone")
    for part in Path(service.memory).rglob("weights.safetensors"):
        part.unlink()
    with service.client("sampler", fetch_timeout=2) as sampler, pytest.raises(NotFoundError) as caught:
        sampler.fetch()
    assert caught.value.kind == "no-such-blob"


def test_a_watch_that_hears_nothing_for_long_asks_anew(
    service: Running, trainer: Client, sampler: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []
    really = Line.stream

    def stream(self: Line, method: str, request: Any, timeout_s: float) -> Any:
        began.append(method)
        return really(self, method, request, 0.2 if len(began) < 3 else timeout_s)

    monkeypatch.setattr(Line, "stream", stream)
    one = trainer.commit(1, {"w": np.zeros(1)})
    with sampler.watch() as news:
        assert next(news).at == one.at
        heard: list[Any] = []
        waiting = threading.Thread(target=lambda: heard.append(next(news)), name="milepost-test-watches")
        waiting.start()
        while len(began) < 3 and waiting.is_alive():
            waiting.join(0.01)
        two = trainer.commit(2, {"w": np.zeros(1)})
        while waiting.is_alive() and not heard:
            waiting.join(0.01)
        assert two.at in {each.at for each in heard} or next(each for each in news if each.at == two.at)


def test_over_tls_a_client_trusts_whom_it_was_told_to(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", *curve, *names, "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    with running(tmp_path / "run", json.dumps({"tls_cert": cert, "tls_key": key, "tls_ca": cert})) as service:
        known = Tls(cert, cert, key)
        with service.client("trainer", "trainer", tls=known) as trainer:
            done = trainer.commit(1, {"w": np.arange(5)})
            for way in ("auto", "bulk", "grpc"):
                with service.client("sampler", tls=known, transport=way) as sampler:
                    weights = sampler.fetch()
                    assert weights is not None
                    assert (weights.at, weights["w"].tolist()) == (done.at, [*range(5)])
        for stranger in (None, cert):
            with pytest.raises(ServiceError, match="cannot be reached"):
                service.client("stranger", tls=stranger, timeout=0.3)


def test_what_does_not_fit_into_memory_goes_to_disk_and_is_had_from_there(tmp_path: Path) -> None:
    with (
        running(tmp_path, '{"memory_bytes": 0}') as service,
        service.client("trainer", "trainer") as trainer,
        service.client("sampler") as sampler,
        service.client("small", limit_bytes=100) as small,
    ):
        done = trainer.commit(1, {"w": np.arange(100_000)}, parts={"empty": {}})
        assert done.durable
        weights = sampler.fetch(parts=("weights", "empty"))
        assert weights is not None
        assert np.array_equal(weights["w"], np.arange(100_000))
        assert weights.part("empty") == {}
        assert [version.tiers for version in sampler.status().versions] == [("disk",)]
        with pytest.raises(ServiceError) as large:
            small.fetch()
        assert large.value.kind == "too-large"


def test_who_waits_in_vain_for_the_parts_of_others_hears_which_are_missing(service: Running) -> None:
    with service.client("ranks", "trainer", incarnation="agreed-on") as rank:
        state = {"a": np.arange(5)}
        sizes = {f"weights.{number}-of-2": rank.size_of(state) for number in range(2)}
        commit = rank.begin(1, sizes, key="step 1")
        rank.bring(commit, "weights.0-of-2", state)
        commit.until = Until(FakeClock(), 0.1)  # which stands still: it is the service that has waited for long enough
        with pytest.raises(ServiceError) as late:
            rank.finish(commit)
        assert (late.value.kind, late.value.facts["missing"]) == ("commit-timeout", "weights.1-of-2")
