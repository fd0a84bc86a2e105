"""Copy tensors from and to a device by way of page-locked memory, in the device's own order, without waiting for it.

A device works through what it is asked for in order, one queue for all that training asks of it. A copy that is asked for in
that queue sees what was asked for before and nothing of what comes after: an optimizer that steps in place the moment
``save()`` has returned changes the tensor behind the copy (B9). A queue of its own would let the copy run beside training,
and then each training step would have to wait for it, or write over what is being copied. So there is none.

The bytes are there when the device has said so, and not before: until then page-locked memory holds what an earlier save
left in it. Nobody looks at it before the event that was put behind the copies.

`Cuda` is written by the documentation and has not run on a GPU where milepost is built: ``python -m bench.gpu_check`` shows
in minutes whether it does what it says. What stands on it is tested with `milepost.pytorch.twin.Twin`, which copies late.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from milepost.state.arrays import as_bytes
from milepost.state.late import Arrived, Copies

SLAB_BYTES = 32 << 20
"""Page-locked memory is taken in pieces of this size, and kept: to lock a page takes longer than to fill it."""
MOST_BYTES = 1 << 30
"""How much of it there is at most. A larger state goes through it in turns, and the caller waits for all turns but the last."""


class Event(Protocol):
    """Stand for a place in the queue of a device."""

    def wait(self) -> None:
        """Return once all is done that was asked for before. Any thread may wait."""


class Device(Protocol):
    """Offer what is asked of a kind of device. Called by the training thread, but for `Event.wait`."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor lies on such a device."""

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        """Return bytes of the host that the device can reach by itself."""

    def copy(self, source: torch.Tensor, into: torch.Tensor) -> None:
        """Ask for a copy of the same shape and dtype, in the queue that training uses.

        One side is in such memory, or the source is in memory of the host that nobody changes any more.
        """

    def mark(self) -> Event:
        """Return an event behind all copies asked for so far."""


@dataclass(frozen=True, slots=True, eq=False)
class _Flight:
    """Hold a slab whose copies are under way, and where its bytes go then: to the host's memory, or nowhere else."""

    slab: torch.Tensor
    event: Event
    parts: tuple[tuple[int, memoryview], ...] = ()

    def land(self) -> None:
        self.event.wait()
        whole = self.slab.numpy()
        for start, into in self.parts:
            np.copyto(np.frombuffer(into, np.uint8), whole[start : start + len(into)])


class Transfers:
    """Move tensors of one kind of device through a bounded pool of its host memory.

    Copies are asked for by the training thread; what they have brought is fetched by whoever calls what `begin` returned.
    """

    def __init__(self, device: Device, *, slab_bytes: int = SLAB_BYTES, most_bytes: int = MOST_BYTES) -> None:
        self.device = device
        self._slab_bytes, self._slabs = slab_bytes, max(1, most_bytes // slab_bytes)
        self._made = 0
        self._free: list[torch.Tensor] = []
        self._flights: deque[_Flight] = deque()
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Return how much page-locked memory is held."""
        return self._made * self._slab_bytes

    def begin(self, copies: Copies) -> Arrived:
        """Start to bring tensors to the host; see `milepost.state.late.LateKind.begin`."""
        with self._lock:
            self._forget()
            batch: list[tuple[int, memoryview]] = []
            slab, used = None, 0
            for value, into in copies:
                for piece, part in self._pieces(flat(value), into):
                    if slab is None or used + len(part) > self._slab_bytes:
                        if slab is not None:
                            self._flights.append(_Flight(slab, self.device.mark(), tuple(batch)))
                        slab, used, batch = self._take(), 0, []
                    self.device.copy(piece, slab[used : used + len(part)])
                    batch.append((used, part))
                    used += len(part)
            if slab is not None:
                self._flights.append(_Flight(slab, self.device.mark(), tuple(batch)))
            mine = tuple(self._flights)
        return lambda: self._land(mine)

    def fetch(self, value: torch.Tensor, into: memoryview) -> None:
        """Bring one tensor to the host, and wait for it. What `begin` has under way is left alone."""
        with self._lock:
            for piece, part in self._pieces(flat(value), into):
                slab = self._take()
                self.device.copy(piece, slab[: len(part)])
                _Flight(slab, self.device.mark(), ((0, part),)).land()
                self._free.append(slab)

    def put(self, value: torch.Tensor, source: torch.Tensor) -> None:
        """Overwrite a tensor of the device with one of the host, before whatever is asked of the device next."""
        if not value.is_contiguous() or value.is_conj() or value.is_neg():
            self.device.copy(source, value)
            return
        with self._lock:
            for piece, part in self._pieces(flat(value), as_bytes(flat(source).numpy())):
                slab = self._take()
                np.copyto(slab.numpy()[: len(part)], np.frombuffer(part, np.uint8))
                self.device.copy(slab[: len(part)], piece)
                self._flights.append(_Flight(slab, self.device.mark()))

    def _pieces(self, whole: torch.Tensor, host: memoryview) -> Iterator[tuple[torch.Tensor, memoryview]]:
        for start in range(0, len(host), self._slab_bytes):
            stop = min(start + self._slab_bytes, len(host))
            yield whole[start:stop], host[start:stop]

    def _take(self) -> torch.Tensor:
        """Return a slab that nothing is copied to or from: a new one, or that of the oldest copies, once they are done."""
        if self._free:
            return self._free.pop()
        if self._made < self._slabs:
            self._made += 1
            return self.device.host_memory(self._slab_bytes)
        oldest = self._flights.popleft()
        oldest.land()
        return oldest.slab

    def _land(self, flights: tuple[_Flight, ...]) -> None:
        with self._lock:
            for flight in flights:
                if flight in self._flights:
                    flight.land()
                    self._flights.remove(flight)
                    self._free.append(flight.slab)

    def _forget(self) -> None:
        """Take back the slabs of a save that came to nothing, once the device has left them alone; deliver nothing.

        Another stream may be current by now, and what it copies into a slab would not wait for what this one still does.
        """
        while self._flights:
            flight = self._flights.popleft()
            flight.event.wait()
            self._free.append(flight.slab)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values as bytes, one behind the other in C order; a view where it can be one."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.view(-1).view(torch.uint8)


class Cuda:
    """Copy to and from NVIDIA GPUs, on the stream that is current on each. Not run on a GPU yet: see `bench.gpu_check`."""

    def __init__(self) -> None:
        self._touched: set[torch.device] = set()

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, source: torch.Tensor, into: torch.Tensor) -> None:
        device = source.device if source.is_cuda else into.device
        with torch.cuda.device(device):
            into.copy_(source, non_blocking=True)
        self._touched.add(device)

    def mark(self) -> Event:
        events = []
        for device in self._touched:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            events.append(event)
        self._touched.clear()
        return _CudaEvents(tuple(events))


@dataclass(frozen=True, slots=True)
class _CudaEvents:
    events: tuple[torch.cuda.Event, ...]

    def wait(self) -> None:
        for event in self.events:
            event.synchronize()


_transfers: list[Transfers] = []


def register_device(transfers: Transfers) -> None:
    """Let tensors that this kind of device holds go through its transfers."""
    _transfers.append(transfers)


def forget_device(transfers: Transfers) -> None:
    """Leave them to torch again."""
    _transfers.remove(transfers)


def transfers_of(tensor: torch.Tensor) -> Transfers | None:
    """Return what moves a tensor, or None: then the host reaches its memory, or torch is left to copy it."""
    for transfers in _transfers:
        if transfers.device.holds(tensor):
            return transfers
    return None
