"""Read what a pipeline has left behind, and say whether anything in it is not as promised. Used by `service_demo.py`.

Three witnesses that do not know each other: the service's journal, what trainer and samplers wrote down about what they did,
and a watcher from outside. Each check says what would be wrong for a user if it failed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from async_ppo.diary import fingerprint

from milepost.service.core.catalogue import Catalogue
from milepost.service.core.records import Began, Commit, Committed, Entry, Joined, Weights

Note = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """Be a version as the watcher got it."""

    time_s: float
    described: Weights
    """What was announced of it: number, step, who has brought it, its parts with their digests."""
    weights: str
    """A hash of its very numbers, as in the diaries."""

    @classmethod
    def of(cls, fetched: Mapping[str, Any]) -> Seen:
        return cls(time.time(), fetched.described, fingerprint(fetched.tensors()))


class Diary:
    """Be what a process notes, over all its starts, as far as it was read."""

    def __init__(self, path: Path) -> None:
        self.path, self.notes, self._read_bytes = path, list[Note](), 0

    def read(self) -> None:
        """Read what was added since; a line that is not whole yet is left for later."""
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            file.seek(self._read_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
            self._read_bytes += len(whole + newline)
            self.notes += map(json.loads, whole.splitlines())


@dataclass(slots=True)
class Kill:
    """Tell of one kill: who was hit, and how long it took until all went on."""

    targets: tuple[str, ...]
    time_s: float
    """When they were dead."""
    step: int
    """How far the trainer was."""
    term: int = 0
    """Of the service that was killed."""
    number: int = 0
    """Of the first version that was committed since, to a service that lives."""
    commit_s: float | None = None
    """Until that commit."""
    closed_s: float | None = None
    """Until every sampler had made a rollout with it, or with a later one: all are in touch again."""

    @property
    def name(self) -> str:
        return "everything" if len(self.targets) == 4 else " and ".join(self.targets)

    def look(self, commits: Sequence[Note], samplers: Sequence[Sequence[Note]]) -> None:
        """See in what was noted how far all have recovered."""
        if self.commit_s is None:
            since = (note for note in commits if note["time_s"] > self.time_s and note["term"] > self.term)
            if (first := next(since, None)) is None:
                return
            self.commit_s, self.number = first["time_s"] - self.time_s, first["number"]
        firsts = [next((note["time_s"] for note in notes if note["number"] >= self.number), 0.0) for notes in samplers]
        self.closed_s = max(firsts) - self.time_s if all(firsts) else None


@dataclass(frozen=True, slots=True)
class Witnesses:
    """Hold all that is known about a run."""

    entries: Sequence[Entry]
    seen: Sequence[Seen]
    trainer: Sequence[Note]
    samplers: dict[str, Sequence[Note]]
    catalogue: Catalogue = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "catalogue", Catalogue(self.entries))

    @property
    def commits(self) -> list[Note]:
        """Return what the trainer noted of its commits."""
        return [note for note in self.trainer if "number" in note]

    @property
    def versions(self) -> dict[int, Weights]:
        return {at.number: weights for at, weights in self.catalogue.weights.items()}

    @property
    def lost(self) -> set[int]:
        return {at.number for at in self.catalogue.lost}

    @property
    def returns(self) -> list[float]:
        """Return what episodes brought, of those rollouts that the surviving training was made of."""
        lost = self.lost
        return [each for note in self.commits if note["number"] not in lost for each in note["returns"]]


def ages_of(commits: Sequence[Note], sampler: str) -> list[tuple[float, int]]:
    """Return of each rollout of a sampler when it was trained on, and how many steps old its weights were then."""
    used = [(note, step) for note in commits for name, _, step in note["made_by"] if name == sampler]
    return [(note["time_s"], note["step"] - 1 - step) for note, step in used]


def faults(witnesses: Witnesses, max_gap: int) -> list[str]:
    """Return everything that is not as promised."""
    checks = (check_versions, check_pointers, check_durable, check_weights, check_samplers)
    return [fault for check in checks for fault in check(witnesses)] + [*check_training(witnesses, max_gap)]


def check_versions(all_of_it: Witnesses) -> Iterator[str]:
    """Look whether a version is the same for everybody and for good: else nobody could say what was made with it."""
    versions = all_of_it.versions
    for seen in all_of_it.seen:
        written = versions.get(seen.described.at.number)
        if written != seen.described:
            yield f"{seen.described.at} was seen as {seen.described}, and is written down as {written}"
    for note in all_of_it.commits:
        weights = versions.get(note["number"])
        if weights is None or (weights.at.term, weights.version.step) != (note["term"], note["step"]):
            yield f"the trainer was told of v{note['number']}, which is not written down, or not so"


def check_pointers(all_of_it: Witnesses) -> Iterator[str]:
    """Look whether the live pointer went back only for a reason that is written down: else nobody chose what samplers act on."""
    catalogue, went_on_from = Catalogue(), {}
    for entry in all_of_it.entries:
        live = catalogue.live
        catalogue.apply(entry)
        match entry:
            case Joined(role="trainer"):
                went_on_from[entry.component] = entry.branch
            case Committed(weights) if weights.parent != live and weights.parent != went_on_from.get(weights.producer, live):
                yield f"{weights.at} left {live} behind, and nobody has said why"
            case Began(live=found) if found != live:
                yield f"a service began with {found}, and {live} was live: its bytes were lost with a process"
    for one, other in pairwise(seen.described.at for seen in all_of_it.seen):
        if other < one:
            yield f"{other} was live after {one}, and nobody has rolled back"


def check_durable(all_of_it: Witnesses) -> Iterator[str]:
    """Look whether what was acknowledged as durable survived: services begin with it, and trainers go on from there."""
    durable: Commit | None = None
    catalogue = Catalogue()
    for entry in all_of_it.entries:
        catalogue.apply(entry)
        if isinstance(entry, Began) and durable is not None and durable in catalogue.lost:
            yield f"{durable} was durable, and a service began without it"
        durable = catalogue.durable
    stored = {at.number for at in all_of_it.catalogue.generations}
    step = 0
    for note in all_of_it.trainer:
        if "durable" in note:
            step = note["step"]
            if note["durable"] not in stored:
                yield f"v{note['durable']} is in generation {note['generation']}, and the journal does not say so"
        elif not note["made_by"] and note["step"] < step:
            yield f"step {step} was saved and durable, and the trainer went on from step {note['step']}"


def check_weights(all_of_it: Witnesses) -> Iterator[str]:
    """Look whether samplers acted on the very numbers that the trainer committed: hashed there and here, whatever their way."""
    committed = {note["number"]: note["weights"] for note in all_of_it.commits}
    got = [("the watcher", seen.described.at.number, seen.weights) for seen in all_of_it.seen]
    for sampler, notes in all_of_it.samplers.items():
        got += [(sampler, note["number"], note["weights"]) for note in notes]
    for who, number, weights in got:
        # A trainer that is killed between its commit and its note has committed all the same: then the others must agree.
        if committed.setdefault(number, weights) != weights:
            yield f"{who} got weights of v{number} that are not those which were committed"
        if number not in all_of_it.versions:
            yield f"{who} got v{number}, which there never was"


def check_samplers(all_of_it: Witnesses) -> Iterator[str]:
    """Look whether samplers went on to newer versions only: a trainer that goes back commits anew, and nobody rolls back here."""
    for sampler, notes in all_of_it.samplers.items():
        for one, other in pairwise(notes):
            if other["number"] < one["number"]:
                yield f"{sampler} went back from v{one['number']} to v{other['number']}"


def check_training(all_of_it: Witnesses, max_gap: int) -> Iterator[str]:
    """Look whether nothing was trained on that was too old, or made by a lost branch: this policy has never been that one."""
    catalogue = all_of_it.catalogue
    by_number = {at.number: at for at in catalogue.weights}
    for note in all_of_it.commits:
        line = {at.number for at in catalogue.line(by_number.get(note["number"]))}
        for sampler, number, step in note["made_by"]:
            if note["step"] - 1 - step > max_gap:
                yield f"step {note['step']} was trained on what {sampler} made at step {step}"
            if number not in line:
                yield f"step {note['step']} was trained on what {sampler} made with v{number}, which was lost"
