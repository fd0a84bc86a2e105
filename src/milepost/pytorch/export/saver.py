"""Export models while they train, in Hugging Face's format: when they are due, beside training, durably. A1-A4"""

from __future__ import annotations

import getpass
import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, Self

import torch
import torch.distributed as dist

from milepost.clock import Clock, SystemClock
from milepost.errors import StoreError, UsageError
from milepost.lifecycle.amounts import bytes_of
from milepost.pytorch.export.contents import Contents, Tensors, check_tensors
from milepost.pytorch.export.forming import Forms, forms_of
from milepost.pytorch.export.gathering import Memory, is_sharded, memory_for, stage
from milepost.pytorch.export.huggingface import contents_of
from milepost.pytorch.export.job import Job
from milepost.pytorch.export.naming import check_engine, name_of, trial_directory
from milepost.pytorch.export.planning import Plan, fingerprint, plan
from milepost.pytorch.export.retaining import checked_keep, to_remove
from milepost.pytorch.export.sharding import check_specs
from milepost.pytorch.export.shelf import Shelf
from milepost.pytorch.export.uploading import Upload, Uploads
from milepost.pytorch.export.writing import Draft, check_files, write_export
from milepost.pytorch.ranks import Ranks, late_interrupt
from milepost.pytorch.steps import StepInfo
from milepost.pytorch.ticking import Ticks
from milepost.store.posix import Posix

log = logging.getLogger("milepost")

Mode = Literal["auto", "sync", "async"]


class Saver:
    """Export engines (``default``, ``critic``) of a trial to ``{fileroot}/checkpoints/{user}/{experiment}/{trial}/{engine}/``.

    ``mode``: ``sync`` writes before it returns; ``async`` copies into host memory that is kept for the next time, returns, and
    writes beside training; ``auto`` (as is) is async wherever the copy fits into ``staging_bytes``, and sync elsewhere, with no
    word about it where ``async`` warns.

    The files of an export are shared out over the ranks that see the directory: each keeps a copy of its own, and writes them.
    The host memory this takes on a rank (`staged_bytes`), in ``dtype``: the model divided by these ranks, and at most one file
    more (``max_shard``, or a tensor that is larger). One rank: the model once. Sync, of a model that is not sharded, no copy: one
    tensor at a time. On the device of all ranks of a sharded model: its largest tensor, twice where its form on disk is another
    one (a mixture of experts).

    One export is written at a time: the next waits for it. What fails in the background is raised as `SaveFailed` by the next
    call of `save_if_due`, `save`, `wait` or `close`. With several ranks all of them call, with the same arguments. Beside
    training none of them waits for another longer than ``timeout_s``: for the slowest disk.
    """

    def __init__(
        self,
        fileroot: str | os.PathLike[str],
        *,
        experiment: str,
        trial: str,
        user: str | None = None,
        freq_epochs: int | None = None,
        freq_steps: int | None = None,
        freq_secs: float | None = None,
        mode: Mode = "auto",
        keep: int | None = None,
        dtype: torch.dtype | None = None,
        max_shard: str | int = "5G",
        staging_bytes: str | int | None = None,
        upload: Upload | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout_s: float = 1800.0,
        clock: Clock | None = None,
        posix: Posix | None = None,
    ) -> None:
        if mode not in ("auto", "sync", "async"):
            raise UsageError("no such mode", kind="bad-mode", hint='mode="auto", "sync" or "async"', mode=mode)
        self.directory = trial_directory(fileroot, user if user is not None else getpass.getuser(), experiment, trial)
        self._label = f"{experiment}/{trial}"
        self._mode = mode
        self._keep = checked_keep(keep)
        self._dtype = _checked_dtype(dtype)
        self._most_bytes = bytes_of(str(max_shard))
        self._staging_bytes = None if staging_bytes is None else bytes_of(str(staging_bytes))
        self._clock = clock or SystemClock()
        self._posix = posix
        self._ticks = Ticks(freq_epochs, freq_steps, freq_secs, self._clock)
        self._ranks = Ranks(process_group)
        self._timeout_s = timeout_s
        self._upload = upload
        self._uploads = Uploads(upload) if upload is not None and self._ranks.is_first else None
        self._shelves: dict[str, Shelf] = {}
        self._memory: Memory | None = None
        self._job: Job | None = None
        self._warned = False

    def path(self, step: StepInfo, *, engine: str = "default") -> str:
        """Return where the export of a step lies, or would. Makes nothing."""
        return os.path.join(self.directory, check_engine(engine), name_of(step))

    def exports(self, engine: str = "default") -> list[str]:
        """Return the paths of all finished exports, in the order of training."""
        shelf = self._shelf(engine)
        return [os.path.join(shelf.path, name) for name in shelf.finished()]

    @property
    def staged_bytes(self) -> int:
        """Return how much host memory is kept for copies on this rank."""
        return 0 if self._memory is None else self._memory.size_bytes

    @property
    def uploaded(self) -> str | None:
        """Return the path of the export that was uploaded last; None if none was, and on other ranks than 0."""
        return None if self._uploads is None else self._uploads.sent

    @property
    def upload_failure(self) -> str:
        """Return why the last upload was given up; empty if it was not."""
        return "" if self._uploads is None else self._uploads.failure

    def save_if_due(self, model: Any, step: StepInfo, *, engine: str = "default", tokenizer: Any = None) -> str | None:
        """Export a model after a step if one of the ``freq_*`` falls due for this engine; return the path, or None.

        Call it after each step, once for each engine. The path is there when this returns (sync), or later (async).
        """
        if self._job is not None and self._job.is_over and self._ranks.count == 1:
            self._settle()
        why = self._ticks.due(check_engine(engine), step)
        if self._ticks.tells_time:
            why = self._ranks.told_by_first(why)  # each rank's clock is its own
            self._ticks.told(engine, step, why)
        return None if why is None else self.save(model, step, engine=engine, tokenizer=tokenizer)

    def save(self, model: Any, step: StepInfo, *, engine: str = "default", tokenizer: Any = None) -> str:
        """Export a model after a step, due or not, and return the path.

        Raises `StoreError` if the disk fails (sync), `SaveFailed` for the export before (async), `UsageError` for what cannot be
        exported, `MissingExtraError` without ``transformers``, `ServiceError` (kind ``rank-lost``) if a rank is gone. The same
        on all ranks; nothing is under the path then that was not there before.
        """
        shelf = self._shelf(engine)
        with ExitStack() as making:
            draft = self._drafted(shelf, making, model, step, tokenizer)
            sharded, beside = is_sharded(draft.contents), self._is_beside(draft.plan)
            staged = self._ranks.together(self._staged, draft) if beside or sharded else None
            if beside:
                ranks = self._ranks.beside(self._timeout_s)
                with late_interrupt():  # else it could strike when the thread has begun, and nobody knows of it
                    write = partial(self._write, engine, draft, staged, ranks, making.pop_all())
                    self._job = Job(os.path.join(shelf.path, draft.export), write)
            else:
                self._ranks.together(self._write_now, engine, draft, staged, making.pop_all())
        self._ticks.exported(engine, step)
        return os.path.join(shelf.path, draft.export)

    def pending(self, step: StepInfo) -> tuple[str, ...]:
        """Return which engines have not been asked for after a step, as sentences: see `milepost.pytorch.recover.seen`."""
        return tuple(f"save_if_due() was not called for {one} after step {step.global_step}" for one in self._ticks.unseen(step))

    def wait(self) -> None:
        """Wait until what is under way is durable. Raises `SaveFailed` if it failed: on all ranks, so all of them call."""
        self._ranks.together(self._settle)

    def close(self) -> None:
        """Wait for what is under way, on this rank alone, and give the memory back; raises `SaveFailed`.

        An upload under way is waited for as long as `Upload.close_wait_s` says, and raises nothing.
        """
        try:
            self._settle()
        finally:
            if self._uploads is not None:
                self._uploads.close()
            self._forget_memory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            # The error that ends training is the one that counts.
            log.error("[export] %s", failure)

    def state_dict(self) -> dict[str, Any]:
        """Return the counters of all engines; the intervals are the configuration's."""
        return self._ticks.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the counters of a run before. Intervals that have changed since hold from now on."""
        self._ticks.load_state_dict(state)

    def _drafted(self, shelf: Shelf, making: ExitStack, model: Any, step: StepInfo, tokenizer: Any) -> Draft:
        """Decide on all ranks alike what the export will be and who writes which part of it, and make its directory."""
        contents, forms, beside = self._ranks.together(self._prepare, shelf, making, model, step, tokenizer)
        beside = self._ranks.told_by_first(beside)
        mine = fingerprint(
            forms, shelf.path, name_of(step), self._mode, self._staging_bytes, self._most_bytes, is_sharded(contents)
        )
        told = self._ranks.told_by_all((mine, self._ranks.is_first or shelf.sees(beside)))
        others = [rank for rank, (theirs, _) in enumerate(told) if theirs != told[0][0]]
        if others:
            raise UsageError(
                "the ranks are about to export different things",
                kind="ranks-differ",
                hint="call it on all ranks with the same arguments; of a pipeline's stages each needs an engine of its own",
                others_than_rank_0=", ".join(map(str, others)),
            )
        writers = [rank for rank, (_, sees) in enumerate(told) if sees]
        decided = plan(forms, self._most_bytes if contents.split else None, contents.stem, writers)
        return Draft(name_of(step), beside, contents, decided)

    def _prepare(
        self, shelf: Shelf, making: ExitStack, model: Any, step: StepInfo, tokenizer: Any
    ) -> tuple[Contents, Forms, str]:
        self._settle()
        contents = contents_of(model, tokenizer, dtype=self._dtype)
        check_files(contents)
        check_tensors(contents.tensors)
        forms = forms_of(contents, self._dtype)
        check_specs(forms.specs)
        if not self._ranks.is_first:
            return contents, forms, ""
        shelf.sweep()
        return contents, forms, making.enter_context(shelf.making(name_of(step)))

    def _settle(self) -> None:
        """Wait for the export before, and raise what it failed with, once."""
        failure = self._job.failed() if self._job is not None else None
        self._job = None  # only now: after a Ctrl-C in that wait it still uses the memory of the next copy
        if failure is not None:
            raise failure

    def _is_beside(self, decided: Plan) -> bool:
        """Say whether it is written beside training. From what all ranks know alike."""
        if self._mode == "sync":
            return False
        room = decided.room
        fits = self._staging_bytes is None or room <= self._staging_bytes
        if not fits and self._mode == "async" and not self._warned:
            self._warned = True
            log.warning(
                "[export] training waits for exports: a rank's copy of %d bytes is more than staging_bytes=%d",
                room,
                self._staging_bytes,
            )
        return fits

    def _staged(self, draft: Draft) -> Tensors:
        memory = self._memory = self._memory or memory_for(draft.contents.tensors.values())
        return stage(draft.contents, draft.plan.forms.parts, draft.plan.tensors_of(self._ranks.rank), memory)

    def _write_now(self, engine: str, draft: Draft, staged: Tensors | None, making: ExitStack) -> None:
        try:
            self._write(engine, draft, staged, self._ranks, making)
        finally:
            self._forget_memory()

    def _write(self, engine: str, draft: Draft, staged: Tensors | None, ranks: Ranks, making: ExitStack) -> None:
        """Write an export, and only then touch anything older, or show it to anybody."""
        shelf = self._shelf(engine)
        if not write_export(shelf, draft, staged, ranks, making):
            return
        path = os.path.join(shelf.path, draft.export)
        log.info("[export] finished path=`%s`", path)
        if self._uploads is not None and self._upload is not None and self._upload.engine == engine:
            self._uploads.offer(path, f"{self._label} {engine} {draft.export}")
        self._retire(shelf, draft.export)

    def _retire(self, shelf: Shelf, made: str) -> None:
        busy = {os.path.basename(path) for path in self._uploads.busy()} if self._uploads is not None else set()
        try:
            for name in to_remove(shelf.finished(), self._keep, made, busy):
                shelf.remove(name)
        except StoreError as error:
            log.warning("[export] older exports stay for now: %s", error)

    def _shelf(self, engine: str) -> Shelf:
        if engine not in self._shelves:
            path = os.path.join(self.directory, check_engine(engine))
            self._shelves[engine] = Shelf(path, self._clock, self._posix)
        return self._shelves[engine]

    def _forget_memory(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def _checked_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise UsageError("not a dtype of floats", kind="bad-dtype", hint="dtype=torch.bfloat16", dtype=str(dtype))
    return dtype
