"""Train while a save is written, and count the time that the steps lost by it."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from bench.goals import CLONE, DCP_PROCESS, DCP_REUSED, PROCESS_WRITER
from bench.measure import Contender, Outcome, Setting, interleave
from bench.savers import Saver, chosen, closing, milepost, peers, phases
from bench.states import Workload, arrays

Step = Callable[[], object]


def measure(setting: Setting) -> Outcome:
    """Train a small network beside the save of a large state."""
    size = setting.scaled(1_000_000_000, 100_000_000)
    workload = arrays(200, size, f"{size / 1e6:.0f} MB fp32 in 200 arrays, saved beside steps of a small network")
    step = training()
    savers = [
        milepost(workload, setting.place),
        milepost(workload, setting.place, name=PROCESS_WRITER, writer="process"),
        *chosen(peers(workload, setting.place), DCP_REUSED, DCP_PROCESS, CLONE),
    ]
    alone = setting.scaled(200, 40)
    with closing(savers):
        contenders = [Contender(saver.name, saver.kind, _sampled(saver, workload, step, alone)) for saver in savers]
        rows = interleave(
            contenders,
            setting,
            rounds=setting.scaled(7, 3),
            budget_s=setting.scaled(75, 5),
            units={"lost": "s/GB", "lost, one core": "s/GB"},
        )
    notes = (
        "lost: how much longer the steps took that ran while the save was in flight, the stall apart, for a GB saved",
        "one core: the same with training and saving on the same core; longest step: as it comes, the stall apart",
        phases(setting.place / "milepost"),
    )
    return Outcome("background", workload.words, rows, notes)


def training() -> Step:
    """Return one step of a fixed loop: about two milliseconds of forward, backward and update."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512), torch.nn.Tanh())
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    batch = torch.randn(64, 256)

    def step() -> None:
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()

    return step


def _sampled(saver: Saver, workload: Workload, step: Step, alone: int) -> Callable[[], Mapping[str, float]]:
    def sample() -> Mapping[str, float]:
        lost, longest = _lost(saver, workload, step, alone)
        with _one_core():
            lost_shared, _ = _lost(saver, workload, step, alone)
        gigabytes = workload.size_bytes / 1e9
        return {"lost": lost / gigabytes, "lost, one core": lost_shared / gigabytes, "longest step": longest}

    return sample


def _lost(saver: Saver, workload: Workload, step: Step, alone: int) -> tuple[float, float]:
    """Return the seconds lost by the steps beside one save, and the longest of these steps."""
    before = _steps(step, alone)
    workload.change()
    finish = saver.start()
    with ThreadPoolExecutor(1) as waiting:
        done = waiting.submit(finish)
        beside: list[float] = []
        while not done.done():
            beside += _steps(step, 1)
        done.result()
    saver.clean()
    after = _steps(step, alone // 4)
    # Quiet steps on both sides: the machine's own speed drifts while gigabytes are written.
    quiet = statistics.fmean([*before[-(alone // 4) :], *after])
    return sum(beside) - quiet * len(beside), max(beside, default=0.0)


def _steps(step: Step, count: int) -> list[float]:
    times: list[float] = []
    for _ in range(count):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return times


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this thread, and those that it starts, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
