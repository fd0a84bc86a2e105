"""Signals are heard by the loop that waits for them, whatever other threads there are."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from milepost.supervise.hearing import Hearing

HEARS = """
import os, signal, threading
from milepost.supervise.hearing import Hearing

# As the BLAS of numpy has them: it was there before, and blocks nothing.
threading.Thread(target=threading.Event().wait, name="other", daemon=True).start()
signal.signal(signal.SIGUSR1, lambda *_: print("the one before"))
with Hearing() as ear:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        os.kill(os.getpid(), number)  # while this thread is at work: the kernel gives it to the other
        print(signal.Signals(ear.wait(60.0)).name)
    print(ear.wait(0.0))
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.getsignal(signal.SIGTERM).name)
"""


def test_a_signal_that_another_thread_gets_is_heard_and_ends_nobody() -> None:
    done = subprocess.run([sys.executable, "-c", HEARS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[:-1] == ["SIGTERM", "SIGINT", "SIGUSR1", "None", "the one before", "SIG_DFL"]


def test_what_python_makes_of_a_wait_that_was_stopped_is_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    with Hearing() as ear:
        monkeypatch.setattr(signal, "sigtimedwait", lambda *_: signal.struct_siginfo((-559038737, 0, 0, 0, 0, 0, 0)))
        assert ear.wait(0.01) is None
        monkeypatch.undo()
