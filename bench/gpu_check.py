"""Show on a GPU that saving and restoring its tensors is exact and does not wait: ``python -m bench.gpu_check``; minutes.

It can run unseen: it prints a table, writes ``gpu_check.json`` to ``--out``, and exits with 1 if a check failed. Where there is
no GPU it says "not run", and exits with 0. ``--twin`` takes a device of this machine's memory instead, which copies late
(`milepost.pytorch.twin`): that the checks themselves work is shown by it, and nothing about a GPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

import milepost
from bench.machine import forget_peak, peak_bytes, resident_bytes
from bench.measure import timed
from milepost import CheckpointEngine, Keep
from milepost.pytorch import leaves
from milepost.pytorch.devices import MOST_BYTES, SLAB_BYTES, Transfers, forget_device, transfers_of
from milepost.pytorch.twin import Twin

BUSY_S = 0.5
"""How long the device is kept busy before a save whose call must not wait for it."""


@dataclass(frozen=True, slots=True)
class Found:
    """Hold what one check found."""

    check: str
    passed: bool
    says: str


class Place(Protocol):
    """Be where the tensors lie."""

    name: str

    def tensor(self, host: torch.Tensor) -> torch.Tensor:
        """Return a copy on the device."""

    def ask(self, work: Callable[[], object]) -> None:
        """Have the device do something in its turn."""

    def settle(self) -> None:
        """Wait until it has done all."""

    def busy(self) -> None:
        """Have it work for `BUSY_S` before all that follows."""

    def floor_s(self, tensors: Sequence[torch.Tensor]) -> float:
        """Return how long the plain copies to page-locked memory take that was touched before."""

    def held_bytes(self) -> int:
        """Return how much memory of the device is taken."""


class Gpu:
    """Be the first GPU."""

    def __init__(self) -> None:
        self.name = torch.cuda.get_device_name(0)

    def tensor(self, host: torch.Tensor) -> torch.Tensor:
        return host.to("cuda:0")

    def ask(self, work: Callable[[], object]) -> None:
        work()

    def settle(self) -> None:
        torch.cuda.synchronize()

    def busy(self) -> None:
        work = torch.ones(4096, 4096, device="cuda:0")
        work @ work
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(20):
            work @ work
        torch.cuda.synchronize()
        for _ in range(int(20 * BUSY_S / (time.perf_counter() - started)) + 1):
            work @ work

    def floor_s(self, tensors: Sequence[torch.Tensor]) -> float:
        pages = [torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in tensors]

        def copy() -> None:
            for page, one in zip(pages, tensors, strict=True):
                page.copy_(one, non_blocking=True)
            torch.cuda.synchronize()

        copy()
        return min(timed(copy) for _ in range(5))

    def held_bytes(self) -> int:
        return torch.cuda.memory_allocated()


class Stand:
    """Be the twin: what it shows is that the checks would find something."""

    name = "a twin in this machine's memory: nothing is shown about a GPU"

    def __init__(self, twin: Twin) -> None:
        self._twin = twin

    def tensor(self, host: torch.Tensor) -> torch.Tensor:
        return self._twin.own(host.clone())

    def ask(self, work: Callable[[], object]) -> None:
        self._twin.launch(work)

    def settle(self) -> None:
        self._twin.mark().wait()

    def busy(self) -> None:
        until = time.perf_counter() + BUSY_S
        self._twin.launch(lambda: time.sleep(max(0.0, until - time.perf_counter())))

    def floor_s(self, tensors: Sequence[torch.Tensor]) -> float:
        pages = [torch.zeros_like(one) for one in tensors]
        return min(timed(lambda: [page.copy_(one) for page, one in zip(pages, tensors, strict=True)]) for _ in range(5))

    def held_bytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Bench:
    """Hold what every check needs."""

    place: Place
    root: Path
    size_bytes: int
    saves: int

    def state(self, size_bytes: int | None = None) -> dict[str, torch.Tensor]:
        """Return random tensors of several kinds on the device, most of it in pieces of 4 MB."""
        torch.manual_seed(7)
        count = max(1, (size_bytes or self.size_bytes) // (4 << 20))
        made = {f"layer{n}": torch.randn(1 << 20) for n in range(count)}
        made |= {"half": torch.randn(4099).to(torch.bfloat16), "counts": torch.arange(1001), "flags": torch.arange(77) % 3 == 0}
        return {name: self.place.tensor(host) for name, host in made.items()}

    def step(self, state: Mapping[str, torch.Tensor]) -> None:
        """Change all of it in place, as an optimizer does."""
        for tensor in state.values():
            self.place.ask(lambda tensor=tensor: tensor.logical_not_() if tensor.dtype is torch.bool else tensor.add_(1))

    def copy(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return all of it on the host, the slow and certain way."""
        self.place.settle()
        return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Return whether two states have the same bits."""
    pairs = ((tensor.view(-1).view(torch.uint8), other[name].view(-1).view(torch.uint8)) for name, tensor in one.items())
    return one.keys() == other.keys() and all(torch.equal(a, b) for a, b in pairs)


def bits(bench: Bench) -> Iterator[Found]:
    """Save while training goes on at once; what was saved is what a synchronous copy had just before."""
    state, wrong = bench.state(), 0
    with CheckpointEngine(bench.root / "bits", state={"policy": state}, keep=Keep(last=2)) as engine:
        for number in range(bench.saves):
            expected = bench.copy(state)
            bench.place.busy() if number % 4 == 0 else None
            engine.save(number)
            for _ in range(3):
                bench.step(state)
            engine.wait()
            wrong += not same(milepost.load(bench.root / "bits")["policy"], expected)
    yield Found("bits of saves while training goes on", not wrong, f"{bench.saves - wrong} of {bench.saves} are exact")


def restored(bench: Bench) -> Iterator[Found]:
    """Bring a state back in place, use it at once, and go on with the same random numbers."""
    root, state = bench.root / "restored", bench.state()
    whole = {"policy": state, "rng": milepost.Rng()}
    with CheckpointEngine(root, state=whole) as engine:
        engine.save(1)
        expected, drawn = bench.copy(state), draws(bench)
    other = {name: bench.place.tensor(torch.zeros_like(host)) for name, host in expected.items()}
    with CheckpointEngine(root, state={"policy": other, "rng": milepost.Rng()}) as engine:
        engine.resume()
        again = draws(bench)
        bench.step(other)
    bench.step(state)
    yield Found("bits of a restore that is used at once", same(bench.copy(other), bench.copy(state)), "compared after one step")
    yield Found("random numbers after a restore", torch.equal(drawn, again), "drawn on the device and on the host")


def draws(bench: Bench) -> torch.Tensor:
    """Draw some, on the device too where it has a generator."""
    here = torch.randn(100)
    return torch.cat([here, torch.randn(100, device="cuda:0").cpu()]) if isinstance(bench.place, Gpu) else here


def waits(bench: Bench) -> Iterator[Found]:
    """Look how long a save keeps the caller: not for a busy device, and no longer than plain copies would."""
    small = bench.state(min(bench.size_bytes, MOST_BYTES // 2))
    with CheckpointEngine(bench.root / "small", state={"policy": small}) as engine:
        engine.save(0)
        engine.wait()
        bench.step(small)
        bench.place.settle()
        bench.place.busy()
        stall = timed(lambda: engine.save(1))
        engine.wait()
    yield Found("a save does not wait for a busy device", stall < BUSY_S, f"{stall * 1e3:.1f} ms, busy for {BUSY_S * 1e3:.0f}")
    ratio, says = against_floor(bench, "fits", small)
    # The twin's queue is a thread of Python: of it nothing is asked.
    passed = ratio <= 1.3 or not isinstance(bench.place, Gpu)
    yield Found("the stall of a save that fits into page-locked memory", passed, says)
    if bench.size_bytes > MOST_BYTES:
        yield Found("the stall of a save that does not (told, no goal)", True, against_floor(bench, "large", bench.state())[1])


def against_floor(bench: Bench, name: str, state: Mapping[str, torch.Tensor]) -> tuple[float, str]:
    """Return how many times as long as plain copies into page-locked memory a save keeps the caller, and say it."""
    floor, stalls, durable = bench.place.floor_s(list(state.values())), [], []
    with CheckpointEngine(bench.root / name, state={"policy": dict(state)}, keep=Keep(last=1)) as engine:
        for number in range(6):
            bench.step(state)
            bench.place.settle()
            started = time.perf_counter()
            engine.save(number)
            stalls.append(time.perf_counter() - started)
            engine.wait()
            durable.append(time.perf_counter() - started)
    ratio = statistics.median(stalls[1:]) / floor
    return (
        ratio,
        f"{ratio:.2f} × plain copies ({floor * 1e3:.1f} ms); durable after {statistics.median(durable[1:]) * 1e3:.0f} ms",
    )


def memory(bench: Bench) -> Iterator[Found]:
    """Look whether memory of the device and of the host stays as it is from one save to the next."""
    state = bench.state()
    transfers = transfers_of(state["layer0"])
    assert transfers is not None
    with CheckpointEngine(bench.root / "memory", state={"policy": state}, keep=Keep(last=1)) as engine:
        held: list[tuple[int, int]] = []
        for number in range(8):
            bench.step(state)
            engine.save(number)
            engine.wait()
            held.append((bench.place.held_bytes(), resident_bytes()))
            if number == 3:
                forget_peak()
    device, host = (max(column[4:]) - column[3] for column in zip(*held, strict=True))
    says = f"device {device:+,} bytes, host {host:+,} bytes, page-locked {transfers.size_bytes:,} bytes, peak {peak_bytes():,}"
    passed = device <= 0 and host < 64 << 20 and transfers.size_bytes <= MOST_BYTES
    yield Found("memory from the fourth save to the eighth", passed, says)


CHECKS = (bits, restored, waits, memory)


def run(bench: Bench) -> list[Found]:
    """Run every check; one that fails in another way than by its finding is a finding, too."""
    found: list[Found] = []
    for check in CHECKS:
        try:
            found += check(bench)
        except Exception as error:  # noqa: BLE001 - the others are run all the same
            traceback.print_exc()
            found.append(Found(check.__name__, False, f"{type(error).__name__}: {error}"))
    return found


@contextmanager
def stand_in() -> Iterator[Stand]:
    """Let a twin be the device."""
    with Twin() as twin:
        transfers = Transfers(twin, slab_bytes=SLAB_BYTES // 16)
        leaves.add_device(transfers)
        try:
            yield Stand(twin)
        finally:
            forget_device(transfers)


def main(argv: Sequence[str] | None = None) -> int:
    """Check, print, write, and return the exit code."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twin", action="store_true", help="check the checks, without a GPU")
    parser.add_argument("--megabytes", type=int, help="size of the state: 2048, or 16 for the twin")
    parser.add_argument("--saves", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(".bench"))
    asked = parser.parse_args(argv)
    asked.out.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="gpu-", dir=asked.out))
    try:
        if asked.twin:
            with stand_in() as stand:
                return _report(Bench(stand, root, (asked.megabytes or 16) << 20, asked.saves), asked.out)
        if not torch.cuda.is_available():
            print("not run: there is no GPU here. Nothing is shown about CUDA; --twin checks the checks.")
            return 0
        return _report(Bench(Gpu(), root, (asked.megabytes or 2048) << 20, asked.saves), asked.out)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _report(bench: Bench, out: Path) -> int:
    started = time.perf_counter()
    found = run(bench)
    facts: dict[str, Any] = {"device": bench.place.name, "torch": torch.__version__, "size_bytes": bench.size_bytes}
    facts |= {"seconds": round(time.perf_counter() - started, 1), "found": [asdict(one) for one in found]}
    (out / "gpu_check.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"{bench.place.name}; torch {torch.__version__}; {bench.size_bytes >> 20} MiB; {facts['seconds']} s")
    for one in found:
        print(f"{'passed' if one.passed else 'FAILED'}  {one.check}: {one.says}")
    return 0 if all(one.passed for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
