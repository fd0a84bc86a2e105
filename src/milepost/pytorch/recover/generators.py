"""Have a loader draw the order of an epoch again as it was drawn. Torch's samplers do not all say what they have drawn from.

What torchdata's ``StatefulDataLoader`` saves is enough for its own samplers, but for one case; of torch's it only counts the
samples, and begins the epoch anew to pass them over: with a generator that is somewhere else by then, that is another epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from milepost.errors import UsageError
from milepost.pytorch.recover.epochs import parts_of


@dataclass(frozen=True, slots=True)
class Orders:
    """Hold generator states (1-d, uint8) from which the order of an epoch can be drawn again."""

    before: tuple[torch.Tensor, ...] = ()
    """Of each generator before the epoch began."""
    now: torch.Tensor | None = None
    """Of the one that is shared, at the batch; None if none is."""


def check_repeatable(loader: Any) -> None:
    """Raise `UsageError` (kind ``not-repeatable``) for a loader whose order nobody can draw again."""
    for part in parts_of(loader):
        if part is not loader and isinstance(part, torch.utils.data.Sampler) and getattr(part, "generator", part) is None:
            raise UsageError(
                "this sampler draws from torch's global generator: its order cannot be drawn again",
                kind="not-repeatable",
                hint="give the sampler a generator: generator=torch.Generator().manual_seed(...)",
                sampler=type(part).__name__,
            )
        if _is_torchdatas(part) and part.generator is getattr(loader, "generator", None) and _draws_as_it_goes(part):
            raise UsageError(
                "sampler and loader share a generator that the sampler draws from all along: that cannot be drawn again",
                kind="not-repeatable",
                hint="give the sampler a generator of its own",
                sampler=type(part).__name__,
            )


def before_epoch(loader: Any) -> Orders:
    """Return what the next epoch will be drawn from."""
    return Orders(tuple(one.get_state() for one in _generators(loader)))


def at_batch(loader: Any, orders: Orders) -> Orders:
    """Return what the rest of an epoch, and the next ones, are drawn from."""
    shared = _shared(loader)
    if shared is None:
        return orders
    now = shared.get_state()
    # Most batches of an epoch have the same: one tensor for all of them, not 5 KiB each.
    return Orders(orders.before, orders.now if orders.now is not None and torch.equal(now, orders.now) else now)


def set_before(loader: Any, orders: Orders) -> None:
    """Set the generators before an epoch is begun anew. Raises ValueError if they are others."""
    generators = _generators(loader)
    if len(generators) != len(orders.before):
        raise ValueError(f"it has {len(generators)} generators, and {len(orders.before)} were saved")
    for generator, state in zip(generators, orders.before, strict=True):
        generator.set_state(state)


def set_now(loader: Any, orders: Orders) -> None:
    """Set the shared generator once the epoch has begun.

    The loader draws a seed for its workers after the order of the epoch. When torchdata loads a position it sets the generator
    to what it was before both, and draws the order only: all epochs after this one would be others.
    """
    shared = _shared(loader)
    if shared is not None and orders.now is not None:
        shared.set_state(orders.now)


def orders_of(before: Sequence[Any], now: Any) -> Orders:
    """Return what was saved. Raises TypeError for what are no generator states."""
    for one in (*before, *(() if now is None else (now,))):
        if not isinstance(one, torch.Tensor) or one.dtype != torch.uint8 or one.dim() != 1:
            raise TypeError("a generator's state is a tensor of bytes")
    return Orders(tuple(before), now)


def _generators(loader: Any) -> list[torch.Generator]:
    found: list[torch.Generator] = []
    for part in parts_of(loader):
        one = getattr(part, "generator", None)
        if isinstance(one, torch.Generator) and not any(one is each for each in found):
            found.append(one)
    return found


def _shared(loader: Any) -> torch.Generator | None:
    """Return the generator that a loader shares with a sampler of torchdata's."""
    own = getattr(loader, "generator", None)
    shares = any(_is_torchdatas(part) and part.generator is own for part in parts_of(loader))
    return own if isinstance(own, torch.Generator) and shares else None


def _is_torchdatas(part: Any) -> bool:
    return (
        type(part).__module__.startswith("torchdata.")
        and isinstance(getattr(part, "generator", None), torch.Generator)
        and (isinstance(part, torch.utils.data.Sampler))
    )


def _draws_as_it_goes(sampler: Any) -> bool:
    return bool(sampler.replacement) or sampler.num_samples > len(sampler.data_source)
