"""Judge from outside what strikes have left: from files, exit statuses and notes, by what FORMAT.md says, without milepost."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

SOFT = {signal.SIGTERM: 75, signal.SIGUSR1: 75, signal.SIGUSR2: 75, signal.SIGINT: 130}
"""How a trainer ends that listens to these signals."""
LISTENING = ("resume", "training", "safe point", "staging", "stopping")
"""In these phases of the thread that trains it listens for sure, and a safe point is still to come."""
LONGEST_S = 90.0


@dataclass(frozen=True, slots=True)
class Note:
    """Be one line that somebody wrote beside the run."""

    name: str
    word: str
    rest: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class End:
    """Say how one start ended: its exit status as a shell's ``$?`` would be, or minus the signal; and what it noted."""

    name: str
    code: int
    notes: list[Note]
    alone: bool
    """Nobody else was started on the same run root meanwhile."""

    def all_of(self, word: str) -> list[Note]:
        return [note for note in self.notes if note.word == word]

    @property
    def struck(self) -> list[tuple[int, str, str, str]]:
        """Return each signal, with the phases of the thread that trains and of the one beside it, and the one that was chosen."""
        return [(note.rest[0], note.rest[3], note.rest[4], note.rest[1]) for note in self.all_of("struck") if note.rest[0]]

    @property
    def told(self) -> list[tuple[int, str]]:
        """Return each signal that is to end it, with the phase of the thread that trains."""
        return [(number, main) for number, main, *_ in self.struck if number not in (signal.SIGSTOP, signal.SIGCONT)]

    @property
    def safe_points_after(self) -> int:
        """Return how many safe points were begun after it was first told to end: of two engines by the one with fewer."""
        told = False
        counts = {note.rest[0]: 0 for note in self.all_of("safe")}
        for note in self.notes:
            told |= note.word == "struck" and note.rest[0] not in (0, signal.SIGSTOP, signal.SIGCONT)
            if told and note.word == "safe":
                counts[note.rest[0]] += 1
        return min(counts.values(), default=0)


def allowed_codes(end: End) -> set[int]:
    """Return how a start may end after what it was struck with."""
    refused = set() if end.alone else {11}
    if not end.told:
        return {0} | refused
    (first, main), *others = end.told
    if first == signal.SIGKILL:
        return {-first}
    codes = set() if end.safe_points_after else {0}
    codes.add(SOFT[signal.Signals(first)])
    if main not in LISTENING:
        codes.add(-first)
    if first == signal.SIGINT and main == "-":
        codes.add(1)  # an interpreter that is interrupted while it starts says so, and ends with that
    for later, _ in others:
        codes |= {-later} | ({SOFT[signal.Signals(later)]} if later in SOFT else set())
    return codes | refused


def check_end(end: End) -> None:
    """Hold an exit status to what was struck, and a clean stop to the safe point at which it left."""
    allowed = allowed_codes(end)
    told = f"after {[(signal.Signals(number).name, *where) for number, *where in end.struck]}"
    assert end.code in allowed, f"start {end.name} ended with {end.code} instead of {sorted(allowed)} {told}"
    if end.code in (75, 130):
        assert any(note.rest[0] == end.code for note in end.all_of("left")), f"start {end.name} left by another way {told}"
        steps = dict(note.rest for note in end.all_of("safe"))
        assert len({*steps.values()}) <= 1, f"start {end.name} left its engines at different steps, {steps}, {told}"


@dataclass(slots=True)
class Root:
    """Hold one run root to all that was ever seen in it."""

    path: Path
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The term and the step of each generation, by its number."""

    def look(self) -> None:
        """Read all that is there, and compare it with what was there before."""
        for number, record in self.manifests().items():
            self._remember(number, record["term"], record["step"])
            for blob in record["blobs"]:
                data = (self.path / blob["name"]).read_bytes()
                digest = xxhash.xxh3_128_hexdigest(data)
                assert (len(data), digest) == (blob["size_bytes"], blob["digest"]), f"{blob['name']} of {number} is damaged"
        for term, event in self.events():
            if event.get("event") == "published":
                self._remember(event["generation"], term, event["step"])
        terms = [self.seen[number][0] for number in sorted(self.seen)]
        assert terms == sorted(terms), f"two writers wrote at once: {self.seen}"

    def _remember(self, number: int, term: int, step: int) -> None:
        found = self.seen.setdefault(number, (term, step))
        assert found == (term, step), f"generation {number} was {found} and is {(term, step)}"

    def manifests(self) -> dict[int, dict[str, Any]]:
        """Return the record of each generation that counts, by its number."""
        settled = {int(path.name[:4]): _record(path.read_bytes()) for path in (self.path / "terms").glob("*.from.json")}
        found = {int(path.stem): _record(path.read_bytes()) for path in (self.path / "generations").glob("*.json")}
        return {
            number: record
            for number, record in sorted(found.items())
            if not any(term > record["term"] and not each["dead"] and each["head"] < number for term, each in settled.items())
        }

    def events(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for path in sorted((self.path / "events").glob("*.jsonl")):
            for line in path.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):  # a kill may leave half of the last one
                    yield int(path.stem), _record(line)

    def head(self) -> tuple[int, int]:
        """Return the number and the step of the newest generation; 0 and 0 if there is none."""
        found = self.manifests()
        complete = [number for number, record in found.items() if record["complete"]]
        return (complete[-1], found[complete[-1]]["step"]) if complete else (0, 0)

    def check_acknowledged(self, acknowledged: list[tuple[int, int]]) -> None:
        """Hold the root to what was acknowledged: it counts, or a newer one that was published after it does."""
        manifests = self.manifests()
        number, step = self.head()
        for promised, at in acknowledged:
            assert self.seen.get(promised, (0, at))[1] == at, f"generation {promised} is of another step"
            assert number >= promised, f"generation {promised} was acknowledged, and {number} is the newest"
            assert promised in manifests or number > promised, f"generation {promised} was acknowledged and is gone"
            assert step >= at, f"step {at} was acknowledged, and {step} is the newest"
        if acknowledged and max(acknowledged)[0] == number:
            assert number in manifests

    def check_where_it_left(self, end: End, name: str) -> None:
        """Hold a clean stop to the safe point at which it left: that was saved."""
        safe = [note.rest[1] for note in end.all_of("safe") if note.rest[0] == name]
        if end.code in SOFT.values() and safe:
            saved = {step for _, step in self.seen.values()}
            assert safe[-1] in saved, (
                f"start {end.name} left with {end.code}, and safe point {safe[-1]} is not among {sorted(saved)}"
            )


def _record(data: bytes) -> dict[str, Any]:
    """Return a sealed record. Raises if it is not what its digest says."""
    body, seal, rest = data.rpartition(b',"digest":"sha256:')
    assert seal, f"not a sealed record: {data[:80]!r}"
    assert rest == hashlib.sha256(body + b"}").hexdigest().encode() + b'"}\n', "a record is damaged"
    record: dict[str, Any] = json.loads(data)
    return record


def read_notes(path: Path) -> list[Note]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [Note(name, word, tuple(rest)) for name, word, *rest in map(json.loads, lines)]


def wait_for_the_end_of(mark: str) -> None:
    """Wait until no process has ``mark`` in its environment."""
    until = time.monotonic() + LONGEST_S
    while left := [pid for pid in os.listdir("/proc") if pid.isdigit() and mark in _environment(pid)]:
        assert time.monotonic() < until, f"a writer outlives its trainer for ever: {left}"
        threading.Event().wait(0.01)


def _environment(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""


def check_steps(notes: list[Note], hashes: Mapping[int, str]) -> None:
    """Hold every start to the bits of the run that was left alone, and to the steps that were acknowledged before it."""
    fenced = {note.name for note in notes if note.word == "refused"}  # it may have begun before it was taken over
    newest: dict[str, int] = {}
    for note in notes:
        if note.word == "acknowledged":
            newest[note.rest[0]] = max(newest.get(note.rest[0], 0), note.rest[2])
        if note.word in ("resumed", "end"):
            step, bits = note.rest
            assert bits == hashes[step], f"start {note.name} {note.word} at step {step} with other bits"
            least = min(newest.values(), default=0)
            assert step >= least or note.name in fenced, f"start {note.name} {note.word} at {step}; {least} was acknowledged"
