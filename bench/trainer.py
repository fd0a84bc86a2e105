"""Save and load what a trainer has, by milepost and by torch.distributed.checkpoint's own storage, on one rank and on two."""

from __future__ import annotations

from bench.goals import (
    DCP_OWN,
    DCP_OWN_PROCESS,
    DCP_OWN_REUSED,
    DCP_OWN_UNSYNCED,
    DIGEST,
    DIRECT,
    MEMCPY,
    PLAN_DIGEST,
    PLAN_DIRECT,
    PLAN_READ,
    PROCESS_WRITER,
    READ,
)
from bench.measure import Outcome, Setting, interleave
from bench.ranks import Ranks

FLOORS = (MEMCPY, DIRECT, DIGEST, PLAN_DIRECT, PLAN_DIGEST)
PROMISES = (
    "DCP's own writer syncs its files, and no directory: a power cut may take back their names; it digests nothing. "
    "milepost's generation is durable, digested and published",
    "unchanged: the second save of a state of which nothing has changed",
)


def saves_of_one(setting: Setting) -> Outcome:
    """Save on one rank."""
    return _saves(setting, "dcp-save", 1, (DCP_OWN, DCP_OWN_REUSED, DCP_OWN_UNSYNCED, DCP_OWN_PROCESS), (PROCESS_WRITER,))


def saves_of_two(setting: Setting) -> Outcome:
    """Save on two ranks, half of each tensor on each."""
    return _saves(setting, "dcp-save-2", 2, (DCP_OWN, DCP_OWN_REUSED, DCP_OWN_UNSYNCED))


def _saves(setting: Setting, name: str, ranks: int, peers: tuple[str, ...], ours: tuple[str, ...] = ()) -> Outcome:
    size = setting.scaled(1_000_000_000, 100_000_000)
    with Ranks(ranks, "bench.sharded:saving", setting.place, total_bytes=size) as together:
        contenders = [
            *(together.contender(one, "floor") for one in FLOORS),
            together.contender("milepost", "milepost"),
            *(together.contender(one, "milepost") for one in ours),
            *(together.contender(one, "peer") for one in peers),
        ]
        rows = interleave(contenders, setting, rounds=setting.scaled(5, 3), budget_s=setting.scaled(35, 6))
    return Outcome(name, _words(size, ranks), rows, PROMISES)


def loads_of_one(setting: Setting) -> Outcome:
    """Load on one rank."""
    return _loads(setting, "dcp-load", 1)


def loads_of_two(setting: Setting) -> Outcome:
    """Load on the two ranks that have saved."""
    return _loads(setting, "dcp-load-2", 2)


def _loads(setting: Setting, name: str, ranks: int) -> Outcome:
    size = setting.scaled(1_000_000_000, 100_000_000)
    with Ranks(ranks, "bench.sharded:loading", setting.place, total_bytes=size) as together:
        contenders = [
            together.contender(READ, "floor"),
            together.contender(PLAN_READ, "floor"),
            together.contender("milepost", "milepost"),
            together.contender(DCP_OWN, "peer"),
        ]
        rows = interleave(contenders, setting, rounds=setting.scaled(7, 3), budget_s=setting.scaled(20, 4))
    return Outcome(name, _words(size, ranks), rows, ("DCP's own reader verifies nothing",))


def _words(size_bytes: int, ranks: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB fp32 in 200 tensors" + (f", in parts on {ranks} ranks" if ranks > 1 else ", on one rank")


def memory(setting: Setting) -> Outcome:
    """Not yet."""
    raise NotImplementedError
