"""Name the leaves that hold wall-clock values: no two runs have them equal, however exact they are.

One list, for whoever compares what runs have saved: ``milepost selftest`` and ``doctor env``. It is kept narrow: a path is on
it only where milepost itself knows what lies there. ``counters/t`` of somebody's own loop is a step, and is compared.
"""

from __future__ import annotations

import re

_INDEX = re.compile(r"\[(\d+)\]")

_PATTERNS = (
    # Stable-Baselines3: time trained so far, the wall time of each recent episode.
    r"counters/elapsed_ns",
    r"counters/model/ep_(info|success)_buffer/items/\d+/t",
    # Monitor, VecMonitor and RecordEpisodeStatistics: when they began, how long each episode took, the csv of both.
    r".+/state/(t_start|episode_times|time_queue|results_writer|episode_start_times?)(/.*)?",
    # What they put into infos: the last of each env, and those that a HER buffer keeps.
    r".*/\w*infos?(/.*)?/episode/_?t(/.*)?",
    # Log files: every line has a time, and the columns of a csv come in the order of a set.
    r"extra/logger/outputs(/.*)?",
    # PPO_1 or PPO_2: whichever was free.
    r"extra/logger/directory",
    r"metrics/(.*/)?(fps|time_elapsed|elapsed_s)",
)
_CLOCKED = re.compile("|".join(_PATTERNS))


def is_clocked(path: str) -> bool:
    """Return whether a leaf's value says what time it was or how long something took, and so is never the same twice.

    ``path`` begins with the component's name, and indices stand as in ``items[0]`` or as in ``items/0``.

    >>> is_clocked("counters/elapsed_ns"), is_clocked("envs/inner[0]/state/t_start"), is_clocked("counters/t")
    (True, True, False)
    """
    return _CLOCKED.fullmatch(_INDEX.sub(r"/\1", path)) is not None
