"""Know what within a loader is told of epochs, and between how many ranks it shares them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

_WITHIN = ("batch_sampler", "sampler", "dataset")


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the loader, its samplers and its dataset which epoch begins: what shuffles by it has no other memory."""
    for part in parts_of(loader):
        tell = getattr(part, "set_epoch", None)
        if callable(tell):
            tell(epoch)


def is_told_epochs(loader: Any) -> bool:
    """Say whether anything within a loader is told which epoch begins."""
    return any(callable(getattr(part, "set_epoch", None)) for part in parts_of(loader))


def untouched_state(loader: Any) -> Any:
    """Return where a loader of which nothing was drawn yet goes on, and do not move it; None for a new one of torchdata's.

    To be asked for its state a loader of torchdata's begins its epoch, and draws from generators.
    """
    return copy.deepcopy(loader.next_iter_state if hasattr(loader, "next_iter_state") else loader.state_dict())


def shares_of(loader: Any) -> int | None:
    """Return between how many ranks a loader's samplers share each epoch; None if they do not, or do not say."""
    return next((count for part in parts_of(loader) if isinstance(count := getattr(part, "num_replicas", None), int)), None)


def workers_of(loader: Any) -> int | None:
    """Return how many processes a loader loads with; None if it has no such number."""
    count = getattr(loader, "num_workers", None)
    return count if isinstance(count, int) else None


def parts_of(loader: Any) -> Iterator[Any]:
    """Yield a loader, its samplers, those within them, and its dataset, each once."""
    seen: list[Any] = []
    pending = [loader]
    while pending and len(seen) < 16:
        part = pending.pop(0)
        if part is None or any(part is one for one in seen):
            continue
        seen.append(part)
        yield part
        own = getattr(part, "__dict__", {})
        pending += [own.get(name) for name in _WITHIN]
