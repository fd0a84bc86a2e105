"""List the benchmarks. Each is imported when it runs, so that one of them needs no more than what it measures."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from bench.measure import Measure

BENCHMARKS: Mapping[str, str] = {
    "import": "bench.processes:importing",
    "ls": "bench.processes:listing",
    "small-state": "bench.small_state:measure",
    "save-1gb": "bench.saving:one_gigabyte",
    "save-100k": "bench.saving:many_arrays",
    "save-adam": "bench.saving:adam_state",
    "slopes": "bench.slopes:measure",
    "background": "bench.background:measure",
    "shared": "bench.shared:measure",
    "resume": "bench.resuming:measure",
    "memory": "bench.memory:measure",
    "page-cache": "bench.page_cache:measure",
    "sb3-replay": "bench.sb3_replay:measure",
    "replay-rows": "bench.replay_rows:measure",
    "prioritized": "bench.prioritized:measure",
    "dcp-save": "bench.trainer:saves_of_one",
    "dcp-save-2": "bench.trainer:saves_of_two",
    "dcp-load": "bench.trainer:loads_of_one",
    "dcp-load-2": "bench.trainer:loads_of_two",
    "dcp-memory": "bench.trainer:memory",
    "recover": "bench.trainer:recovers",
    "export": "bench.trainer:exports_of_one",
    "export-2": "bench.trainer:exports_of_two",
    "delta": "bench.delta:measure",
    "fetch": "bench.service:measure",
    "fetch-sizes": "bench.service:sizes",
    "fan-out": "bench.service:fan_out",
}
"""In the order in which they run."""

GROUPS: Mapping[str, Sequence[str]] = {
    group: [name for name, where in BENCHMARKS.items() if where.startswith(f"bench.{group}:")] for group in ("trainer", "service")
}
"""Names that stand for several."""


def load(where: str) -> Measure:
    """Return the function that measures."""
    module, _, name = where.partition(":")
    measure: Any = getattr(importlib.import_module(module), name)
    return measure  # type: ignore[no-any-return]
