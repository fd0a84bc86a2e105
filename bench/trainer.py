"""Save and load what a trainer has, by milepost and by torch.distributed.checkpoint's own storage, on one rank and on two."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace

from bench.goals import (
    DCP_HF,
    DCP_OWN,
    DCP_OWN_PROCESS,
    DCP_OWN_REUSED,
    DCP_OWN_UNSYNCED,
    DIGEST,
    DIRECT,
    GATHER,
    MEMCPY,
    PLAN_DIGEST,
    PLAN_DIRECT,
    PLAN_READ,
    PROCESS_WRITER,
    READ,
    SAFETENSORS,
)
from bench.measure import Contender, Kind, Outcome, Row, Setting, interleave
from bench.ranks import Ranks

FLOORS = (MEMCPY, DIRECT, DIGEST, PLAN_DIRECT, PLAN_DIGEST)
SAVE_PEERS = (DCP_OWN, DCP_OWN_REUSED, DCP_OWN_UNSYNCED)
RECOVER_PEERS = (DCP_OWN, DCP_OWN_REUSED)
EXPORT_PEERS = (SAFETENSORS, DCP_HF)
PROMISES = (
    "DCP's own writer syncs its files, and no directory: a power cut may take back their names. It digests nothing",
    "milepost's generation is durable with its names, digested and published",
    "unchanged: the second save of a state of which nothing has changed",
)


def saves_of_one(setting: Setting) -> Outcome:
    """Save on one rank."""
    return _saves(setting, "dcp-save", 1, (*SAVE_PEERS, DCP_OWN_PROCESS), (PROCESS_WRITER,))


def saves_of_two(setting: Setting) -> Outcome:
    """Save on two ranks, half of each tensor on each."""
    return _saves(setting, "dcp-save-2", 2, SAVE_PEERS)


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


def recovers(setting: Setting) -> Outcome:
    """Save one engine by `RecoverHandler`."""
    size = setting.scaled(1_000_000_000, 100_000_000)
    with Ranks(1, "bench.trainings:recovering", setting.place, total_bytes=size) as together:
        contenders = [
            *(together.contender(one, "floor") for one in (MEMCPY, DIRECT, PLAN_DIRECT)),
            together.contender("milepost", "milepost"),
            *(together.contender(one, "peer") for one in RECOVER_PEERS),
        ]
        rows = interleave(contenders, setting, rounds=setting.scaled(5, 3), budget_s=setting.scaled(25, 5))
    words = f"RecoverHandler.dump of one engine, {_words(size, 1)}"
    return Outcome("recover", words, rows, ("sync: save_mode=sync, until it is published; stall and durable: save_mode=async",))


def exports_of_one(setting: Setting) -> Outcome:
    """Export on one rank."""
    return _exports(setting, "export", 1)


def exports_of_two(setting: Setting) -> Outcome:
    """Export what two ranks have in parts."""
    return _exports(setting, "export-2", 2)


def _exports(setting: Setting, name: str, ranks: int) -> Outcome:
    size = setting.scaled(1_000_000_000, 100_000_000)
    with Ranks(ranks, "bench.trainings:exporting", setting.place, total_bytes=size) as together:
        contenders = [
            *(together.contender(one, "floor") for one in (MEMCPY, DIRECT, *([GATHER] if ranks > 1 else []))),
            together.contender("milepost", "milepost"),
            *(together.contender(one, "peer") for one in EXPORT_PEERS),
        ]
        rows = interleave(contenders, setting, rounds=setting.scaled(5, 3), budget_s=setting.scaled(25, 5))
    notes = (
        "one file of safetensors, or several with an index; removed outside the clock",
        "peers: the file is synced, and no directory; DCP writes parts first, and then one file of them",
    )
    return Outcome(name, f"export of {_words(size, ranks)}", rows, notes)


def memory(setting: Setting) -> Outcome:
    """Count the memory that saves and loads need beside the state, in ranks of each contender's own."""
    size = setting.scaled(1_000_000_000, 100_000_000)
    rows: list[Row] = []
    for ranks in (1, 2):
        contenders = [
            Contender("dense state", "floor", lambda: {"extra": float(size)}),
            *(_apart(setting, name, kind, ranks, size) for name, kind in _REMEMBERING),
        ]
        found = interleave(
            contenders, setting, rounds=1, budget_s=0, units=dict.fromkeys(_extras(1), "bytes"), settle=lambda: None
        )
        rows += [replace(row, quantity=_extras(ranks)[row.quantity]) for row in found]
    words = f"{size / 1e6:.0f} MB fp32 in 200 tensors, each in processes of its own; of two ranks both together"
    notes = (
        "the most memory held at once beyond what was held before; one round. extra: async saves, the stager's copy included",
        "a load and synchronous saves come first: what they have left to the allocator an async save may use again",
    )
    return Outcome("dcp-memory", words, tuple(rows), notes)


_REMEMBERING: tuple[tuple[str, Kind], ...] = (("milepost", "milepost"), (DCP_OWN, "peer"), (DCP_OWN_REUSED, "peer"))


def _extras(ranks: int) -> dict[str, str]:
    """Return how each quantity is called of so many ranks."""
    return {name: name if ranks == 1 else f"{name}, {ranks} ranks" for name in ("extra", "extra, sync", "extra, load")}


def _apart(setting: Setting, name: str, kind: Kind, ranks: int, size_bytes: int) -> Contender:
    def sample() -> Mapping[str, float]:
        place = setting.place / f"{kind}-{len(name)}-{ranks}"
        with Ranks(ranks, "bench.trainings:remembering", place, total_bytes=size_bytes) as together:
            figures = together.do(name)
        shutil.rmtree(place)
        return figures

    return Contender(name, kind, sample)
