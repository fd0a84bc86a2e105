"""Save and load on all ranks, with milepost's own errors; a load falls back, on all ranks to the same generation.

For whoever calls ``dcp.save``, ``dcp.async_save`` and ``dcp.load`` there is `as_error`: what they raise is no `Exception`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from milepost.errors import CorruptError, InternalError, MilepostError, MismatchError, ServiceError
from milepost.lifecycle.recover import Skipped
from milepost.lifecycle.retain import Keep
from milepost.pytorch.dcp.choosing import Which
from milepost.pytorch.dcp.own import KEY, give_back, key_of_rank, with_own
from milepost.pytorch.dcp.reader import RunReader
from milepost.pytorch.dcp.writer import RunWriter, Saved
from milepost.records import Difference, Restored
from milepost.state.protocol import Stateful
from milepost.store.resolve import Where
from milepost.text import plain

_LOST = "the rank that ended says why; all ranks have to be started again, and what was published before stands"


def save(
    state: dict[str, Any],
    writer: RunWriter,
    *,
    own: Mapping[str, Stateful] | None = None,
    planner: SavePlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    no_dist: bool = False,
) -> Saved:
    """Save on all ranks as ``dcp.save`` does, and return which generation it has become, on each of them.

    ``own`` is what each rank has by itself, by the same names on all: ``{"rng": milepost.Rng(), "data": loader}``.

    Raises milepost's own errors, the same on each rank: what went wrong on the lowest of those that failed. A rank that is
    gone, or silent for as long as the process group waits, is a `ServiceError` (kind ``rank-lost``).
    """
    # Here and not by DCP: what an object of the caller's raises is not what a process group says of a rank that is gone.
    whole = {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state.items()}
    whole = with_own(whole, own, _place(process_group, no_dist)[0])
    try:
        metadata = dcp_save(whole, storage_writer=writer, planner=planner, process_group=process_group, no_dist=no_dist)
    except (RuntimeError, OSError, CheckpointException) as error:
        failure = as_error(error)
        writer.give_up_save(failure)
        raise failure from error
    except BaseException as error:
        writer.give_up_save(error)
        raise
    saved = metadata.storage_data
    if not isinstance(saved, Saved):
        raise InternalError("a save has ended without a generation", kind="no-generation", step=writer.step)
    return saved


def load(
    state: dict[str, Any],
    root: Where,
    *,
    own: Mapping[str, Stateful] | None = None,
    which: Which = "latest",
    keep: Keep | None = None,
    planner: LoadPlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    no_dist: bool = False,
    trust_pickle: bool = False,
    key_file: str | os.PathLike[str] | None = None,
) -> Restored:
    """Load on all ranks as ``dcp.load`` does, in place; where a shard is damaged, from the newest generation that is sound.

    What one rank finds damaged, all pass over: each hears of it from DCP. Raises `NotFoundError` if there is no generation,
    `CorruptError` (kind ``nothing-valid``) if there is none left, or for a damaged one that was asked for by its number. The
    state may be half overwritten then: it is not to be saved.

    What each rank has by itself, ``own``, comes back where as many ranks load as have saved; else it stays as it is, and the
    result says what could not be exact.
    """
    place = _place(process_group, no_dist)
    rejected: list[Skipped] = []
    while True:
        reader = RunReader(root, which=which, keep=keep, trust_pickle=trust_pickle, key_file=key_file)
        reader.rejected = [*rejected]
        template = {**state}
        if own is not None and _has_own(reader, *place):
            template[KEY] = {key_of_rank(place[0]): None}
        try:
            dcp_load(template, storage_reader=reader, planner=planner, process_group=process_group, no_dist=no_dist)
        except (RuntimeError, OSError, CheckpointException) as error:
            told = _misfit(error, root) or as_error(error)
            if isinstance(which, int) or not isinstance(told, CorruptError) or told.kind != "damaged-leaf":
                raise told from error
            rejected.append(Skipped(int(str(told.facts["generation"])), "damaged", told.message))
        else:
            came = template.pop(KEY, None)
            state.update(template)
            if own is not None and came is not None:
                give_back(own, came[key_of_rank(place[0])])
            left = [] if came is not None else [*(own or ())]
            return _restored(reader, place[1], rejected, left)


def _place(group: dist.ProcessGroup | None, no_dist: bool) -> tuple[int, int]:
    """Return this process's rank, and how many there are."""
    if no_dist or not dist.is_available() or not dist.is_initialized():
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def _has_own(reader: RunReader, rank: int, ranks: int) -> bool:
    metadata = reader.read_metadata()
    try:
        return f"{KEY}.{key_of_rank(rank)}" in metadata.state_dict_metadata and reader.ranks == ranks
    except MilepostError:
        return False  # told by the load, to all ranks


def _restored(reader: RunReader, ranks: int, rejected: list[Skipped], left: Sequence[str]) -> Restored:
    manifest = reader.manifest
    inexact = []
    if reader.ranks != ranks:
        inexact.append(f"saved by {reader.ranks} ranks and loaded by {ranks}: what is summed over ranks comes in another order")
    if reader.converted:
        inexact.append(f"converted to another dtype: {', '.join(reader.converted)}")
    if left:
        inexact.append(f"what each rank has by itself was not brought back: {', '.join(left)}")
    return Restored(
        generation=manifest.number,
        step=manifest.step,
        counters=dict(manifest.counters),
        version=manifest.version,
        elapsed_s=float.fromhex(manifest.elapsed_s),
        components=tuple(component.name for component in manifest.components),
        inexact=tuple(inexact),
        skipped=tuple(map(str, [*reader.skipped])) or tuple(map(str, rejected)),
    )


def _misfit(error: BaseException, root: Where) -> MismatchError | None:
    """Return what DCP's planner has found that does not fit: it names a key that is missing, or both sizes."""
    if not isinstance(error, CheckpointException) or error.args[0] != "plan":
        return None
    failures = {rank: failure for rank, (failure, _) in sorted(error.failures.items())}
    if not all(isinstance(failure, RuntimeError | ValueError) for failure in failures.values()):
        return None
    if any(isinstance(failure, MilepostError) for failure in failures.values()):
        return None
    texts = dict.fromkeys(plain(str(failure)) for failure in failures.values())
    return MismatchError(
        "the state does not fit what was saved",
        [Difference("state dict", text, "another") for text in texts],
        kind="state-dict",
        hint="build it as it was when it was saved, or planner=DefaultLoadPlanner(allow_partial_load=True)",
        root=str(root),
        failed_on_ranks=", ".join(map(str, failures)),
    )


def as_error(error: BaseException) -> MilepostError:
    """Return what went wrong as one of milepost's errors: of several ranks' that of the lowest, and which ranks failed.

    ``error`` is what ``dcp.save``, ``dcp.load`` or the result of ``dcp.async_save`` has raised: a ``CheckpointException``, which
    ``except Exception`` does not catch, or what a process group says of a rank that is gone. What is neither is raised again.
    """
    if isinstance(error, MilepostError):
        return error
    if isinstance(error, CheckpointException):
        return _of_ranks({rank: failure for rank, (failure, _) in sorted(error.failures.items())})
    if not isinstance(error, RuntimeError | OSError):
        raise error
    return ServiceError(
        "the ranks have lost each other: one is gone, or silent for too long",
        kind="rank-lost",
        hint=_LOST,
        cause=_first_line(error),
    )


def _of_ranks(failures: dict[int, BaseException]) -> MilepostError:
    ranks = ", ".join(map(str, failures))
    for failure in failures.values():
        if isinstance(failure, KeyboardInterrupt | SystemExit):
            raise failure  # DCP wraps these, too: a Ctrl-C would be told as a failed save, and training would go on
    for failure in failures.values():
        if isinstance(failure, MilepostError):
            failure.facts = {**failure.facts, "failed_on_ranks": ranks}
            return failure
    rank, failure = next(iter(failures.items()))
    return ServiceError(
        "a rank has failed",
        kind="rank-failed",
        hint="look at what that rank has logged",
        rank=rank,
        cause=_first_line(failure),
        failed_on_ranks=ranks,
    )


def _first_line(error: BaseException) -> str:
    text = plain(str(error).partition("\n")[0])
    return f"{type(error).__name__}: {text}"[:300]
