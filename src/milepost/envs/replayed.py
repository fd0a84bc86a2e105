"""Know which classes of envs may be captured by what they were told since their last reset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

LONGEST = 1 << 20


def _nothing(_: Any) -> Any:
    return None


@dataclass(frozen=True, slots=True)
class Replayed:
    """Say what there is to know about the envs of one class."""

    carries: tuple[str, ...] = ()
    """Attributes that outlive a reset and matter to the next episode; put back before it is begun again."""
    longest: int = LONGEST
    """More actions than this are not kept."""
    settings: tuple[str, ...] = ()
    """Attributes that its constructor's arguments set. They are carried, too; a script that sets them otherwise is refused."""
    pulse: str = ""
    """An attribute that every step replaces: whoever steps the env unseen is found out."""
    rendering_moves: bool = False
    """Whether ``render()`` changes the state."""
    witness: Callable[[Any], Any] = _nothing
    """Return what can be read of the live state, as a plain tree; a replay must end with the same."""
    begun: Callable[[Any], bool] = lambda _: True
    """Return whether the env was ever reset."""
    sibling: Callable[[Any], Any] = _nothing
    """Return another env, made as this one was made, or None if that cannot be known."""
    refused: Callable[[Any], str] = lambda _: ""
    """Return why a replay would not be exact, or an empty text."""


_registered: dict[type, Replayed] = {}


def register_replayed(cls: type, *, carries: tuple[str, ...] = (), longest: int = LONGEST) -> type:
    """Promise that what an env of exactly ``cls`` was told since its last reset makes it what it is.

    That is: put ``env.np_random`` back to where it stood before that reset, call ``reset`` with the same arguments and
    ``step`` with the same actions, and the env is in the same state, bit for bit, in another process too. So nothing but
    ``np_random`` and the attributes named in ``carries`` (plain data) outlives a reset; nothing is drawn from other
    generators; no clock, no file and no other process is asked; ``render()`` changes nothing.

    ``np_random`` may be drawn from by wrappers as well: their draws are followed. A restore steps the env as many times as
    the episode is long; episodes of more than ``longest`` actions are not kept. An env that was reset before milepost saw it
    is captured from its next reset on; call `milepost.envs.attach` before the first to have it from there.
    """
    _registered[cls] = Replayed(carries=carries, longest=longest)
    return cls


def registered(cls: type) -> Replayed | None:
    """Return what was promised for exactly this class."""
    return _registered.get(cls)


def again_replayed() -> list[Callable[[], object]]:
    """Return the calls that register again what is registered here."""
    return [partial(register_replayed, cls, carries=kind.carries, longest=kind.longest) for cls, kind in _registered.items()]
