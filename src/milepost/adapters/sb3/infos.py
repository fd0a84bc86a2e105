"""Save what a HER buffer with ``copy_info_dict=True`` keeps of its environments: an array of dicts, as a queue of plain data."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from milepost.envs.plain import ABSENT, LeftOut, Recorder, Refiller
from milepost.state.items import Items

_PATH = "replay_buffer.infos"


class Infos:
    """Follow the infos of the rows in a buffer's window; item ``n`` belongs to row ``n``."""

    def __init__(self, buffer: Any, rows: Iterable[int], count: int) -> None:
        self.left_out: list[LeftOut] = []
        """Why the first row that is not plain data is not, and so is without infos after a resume."""
        held = [self._plain(buffer, row) for row in rows]
        self.items = Items(deque(held, maxlen=buffer.buffer_size), count=count)

    def append(self, buffer: Any, row: int) -> None:
        """Take the infos of a row that was just added."""
        self.items.append(self._plain(buffer, row))

    def _plain(self, buffer: Any, row: int) -> Any:
        recorder = Recorder()
        found = recorder.value(list(buffer.infos[row % buffer.buffer_size]), _PATH)
        self.left_out = self.left_out or recorder.left_out
        return None if found is ABSENT else found


def put_back(buffer: Any, items: Items) -> None:
    """Give each row its infos again. What the buffer held in other rows is gone."""
    refiller, size = Refiller(), buffer.buffer_size
    for row in buffer.infos:
        row[:] = [{} for _ in row]
    for number, saved in enumerate(items.items, items.start):
        if saved is not None:
            for env, info in enumerate(refiller.value(saved, None, f"{_PATH}[{number}]")):
                buffer.infos[number % size, env] = info
