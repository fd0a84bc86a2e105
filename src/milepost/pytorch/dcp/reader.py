"""Load a generation through ``torch.distributed.checkpoint``, on as many ranks as there are now.

DCP plans, and reshards. Which generation it is, each rank finds for itself; the coordinator's choice counts. It travels with
the plans, and a rank that had found another, since one was published in between, plans anew: no two ranks load from two.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Collection
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from milepost.clock import SystemClock
from milepost.errors import ConflictError, InternalError, MilepostError, UsageError
from milepost.lifecycle.recover import Skipped
from milepost.lifecycle.retain import Keep
from milepost.publish.signed import open_root
from milepost.pytorch.dcp.choosing import Chosen, Seen, Which, choose_generation, numbered, seen
from milepost.pytorch.dcp.holding import Load, note_half, note_load
from milepost.pytorch.dcp.reading import Wanted, read_items
from milepost.pytorch.dcp.writer import rank_of_this_process, step_named
from milepost.records import Manifest
from milepost.state.kinds import load_edges
from milepost.store.base import Store
from milepost.store.resolve import Where

log = logging.getLogger("milepost")


class RunReader(StorageReader):
    """Read a generation of a run root that `RunWriter` has written. Needs no claim, and may run beside training.

    ``which`` is ``latest``, ``best`` (by ``keep.by``) or a generation's number; ``dcp.load(..., checkpoint_id="1000")`` takes
    the newest of that step. Every byte that a rank reads is verified. What is damaged is a `CorruptError` naming the shard, the
    rank that wrote it and the one that reads it; ``dcp.load`` raises it on all ranks, within its ``CheckpointException``, and
    live tensors may then be half overwritten. ``skip`` are numbers that are not to be taken; `milepost.pytorch.dcp.load` falls
    back by itself. Under `milepost run` its ``MILEPOST_RESUME`` stands for the latest, and its ``MILEPOST_SKIP`` is obeyed.
    """

    def __init__(
        self,
        root: Where,
        *,
        which: Which = "latest",
        keep: Keep | None = None,
        skip: Collection[int] = (),
        trust_pickle: bool = False,
        key_file: str | os.PathLike[str] | None = None,
    ) -> None:
        if which not in ("latest", "best") and (isinstance(which, bool) or not isinstance(which, int)):
            raise UsageError(
                'which is "latest", "best" or a number', kind="bad-which", hint="milepost ls shows the numbers", which=which
            )
        self.keep = keep
        self.root, self.which, self.trust_pickle, self.key_file = root, which, trust_pickle, key_file
        self.rejected = [Skipped(number, "damaged", "it was not to be taken") for number in skip]
        self.converted: tuple[str, ...] = ()
        """Which tensors here had another dtype than was saved, and what became of them."""
        self._step: int | None = None
        self._store: Store | None = None
        self._chosen: Chosen | None = None
        self._coordinator, self._rank = False, 0

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Take ``checkpoint_id`` as the step of the generation that is wanted."""
        self._chosen = None
        if checkpoint_id is not None:
            self._step = step_named(checkpoint_id)

    def read_metadata(self, *_: Any) -> Metadata:
        """Choose a generation and return what it says to DCP.

        An error is raised where the result is first looked at: DCP takes one that is raised here for an older form of
        checkpoint, and tells another story.
        """
        load_edges()
        self._store = open_root(self.root, SystemClock(), self.key_file, only_to_read=True)
        try:
            self._chosen = choose_generation(
                self._store, self.which, self.rejected, step=self._step, keep=self.keep, trust_pickle=self.trust_pickle
            )
        except MilepostError as error:
            self._chosen = None
            return _Unreadable(error)
        metadata = self._chosen.index.metadata
        metadata.storage_meta = StorageMeta(checkpoint_id=str(self._chosen.manifest.number))
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 - DCP looks for `kwargs` by its name
        """Raise what `read_metadata` has found wrong."""
        if isinstance(metadata, _Unreadable):
            raise metadata.error
        if self._chosen is None:
            raise InternalError("a reader was set up before it has read any metadata", kind="not-read")
        self._coordinator, self._rank = is_coordinator, rank_of_this_process(kwargs)
        if is_coordinator and self._chosen.not_taken:
            log.warning("%s", self._chosen.not_taken)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return dataclasses.replace(plan, storage_data=seen(self._here))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Have all ranks take what the coordinator has chosen."""
        mine = seen(self._here)
        for rank, plan in enumerate(plans):
            theirs = plan.storage_data
            if isinstance(theirs, Seen) and theirs.run_id != mine.run_id:
                raise ConflictError(
                    "the ranks look at different runs",
                    kind="other-root",
                    hint="all ranks need the same directory: a shared file system, and an absolute path",
                    root=self._opened.url,
                    rank=rank,
                    run=theirs.run_id,
                    coordinators_run=mine.run_id,
                )
        return [dataclasses.replace(plan, storage_data=mine) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Load what the plan asks for, verified. Everything is in place when this returns."""
        decided = plan.storage_data
        if isinstance(decided, Seen) and decided != seen(self._here):
            plan = self._planned_anew(decided, planner)
        wanted = Wanted(self._opened, self._here.manifest, self._here.index, self._rank, self.trust_pickle)
        note_half(self._opened.url)
        read_items(wanted, plan.items, planner)
        self.converted = tuple(sorted(wanted.converted))
        note_load(self._opened.url, Load(self._here.manifest.run_id, self._here.manifest.number))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _planned_anew(self, decided: Seen, planner: LoadPlanner) -> LoadPlan:
        self._chosen = numbered(self._opened, decided, trust_pickle=self.trust_pickle)
        state = getattr(planner, "original_state_dict", None)
        if state is None:
            raise ConflictError(
                "the ranks have found two generations, since one was published in between, and this planner cannot plan anew",
                kind="ranks-disagree",
                hint=f"load once more, or RunReader(root, which={decided.number})",
                root=self._opened.url,
                generation=decided.number,
            )
        planner.set_up_planner(state, self._chosen.index.metadata, self._coordinator)
        return planner.finish_plan(planner.create_local_plan())

    @property
    def manifest(self) -> Manifest:
        """Return the generation that was chosen: its step, metrics and counters are in it."""
        return self._here.manifest

    @property
    def ranks(self) -> int:
        """Return how many ranks have saved it."""
        return self._here.index.ranks

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Return which newer generations were passed over, and why."""
        return self._here.skipped

    @property
    def _here(self) -> Chosen:
        if self._chosen is None:
            raise InternalError("a reader was asked before it has read any metadata", kind="not-read")
        return self._chosen

    @property
    def _opened(self) -> Store:
        assert self._store is not None
        return self._store

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return os.fspath(checkpoint_id).isdecimal()


class _Unreadable(Metadata):
    """Stand for metadata that could not be read: whoever looks into it gets the error."""

    def __init__(self, error: MilepostError) -> None:
        self.error = error

    def __getattribute__(self, name: str) -> Any:
        if name in _MEMBERS:
            raise object.__getattribute__(self, "error")
        return object.__getattribute__(self, name)


_MEMBERS = frozenset(field.name for field in dataclasses.fields(Metadata))
