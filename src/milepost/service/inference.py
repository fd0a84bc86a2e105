"""Let no rollout begin between a trainer's load and the weights that it brings back (A12)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from milepost.service.client import Client, Done

log = logging.getLogger("milepost")


class Restored(Protocol):
    """Be weights that a load has brought back: what `milepost.pytorch.WeightUpdate` is."""

    @property
    def step(self) -> int:
        """Return the step that was trained last."""

    @property
    def generation(self) -> int:
        """Return the generation that they come from."""

    @property
    def state(self) -> Callable[[], Mapping[str, Any]]:
        """Return what returns all weights, whole. All ranks call it or none."""


class ServiceInference:
    """Be the side that samples, for `RecoverHandler.load`: hold it, commit what was restored, let it go on.

    From `pause` on no fetch is answered with weights, and none is by the time `resume` is called but with the restored ones. A
    load that fails, and a trainer that is killed in the middle, leave sampling held: until the next load has succeeded, or
    until ``milepost unhold``. ``service`` is a trainer's connection; on ranks other than the first None, since weights are
    gathered on all of them.
    """

    def __init__(self, service: Client | None, *, publish_dtype: str | None = None, durable: bool = False) -> None:
        """``publish_dtype`` and ``durable`` are those of `Client.commit`."""
        self._service = service
        self._publish_dtype, self._durable = publish_dtype, durable
        self.done: Done | None = None
        """The version that the last load has committed."""

    def pause(self) -> None:
        """Hold sampling. Returns once that is written down: it holds through a restart of the service, too."""
        if self._service is not None:
            self._service.hold()

    def update_weights(self, update: Restored) -> None:
        """Commit the restored weights, with the step that they are of; they are live when this returns, and nobody has them."""
        state = update.state()
        if self._service is None:
            return
        parent = self._parent(update.step)
        self.done = self._service.commit(
            update.step, state, publish_dtype=self._publish_dtype, durable=self._durable, parent=parent
        )
        self._service.link(self.done, update.generation)

    def resume(self) -> None:
        """Let fetches through."""
        if self._service is not None:
            self._service.resume()
            log.info("[service] samplers go on with %s", self.done.at if self.done is not None else "what is live")
