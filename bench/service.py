"""Commit versions and fetch them, by each way for bytes, beside copying, a bare socket and what somebody would do instead."""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import torch

from bench import unary_peer
from bench.apart_orbax import PYTHON
from bench.floors import Touched
from bench.goals import MEMCPY_BARE, RAW_TCP
from bench.measure import Contender, Outcome, Setting, interleave, timed
from bench.raw_tcp import CONNECTIONS, receive
from bench.service_server import Child, Service
from bench.states import Workload, arrays
from milepost.service.client import Client
from milepost.service.transports.host import HOST
from milepost.service.transports.host_cache import HostCache

WAYS = ("shm", "files", "bulk", "grpc")
TORCH, UNARY, RAY = "torch.save + fsync, torch.load", "gRPC unary", "Ray object store"
SHARED = "/dev/shm"  # noqa: S108 - where the service keeps its versions, too
NO_RAY = "Ray: not installed: make bench-peers installs it"
READERS = 8
_READER = ("-m", "bench.service_reader")


def measure(setting: Setting) -> Outcome:
    """Commit a gigabyte, and fetch it, by each way."""
    workload = arrays(200, setting.scaled(10**9, 10**8), "fp32 in 200 arrays")
    with _ray_store() as ray, _peers(setting, workload, ray) as contenders:
        rows = interleave(contenders, setting, rounds=5, budget_s=setting.scaled(150, 30), units={})
    words = f"{workload.size_bytes / 1e9:.3g} GB, {workload.words}, a service on this host"
    return Outcome("fetch", words, rows, (*_NOTES, *(() if ray else (NO_RAY,))))


_NOTES = (
    "fetch: of a version in memory, until an array of it is there; checked on its way, and where memory is shared when it came",
    "tensors: until all are there as torch tensors",
    "files: the version on disk, mapped; this machine's page cache has it",
    "the bare sockets, as many as milepost's bulk port has here, and gRPC unary check nothing",
    "torch.save + fsync is durable when it returns; a commit of milepost's then has durable metadata, and bytes in memory",
)


def sizes(setting: Setting) -> Outcome:
    """Commit and fetch 1 MB, 16 MB and 256 MB by each way."""
    counts = {"1 MB": 10**6, "16 MB": 16 * 10**6, "256 MB": setting.scaled(256, 64) * 10**6}
    contenders: list[Contender] = []
    with ExitStack() as stack:
        ray = stack.enter_context(_ray_store())
        for name, size in counts.items():
            workload = arrays(20, size, "")
            made = stack.enter_context(_peers(setting, workload, ray, f", {name}"))
            contenders += made
        rows = interleave(contenders, setting, rounds=7, budget_s=setting.scaled(120, 30), units={})
    return Outcome("fetch-sizes", "fp32 in 20 arrays, a service on this host", rows, () if ray else (NO_RAY,))


@contextmanager
def _peers(setting: Setting, workload: Workload, ray: Child | None, suffix: str = "") -> Iterator[list[Contender]]:
    """Yield all who take part with this workload, each with what it needs running."""
    place = setting.place / f"of{workload.size_bytes}"
    place.mkdir()
    with ExitStack() as stack:
        service = stack.enter_context(Service(place / "run", "--memory", "8G"))
        trainers = {way: stack.enter_context(service.client(f"trainer-{way}", way)) for way in ("shm", "bulk", "grpc")}
        socket_floor = stack.enter_context(_raw_tcp(workload))
        unary = stack.enter_context(_unary(workload))
        touched = Touched(workload.views)
        yield [
            Contender(MEMCPY_BARE + suffix, "floor", lambda: dict.fromkeys(("commit", "fetch"), timed(touched.copy))),
            Contender(RAW_TCP + suffix, "floor", lambda: {"fetch": timed(socket_floor)}),
            *(
                Contender(f"milepost, {way}{suffix}", "milepost", lambda way=way: _sample(workload, service, trainers, way))
                for way in WAYS
            ),
            Contender(TORCH + suffix, "peer", lambda: _torch(workload, place / "weights.pt")),
            Contender(UNARY + suffix, "peer", unary),
            *([Contender(RAY + suffix, "peer", lambda: _ray(ray, workload))] if ray is not None else []),
        ]


def _sample(workload: Workload, service: Service, trainers: Mapping[str, Client], way: str) -> Mapping[str, float]:
    workload.change()
    trainer = trainers.get(way, trainers["shm"])
    step = time.monotonic_ns() // 10**6
    started = time.perf_counter()
    done = trainer.commit(step, workload.tensors, parent=_live(trainer))
    figures = {"commit": time.perf_counter() - started}
    trainer.wait_durable(done)
    figures["durable"] = time.perf_counter() - started
    os.sync()
    # One reader at a time: several of one host would share what comes over the network, which is measured by itself.
    with service.client("reader", way) as reader:
        reader.status()  # the connection is there, and calls have been made over it
        started = time.perf_counter()
        weights = reader.fetch(timeout=60)
        assert weights is not None
        weights[next(iter(workload.tensors))]
        figures["fetch"] = time.perf_counter() - started
        tensors = weights.tensors()
        figures["tensors"] = time.perf_counter() - started
        _check(workload, tensors)
        del tensors
    return {name: figure for name, figure in figures.items() if way in trainers or name in ("fetch", "tensors")}


def _live(trainer: Client) -> Any:
    """Return what is live: another trainer of this benchmark brought it."""
    live = trainer.status().live
    return None if live is None else live.at


def _check(workload: Workload, tensors: Mapping[str, torch.Tensor]) -> None:
    for name in (next(iter(workload.tensors)), next(reversed(workload.tensors))):
        if not torch.equal(tensors[name], workload.tensors[name]):
            raise ArithmeticError(f"other bits: {name}")


@contextmanager
def _raw_tcp(workload: Workload) -> Iterator[Callable[[], None]]:
    """Yield what gets the bytes over a bare socket, into memory that is new each time, as a reader's is."""
    with tempfile.NamedTemporaryFile(dir=SHARED) as file:
        for view in workload.views:
            file.write(view)
        file.flush()
        with ExitStack() as stack:
            port = int(stack.enter_context(Child("-m", "bench.raw_tcp", file.name)).greeting)
            pool = stack.enter_context(ThreadPoolExecutor(CONNECTIONS))
            connections = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(CONNECTIONS)]

            def fetch() -> None:
                with mmap.mmap(-1, workload.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:
                    room.madvise(mmap.MADV_HUGEPAGE)
                    with memoryview(room) as view:
                        receive(connections, pool, view)

            yield fetch


@contextmanager
def _unary(workload: Workload) -> Iterator[Callable[[], Mapping[str, float]]]:
    with Child("-m", "bench.unary_peer") as child, _channel(child.greeting) as channel:
        put, get = channel.unary_unary(unary_peer.PUT), channel.unary_unary(unary_peer.GET)

        def sample() -> Mapping[str, float]:
            started = time.perf_counter()
            put(b"".join(view.data for view in workload.views))
            put_at = time.perf_counter()
            get(b"")
            return {"commit": put_at - started, "fetch": time.perf_counter() - put_at}

        yield sample


def _channel(port: str) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=unary_peer.OPTIONS)


@contextmanager
def _ray_store() -> Iterator[Child | None]:
    """Yield Ray, if it is installed. Its processes are not to find this package, nor what was set for it."""
    if not (PYTHON.exists() and (PYTHON.parent / "ray").exists()):
        yield None
        return
    with Child(str(Path(__file__).with_name("ray_peer.py")), python=str(PYTHON), environment={"PYTHONPATH": ""}) as child:
        yield child


def _ray(child: Child, workload: Workload) -> Mapping[str, float]:
    put, got = child.ask(f"{len(workload.views)} {workload.size_bytes}").split()
    return {"commit": float(put), "fetch": float(got)}


def _torch(workload: Workload, path: Path) -> Mapping[str, float]:
    workload.change()
    started = time.perf_counter()
    with path.open("wb") as file:
        torch.save(workload.tree, file)
        file.flush()
        os.fsync(file.fileno())
    saved = time.perf_counter()
    tensors = torch.load(path, weights_only=True)
    figures = {"commit": saved - started, "fetch": time.perf_counter() - saved}
    _check(workload, tensors)
    return figures


def fan_out(setting: Setting) -> Outcome:
    """Have 8 readers fetch one version: until the last has it."""
    workload = arrays(50, setting.scaled(256, 32) * 10**6, "fp32 in 50 arrays")
    with ExitStack() as stack:
        service = stack.enter_context(Service(setting.place / "run", "--memory", "4G"))
        trainer = stack.enter_context(service.client("trainer", "shm"))
        path = setting.place / "weights.pt"
        torch.save(workload.tree, path)
        crews = {
            "milepost, this host": [("shm", {})] * READERS,
            "milepost, another host": [("bulk", {HOST: "another"})] * READERS,
            "milepost, 8 other hosts": [("bulk", {HOST: f"host-{n}"}) for n in range(READERS)],
        }
        for host in {environment[HOST] for crew in crews.values() for _, environment in crew if environment}:
            stack.callback(shutil.rmtree, HostCache(host=host).directory, ignore_errors=True)
        readers = {
            name: [
                stack.enter_context(_reader(service, f"{n}-of-{len(name)}", way, environment))
                for n, (way, environment) in enumerate(crew)
            ]
            for name, crew in crews.items()
        }
        readers[TORCH] = [stack.enter_context(Child(*_READER, "file", str(path))) for _ in range(READERS)]
        contenders = [
            Contender(name, "peer" if name == TORCH else "milepost", lambda crew=crew: _all(crew, trainer, workload))
            for name, crew in readers.items()
        ]
        rows = interleave(contenders, setting, rounds=5, budget_s=setting.scaled(60, 20), units={})
    words = f"{workload.size_bytes / 1e6:.0f} MB, {workload.words}; {READERS} processes, until the last has it"
    return Outcome("fan-out", words, rows, ("torch.load reads a file that lies in this machine's page cache",))


def _reader(service: Service, name: str, way: str, environment: Mapping[str, str]) -> Child:
    label = environment.get(HOST, "here")
    return Child(*_READER, "service", str(service.root), f"{label}-{name}", way, environment=environment)


def _all(crew: list[Child], trainer: Client, workload: Workload) -> Mapping[str, float]:
    workload.change()
    trainer.wait_durable(trainer.commit(time.monotonic_ns() // 10**6, workload.tensors))
    os.sync()
    started = time.monotonic()
    for reader in crew:
        reader.tell("fetch")
    return {"fetch by 8": max(float(reader.answer().split()[0]) for reader in crew) - started}
