"""The control socket: real sockets, and whatever arrives there; nothing crashes it, and nothing fills it."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.clock import FakeClock, SystemClock
from milepost.errors import ConflictError, NotFoundError, ServiceError, StoreError, UsageError
from milepost.supervise import control
from milepost.supervise.control import MAX_CLIENTS, MAX_UNANSWERED, Control, ControlLock, ask, error_of
from milepost.supervise.orders import (
    MAX_LINE_BYTES,
    Answer,
    Look,
    Order,
    RestartAll,
    RestartRole,
    RestartWorker,
    Standing,
    read,
    written,
)
from tests.supervise.ups import until

NOBODY = 65534
DONE = Answer("restarted", (Standing("sampler", 3, "ready", 4711, 2, "ordered"),))


class Service:
    """Take orders, and answer at once unless a test holds them back."""

    def __init__(self) -> None:
        self.orders: list[tuple[Order, str]] = []
        self.held: list[Future[Answer]] = []
        self.holds = False
        self.raises: Exception | None = None

    def __call__(self, order: Order, key: str) -> Future[Answer]:
        if self.raises:
            raise self.raises
        self.orders.append((order, key))
        future: Future[Answer] = Future()
        self.held.append(future) if self.holds else future.set_result(DONE)
        return future


@contextmanager
def listening(path: Path, **settings: Any) -> Iterator[Service]:
    service = Service()
    with ControlLock(path, SystemClock()):
        there = Control(path, service, settings.pop("clock", SystemClock()), **settings)
        try:
            yield service
        finally:
            there.close()


@contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60.0)
        connection.connect(str(path))
        yield connection


def lines(connection: socket.socket) -> list[dict[str, Any]]:
    """Return all that comes until it is closed there."""
    with connection.makefile("rb") as file:
        return [json.loads(line) for line in file]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "up.sock"


def test_an_order_is_answered_when_it_is_carried_out(path: Path) -> None:
    order = RestartWorker("sampler", 3, attempt=2, now=True, why="no heartbeat for 30 s")
    with listening(path) as service:
        answer = ask(path, order, "k1", 60.0)
    assert service.orders == [(order, "k1")]
    assert answer == {"version": 1, "ok": True, "key": "k1", "outcome": "restarted"} | {
        "standings": [dataclasses.asdict(DONE.standings[0])]
    }
    assert not path.exists()


def test_an_error_comes_back_as_it_was_raised(path: Path) -> None:
    with listening(path) as service:
        service.raises = NotFoundError("there is no such role", kind="no-such-role", hint="its roles: a", role="b")
        answer = ask(path, RestartRole("b"), "k", 60.0)
    error = error_of(answer)
    assert (type(error), error.kind, error.exit_code, str(error)) == (NotFoundError, "no-such-role", 10, str(service.raises))


def test_an_order_that_fails_later_is_answered_with_that(path: Path) -> None:
    with listening(path) as service, connected(path) as connection:
        service.holds = True
        connection.sendall(written(RestartAll(), "k"))
        until(lambda: service.held)
        service.held[0].set_exception(ServiceError("the pipeline is being stopped", kind="shutting-down"))
        with connection.makefile("rb") as file:
            assert json.loads(file.readline())["error"]["kind"] == "shutting-down"


def test_several_orders_of_one_connection_are_answered_each_with_its_key(path: Path) -> None:
    with listening(path) as service, connected(path) as connection:
        service.holds = True
        for index in range(3 * MAX_UNANSWERED):  # more than are taken at once: the rest waits its turn
            connection.sendall(written(RestartWorker("sampler", index), f"k{index}"))
        connection.shutdown(socket.SHUT_WR)
        for answered in range(3 * MAX_UNANSWERED):
            until(lambda answered=answered: len(service.held) > answered)
            assert len(service.held) - answered <= MAX_UNANSWERED
            service.held[answered].set_result(DONE)
        assert [each["key"] for each in lines(connection)] == [f"k{index}" for index in range(3 * MAX_UNANSWERED)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"hello", "this line is no JSON"),
        (b"\xff\xfe\x00", "this line is no JSON"),
        (b"[" * 60_000, "this line is no JSON"),
        (b"[]", "an order is a JSON object"),
        (b"{}", "this milepost up speaks version 1 of the control protocol"),
        (b'{"version": 2, "order": "restart-all"}', "this milepost up speaks version 1 of the control protocol"),
        (b'{"version": true, "order": "restart-all"}', "this milepost up speaks version 1 of the control protocol"),
        (b'{"version": 1, "order": "rm"}', "an order is one of restart-worker, restart-role, restart-all, roles"),
        (b'{"version": 1, "order": ["roles"]}', "an order is one of restart-worker, restart-role, restart-all, roles"),
        (b'{"version": 1, "order": "restart-role"}', "restart-role needs role"),
        (b'{"version": 1, "order": "restart-worker", "role": "a"}', "restart-worker needs index"),
        (b'{"version": 1, "order": "restart-worker", "role": "a", "index": "3"}', "index of restart-worker is to be int"),
        (b'{"version": 1, "order": "restart-worker", "role": "a", "index": true}', "index of restart-worker is to be int"),
        (b'{"version": 1, "order": "restart-worker", "role": "a", "index": 1e400}', "index of restart-worker is to be int"),
        (
            b'{"version": 1, "order": "restart-worker", "role": "a", "index": ' + b"9" * 4000 + b"}",
            "index of restart-worker is to be int",
        ),
        (b'{"version": 1, "order": "restart-all", "only": "a"}', "restart-all knows only now, why"),
        (b'{"version": 1, "order": "roles", "now": true}', "roles knows only no fields"),
        (b'{"version": 1, "order": "restart-all", "now": 1}', "now of restart-all is to be bool"),
        (b'{"version": 1, "order": "restart-all", "key": 3}', "a key is a text of 1 to 200 characters"),
        (b'{"version": 1, "order": "restart-all", "why": "' + b"a" * 2000 + b'"}', "why of restart-all is to be str"),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else None,
)
def test_a_line_that_is_no_order_is_answered_with_what_is_wrong_and_the_next_is_taken(path: Path, line: bytes, says: str) -> None:
    with listening(path) as service, connected(path) as connection:
        connection.sendall(line + b"\n\n" + written(RestartAll(), "next"))
        connection.shutdown(socket.SHUT_WR)
        refused, answer = lines(connection)
    assert (refused["ok"], refused["error"]["kind"], refused["error"]["message"]) == (False, "bad-order", says)
    assert (answer["ok"], service.orders) == (True, [(RestartAll(), "next")])


def test_an_order_in_pieces_is_one_order_and_one_without_its_end_is_none(path: Path) -> None:
    line = written(RestartRole("trainer"), "k")
    with listening(path) as service:
        with connected(path) as connection:
            for each in line[:-1]:
                connection.sendall(bytes([each]))
        with connected(path) as connection:  # the first is gone, its order with it
            for each in line:
                connection.sendall(bytes([each]))
            with connection.makefile("rb") as file:
                assert json.loads(file.readline())["ok"]
    assert service.orders == [(RestartRole("trainer"), "k")]


def test_a_line_without_end_is_cut_off(path: Path) -> None:
    with listening(path) as service, connected(path) as connection:
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(b"x" * (100 * MAX_LINE_BYTES))
        assert ask(path, RestartAll(), "", 60.0)["ok"]
        assert len(service.orders) == 1


def test_whoever_asks_and_does_not_read_is_dropped_and_others_are_heard(path: Path) -> None:
    big = Answer("seen", DONE.standings * 10_000)  # a megabyte
    with listening(path) as service, connected(path) as deaf:
        service.holds = True
        deaf.sendall(written(Look(), "") * 12)
        until(lambda: len(service.held) == 12)
        for future in service.held:
            future.set_result(big)
        service.holds = False
        assert ask(path, RestartAll(), "", 60.0)["ok"]
        assert received(deaf) < 6 << 20  # of twelve: the rest was not kept for it


def received(connection: socket.socket) -> int:
    """Return how much comes until it is closed there."""
    count = 0
    try:
        while data := connection.recv(1 << 20):
            count += len(data)
    except ConnectionResetError:
        pass
    return count


def test_one_that_says_nothing_is_let_go_and_one_that_waits_for_its_answer_is_not(path: Path) -> None:
    clock = FakeClock()
    with listening(path, clock=clock) as service, connected(path) as silent, connected(path) as waiting:
        service.holds = True
        waiting.sendall(written(RestartAll(), "k"))
        until(lambda: service.held)
        silent.sendall(b'{"version"')
        silent.setblocking(False)
        until(lambda: is_closed(silent), also=lambda: clock.advance(seconds=control.MAX_IDLE_S + 1))
        service.held[0].set_result(DONE)
        with waiting.makefile("rb") as file:
            assert json.loads(file.readline())["key"] == "k"


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


def test_too_many_connections_are_told_so(path: Path) -> None:
    with listening(path):
        many = [socket.socket(socket.AF_UNIX) for _ in range(MAX_CLIENTS + 1)]
        try:
            for each in many:
                each.settimeout(60.0)
                each.connect(str(path))
            (answer,) = lines(many[-1])
            assert answer["error"]["kind"] == "busy"
        finally:
            for each in many:
                each.close()
        until(lambda: ask(path, RestartAll(), "", 60.0)["ok"])


def test_the_socket_is_the_owner_s_alone_from_its_first_moment(path: Path) -> None:
    before = os.umask(0)
    try:
        with listening(path):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    finally:
        os.umask(before)


def test_another_user_is_refused_whatever_the_mode_of_the_file(path: Path) -> None:
    if os.getuid() != 0:
        # We are not to give away our name: the socket is told that it is somebody else's.
        with listening(path, owner=NOBODY) as service, connected(path) as connection:
            assert lines(connection)[0]["error"]["kind"] == "not-yours"
        assert service.orders == []
        return
    folder = Path(os.path.realpath("/tmp")) / f"milepost-test-{os.getpid()}"  # one that another user can reach
    folder.mkdir(mode=0o755)
    try:
        with listening(folder / "up.sock") as service:
            assert as_nobody(folder / "up.sock") == "StoreError permission"
            os.chmod(folder / "up.sock", 0o666)
            assert as_nobody(folder / "up.sock") == "answer not-yours"
        assert service.orders == []
    finally:
        for left in folder.iterdir():
            left.unlink()
        folder.rmdir()


def as_nobody(path: Path) -> str:
    """Return what another user gets for an order."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(NOBODY)
            try:
                answer = ask(path, RestartAll(), "", 60.0)
                said = f"answer {answer['error']['kind']}"
            except StoreError as error:
                said = f"StoreError {error.kind}"
            os.write(writing, said.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def test_where_nobody_listens_or_nobody_any_more_it_says_so(path: Path) -> None:
    with pytest.raises(NotFoundError, match="no milepost up listens there") as caught:
        ask(path, RestartAll(), "", 60.0)
    assert caught.value.kind == "no-pipeline"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(NotFoundError, match="any more"):
        ask(path, RestartAll(), "", 60.0)


def test_the_socket_file_of_one_that_was_killed_is_taken_over(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with listening(path):
        assert ask(path, RestartAll(), "", 60.0)["ok"]


def test_a_socket_file_that_is_removed_comes_back_and_that_of_another_is_left(path: Path) -> None:
    with listening(path):
        path.unlink()
        until(path.exists)
        assert ask(path, RestartAll(), "", 60.0)["ok"]
    assert not path.exists()
    with listening(path), socket.socket(socket.AF_UNIX) as another:
        another.bind(f"{path}.other")
        os.replace(f"{path}.other", path)
    assert path.exists()


def test_what_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("mine")
    with ControlLock(path, SystemClock()), pytest.raises(UsageError, match="something else lies there") as caught:
        Control(path, Service(), SystemClock())
    assert (caught.value.kind, path.read_text()) == ("bad-control", "mine")


def test_where_no_socket_can_be_it_says_what_to_do(tmp_path: Path) -> None:
    for attempt in (
        lambda: ControlLock(tmp_path / "no" / "up.sock", SystemClock()).__enter__(),
        lambda: Control(tmp_path / "no" / "up.sock", Service(), SystemClock()),
    ):
        with pytest.raises(UsageError, match="--control") as caught:
            attempt()
        assert caught.value.kind == "bad-control"


def test_a_file_whose_own_name_is_too_long_for_a_socket_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the name of the file is too long for one"):
        Control(tmp_path / ("x" * 120), Service(), SystemClock())


def test_a_second_one_is_refused_with_the_first_one_s_pid(path: Path) -> None:
    with ControlLock(path, SystemClock()):
        with pytest.raises(ConflictError, match="this pipeline runs already") as caught:
            ControlLock(path, SystemClock()).__enter__()
        assert (caught.value.kind, caught.value.facts["pid"]) == ("held", os.getpid())
    with ControlLock(path, SystemClock()):
        pass


def test_a_path_longer_than_that_of_a_socket_may_be_is_fine(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90) / ("e" * 90)
    deep.mkdir(parents=True)
    with listening(deep / "up.sock"):
        assert ask(deep / "up.sock", RestartAll(), "", 60.0)["ok"]


def test_one_that_goes_away_without_an_answer_is_an_error_with_what_to_do(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(ServiceError, match="--key k7") as caught:
            ask(path, RestartAll(), "k7", 1e-3)
        assert caught.value.kind == "no-answer"


orders = st.one_of(
    st.builds(
        RestartWorker,
        st.text(max_size=20),
        st.integers(-5, 10**6),
        st.none() | st.integers(0, 99),
        st.booleans(),
        st.text(max_size=99),
    ),
    st.builds(RestartRole, st.text(max_size=20), st.none() | st.integers(0, 99), st.booleans(), st.text(max_size=99)),
    st.builds(RestartAll, st.booleans(), st.text(max_size=99)),
    st.just(Look()),
)


@given(order=orders, key=st.text(max_size=200))
def test_what_is_written_is_what_is_read(order: Order, key: str) -> None:
    line = written(order, key)
    assert line.count(b"\n") == 1
    assert read(line) == (order, key)


json_values: Callable[..., Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=5,
)
fields = st.sampled_from(["version", "order", "key", "role", "index", "attempt", "now", "why", "x"])
near = st.dictionaries(
    fields, st.sampled_from([1, "restart-worker", "restart-all", "a", None, True, 0]) | json_values, max_size=8
)


@given(line=st.binary(max_size=200) | near.map(lambda value: json.dumps(value).encode()))
def test_any_line_is_an_order_or_a_bad_one(line: bytes) -> None:
    try:
        order, _ = read(line)
        kind = type(order).__name__
    except UsageError as error:
        kind = error.kind
    assert kind in ("bad-order", "RestartWorker", "RestartRole", "RestartAll", "Look")


def test_a_ctrl_c_while_it_closes_leaves_neither_its_thread_nor_its_socket(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    struck, join = list[int](), threading.Thread.join

    def interrupted(self: threading.Thread, timeout: float | None = None) -> None:
        if self.name == "milepost-control" and not struck:
            struck.append(1)
            raise KeyboardInterrupt
        join(self, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt), listening(path):
        pass
    assert not path.exists()
    assert "milepost-control" not in {thread.name for thread in threading.enumerate()}
