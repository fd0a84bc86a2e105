"""Keep a ring of rows and a queue of episodes whose whole content follows from a step, and move them as training does.

They are small, and cut into many small pieces: after a few saves a generation names pieces of many others, some of them half
covered by later ones, and pieces are merged. Rows are changed again after they were saved, and changed back.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from milepost import Items, Rows

CAPACITY = 16
PIECE_ROWS = 3
EPISODES = 4
_ROW_BYTES = 5 + 8


def rows_ever(step: int) -> int:
    """Return how many rows were written by ``step``: now and then more than the ring holds."""
    return 5 * step + 2 if step else 0


def row_at(number: int, step: int) -> tuple[Any, float]:
    """Return one row as it is after ``step`` steps: each step changes some, and changes back those of the step before."""
    changed = step if number % 7 == step % 7 else 0
    return np.full(5, (number + changed) % 251, np.uint8), number + changed / 3


def ring_at(step: int) -> Rows:
    """Return the ring as it is after ``step`` steps."""
    rows = Rows({"obs": np.zeros((CAPACITY, 5), np.uint8), "reward": np.zeros(CAPACITY)})
    rows.log.piece_bytes, rows.log.gap_bytes = PIECE_ROWS * _ROW_BYTES, 1
    move_ring(rows, step)
    return rows


def move_ring(rows: Rows, step: int) -> None:
    """Change a ring, in which any earlier or later step may be, to what it is after ``step`` steps."""
    count = rows_ever(step)
    if count < rows.count:
        rows.reset(max(0, count - CAPACITY))  # a rollback, that is: what comes now is another past
    for number in range(max(0, count - CAPACITY), rows.count):
        if _is_other(rows, number, step):
            _write(rows, number, step)
            rows.touch(number, number + 1)
    while rows.count < count:
        _write(rows, rows.count, step)
        rows.advance()


def _is_other(rows: Rows, number: int, step: int) -> bool:
    obs, reward = row_at(number, step)
    at = number % CAPACITY
    return bool((rows.arrays["obs"][at] != obs).any() or rows.arrays["reward"][at] != reward)


def _write(rows: Rows, number: int, step: int) -> None:
    rows.arrays["obs"][number % CAPACITY], rows.arrays["reward"][number % CAPACITY] = row_at(number, step)


def episode_at(number: int, step: int) -> dict[str, Any]:
    """Return one episode as it is after ``step`` steps."""
    return {"number": number, "rewards": np.arange(1 + number % 4) / 2, "seen": [step] if number % 3 == step % 3 else []}


def episodes_between(step: int) -> tuple[int, int]:
    """Return which episodes ``[start, stop)`` are there after ``step`` steps."""
    stop = 2 * step + bool(step)
    return max(0, stop - EPISODES + step % 2), stop


def queue_at(step: int) -> Items:
    """Return the queue as it is after ``step`` steps."""
    queue = Items(deque())
    queue.log.piece_bytes = 200
    move_queue(queue, step)
    return queue


def move_queue(queue: Items, step: int) -> None:
    """Change a queue, in which any earlier or later step may be, to what it is after ``step`` steps."""
    start, stop = episodes_between(step)
    while queue.items and queue.items[0]["number"] < start:
        queue.popleft()
    if [episode["number"] for episode in queue.items] != list(range(start, stop))[: len(queue.items)]:
        while queue.items:  # it goes back to an earlier step
            queue.popleft()
    for place, episode in enumerate(queue.items):
        seen = episode_at(start + place, step)["seen"]
        if episode["seen"] != seen:
            episode["seen"] = seen
            queue.touch(queue.start + place)
    for number in range(start + len(queue.items), stop):
        queue.append(episode_at(number, step))


def window_of(rows: Rows) -> dict[str, Any]:
    """Return the rows that are there, in the order of their numbers."""
    order = np.arange(*rows.window) % rows.capacity
    return {name: array[order] for name, array in rows.arrays.items()}
