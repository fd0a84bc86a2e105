"""Signals are heard by the loop that waits for them, whatever other threads there are."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

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


STOPPED = """
import sys
from milepost.supervise.hearing import Hearing
with Hearing() as ear:
    print("on", flush=True)
    for line in sys.stdin:
        print(ear.wait(0.3), flush=True)
"""


def test_a_wait_that_is_stopped_until_its_time_is_over_hears_no_signal_that_nobody_sent() -> None:
    pause = threading.Event()
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        for _ in range(3):
            process.stdin.write("wait\n")
            process.stdin.flush()
            pause.wait(0.1)
            process.send_signal(signal.SIGSTOP)
            pause.wait(0.4)
            process.send_signal(signal.SIGCONT)
            assert process.stdout.readline() == "None\n"
        process.stdin.close()
