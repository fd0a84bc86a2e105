"""Be a device that does everything late: memory of the host that counts as a device's, and a queue that waits at a gate.

It stands for a GPU in tests. Whoever reads page-locked memory before the copies into it are done reads a pattern that no
copy leaves; whoever lets an update overtake a copy finds the update in the copy.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Self

import torch

POISON = 0xA5
"""What untouched memory holds."""


class TwinEvent:
    """Be set by the device when its turn comes."""

    def __init__(self, gate: threading.Condition) -> None:
        self._gate = gate
        self.done = False

    def wait(self) -> None:
        """Wait until the device has come here. Raises TimeoutError after a minute: a gate was forgotten."""
        with self._gate:
            if not self._gate.wait_for(lambda: self.done, timeout=60):
                raise TimeoutError("the twin's gate is shut, and somebody waits for what is behind it")

    def set(self) -> None:
        """Be reached."""
        with self._gate:
            self.done = True
            self._gate.notify_all()


class Twin:
    """Work through a queue, in order, while the gate is open. Use it with ``with``; it ends with its thread."""

    def __init__(self, *, opened: bool = True) -> None:
        self._gate = threading.Condition()
        self._opened = opened
        self._ending = False
        self._queue: deque[Callable[[], object]] = deque()
        self._own: dict[int, torch.Tensor] = {}
        self._thread = threading.Thread(target=self._work, name="twin-device", daemon=True)
        self.copied_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._gate:
            self._opened = self._ending = True
            self._gate.notify_all()
        self._thread.join()

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Let a tensor's memory be the device's: from here on only `launch` may change it, and only copies read it."""
        self._own[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor lies in such memory."""
        return tensor.untyped_storage().data_ptr() in self._own

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        """Return memory full of a pattern."""
        return torch.full((size_bytes,), POISON, dtype=torch.uint8)

    def copy(self, source: torch.Tensor, into: torch.Tensor) -> None:
        """Copy when its turn comes."""
        self.copied_bytes += source.numel()
        self.launch(lambda: into.copy_(source))

    def mark(self) -> TwinEvent:
        """Return an event behind all that was launched."""
        event = TwinEvent(self._gate)
        self.launch(event.set)
        return event

    def launch(self, work: Callable[[], object]) -> None:
        """Do ``work`` when its turn comes, as a kernel would."""
        with self._gate:
            self._queue.append(work)
            self._gate.notify_all()

    def open(self) -> None:
        """Let the device work."""
        self._turn(opened=True)

    def shut(self) -> None:
        """Let it stop before the next thing in its queue."""
        self._turn(opened=False)

    def _turn(self, *, opened: bool) -> None:
        with self._gate:
            self._opened = opened
            self._gate.notify_all()

    def _work(self) -> None:
        while True:
            with self._gate:
                self._gate.wait_for(lambda: self._opened and (self._queue or self._ending))
                if not self._queue:
                    return
                work = self._queue.popleft()
            work()
