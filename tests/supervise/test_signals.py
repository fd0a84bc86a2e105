"""Real signals to real processes that train."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.supervise.told import Told, steps_of

TERM, INT, USR1, USR2 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2


def trainer(root: Path, settings: str = "stop=True", *, before: str = "", **more: object) -> Told:
    told = Told(**more)  # type: ignore[arg-type]
    told.do(f"{before}\nengine = engine_at({str(root)!r}, {settings})\nengine.save_if_due(1)")
    return told


@pytest.mark.parametrize(("signum", "code"), [(TERM, 75), (USR1, 75), (USR2, 75), (INT, 130)])
def test_a_signal_is_heard_at_the_next_safe_point_which_saves_and_leaves(
    tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    with trainer(tmp_path / "run") as told:
        told.send(signum)
        told.logged(signum.name)
        assert told.ask("engine.stopping.path") == signum.name
        told.tell("weights += 1\nengine.save_if_due(2)")
        assert told.ended() == code
        assert steps_of(tmp_path / "run") == [2]
        assert told.said.count(f"WARNING {signum.name}: training stops") == 1


def test_a_signal_to_itself_is_heard_at_the_very_next_safe_point(tmp_path: Path) -> None:
    with trainer(tmp_path / "run") as told:
        told.tell("os.kill(os.getpid(), signal.SIGTERM)\nengine.save_if_due(2)\nengine.save_if_due(3)")
        assert told.ended() == 75
        assert steps_of(tmp_path / "run") == [2]
        assert "SIGTERM: training stops" in told.said


TWICE = "from milepost.supervise import dispositions, lookout\ndispositions.TWICE_NS = lookout.TWICE_NS = {}"


@pytest.mark.parametrize("signum", [TERM, INT])
def test_a_second_signal_a_while_after_the_first_ends_it_at_once(tmp_path: Path, signum: signal.Signals) -> None:
    with trainer(tmp_path / "run", before=TWICE.format(0)) as told:
        told.send(TERM)
        told.logged("SIGTERM")
        assert told.ask("1") == 1  # the main thread has heard of it, too, and not only the one that says so
        told.send(signum)
        assert told.ended() == -signum
        assert steps_of(tmp_path / "run") == []


def test_a_signal_that_a_platform_sends_twice_at_once_is_one(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", before=TWICE.format(10**18)) as told:
        told.send(TERM, TERM)
        told.logged("SIGTERM")
        told.send(TERM, INT)
        told.logged("SIGINT")
        told.tell("engine.save_if_due(2)")
        assert told.ended() in (75, 130)
        assert steps_of(tmp_path / "run") == [2]


def test_a_user_signal_and_then_term_is_one_end_and_the_earlier_deadline_counts(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", "stop=Stop(grace='1h')") as told:
        told.send(USR1)
        told.logged("SIGUSR1")
        first = told.ask("engine.stopping.deadline_ns")
        told.send(TERM)
        told.logged("SIGTERM")
        assert told.ask("engine.stopping.deadline_ns") == first
        told.tell("engine.save_if_due(2)")
        assert told.ended() == 75


def test_a_closed_engine_leaves_all_handlers_as_they_were(tmp_path: Path) -> None:
    before = "signal.signal(signal.SIGUSR1, handler := lambda *_: None)\nsignal.signal(signal.SIGUSR2, signal.SIG_IGN)"
    look = "[signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)]"
    with trainer(tmp_path / "run", before=before) as told:
        told.do("at = signal.getsignal(signal.SIGTERM)\nengine.close()")
        assert told.ask("callable(at)") is True
        expected = "[signal.SIG_DFL, signal.default_int_handler, signal.SIG_IGN]"
        assert told.ask(f"{look} == {expected}") is True
        assert told.ask("signal.getsignal(signal.SIGUSR1) is handler") is True
        assert told.ask("signal.set_wakeup_fd(-1)") == -1
        told.send(TERM)
        assert told.ended() == -TERM


def test_two_engines_share_the_handlers_and_both_save(tmp_path: Path) -> None:
    with trainer(tmp_path / "actor") as told:
        told.do(f"second = engine_at({str(tmp_path / 'critic')!r}, stop=True)")
        told.do("engine.save_if_due(1)\nsecond.save_if_due(1)")
        told.send(TERM)
        told.logged("SIGTERM")
        told.tell("engine.save_if_due(2)\nsecond.save_if_due(2)")
        assert told.ended() == 75
        assert (steps_of(tmp_path / "actor"), steps_of(tmp_path / "critic")) == ([2], [2])


def test_the_first_of_two_engines_to_close_takes_nothing_from_the_other(tmp_path: Path) -> None:
    with trainer(tmp_path / "actor") as told:
        told.do(f"second = engine_at({str(tmp_path / 'critic')!r}, stop=True)\nengine.close()")
        told.send(TERM)
        told.logged("SIGTERM")
        told.tell("second.save_if_due(2)")
        assert told.ended() == 75


def test_an_engine_that_begins_after_the_signal_is_told_of_it(tmp_path: Path) -> None:
    with trainer(tmp_path / "actor") as told:
        told.send(TERM)
        told.logged("SIGTERM")
        told.do(f"second = engine_at({str(tmp_path / 'critic')!r}, stop=True)")
        assert told.ask("second.stopping.path") == "SIGTERM"


# What was there before, and what comes after.


def test_a_handler_that_was_there_is_called_too(tmp_path: Path) -> None:
    before = "seen = []\nsignal.signal(signal.SIGTERM, lambda n, frame: seen.append((n, frame is not None)))"
    with trainer(tmp_path / "run", before=before) as told:
        told.send(TERM)
        told.logged("SIGTERM")
        assert told.ask("seen") == [(TERM, True)]
        told.tell("engine.save_if_due(2)")
        assert told.ended() == 75


def test_what_a_handler_that_was_there_raises_is_raised_and_the_signal_is_heard(tmp_path: Path) -> None:
    before = "class Mine(Exception): pass\ndef mine(n, frame): raise Mine\nsignal.signal(signal.SIGUSR1, mine)"
    with trainer(tmp_path / "run", before=before) as told:
        told.do("try:\n    os.kill(os.getpid(), signal.SIGUSR1)\n    answer = 'nothing'\nexcept Mine:\n    caught = True")
        assert told.ask("(caught, engine.stopping.path if not engine.save_if_due else '')") == (True, "")
        told.tell("engine.save_if_due(2)")
        assert told.ended() == 75


def test_a_ctrl_c_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", before="signal.signal(signal.SIGINT, signal.SIG_IGN)") as told:
        assert "SIGINT is ignored" in told.logged("SIGINT")
        told.send(INT)
        told.do("engine.save_if_due(2)")
        assert told.ask("(engine.stopping, signal.getsignal(signal.SIGINT) == signal.SIG_IGN)") == (None, True)


def test_what_c_code_handles_is_left_to_it_and_that_is_said(tmp_path: Path) -> None:
    dump = tmp_path / "stacks.txt"
    before = f"import faulthandler\nfile = open({str(dump)!r}, 'w')\nfaulthandler.register(signal.SIGUSR1, file=file)"
    with trainer(tmp_path / "run", before=before) as told:
        assert "SIGUSR1 is not listened to" in told.logged("foreign-handler")
        told.do("os.kill(os.getpid(), signal.SIGUSR1)\nengine.save_if_due(2)")
        assert told.ask("engine.stopping") is None
        assert "File" in dump.read_text()


def test_a_handler_that_comes_later_wins_and_that_is_said_once(tmp_path: Path) -> None:
    with trainer(tmp_path / "run") as told:
        told.do("def theirs(n, frame): pass\nsignal.signal(signal.SIGTERM, theirs)\nsignal.raise_signal(signal.SIGTERM)")
        told.do("signal.raise_signal(signal.SIGUSR1)")  # the thread looks when something comes
        assert "SIGTERM is handled by __main__.theirs" in told.logged("lost-signal")
        told.do("engine.close()")
        assert told.ask("signal.getsignal(signal.SIGTERM) is theirs") is True
        assert told.said.count("lost-signal") == 1


def test_a_later_handler_that_calls_ours_is_answered_as_long_as_we_listen_and_as_before_afterwards(tmp_path: Path) -> None:
    later = "before = signal.getsignal(signal.SIGTERM)\nsignal.signal(signal.SIGTERM, lambda *a: before(*a))"
    with trainer(tmp_path / "run") as told:
        told.do(f"{later}\nsignal.raise_signal(signal.SIGTERM)")
        told.logged("SIGTERM: training stops")
        told.do("engine.withdraw('SIGTERM')\nengine.close()")
        # A new engine: the old handler is called by theirs, and has no say any more.
        told.do(f"again = engine_at({str(tmp_path / 'again')!r}, stop=True)\nsignal.raise_signal(signal.SIGTERM)")
        assert told.ask("again.stopping.path") == "SIGTERM"
        told.do("again.close()")
        told.send(TERM)
        assert told.ended() == -TERM


def test_in_another_thread_an_engine_hears_no_signals_and_says_so(tmp_path: Path) -> None:
    code = f"""
import threading
def train():
    global engine
    engine = engine_at({str(tmp_path / "run")!r}, stop=Stop(limit="1h"))
thread = threading.Thread(target=train)
thread.start()
thread.join()
answer = (engine.stopping.path, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""
    with Told() as told:
        assert told.do(code) == ("limit 1h", True)
        assert "not-main-thread" in told.logged("signals are not listened to")


def test_handlers_that_could_not_be_given_back_by_another_thread_leave_with_the_next_signal(tmp_path: Path) -> None:
    close = "import threading\nthread = threading.Thread(target=engine.close)\nthread.start()\nthread.join()"
    with trainer(tmp_path / "run") as told:
        told.do(close)
        told.send(TERM)
        assert told.ended() == -TERM
    with trainer(tmp_path / "again") as told:
        told.do(f"{close}\nengine = engine_at({str(tmp_path / 'more')!r}, stop=True)\nsignal.raise_signal(signal.SIGTERM)")
        told.logged("SIGTERM: training stops")  # by another thread, when it comes to it
        assert told.ask("engine.stopping.path") == "SIGTERM"
        told.do("engine.close()")
        assert told.ask("signal.getsignal(signal.SIGTERM) == signal.SIG_DFL") is True


def test_an_engine_that_is_dropped_is_freed_and_nobody_listens_after_it(tmp_path: Path) -> None:
    with trainer(tmp_path / "run") as told:
        told.do("import gc, weakref\ngone = weakref.ref(engine)\ndel engine\ngc.collect()")
        assert told.ask("gone()") is None
        told.send(TERM)
        assert told.ended() == -TERM


def test_under_asyncio_a_ctrl_c_waits_for_the_safe_point_too(tmp_path: Path) -> None:
    code = f"""
import asyncio
async def train():
    engine = engine_at({str(tmp_path / "run")!r}, stop=True)
    print("'training'", flush=True)
    step = 0
    while True:
        step += 1
        engine.save_if_due(step)
        await asyncio.sleep(0)
asyncio.run(train())
"""
    with Told() as told:
        assert told.do(code) == "training"
        told.send(INT)
        assert told.ended() == 130
        assert len(steps_of(tmp_path / "run")) == 1


def test_what_asyncio_was_told_to_do_at_a_signal_it_still_does(tmp_path: Path) -> None:
    code = f"""
import asyncio
async def train():
    called = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, called.set)
    engine = engine_at({str(tmp_path / "run")!r}, stop=True)
    print("'training'", flush=True)
    await called.wait()
    engine.save_if_due(1)
asyncio.run(train())
"""
    with Told() as told:
        assert told.do(code) == "training"
        told.send(TERM)
        assert told.ended() == 75
