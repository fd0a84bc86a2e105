"""Put together what is known of an attempt that is over: what was seen from outside, and what it has left in its folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from milepost.engine.beats import Beats
from milepost.supervise.beating import retries_of, stopped_behind, stopped_of
from milepost.supervise.causes import End
from milepost.supervise.symptoms import cleaned
from milepost.supervise.torchrun import exit_of_the_first, first_failure


def end_of(folder: Path, said: Iterable[Beats], leader: int, seen: End) -> End:
    """Return how an attempt ended: what was ``seen`` from outside, what its engines ``said`` last, and what its folder holds."""
    found = [*said]
    telling = max(found, key=_tells, default=None)
    rank = exit_of_the_first(cleaned(seen.stderr)) if seen.exit_code == 1 else None
    return replace(
        seen,
        failure=first_failure(folder),
        stopped=stopped_of(folder),
        is_covered=stopped_behind(folder, leader),
        phase=telling.phase if telling else "",
        step=max((each.step for each in found), default=-1),
        retries=retries_of(folder),
        rank_signal=-rank if rank is not None and rank < 0 else None,
        loading=next(((each.run_id, each.loading) for each in found if each.loading), None),
        resumed=tuple((each.run_id, each.resumed) for each in found if each.resumed),
    )


def _tells(each: Beats) -> tuple[bool, bool, int]:
    """Return which of several engines says most about the end: one that loaded, one that was in use, the furthest."""
    return each.loading > 0, each.phase != "closed", each.step
