"""Work is done beside the caller and comes back in order; what fails is told once, and nothing hangs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from milepost import threads
from milepost.encode import crew
from milepost.encode.crew import Crew
from milepost.testing.faults import HANG_S, run_in_child
from tests.strike import before_line


def alive(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    with Crew[int, int](lambda n: n * n, threads=threads, ahead=2, name="t") as made:
        assert list(made.map(range(50))) == [n * n for n in range(50)]
    assert not alive("t")


def test_no_thread_is_begun_for_nothing() -> None:
    with Crew[int, int](lambda n: n, threads=3, ahead=2, name="t") as made:
        assert list(made.map([])) == []
        assert not alive("t")


def test_the_caller_makes_the_next_item_while_the_last_one_is_worked_on_and_no_more_than_agreed() -> None:
    gate, taken = threading.Event(), list[int]()

    def items() -> Iterator[int]:
        for n in range(10):
            taken.append(n)
            if n == 3:
                gate.set()  # the fourth exists while the first is not done: only now may the first be
            yield n

    def work(n: int) -> int:
        assert gate.wait(HANG_S)
        return n

    with Crew[int, int](work, threads=1, ahead=3, name="t") as made:
        results = made.map(items())
        assert next(results) == 0
        assert taken == [0, 1, 2, 3]
        assert list(results) == list(range(1, 10))


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_after_a_failure_nothing_that_was_not_begun_is_begun_and_the_error_comes_once(threads: int) -> None:
    done: list[int] = []

    def work(n: int) -> int:
        if n == 5:
            raise OSError("no room")
        done.append(n)
        return n

    got: list[int] = []
    with Crew[int, int](work, threads=threads, ahead=4, name="t") as made, pytest.raises(OSError, match="no room"):
        got.extend(made.map(range(100)))  # what came before the failure counts
    assert got == [0, 1, 2, 3, 4]
    assert max(done) <= 5 + threads
    if threads < 2:
        assert done == [0, 1, 2, 3, 4]
    assert not alive("t")


def test_an_error_of_the_caller_waits_for_what_is_being_done_and_drops_the_rest() -> None:
    gate, done = threading.Event(), list[int]()

    def work(n: int) -> int:
        assert gate.wait(HANG_S)
        done.append(n)
        return n

    def items() -> Iterator[int]:
        yield from range(3)
        gate.set()
        raise KeyboardInterrupt

    with Crew[int, int](work, threads=1, ahead=9, name="t") as made, pytest.raises(KeyboardInterrupt):
        list(made.map(items()))
    assert done == list(range(len(done)))
    assert not alive("t")


def test_a_ctrl_c_while_it_waits_for_the_last_piece_is_told_after_that_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, begun, done = threading.Event(), threading.Event(), list[int]()

    def work(n: int) -> int:
        begun.set()
        assert gate.wait(HANG_S)
        done.append(n)
        return n

    join, struck = threading.Thread.join, list[int]()

    def interrupted(self: threading.Thread, timeout: float | None = None) -> None:
        if self.name == "t" and len(struck) < 3:
            struck.append(1)
            raise KeyboardInterrupt
        gate.set()
        join(self, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    made = Crew[int, int](work, threads=1, ahead=9, name="t")
    made._begin(1)
    assert begun.wait(HANG_S)
    with pytest.raises(KeyboardInterrupt):
        made.__exit__()
    assert (len(struck), done) == (3, [1])
    assert not alive("t")


def test_a_ctrl_c_within_the_wait_for_a_thread_does_not_let_it_work_on_alone() -> None:
    gate, begun, left, done = threading.Event(), threading.Event(), threading.Event(), list[int]()
    main = threading.get_ident()

    def work(n: int) -> int:
        begun.set()
        assert gate.wait(HANG_S)
        done.append(n)
        return n

    def strike() -> None:
        while sys._current_frames()[main].f_code.co_filename != threading.__file__ or not made._stopped:
            pass
        signal.pthread_kill(main, signal.SIGINT)
        left.wait(0.2)  # who leaves before the work is done does so now
        gate.set()

    made = Crew[int, int](work, threads=1, ahead=9, name="t")
    made._begin(1)
    assert begun.wait(HANG_S)
    striking = threading.Thread(target=strike)
    striking.start()
    with pytest.raises(KeyboardInterrupt):
        made.__exit__()
    assert done == [1]
    left.set()
    striking.join()


@pytest.mark.parametrize("at", range(120))
def test_one_ctrl_c_before_any_line_leaves_no_thread_that_still_works(at: int) -> None:

    before = sys.gettrace()
    try:
        sys.settrace(before_line(at, crew.__file__, threads.__file__))
        made = Crew[int, int](lambda n: n, threads=1, ahead=1, name="t")
        with made, made:
            list(made.map(range(3)))
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    assert not alive("t"), at


def test_where_no_thread_can_be_started_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    where: set[int] = set()

    def work(n: int) -> int:
        where.add(threading.get_ident())
        return n

    with Crew[int, int](work, threads=2, ahead=3, name="t") as made:
        assert list(made.map(range(9))) == list(range(9))
    assert where == {threading.get_ident()}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives each thread a priority of its own")
def test_a_nice_crew_stands_back_and_the_caller_does_not() -> None:
    def work(_: int) -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    own = os.getpriority(os.PRIO_PROCESS, 0)
    with Crew[int, int](work, threads=1, ahead=0, name="t", nice=10) as made:
        assert list(made.map([0])) == [min(own + 10, 19)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_a_child_forked_while_a_crew_works_can_have_one_of_its_own() -> None:
    gate = threading.Event()

    def work(n: int) -> int:
        assert gate.wait(HANG_S)
        return n

    def child() -> None:
        with Crew[int, int](lambda n: n + 1, threads=1, ahead=1, name="u") as made:
            assert list(made.map(range(5))) == [1, 2, 3, 4, 5]

    with Crew[int, int](work, threads=1, ahead=1, name="t") as made:
        made._begin(1)
        try:
            assert run_in_child(child) == 0
        finally:
            gate.set()
