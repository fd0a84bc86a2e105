"""Bring a run back: choose a generation, compare, load, check its health, and say in one line what happened."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from milepost.engine.capture import is_last
from milepost.engine.components import is_essential
from milepost.engine.events import milliseconds
from milepost.engine.mismatch import Mismatches
from milepost.engine.reader import Loaded, check_fit, load_into, names_of
from milepost.engine.session import Session
from milepost.errors import CorruptError, NotFoundError, StoreError, UsageError
from milepost.lifecycle.faults import FaultPlan, Traces, plan
from milepost.lifecycle.recover import Choice, Skipped, Which, choose
from milepost.publish import quarantine
from milepost.publish.view import View
from milepost.records import Manifest, Restored
from milepost.text import plain

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
    overwritten: set[str] = field(default_factory=set)
    """Components that were overwritten, perhaps by half, from a generation that was then refused. The engine's own, so that
    the next resume knows of them, too."""
    traces: Traces | None = None
    """What the writer before left of itself; None once this process has gone on from it."""
    instead: int | None = None
    """The generation that a supervisor asks for in the place of the latest; None: it is the latest."""
    loading: Callable[[int], object] = lambda _: None
    """Is told which generation is about to be loaded, and of 0 once that is over."""
    known: dict[Which, Choice] = field(default_factory=dict)
    """What a `peek` chose, for the resume that follows; used once."""

    def resume(self, which: Which, parts: Collection[str] | None = None) -> Restored | None:
        """Load the newest generation that is sound, or the one asked for; None if the run starts anew.

        Where none is whole, the newest of which all that is essential verifies is loaded without its damaged components
        (B8). With ``parts`` only these are loaded, from the newest generation in which they verify (B7). Raises
        `MismatchError` before anything is changed. Raises `CorruptError` if nothing sound is left.
        """
        rejected: tuple[Skipped, ...] = ()
        doubted: Skipped | None = None
        while True:
            started = self.session.clock.monotonic_ns()
            choice = self._choose_again(which, rejected, parts, doubted)
            self._note_damage(choice)
            if choice.manifest is None:
                self.session.build_on(None)
                self.session.events.write("started-anew", which=str(which))
                return None
            found = self._take(choice, choice.manifest, parts, started)
            if isinstance(found, Restored):
                return found
            if found.kind == "damaged" and doubted is None:
                # It was taken on trust, and its bytes are not what they should be. From here on all of a generation is read
                # before any of it is believed, this one too: what exactly is damaged decides what may be taken instead.
                doubted = found
                continue
            rejected = (*rejected, *(skip for skip in choice.skipped if skip not in rejected), found)

    def adopt(self) -> Manifest | None:
        """Build on the newest sound generation without loading it: the live state is this process's own."""
        choice = self._choose("latest", full=True)
        self._note_damage(choice)
        self.session.build_on(choice.manifest, share=choice.damage is None)
        if choice.manifest is not None:
            self.session.events.write("adopted", generation=choice.manifest.number, step=choice.manifest.step)
        return choice.manifest

    def peek(self, which: Which) -> Manifest | None:
        """Return the generation that a resume would take unless its bytes turn out to be damaged. Changes nothing."""
        if which not in self.known:
            self.known[which] = self._choose(which)
        return self.known[which].manifest

    def _choose_again(
        self, which: Which, rejected: tuple[Skipped, ...], parts: Collection[str] | None, doubted: Skipped | None
    ) -> Choice:
        if doubted is None:
            return self._choose(which, rejected, parts)
        try:
            return self._choose(which, rejected, parts, full=True)
        except CorruptError as error:
            # What could have been left alone may be half overwritten by now. The next start reads before it overwrites.
            self._note_damage(Choice(None, (doubted,)))
            if doubted.damaged and not self.mismatches.strict and not any(map(is_essential, doubted.damaged)):
                error.hint = f"start the script anew, and it may go on without {', '.join(doubted.damaged)}; {error.hint}"
            raise

    def _choose(
        self,
        which: Which,
        rejected: tuple[Skipped, ...] = (),
        parts: Collection[str] | None = None,
        *,
        full: Literal[True, "doubted"] = "doubted",
    ) -> Choice:
        known = self.known.pop(which, None)
        if known is not None and not rejected and parts is None and full == "doubted":
            return known
        more: Any = {"rejected": rejected, "parts": parts, "full": full}
        if which == "latest" and self.instead is not None:
            try:
                return choose(self.session.store, self.view, self.instead, **more)
            except (NotFoundError, CorruptError) as error:
                log.warning("generation %d was asked for, and cannot be gone on from: %s", self.instead, error)
                self.instead = None
        keep, spare = self.session.keep, None if self.mismatches.strict else self._may_stay
        return choose(self.session.store, self.view, which, by=keep.by, mode=keep.mode, spare=spare, **more)

    def _may_stay(self, component: str) -> bool:
        """Return whether a run can go on with this component as it is: not if a refused generation's bytes are in it."""
        return not is_essential(component) and component not in self.overwritten

    def _take(self, choice: Choice, manifest: Manifest, parts: Collection[str] | None, started_ns: int) -> Restored | Skipped:
        session = self.session
        wanted = _wanted(choice, manifest, self.state, parts)
        live = {name: value for name, value in self.state.items() if name in wanted}
        if parts is None:
            self._refuse_a_mixture(manifest)
        try:
            warnings = check_fit(manifest, live, session.fingerprint, self.mismatches, root=session.store.url, wanted=wanted)
            chosen_ns = session.clock.monotonic_ns()
            loaded = self._load(manifest, live, also=_unclaimed(choice, manifest, live, parts))
            components = loaded.components
            if self.health_eval is not None:
                if not self.health_eval():
                    return Skipped(manifest.number, "unhealthy", "the warm-up evaluation refused it")
                # It has drawn random numbers, and the run goes on with the ones that were due when it was saved.
                self._load(manifest, {name: value for name, value in live.items() if is_last(name)})
        except CorruptError as error:
            return _rotten(manifest, error)
        self.overwritten.difference_update(components)
        # Reused leaves come from what was just loaded, whatever the head is: every load resets the base. What was not
        # verified whole is nothing to share with.
        session.build_on(manifest, share=choice.damage is None and parts is None)
        restored = _restored(manifest, components, [*_left(choice, manifest, self.state, parts), *warnings], choice)
        loaded_ns = session.clock.monotonic_ns()
        fault = self._fault(restored, choice)
        restored = dataclasses.replace(restored, fault=fault.kind if fault else "none")
        verified_bytes = choice.checked_bytes + loaded.read_bytes
        self._tell(restored, fault, verified_bytes, {"choose": chosen_ns - started_ns, "load": loaded_ns - chosen_ns})
        return restored

    def _refuse_a_mixture(self, manifest: Manifest) -> None:
        """Raise `CorruptError` if a refused generation has overwritten what this one has not: it would go for left alone."""
        behind = self.overwritten.difference(names_of(manifest))
        if behind:
            raise CorruptError(
                "an older generation has not all that a refused newer one has overwritten; to go on would mix the two",
                kind="half-loaded",
                hint=f"start the script anew with engine.resume(which={manifest.number}): then nothing is overwritten yet",
                root=self.session.store.url,
                generation=manifest.number,
                components=", ".join(sorted(behind)),
            )

    def _fault(self, restored: Restored, choice: Choice) -> FaultPlan | None:
        """Recognise what this start came after; None for a later resume of the same process."""
        traces, self.traces = self.traces, None
        damage = (str(choice.damage),) if choice.damage else ()
        return plan(traces, (*restored.skipped, *damage), restored.generation) if traces else None

    def _load(self, manifest: Manifest, live: Mapping[str, object], also: Collection[str] = ()) -> Loaded:
        self.loading(manifest.number)
        try:
            return load_into(self.session.store, manifest, live, self.overwritten, also=also, trust_pickle=self.trust_pickle)
        finally:
            self.loading(0)

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
        for skip in (*choice.skipped, *([choice.damage] if choice.damage else [])):
            if skip.kind == "damaged" and skip.number not in self.view.marks:
                run_id, term = session.run_id, session.chain.term
                quarantine.mark(
                    session.store, session.clock, run_id=run_id, term=term, number=skip.number, kind="damaged", reason=skip.reason
                )

    def _tell(self, restored: Restored, fault: FaultPlan | None, verified_bytes: int, phases_ns: dict[str, int]) -> None:
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
            verified_bytes=verified_bytes,
            milliseconds=milliseconds(phases_ns),
        )
        if fault and fault.kind != "none":
            log.info("after a %s fault (%s): from %s; made anew: %s", fault.kind, fault.seen_by, fault.source, fault.rebuilt)
        for text in (*restored.skipped, *restored.warnings):
            log.warning("resume: %s", text)
        self._tell_of_newer(restored)
        rate = learning_rate(self.state)
        log.info(
            "restored global_step=%d%s generation=%d exact=%s",
            restored.step,
            f" learning_rate={rate:g}" if rate is not None else "",
            restored.generation,
            "yes" if restored.exact else "no (" + "; ".join(restored.inexact) + ")",
        )

    def _tell_of_newer(self, restored: Restored) -> None:
        """Name what was passed over because it was saved in a hurry: a run that is preempted so each time gets nowhere."""
        hurried = [each for each in self.view.line.values() if each.number > restored.generation and not each.complete]
        if hurried:
            newest = max(hurried, key=lambda each: each.number)
            text = "resume: generation %d of step %d is newer, but incomplete (%s); resume(which=%d) goes on from that"
            log.warning(text, newest.number, newest.step, plain(newest.reason), newest.number)


def _wanted(choice: Choice, manifest: Manifest, state: Mapping[str, object], parts: Collection[str] | None) -> Collection[str]:
    """Return the components to load, or to miss."""
    if parts is None:
        damaged = choice.damage.damaged if choice.damage else {}
        return {*state, *names_of(manifest)} - damaged.keys()
    missing = [name for name in parts if manifest.component(name) is None]
    if missing:
        raise _no_such_part(missing, names_of(manifest), f"generation {manifest.number}")
    return parts


def _unclaimed(choice: Choice, manifest: Manifest, live: Collection[str], parts: Collection[str] | None) -> tuple[str, ...]:
    """Return what nobody loads but is to be verified: only a generation that is sound as a whole is one to build on."""
    if parts is not None or choice.damage is not None:
        return ()
    return tuple(name for name in names_of(manifest) if name not in live)


def _left(choice: Choice, manifest: Manifest, state: Mapping[str, object], parts: Collection[str] | None) -> list[str]:
    """Say what was left as it was, and why."""
    if parts is not None:
        return [f"{name}: not asked for, left as it was" for name in state if name not in parts]
    if choice.damage is None:
        return []
    damaged = choice.damage.damaged
    return [
        f"{name}: damaged in generation {manifest.number} ({how}), left as it was"
        if name in state
        else f"{name}: damaged in generation {manifest.number} ({how})"
        for name, how in damaged.items()
    ]


def _rotten(manifest: Manifest, error: CorruptError) -> Skipped:
    """Return why a generation that had verified was not taken after all."""
    component = error.facts.get("component")
    damaged = {str(component): error.message} if component else {}
    return Skipped(manifest.number, "damaged", error.message, damaged)


def parts_asked_for(parts: Iterable[str] | None, which: Which, state: Mapping[str, object]) -> tuple[str, ...] | None:
    """Return the components that a resume is to load, each once; None for all of them. Raises `UsageError` for others."""
    if parts is None:
        return None
    wanted = (parts,) if isinstance(parts, str) else tuple(dict.fromkeys(parts))
    missing = [part for part in wanted if part not in state]
    if missing or not wanted:
        raise _no_such_part(missing, state, "this engine")
    if which == "never":
        raise UsageError('which="never" loads nothing', kind="bad-which", hint="leave out parts, or which", parts=wanted)
    return wanted


def _no_such_part(missing: Iterable[str], there: Iterable[str], where: str) -> UsageError:
    return UsageError(
        "a resume of parts needs the names of components that are there",
        kind="no-such-component",
        hint=f"{where} has {', '.join(there)}",
        missing=", ".join(missing) or None,
    )


def _restored(manifest: Manifest, components: tuple[str, ...], warnings: list[str], choice: Choice) -> Restored:
    inexact = [
        plain(f"{component.name}: {component.exactness}" + (f" ({component.reason})" if component.reason else ""))
        for component in manifest.components
        if component.exactness != "exact" and component.name in components
    ]
    inexact += warnings
    damage = choice.damage
    # It costs nothing: all that was saved came back. But the file is not to be trusted any more.
    unhurt = [f"{damage}, though none of its components is"] if damage is not None and not damage.damaged else []
    # An older one that cannot be read, or that is not whole either, was not passed over, but somebody should hear of it.
    older = [
        skip
        for skip in choice.skipped
        if skip.number < manifest.number and (skip.kind == "unreadable" or choice.damage is not None)
    ]
    return Restored(
        manifest.number,
        manifest.step,
        dict(manifest.counters),
        manifest.version,
        float.fromhex(manifest.elapsed_s),
        components,
        tuple(inexact),
        (*warnings, *unhurt, *map(str, older)),
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
