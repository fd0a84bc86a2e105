"""Bring a run back: choose a generation, compare, load, check its health, and say in one line what happened."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from milepost.engine.capture import is_last
from milepost.engine.events import milliseconds
from milepost.engine.mismatch import Mismatches
from milepost.engine.reader import check_fit, load_into
from milepost.engine.session import Session
from milepost.errors import CorruptError, StoreError
from milepost.lifecycle.faults import FaultPlan, Traces, plan
from milepost.lifecycle.recover import Choice, Skipped, Which, choose
from milepost.publish import quarantine
from milepost.publish.view import View
from milepost.records import Manifest, Restored

log = logging.getLogger("milepost")


@dataclass(slots=True)
class Resuming:
    """Hold what a resume works with."""

    session: Session
    view: View
    state: Mapping[str, object]
    mismatches: Mismatches
    trust_pickle: bool = False
    health_eval: Callable[[], bool] | None = None
    touched: bool = False
    """Live objects were overwritten, perhaps by half."""
    traces: Traces | None = None
    """What the writer before left of itself; None once this process has gone on from it."""
    known: dict[Which, Choice] = field(default_factory=dict)
    """What a `peek` chose and verified, for the resume that follows; used once, since damage may come in between."""

    def resume(self, which: Which) -> Restored | None:
        """Load the newest generation that is sound, or the one asked for; None if the run starts anew.

        Raises `MismatchError` before anything is changed. Raises `CorruptError` if nothing sound is left.
        """
        rejected: tuple[Skipped, ...] = ()
        while True:
            started = self.session.clock.monotonic_ns()
            choice = self._choose(which, rejected)
            self._note_damage(choice)
            if choice.manifest is None:
                self.session.build_on(None)
                self.session.events.write("started-anew", which=str(which))
                return None
            found = self._take(choice, choice.manifest, started)
            if isinstance(found, Restored):
                return found
            rejected = (*rejected, *(skip for skip in choice.skipped if skip not in rejected), found)

    def adopt(self) -> Manifest | None:
        """Build on the newest sound generation without loading it: the live state is this process's own."""
        choice = self._choose("latest")
        self._note_damage(choice)
        self.session.build_on(choice.manifest)
        if choice.manifest is not None:
            self.session.events.write("adopted", generation=choice.manifest.number, step=choice.manifest.step)
        return choice.manifest

    def peek(self, which: Which) -> Manifest | None:
        """Return the generation that a resume would take, every byte of it verified. Changes nothing."""
        if which not in self.known:
            self.known[which] = self._choose(which)
        return self.known[which].manifest

    def _choose(self, which: Which, rejected: tuple[Skipped, ...] = ()) -> Choice:
        known = self.known.pop(which, None)
        if known is not None and not rejected:
            return known
        keep = self.session.keep
        return choose(self.session.store, self.view, which, by=keep.by, mode=keep.mode, rejected=rejected)

    def _take(self, choice: Choice, manifest: Manifest, started_ns: int) -> Restored | Skipped:
        root = self.session.store.url
        warnings = check_fit(manifest, self.state, self.session.fingerprint, self.mismatches, root=root)
        chosen_ns = self.session.clock.monotonic_ns()
        self.touched = True
        try:
            components = load_into(self.session.store, manifest, self.state, trust_pickle=self.trust_pickle)
            if self.health_eval is not None:
                if not self.health_eval():
                    return Skipped(manifest.number, "unhealthy", "the warm-up evaluation refused it")
                # It has drawn random numbers, and the run goes on with the ones that were due when it was saved.
                generators = {name: value for name, value in self.state.items() if is_last(name)}
                load_into(self.session.store, manifest, generators, trust_pickle=self.trust_pickle)
        except CorruptError as error:
            return Skipped(manifest.number, "damaged", error.message)
        self.touched = False
        # Reused leaves come from what was just loaded, whatever the head is: every load resets the base.
        self.session.build_on(manifest)
        restored = _restored(manifest, components, warnings, choice)
        loaded_ns = self.session.clock.monotonic_ns()
        fault = self._fault(restored)
        restored = dataclasses.replace(restored, fault=fault.kind if fault else "none")
        self._tell(restored, fault, choice, {"choose": chosen_ns - started_ns, "load": loaded_ns - chosen_ns})
        return restored

    def _fault(self, restored: Restored) -> FaultPlan | None:
        """Recognise what this start came after; None for a later resume of the same process."""
        traces, self.traces = self.traces, None
        return plan(traces, restored.skipped, restored.generation) if traces else None

    def _note_damage(self, choice: Choice) -> None:
        """Mark what turned out to be damaged, and unmark what verifies again.

        A mark is a memory that each claim checks again: a full disk that cannot take it keeps nobody from a sound generation.
        """
        try:
            self._mark(choice)
        except StoreError as error:
            self.session.events.write("mark-failed", error=error.message)

    def _mark(self, choice: Choice) -> None:
        session = self.session
        for number in choice.cleared:
            quarantine.clear(session.store, number)
        for skip in choice.skipped:
            if skip.kind == "damaged" and skip.number not in self.view.marks:
                run_id, term = session.run_id, session.chain.term
                quarantine.mark(
                    session.store, session.clock, run_id=run_id, term=term, number=skip.number, kind="damaged", reason=skip.reason
                )

    def _tell(self, restored: Restored, fault: FaultPlan | None, choice: Choice, phases_ns: dict[str, int]) -> None:
        self.session.events.write(
            "resumed",
            generation=restored.generation,
            step=restored.step,
            components=restored.components,
            exact=restored.exact,
            inexact=restored.inexact,
            skipped=restored.skipped,
            warnings=restored.warnings,
            fault=fault and fault.facts,
            verified_bytes=choice.checked_bytes,
            milliseconds=milliseconds(phases_ns),
        )
        if fault and fault.kind != "none":
            log.info("after a %s fault (%s): from %s; made anew: %s", fault.kind, fault.seen_by, fault.source, fault.rebuilt)
        for text in (*restored.skipped, *restored.warnings):
            log.warning("resume: %s", text)
        rate = learning_rate(self.state)
        log.info(
            "restored global_step=%d%s generation=%d exact=%s",
            restored.step,
            f" learning_rate={rate:g}" if rate is not None else "",
            restored.generation,
            "yes" if restored.exact else "no (" + "; ".join(restored.inexact) + ")",
        )


def _restored(manifest: Manifest, components: tuple[str, ...], warnings: list[str], choice: Choice) -> Restored:
    inexact = [
        f"{component.name}: {component.exactness}" + (f" ({component.reason})" if component.reason else "")
        for component in manifest.components
        if component.exactness != "exact"
    ]
    inexact += warnings
    # An older manifest that cannot be read was not passed over, but somebody should hear of it.
    older = [skip for skip in choice.skipped if skip.kind == "unreadable" and skip.number < manifest.number]
    return Restored(
        manifest.number,
        manifest.step,
        dict(manifest.counters),
        manifest.version,
        float.fromhex(manifest.elapsed_s),
        components,
        tuple(inexact),
        (*warnings, *map(str, older)),
        tuple(str(skip) for skip in choice.skipped if skip not in older),
    )


def learning_rate(state: Mapping[str, object]) -> float | None:
    """Return the first parameter group's rate, where there is an optimizer that has one, for the log line."""
    optimizer: Any = state.get("optimizer")
    if isinstance(optimizer, dict):
        optimizer = next(iter(optimizer.values()), None)
    groups: Any = getattr(optimizer, "param_groups", None)
    rate = groups[0].get("lr") if groups and isinstance(groups[0], dict) else None
    return float(rate) if isinstance(rate, int | float) else None
