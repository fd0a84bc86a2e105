"""Save a sharded state through ``torch.distributed.checkpoint`` as one generation of a run root.

DCP plans: what is saved by which rank, and once only. The bytes are milepost's. The story of one save, by who calls what:
all ranks `RunWriter.set_up_storage_writer`; the coordinator `RunWriter.prepare_global_plan`, with which the errand travels
to all; all ranks `RunWriter.write_data`, whose results travel back with the digests; the coordinator `RunWriter.finish`,
which publishes one manifest. What fails on one rank is raised on all, by DCP, before any manifest is written.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from milepost.clock import SystemClock
from milepost.engine.metrics import number_of
from milepost.engine.session import BLOB_BYTES, Order
from milepost.engine.settings import keep_of, whole
from milepost.engine.writer import draft_of
from milepost.errors import InternalError, MilepostError, StoreError, UsageError
from milepost.lifecycle.retain import Keep
from milepost.publish.signed import open_root
from milepost.pytorch.dcp.errands import errand_here
from milepost.pytorch.dcp.fullness import met_here, note_failure
from milepost.pytorch.dcp.gathering import Gathered, check_there, gather
from milepost.pytorch.dcp.holding import Holding, check_whole, failed, hold_root, note_load, take_load
from milepost.pytorch.dcp.index import flat_index
from milepost.pytorch.dcp.naming import INDEX, checked
from milepost.pytorch.dcp.writing import Task, shares_of, write_share, write_values
from milepost.records import ComponentRecord, Metric
from milepost.store.base import Store
from milepost.store.resolve import Where


@dataclasses.dataclass(frozen=True, slots=True)
class Saved:
    """Say which generation a save has become: ``storage_data`` of what ``dcp.save`` returns on every rank."""

    root: str
    run_id: str
    number: int
    step: int
    commit_timestamp: int


class RunWriter(StorageWriter):
    """Write a state dict into a run root, as a new generation. Give each save a writer, or all of them the same one.

    ``step`` is the step that is saved; ``dcp.save(..., checkpoint_id="1000")`` says it, too. ``reason`` is why it is saved, for
    people. ``metrics`` were measured at it, ``counters`` (``episodes``, ``epochs``) are other progress; each save of this writer
    carries them. ``keep`` says which generations stay. ``components`` says which key of the state dict is which component:
    ``{"actor": "default/policy"}``; by itself ``model`` is ``policy``, ``optim`` is ``optimizer``, and what is no
    component is part of ``extra``. Weights and moments that are not finite make a generation unhealthy: a load passes it over.
    Values that only a pickle can hold are refused, or written if ``allow_pickle``.

    Rank 0 of the process group claims the root at the first save and holds it until `milepost.pytorch.dcp.give_up` or its
    end; ``lease_wait`` (seconds), ``take_over`` and ``key_file`` are those of `milepost.CheckpointEngine`. All ranks need to
    see the same root.

    Within ``dcp.save`` torch raises its own ``CheckpointException`` on every rank, which is no `Exception`; it holds the errors
    of `milepost`, by rank. `milepost.pytorch.dcp.save` raises these.
    """

    def __init__(
        self,
        root: Where,
        *,
        step: int = 0,
        reason: str = "dcp",
        metrics: Mapping[str, float] | None = None,
        counters: Mapping[str, int] | None = None,
        keep: Keep | None = None,
        components: Mapping[str, str] | None = None,
        allow_pickle: bool = False,
        key_file: str | os.PathLike[str] | None = None,
        lease_wait: float = 0.0,
        take_over: bool = False,
        blob_bytes: int = BLOB_BYTES,
    ) -> None:
        self.root = root
        self.step, self.reason = whole("step", step), reason
        self.metrics = {name: number_of(name, value) for name, value in (metrics or {}).items()}
        self.counters = {name: whole(name, count) for name, count in (counters or {}).items()}
        self.keep = keep_of(keep, Keep())
        self.components = checked(components)
        self.allow_pickle, self.key_file, self.blob_bytes = allow_pickle, key_file, blob_bytes
        self.only_together = False
        """There are several ranks, and none of them saves by itself."""
        self._guard = (lease_wait, take_over)
        self._store: Store | None = None
        self._holding: Holding | None = None
        self._serial = self._rank = self._ranks = 0
        self._has_begun = False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Take ``checkpoint_id`` as the step of the save to come."""
        if checkpoint_id is not None:
            self.step = step_named(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 - DCP looks for `kwargs` by its name
        """Open the root, on every rank; on the coordinator claim it, if this process has not yet."""
        self._rank = rank_of_this_process(kwargs)
        self._store, self._holding = open_root(self.root, SystemClock(), self.key_file), None
        self._has_begun = False
        check_whole(self._store.url)
        if self.only_together and not dist.is_initialized():
            # DCP has asked, too, and takes this process for the only one: what it would publish is a part of the state.
            raise group_gone()
        if not kwargs.get("use_collectives", True):
            raise UsageError(
                "without collectives there is nobody who could publish one generation of all ranks",
                kind="no-collectives",
                hint="dcp.save(..., use_collectives=True), which is the default",
                root=self._store.url,
            )
        if is_coordinator:
            self._holding = hold_root(self._store, self.keep, *self._guard)
            self._serial = self._holding.begin(self.step)
            self._has_begun = True

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Say with the plan if this rank met a full disk in the save before."""
        assert self._store is not None
        return dataclasses.replace(plan, storage_data=met_here(self._store.url))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Note durably what is about to be saved, and give each rank its errand."""
        told = [plan.storage_data for plan in plans]
        errand = self._coordinators.errand(self._serial, len(plans), told)
        self._ranks = len(plans)
        return [dataclasses.replace(plan, storage_data=errand) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's part. It is durable when this returns; what fails is raised here, and by DCP on every rank."""
        try:
            task = self._task(plan.storage_data)
            try:
                results = write_share(task, plan.items, planner)
            except StoreError as error:
                note_failure(task.store.url, error, task.errand.run_id, task.errand.term, task.errand.serial)
                raise
        except BaseException as error:
            self._failed(error)
            raise
        if self._holding is not None and self._holding.serial == self._serial:
            self._holding.phase = "written"
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Publish one generation of what all ranks have written; ``metadata.storage_data`` says which it is."""
        holding = self._coordinators
        holding.check(self._serial)
        try:
            self._publish(holding, metadata, results)
        except BaseException as error:
            self._failed(error)
            raise

    def _publish(self, holding: Holding, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        session = holding.session
        check_there(session.store, session.run_id, session.chain.term, shares_of(results))
        gathered = self._with_index(gather(metadata, results), metadata)
        metrics = {name: Metric(value.hex(), holding.step) for name, value in self.metrics.items()}
        order = Order(holding.step, self.reason, counters=self.counters, metrics=metrics)
        draft = draft_of(session, order, gathered.blobs, gathered.components, gathered.nonfinite)
        manifest = holding.publish(draft)
        url = session.store.url
        metadata.storage_data = Saved(url, manifest.run_id, manifest.number, manifest.step, manifest.commit_timestamp)

    def _with_index(self, gathered: Gathered, metadata: Metadata) -> Gathered:
        flat = flat_index(metadata, gathered.entries, self._ranks, allow_pickle=self.allow_pickle)
        blobs, leaves = write_values(self._task(None), flat, len(gathered.blobs))
        component = ComponentRecord(INDEX, flat.node, tuple(leaves))
        return dataclasses.replace(gathered, blobs=(*gathered.blobs, *blobs), components=(*gathered.components, component))

    def _task(self, given: object) -> Task:
        assert self._store is not None
        errand = errand_here(given, self._store, self._ranks)
        return Task(self._store, SystemClock(), errand, self._rank, self.components, self.allow_pickle, self.blob_bytes)

    @property
    def _coordinators(self) -> Holding:
        if self._holding is None:
            raise InternalError("a rank that does not coordinate was asked to publish", kind="not-coordinator", rank=self._rank)
        return self._holding

    def give_up_save(self, error: BaseException) -> None:
        """Note that the save of this writer is over, wherever it failed: between the plan and the first byte nobody else does."""
        if self._has_begun:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        if self._holding is not None:
            failed(self._holding, self._serial, error if isinstance(error, MilepostError) else None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return os.fspath(checkpoint_id).isdecimal()

    def __getstate__(self) -> dict[str, Any]:
        # To a process that saves on behalf of this one goes what was asked for, and what was loaded here; never a claim.
        url = open_root(self.root, SystemClock(), self.key_file).url
        check_whole(url)
        load = take_load(url)
        return {**self.__dict__, "_store": None, "_holding": None, "_load": load}

    def __setstate__(self, state: dict[str, Any]) -> None:
        load = state.pop("_load")
        self.__dict__.update(state)
        if load is not None:
            note_load(open_root(self.root, SystemClock(), self.key_file).url, load)


def step_named(checkpoint_id: str | os.PathLike[str]) -> int:
    """Return the step that a ``checkpoint_id`` is. Raises `UsageError` (kind ``bad-checkpoint-id``) if it is none."""
    text = str(checkpoint_id)
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(
            "in a run root a checkpoint_id is the step that is saved",
            kind="bad-checkpoint-id",
            hint='checkpoint_id="1000", or none and RunWriter(root, step=1000); the directory is the run root',
            checkpoint_id=text,
        )
    return int(text)


def rank_of_this_process(told: Mapping[str, Any]) -> int:
    """Return the rank that DCP tells its storage; of an older DCP, which tells none, that of the process."""
    rank = told.get("rank")
    if rank is None:
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    return int(rank)


def group_gone() -> UsageError:
    """Return the error of ranks whose process group was destroyed: what they do together is nothing for one by itself."""
    return UsageError(
        "the process group of these ranks was destroyed",
        kind="group-gone",
        hint="close handlers and savers first, then dist.destroy_process_group(); for a new group construct new ones",
    )
