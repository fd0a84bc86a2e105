"""Say what came out: a table for a terminal, a page for readers, JSON for programs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from exactness.axes import AXES
from exactness.forgetting import Forgot
from exactness.judge import BAD, EXACT, NOT_RUN, TOLD, Verdict

BEGIN, END = "<!-- exactness: begin -->", "<!-- exactness: end -->"
_HEAD = (*AXES, "killed", "resumed", "s", "verdict")
_SIGNS = {EXACT: "=", TOLD: "no", NOT_RUN: "?"}


@dataclass(frozen=True, slots=True)
class Report:
    """Hold all that one run of the matrix and of the leave-one-out test found."""

    machine: Mapping[str, str]
    verdicts: Sequence[Verdict]
    forgot: Sequence[Forgot] = ()

    @property
    def bad(self) -> bool:
        """Return whether anything differs that was promised to be equal, failed, or is not as the list says."""
        return any(one.outcome in BAD for one in self.verdicts) or any(one.faults for one in self.forgot)

    def text(self) -> str:
        """Return the tables for a terminal."""
        rows = [_HEAD, *map(_row, self.verdicts)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        faults = [f"left out, {one.run}: {fault}" for one in self.forgot for fault in one.faults]
        return "\n".join([*lines, "", *faults, self.summary()])

    def summary(self) -> str:
        """Return how many cells came to which verdict, in one line."""
        counts = Counter(one.outcome for one in self.verdicts)
        kills, resumes = sum(one.kills for one in self.verdicts), sum(one.resumes for one in self.verdicts)
        told = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
        return f"{len(self.verdicts)} cells: {told}; killed {kills} times, resumed {resumes} times"

    def markdown(self) -> str:
        """Return what goes between the marks of the page."""
        return "\n".join(self._lines()) + "\n"

    def json(self) -> str:
        """Return everything."""
        verdicts, forgot = [asdict(one) for one in self.verdicts], [asdict(one) for one in self.forgot]
        return json.dumps({"machine": self.machine, "cells": verdicts, "left out": forgot}, indent=1)

    def _lines(self) -> Iterator[str]:
        yield "; ".join(f"{name}: {value}" for name, value in self.machine.items())
        yield from ("", f"**{self.summary()}.**", "", "### Algorithm by environment", "")
        yield from _overview(self.verdicts)
        others = [one for one in self.verdicts if one.outcome != EXACT]
        if others:
            yield from ("", "### Not exact, and why", "", "| cell | verdict | reason |", "|---|---|---|")
            yield from (f"| {one.cell} | {one.outcome} | {_cell(one.detail)} |" for one in others)
        yield from ("", "### Every cell", "", f"| {' | '.join(_HEAD)} |", f"|{'---|' * len(_HEAD)}")
        yield from (f"| {' | '.join(map(_cell, _row(one)))} |" for one in self.verdicts)
        if self.forgot:
            yield from ("", "### What is captured, and what for", "")
            yield from _forgotten(self.forgot)


def fill(page: Path, report: Report) -> None:
    """Put the tables between the marks of a page, in place of what was there."""
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{page.name} needs the two lines {BEGIN} and {END}, once each")
    new = f"{BEGIN}\n{report.markdown()}{END}"
    page.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: new, text, flags=re.DOTALL), encoding="utf-8")


def _row(one: Verdict) -> tuple[str, ...]:
    cell = asdict(one.cell)
    verdict = one.outcome if one.outcome not in BAD else f"{one.outcome.upper()}: {one.detail}"
    return (*(cell[axis] for axis in AXES), str(one.kills), str(one.resumes), f"{one.seconds:.1f}", verdict)


def _overview(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield a table of algorithms by environments: how many cells are exact, of how many."""
    worlds = [world for world in AXES["world"] if any(one.cell.world == world for one in verdicts)]
    yield f"| | {' | '.join(worlds)} |"
    yield f"|---|{'---|' * len(worlds)}"
    for algorithm in AXES["algorithm"]:
        row = [_sign([one for one in verdicts if (one.cell.algorithm, one.cell.world) == (algorithm, world)]) for world in worlds]
        if any(row):
            yield f"| {algorithm} | {' | '.join(row)} |"


def _sign(verdicts: Sequence[Verdict]) -> str:
    """Return ``= 2`` for two exact cells; what else there is in words."""
    counts = Counter(_SIGNS.get(one.outcome, "**differs**") for one in verdicts)
    return ", ".join(f"{sign} {count}" if count > 1 else sign for sign, count in counts.items())


def _forgotten(forgot: Sequence[Forgot]) -> Iterator[str]:
    yield "| run | items | training differs without it, or does not go on | only its logs differ | nothing differs |"
    yield "|---|---:|---:|---:|---:|"
    for one in forgot:
        counts = (len(one.items), one.count("training", "refused"), one.count("logs"), one.count("nothing"))
        yield f"| {one.run} | {' | '.join(map(str, counts))} |"
    yield from ("", "What is captured and changes nothing of training when it is lost:", "")
    yield from ("| item | lost, it changes | why it is captured |", "|---|---|---|")
    rows = {(item.listed, item.effect, item.reason) for one in forgot for item in one.items if item.listed}
    yield from (f"| `{_cell(name)}` | {effect} | {_cell(reason)} |" for name, effect, reason in sorted(rows))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
