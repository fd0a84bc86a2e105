"""Save and load a whole training: several engines, data, counters and generators as one generation. A5-A13"""

from __future__ import annotations

import getpass
import logging
import os
from collections.abc import Mapping
from typing import Any, Literal, NoReturn, Self

import torch.distributed as dist

from milepost.clock import Clock, SystemClock
from milepost.engine.events import Events
from milepost.engine.mismatch import Answer, Mismatches
from milepost.engine.redact import redact_the_log
from milepost.engine.settings import keep_of, whole
from milepost.errors import SaveFailed, UsageError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.stopping import Stop
from milepost.publish.signed import open_root
from milepost.publish.view import read
from milepost.pytorch import dcp
from milepost.pytorch.dcp.holding import Holding, Load, hold_root, note_half, note_load
from milepost.pytorch.export.naming import trial_directory
from milepost.pytorch.importing.areal import import_areal_in_place
from milepost.pytorch.recover import payload
from milepost.pytorch.recover.agreeing import TRAIN, Verdict
from milepost.pytorch.recover.beside import Beside, Part
from milepost.pytorch.recover.capturing import capture
from milepost.pytorch.recover.ending import Ending
from milepost.pytorch.recover.engines import SaveMode, TrainEngine
from milepost.pytorch.recover.groups import Groups, make_groups
from milepost.pytorch.recover.inference import Inference
from milepost.pytorch.recover.info import RecoverInfo
from milepost.pytorch.recover.loading import Loading
from milepost.pytorch.recover.modes import mode_of
from milepost.pytorch.recover.reading import Choosing
from milepost.pytorch.recover.saving import Saving, Task
from milepost.pytorch.recover.seen import check_seen
from milepost.pytorch.recover.staging import size_of
from milepost.pytorch.steps import StepInfo, check_step
from milepost.pytorch.ticking import Ticks
from milepost.records import Summary
from milepost.state.rng import Rng

log = logging.getLogger("milepost")

Which = Literal["latest", "best", "never"] | int
_TICKS = "recover"
"""The name of the handler's own counters."""


class RecoverHandler:
    """Keep a training of one or several engines alive, on one rank or many: see ``docs/recover.md``.

    All of it is one generation of the run root ``{fileroot}/checkpoints/{user}/{experiment}/{trial}/``, beside the exports of
    `milepost.pytorch.Saver`. ``mode``: ``on`` (``auto``, True) saves, and resumes if there is anything; ``off`` (``disabled``,
    False) does neither. ``freq_*`` say when a dump is due: any is enough; each that is None never is. ``retries``: how often
    `milepost run` starts the run again after a failure. ``keep``: the last one stays, unless told otherwise.

    ``save_mode`` is that of engines which say nothing of their own (`TrainEngine`), ``staging_bytes`` how much host memory their
    copies may take on each rank. With ``with_optim=False`` a load brings back weights, and no optimizer or schedule.
    ``on_mismatch`` answers ``error``, ``ask`` or ``warn`` per kind of difference; another ``schedule`` is an error by default.
    ``allow_pickle``, ``trust_pickle``, ``key_file``, ``lease_wait``, ``take_over``, ``stop`` and ``grace`` are those of
    `milepost.CheckpointEngine`.

    All ranks of ``process_group`` construct one and make the same calls, in the order: `load`, then `dump` as the last thing of
    each step, then `close`. What goes wrong on one is raised on all. Nobody waits longer for a rank that is gone or silent than
    ``timeout_s``. Raises `UsageError` for settings that cannot work.
    """

    def __init__(
        self,
        fileroot: str | os.PathLike[str],
        *,
        experiment: str,
        trial: str,
        user: str | None = None,
        mode: str | bool = "disabled",
        freq_epochs: int | None = None,
        freq_steps: int | None = None,
        freq_secs: float | None = None,
        retries: int = 3,
        keep: Keep | None = None,
        save_mode: SaveMode = "auto",
        staging_bytes: str | int | None = None,
        with_optim: bool = True,
        allow_pickle: bool = False,
        trust_pickle: bool = False,
        key_file: str | os.PathLike[str] | None = None,
        lease_wait: float = 0.0,
        take_over: bool = False,
        on_mismatch: Mapping[str, Answer] | None = None,
        stop: Stop | bool | None = None,
        grace: str | float | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout_s: float = 1800.0,
        clock: Clock | None = None,
    ) -> None:
        redact_the_log()
        self.root = trial_directory(fileroot, user if user is not None else getpass.getuser(), experiment, trial)
        self._on = mode_of(mode) == "on"
        self._clock = clock or SystemClock()
        self._keep = keep_of(keep, Keep(last=1))
        self._ticks = Ticks(freq_epochs, freq_steps, freq_secs, self._clock)
        self._mismatches = Mismatches({"schedule": "error", **(on_mismatch or {})})
        self._guard = (lease_wait, take_over)
        self._store = open_root(self.root, self._clock, key_file)
        self._key_file, self._allow_pickle, self._trust_pickle = key_file, allow_pickle, trust_pickle
        self._with_optim = with_optim
        self._group, self._timeout_s = process_group, timeout_s
        self._retries = whole("retries", retries)
        self._ending = Ending(self._clock, self._store.url, stop=stop, grace=grace)
        self._made: Groups | None = None
        self._rng = Rng()
        self._saving = Saving(save_mode, staging_bytes)
        self._state: Literal["new", "ready", "half", "closed"] = "new"
        """What may be done: ``new``: nothing was loaded yet, ``half``: a load has failed half-way."""

    def load(
        self,
        engines: Mapping[str, TrainEngine],
        *,
        dataloader: Part | None = None,
        saver: Part | None = None,
        evaluator: Part | None = None,
        stats_logger: Part | None = None,
        extra: Mapping[str, Part] | None = None,
        inference: Inference | None = None,
        which: Which = "latest",
    ) -> RecoverInfo | None:
        """Bring everything back in place, on all ranks from the same generation; None if there is none, or the handler is off.

        Takes the newest that is sound, or ``which``: ``best`` (by ``keep.by``), a number, or ``never``: a fresh start that keeps
        what was there until there are two new ones. Compares everything first: `MismatchError` lists what does not fit, on any
        rank, and leaves all as it was. Raises `ConflictError` if another process has the trial; `CorruptError` if nothing is
        sound: then, and after whatever else goes wrong once something was overwritten, `dump` is refused until a load succeeds.
        Where the directory holds AReaL's checkpoint and none of milepost's, that is imported first. Raises `milepost.Stopped`
        if it is time to end.

        ``inference`` is paused before the first change, and resumed with the restored weights on all ranks.
        """
        self._check_open()
        if not self._on:
            return None
        payload.check_given(engines)
        beside = Beside(dataloader, saver, evaluator, stats_logger, extra or {})
        groups = self._begun
        groups.ranks.together(self._saving.settle)
        groups.ranks.together(self._start_anew if which == "never" else self._claim_or_import)
        if which == "never":
            self._state = "ready"
            self._train_on(None, engines)
            return None
        choosing = Choosing(self._store, groups.ranks, self._keep, self._trust_pickle, self._ending.loading)
        loading = Loading(
            choosing, engines, beside, self._rng, self._ticks, self._mismatches, inference, self._with_optim, groups.beside
        )
        try:
            info = loading.load(which)
        finally:
            if loading.changed:
                self._state = "half"
                note_half(self._store.url)
        self._state = "ready"
        if info is not None:
            self._tell(info, engines)
        self._train_on(info, engines)
        return info

    def _train_on(self, info: RecoverInfo | None, engines: Mapping[str, TrainEngine]) -> None:
        """Say that all is in place; leave where that is wanted already, before anything is trained."""
        step = info.step if info is not None else 0
        self._ending.trains(info.generation if info is not None else 0, step, self._events)
        verdict = self._ending.at(step, size_bytes=lambda: size_of(engines))[2]
        if verdict.leaves:
            self._leave(verdict, step)

    def dump(
        self,
        engines: Mapping[str, TrainEngine],
        step: StepInfo,
        *,
        dataloader: Part | None = None,
        saver: Part | None = None,
        evaluator: Part | None = None,
        stats_logger: Part | None = None,
        extra: Mapping[str, Part] | None = None,
        metrics: Mapping[str, float] | None = None,
        force: bool = False,
    ) -> bool:
        """Save if it is due, or has to end, and return whether it was. On all ranks, as the last thing of each step.

        ``step`` is the step that was trained. Returns when training may change the tensors again: where engines are copied, the
        generation is published later, beside training, and at once when the last byte of the last rank is durable. A save that
        is due while one is under way waits for it. What failed meanwhile is raised as `SaveFailed`, on all ranks, due or not.

        Raises `UsageError` if the saver or evaluator has not seen the step (kind ``dumped-early``), after a load that failed
        half-way (``half-loaded``), if there are generations that were not loaded (``not-resumed``), or if the ranks are not at
        the same step (``ranks-apart``); `milepost.Stopped` on all ranks, once all is durable, if it is time to end.
        """
        self._check_open()
        if not self._on:
            return False
        payload.check_given(engines)
        check_step(step)
        ranks = self._begun.ranks
        why = "forced" if force else self._ticks.due(_TICKS, step)
        due, failed, verdict = self._ending.at(
            step.global_step, is_due=why is not None, has_failed=self._saving.has_failed, size_bytes=lambda: size_of(engines)
        )
        if failed or due or verdict != TRAIN:
            self._settle_together(verdict)
        if not due and verdict == TRAIN:
            return False
        beside = Beside(dataloader, saver, evaluator, stats_logger, extra or {})
        before = self._ticks.state_dict()
        try:
            self._ticks.exported(_TICKS, step)
            state = ranks.together(self._captured, engines, step, beside)
            self._state = "ready"
            reason = " and ".join(filter(None, (why, verdict.why)))
            writer = ranks.together(self._writer, engines, step, metrics or {}, reason)
            with self._ending.saving(step.global_step, verdict) as timed:
                self._saving.save(self._groups, Task(engines, state, writer, timed, self._published))
        except BaseException:
            self._ticks.load_state_dict(before)
            raise
        if verdict.leaves:
            ranks.together(self._saving.settle)
            self._leave(verdict, step.global_step)
        return True

    def _settle_together(self, verdict: Verdict) -> None:
        """Wait on all ranks for the save before, and raise on all what it failed with. It is no reason to make no last one."""
        try:
            self._groups.ranks.together(self._saving.settle)
        except SaveFailed as error:
            self._ending.not_saved()
            if not verdict.leaves:
                raise
            log.error("[recover] the save before the last one failed: %s", error)

    def _published(self, saved: dcp.Saved) -> None:
        self._ending.published(saved.run_id, saved.number)

    def _leave(self, verdict: Verdict, step: int) -> NoReturn:
        """Give the root up, and end this process: on all ranks, when all is durable."""
        ranks, holding = self._groups.ranks, self._claim()
        newest = ranks.told_by_first(holding.session.chain.head if holding is not None else None)
        stopped = self._ending.ended(verdict, step, newest, self._events)
        self.close()
        raise stopped

    def _captured(self, engines: Mapping[str, TrainEngine], step: StepInfo, beside: Beside) -> dict[str, Any]:
        self._check_may_save()
        check_seen(step, {"saver": beside.saver, "evaluator": beside.evaluator})
        return capture(engines, step, beside, self._rng, self._groups.ranks.rank, handler=self._ticks.state_dict())

    def _writer(
        self, engines: Mapping[str, TrainEngine], step: StepInfo, metrics: Mapping[str, float], reason: str
    ) -> dcp.RunWriter:
        return dcp.RunWriter(
            self._store,
            step=step.global_step,
            reason=reason,
            metrics=metrics,
            counters={"epochs": step.epochs_done},
            keep=self._keep,
            components=payload.components_of(engines),
            allow_pickle=self._allow_pickle,
            lease_wait=self._guard[0],
            take_over=self._guard[1],
        )

    def _claim(self) -> Holding | None:
        return hold_root(self._store, self._keep, *self._guard) if self._groups.ranks.is_first else None

    @property
    def _events(self) -> Events | None:
        """Return where the one that holds the root notes what happens; None on other ranks."""
        holding = self._claim()
        return holding.session.events if holding is not None else None

    def _start_anew(self) -> None:
        holding = self._claim()
        if holding is not None:
            note_load(self._store.url, Load(holding.session.run_id, 0))

    def _claim_or_import(self) -> None:
        """Claim the root; where a trial of AReaL's lies in it, and none of milepost's, that becomes the first generation."""
        if not self._groups.ranks.is_first:
            return
        self._claim()
        found = import_areal_in_place(self.root, key_file=self._key_file, trust_pickle=self._trust_pickle)
        if found is not None:
            left = "; ".join(found.left_out)
            log.warning("[recover] imported AReaL's checkpoint of step %d; its files stay. Left out: %s", found.step, left)

    def _check_open(self) -> None:
        if self._state == "closed":
            raise UsageError("this handler is closed", kind="closed", hint="construct a new one", root=self.root)

    def _check_may_save(self) -> None:
        if self._state == "half":
            raise UsageError(
                "a load has failed half-way, perhaps on another rank: the state is half old and half new, and is not saved",
                kind="half-loaded",
                hint="load a generation that is sound (handler.load), or start the processes anew",
                root=self.root,
            )
        holding = self._claim()
        if self._state == "new" and holding is not None and holding.session.chain.head is not None:
            raise UsageError(
                "this trial has generations, and they were not loaded; saving now would go on from somewhere else",
                kind="not-resumed",
                hint='call handler.load(...) first, or handler.load(..., which="never") to start anew',
                root=self.root,
            )

    def _tell(self, info: RecoverInfo, engines: Mapping[str, TrainEngine]) -> None:
        if not self._groups.ranks.is_first:
            return
        for text in (*info.skipped, *info.warnings):
            log.warning("[recover] %s", text)
        rates = [engine.optimizer.param_groups[0].get("lr") for engine in engines.values() if engine.optimizer is not None]
        log.info(
            "restored global_step=%d%s generation=%d exact=%s",
            info.step,
            f" learning_rate={float(rates[0]):g}" if rates and rates[0] is not None else "",
            info.generation,
            "yes" if info.exact else "no (" + "; ".join(info.inexact) + ")",
        )

    def wait(self) -> None:
        """Wait until what is under way is durable. Raises `SaveFailed` if it failed: on all ranks, so all of them call."""
        self._check_open()
        if self._on:
            self._groups.ranks.together(self._saving.settle)

    def close(self) -> None:
        """Wait for what is under way, on this rank alone, and give the run root up; raises `SaveFailed`."""
        if self._state == "closed":
            return
        try:
            self._saving.settle()
        finally:
            if self._saving.is_idle:  # else a Ctrl-C has struck: what is under way needs all of it, and ends by itself
                self._give_up()

    def _give_up(self) -> None:
        self._state = "closed"
        self._ending.close()
        if self._made is not None:
            if self._made.is_first:
                dcp.give_up(self._store)
            self._made.close()
        self._saving.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            # The error that ends training is the one that counts.
            log.error("[recover] %s", failure)

    @property
    def staged_bytes(self) -> int:
        """Return how much host memory is kept for copies on this rank."""
        return self._saving.staged_bytes

    @property
    def newest(self) -> Summary | None:
        """Return the newest generation of this trial; None if there is none. Reads the directory."""
        return read(self._store).head if os.path.isdir(self.root) else None

    @property
    def _begun(self) -> Groups:
        """Begin to listen and to be seen, on all ranks at once, before the root is claimed."""
        groups = self._groups
        if not self._ending.has_begun:
            self._ending.begin(groups.ranks, self._retries)
        return groups

    @property
    def _groups(self) -> Groups:
        if self._made is None:
            self._made = make_groups(self._group, self._timeout_s)
        return self._made
