"""Set what every test relies on: one thread, reproducible hypothesis, no thread left behind, the longest first."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator

# Before numpy or torch is imported anywhere: the number of threads decides the order of sums, and so the bits.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
from hypothesis import HealthCheck, settings

from tests.longest import rank

# A shell has what it runs in the background ignore Ctrl-C, nohup a hangup, and so would all that tests start.
for ignored, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, usual)

# A busy machine makes any deadline a coin toss; a failing example must be replayable from the log alone.
settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_configure(config: pytest.Config) -> None:
    if _is_one_of_several_workers():
        # A thread of a worker listens for what to run next, and Python 3.12 and newer warn of a fork beside any thread.
        config.addinivalue_line("filterwarnings", "ignore:.*fork.*:DeprecationWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _is_one_of_several_workers():
        items.sort(key=lambda item: rank(item.path))  # stable: within a file, and among all others, the order stays


def pytest_collection_finish() -> None:
    # Of all that was imported and collected nothing is ever garbage, and to walk through it takes a full collection a third of a
    # second: in a test that asks for some dozens, and in every process that is forked from this one.
    gc.collect()
    gc.freeze()


def _is_one_of_several_workers() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ


def pytest_runtest_teardown() -> None:
    """Forget what Python still takes for an exception that is being handled.

    One that a tracer raises on the line of an ``except`` is never let go of, and would be the context of all that later tests
    of this process raise.
    """
    forget = ctypes.pythonapi.PyErr_SetHandledException
    forget.argtypes, forget.restype = [ctypes.c_void_p], None
    forget(None)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """Keep torch at one thread wherever a test (or what it imported) has brought torch in."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind() -> Iterator[None]:
    """Fail the test after which a thread of milepost's still runs: a writer that outlives its engine writes into the next run."""
    before = {thread.ident for thread in threading.enumerate()}
    yield
    left = [t for t in threading.enumerate() if t.name.startswith("milepost-") and t.ident not in before]
    for thread in left:
        thread.join(timeout=5.0)
    still = [thread.name for thread in left if thread.is_alive()]
    assert not still, f"the test left threads running: {still}"
