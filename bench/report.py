"""Say what came out: as text and Markdown for people, as JSON for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.goals import Judged
from bench.measure import Outcome, Row

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
_FIGURES = ("quantity", "of", "median", "min", "max", "MAD", "rounds", "milepost")
_Table = Callable[[Sequence[str], Sequence[Sequence[str]], int], Iterator[str]]
"""Return lines from a head, rows, and the number of columns whose text starts at the left."""
_GOALS = ("operation", "against", "goal", "before", "reached", "verdict")
Before = Mapping[tuple[str, str, str, str], float]
"""What an earlier run reached, by benchmark, quantity, whose it is and what it is held against."""


@dataclass(frozen=True, slots=True)
class Report:
    """Hold all that one run of the benchmarks found."""

    machine: Mapping[str, str]
    outcomes: Sequence[Outcome]
    judged: Sequence[Judged]
    before: Before = field(default_factory=dict)

    def text(self) -> str:
        """Return the tables for a terminal."""
        return "\n".join(self._lines(_plain_table, "{}", ""))

    def markdown(self) -> str:
        """Return the tables for a page."""
        return "\n".join(self._lines(_markdown_table, "### {}", "- ")) + "\n"

    def json(self) -> str:
        """Return every figure of every round."""
        judged = [{**asdict(one.goal), "reached": one.reached, "verdict": one.verdict} for one in self.judged]
        return json.dumps(
            {"machine": self.machine, "outcomes": [asdict(one) for one in self.outcomes], "goals": judged}, indent=1
        )

    def _lines(self, table: _Table, heading: str, item: str) -> Iterator[str]:
        yield "; ".join(f"{name}: {value}" for name, value in self.machine.items())
        for outcome in self.outcomes:
            yield from ("", heading.format(f"{outcome.benchmark}: {outcome.workload}"), "")
            if outcome.rows:
                yield from table(_FIGURES, [_figures(outcome, row) for row in outcome.rows], 2)
            yield from ("", *(f"{item}{note}" for note in outcome.notes)) if outcome.notes else ()
        if self.judged:
            yield from ("", heading.format("goals"), "")
            yield from table(_GOALS, [_goal(one, self.before) for one in self.judged], 2)


def _figures(outcome: Outcome, row: Row) -> tuple[str, ...]:
    ours = outcome.row("milepost", row.quantity)
    ratio = ours.median / row.median if ours and row.kind != "milepost" and row.median > 0 else None
    figures = (row.median, min(row.values), max(row.values), row.mad)
    compared = f"{ratio:.3g} × this" if ratio is not None else ""
    return (row.quantity, row.contender, *(amount(value, row.unit) for value in figures), str(len(row.values)), compared)


def _goal(one: Judged, before: Before) -> tuple[str, ...]:
    goal = one.goal
    verdict = f"{one.verdict} (needs {goal.needs})" if goal.needs else one.verdict
    earlier = goal.worded(before.get((goal.benchmark, goal.quantity, goal.of, goal.against)))
    return (
        f"{goal.operation} [{goal.benchmark}]",
        goal.against,
        goal.words,
        earlier,
        one.words,
        verdict,
    )


def reached_by(earlier: Path) -> Before:
    """Return what an earlier run reached, from the JSON that it wrote or what was kept of it; nothing if there is no file."""
    goals = json.loads(earlier.read_text(encoding="utf-8"))["goals"] if earlier.exists() else ()
    keyed = {tuple(one[part] for part in ("benchmark", "quantity", "of", "against")): one["reached"] for one in goals}
    return {key: reached for key, reached in keyed.items() if reached is not None}  # type: ignore[misc]


def amount(value: float, unit: str) -> str:
    """Return a figure with a unit of a fitting size."""
    if unit == "bytes":
        scale, name = next(
            pair for pair in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")) if abs(value) >= pair[0] or pair[0] == 1
        )
        return f"{value / scale:.3g} {name}"
    text = f"{value:.3g} s" if abs(value) >= 1 else f"{value * 1e3:.3g} ms"
    return text + "/GB" if unit == "s/GB" else text


def _plain_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for line in (head, *rows):
        cells = [
            cell.ljust(width) if n < left else cell.rjust(width) for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join('---' if n < left else '---:' for n in range(len(head)))}|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def fill(page: Path, report: Report, picture: str) -> None:
    """Put the tables between the marks of a page, in place of what was there."""
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{page.name} needs the two lines {BEGIN} and {END}, once each")
    new = f"{BEGIN}\n![what was measured]({picture})\n\n{report.markdown()}{END}"
    page.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: new, text, flags=re.DOTALL), encoding="utf-8")
