"""Count the rows that are written to a replay buffer, on the instance: its own cursor cannot tell one round from two.

What Stable-Baselines3 writes, row by row: every array at ``pos``; with ``optimize_memory_usage`` also the next row's
observation; with HER, when an episode ends, its length into each of its rows, and 0 into those of the episode whose first
row is overwritten. Everything else that may change a row is a doubt, and the whole buffer is saved once more.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer

from milepost.adapters.sb3.fields import fields, trusts_its_add
from milepost.adapters.sb3.infos import Infos
from milepost.state.rows import Rows


class Counted:
    """Stand in for one buffer's ``add``: call it, and note which rows it wrote.

    The buffer holds this in its own dict and is held weakly, so that 4 GB go when the buffer goes. It stays when ``learn()``
    ends: a script that calls ``learn()`` in a loop, or adds rows between two calls, would pay for a whole save each time.
    A pickle or a copy of the buffer gets the plain method, and needs no milepost to be loaded.
    """

    def __init__(self, buffer: ReplayBuffer, inner: Any) -> None:
        self._buffer = weakref.ref(buffer)
        self._inner = inner
        """What somebody else has put in the place of ``add`` on this instance; None for the method of the class."""
        self._capacity = buffer.buffer_size
        self._ahead = int(buffer.optimize_memory_usage)
        """With one array for both observations the row after the last one is written, too, by half."""
        self._starts = _episode_starts(buffer)
        self._told: set[str] = set()
        self.rows = Rows(fields(buffer), count=self._count_of(buffer))
        self.infos = self._infos_of(buffer)

    def __reduce__(self) -> tuple[Any, ...]:
        return (getattr, (self._owner(), "add")) if self._inner is None else (functools.partial, (self._inner,))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        buffer = self._owner()
        if not self._fits(buffer):
            # Found now: two such moves can cancel out, and by the next save the cursor would fit again, to other rows.
            self.check(buffer)
        before = buffer.pos
        self._follow_episodes(buffer)
        self._touch_overwritten_episodes(buffer)
        try:
            result = self._inner(*args, **kwargs) if self._inner else type(buffer).add(buffer, *args, **kwargs)
        except BaseException:
            # A row may be written by half, and the cursor says nothing of it.
            self.doubt("a call of add() was broken off")
            self.infos = self._infos_of(buffer)
            raise
        self._advance(buffer, 1 if self._capacity == 1 else (buffer.pos - before) % self._capacity)
        self._follow_episodes(buffer)
        return result

    def counts(self, buffer: ReplayBuffer) -> bool:
        """Return whether this is the buffer whose rows are counted here, with the arrays that it had."""
        live, rows = fields(buffer), self.rows.arrays
        return self._buffer() is buffer and rows.keys() == live.keys() and all(rows[name] is live[name] for name in live)

    def check(self, buffer: ReplayBuffer) -> None:
        """Compare the count with the buffer's own cursor, and doubt it where they differ."""
        self._follow_episodes(buffer)
        if not self._fits(buffer):
            self.recount(buffer)
            if self._starts is not None:
                # HER draws from episodes wherever they lie, and reset() leaves them there: all there is may be drawn.
                self.rows.reset(self._capacity + buffer.pos + self._ahead)
                self.infos = self._infos_of(buffer)
            self.doubt("the buffer's cursor was moved, and not by add()")

    def recount(self, buffer: ReplayBuffer) -> None:
        """Begin anew with what the buffer says of itself: nothing that was saved is relied on."""
        self._starts = _episode_starts(buffer)
        self.rows.reset(self._count_of(buffer))
        self.infos = self._infos_of(buffer)

    def brought_back(self, buffer: ReplayBuffer) -> None:
        """Go on from a count, a cursor and episodes that have just come out of a checkpoint."""
        self._starts = _episode_starts(buffer)
        if self.infos is not None and self.infos.items.count != self.rows.count:
            self.infos = self._infos_of(buffer)
        self.check(buffer)

    def clear_beyond(self, buffer: Any) -> None:
        """Forget the rows which the buffer held beyond those that came back: HER would draw from their episodes.

        Called while its cursor still says how far it had been written. Memory that was never touched stays so.
        """
        end = self.rows.count
        stale = self._starts is not None and bool(buffer.ep_length[end:].any())
        written = self._capacity if buffer.full or stale else min(buffer.pos + self._ahead, self._capacity)
        for array in self.rows.arrays.values():
            array[end:written] = 0

    def doubt(self, reason: str) -> None:
        """Have the next save take the whole buffer; each reason is told once."""
        self.rows.doubt("" if reason in self._told else reason)
        self._told.add(reason)

    def touch_last(self) -> None:
        """Note that the last row added was changed: ``learn()`` and a resume may end its episode there."""
        last = self.rows.count - self._ahead
        self._touch(last - 1, last)

    def _owner(self) -> Any:
        buffer = self._buffer()
        assert buffer is not None, "the buffer holds this in its own dict"
        return buffer

    def _advance(self, buffer: ReplayBuffer, written: int) -> None:
        if not written and not trusts_its_add(buffer):
            self.doubt("add() did not move the cursor; a class with milepost_rows says that such a call wrote nothing")
        elif written > 1 and self._starts is not None:
            self.doubt("a call of add() wrote several rows of an episode")
        if self._ahead:
            self._touch(self.rows.count - 1, self.rows.count)
        if self.infos is not None:
            for row in range(self.rows.count, self.rows.count + written):
                self.infos.append(buffer, row)
        self.rows.advance(written)

    def _follow_episodes(self, buffer: Any) -> None:
        """Touch the rows of episodes that ended, in ``add`` or because somebody truncated the last one."""
        if self._starts is None or np.array_equal(self._starts, buffer._current_ep_start):
            return
        now = buffer._current_ep_start.copy()
        changed = now != self._starts
        if (now[changed] != buffer.pos).any():
            self.doubt("an episode ended elsewhere than at the cursor")
        longest = int(((now - self._starts)[changed] % self._capacity).max())
        self._touch(self.rows.count - longest, self.rows.count)
        self._starts = now

    def _touch_overwritten_episodes(self, buffer: Any) -> None:
        """Touch the rows of the episodes that lose their first row now: none of them may be drawn any more."""
        if self._starts is None:
            return
        lengths = buffer.ep_length[buffer.pos]
        if lengths.any():
            ends = (buffer.ep_start[buffer.pos] + lengths)[lengths > 0]
            first = self.rows.count - self._capacity
            self._touch(first, first + int(ends.max()) - buffer.pos)

    def _touch(self, start: int, stop: int) -> None:
        if max(start, 0) < stop:
            self.rows.touch(max(start, 0), stop)

    def _infos_of(self, buffer: Any) -> Infos | None:
        return Infos(buffer, range(*self.rows.window), self.rows.count) if getattr(buffer, "copy_info_dict", False) else None

    def _fits(self, buffer: ReplayBuffer) -> bool:
        added = self.rows.count - self._ahead
        return added >= 0 and added % self._capacity == buffer.pos and (added >= self._capacity or not buffer.full)

    def _count_of(self, buffer: Any) -> int:
        """Return a count that fits the buffer's cursor, and whose window holds every row that may be drawn."""
        stale = self._starts is not None and bool((self._starts > buffer.pos).any() or buffer.ep_length[buffer.pos :].any())
        return int(buffer.pos) + (self._capacity if buffer.full or stale else 0) + self._ahead


def counted(buffer: ReplayBuffer) -> Counted:
    """Return what counts the rows of ``buffer``, its count checked."""
    found = counting(buffer)
    found.check(buffer)
    return found


def counting(buffer: ReplayBuffer) -> Counted:
    """Return what counts the rows of ``buffer``, put in the place of its ``add`` at the first call."""
    found = vars(buffer).get("add")
    if isinstance(found, Counted) and found.counts(buffer):
        return found
    # Anew, too, where an array was replaced. What somebody else has put there is called by ours.
    inner = found._inner if isinstance(found, Counted) else found
    if isinstance(inner, types.MethodType) and inner.__self__ is buffer and inner.__func__ is type(buffer).add:
        inner = None  # what a pickle of a counted buffer was given: held by itself, the buffer would never go by itself
    made = vars(buffer)["add"] = Counted(buffer, inner)
    if isinstance(found, Counted):
        made.doubt("an array of the buffer was replaced")
    return made


def _episode_starts(buffer: Any) -> Any:
    return buffer._current_ep_start.copy() if hasattr(buffer, "ep_length") else None
