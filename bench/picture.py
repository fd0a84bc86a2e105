"""Draw what came out: how far each goal is, how long each contender makes training wait, how the stall grows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.measure import Outcome, Row
from bench.report import Report

_COLOURS = {
    "met": "#2a9d8f",
    "MISSED": "#d1495b",
    "not built yet": "#b0b0b0",
    "floor": "#b0b0b0",
    "peer": "#edae49",
    "milepost": "#2a9d8f",
}
_COMPARED = (("stall", "training waits"), ("durable", "until durable"), ("lost", "lost by steps beside the save"))


def draw(report: Report, path: Path) -> None:
    """Draw as many panels as there are figures for."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = [*_goals(report), *(panel for outcome in report.outcomes for panel in _bars(outcome)), *_slopes(report)]
    if not panels:
        return
    heights = [height for height, _ in panels]
    figure, axes = plt.subplots(len(panels), 1, figsize=(10, sum(heights)), height_ratios=heights, squeeze=False)
    for (_, fill), axis in zip(panels, axes[:, 0], strict=True):
        fill(axis)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


_Panel = tuple[float, Callable[[Any], None]]
"""A height in inches, and what draws into the axes."""


def _goals(report: Report) -> list[_Panel]:
    judged = [one for one in report.judged if one.excess]
    if not judged:
        return []

    def fill(axis: Any) -> None:
        names = [f"{one.goal.operation} [{one.goal.benchmark}]\n{one.goal.words} {one.goal.against}".strip() for one in judged]
        axis.barh(names, [one.excess for one in judged], color=[_COLOURS[one.verdict] for one in judged])
        axis.axvline(1, color="black")
        axis.set_xscale("log")
        axis.set_xlabel("times the goal: left of the line is met; grey needs what is not built yet")
        axis.invert_yaxis()
        axis.tick_params(axis="y", labelsize=7)

    return [(1.0 + 0.42 * len(judged), fill)]


def _bars(outcome: Outcome) -> list[_Panel]:
    panels: list[_Panel] = []
    for quantity, words in _COMPARED:
        rows = [row for row in outcome.rows if row.quantity == quantity]
        if len(rows) > 1:
            panels.append((1.0 + 0.28 * len(rows), partial(_compare, outcome, rows, words)))
    return panels


def _compare(outcome: Outcome, rows: list[Row], words: str, axis: Any) -> None:
    medians = [row.median for row in rows]
    spread = [
        [row.median - min(row.values) for row in rows],
        [max(row.values) - row.median for row in rows],
    ]
    axis.barh([row.contender for row in rows], medians, xerr=spread, color=[_COLOURS[row.kind] for row in rows], ecolor="#606060")
    axis.set_title(
        f"{outcome.benchmark}: {words} ({rows[0].unit}; the line is from the fastest to the slowest round)", fontsize=9
    )
    axis.invert_yaxis()


def _slopes(report: Report) -> list[_Panel]:
    outcome = next((one for one in report.outcomes if one.benchmark == "slopes"), None)
    if outcome is None:
        return []

    def fill(axis: Any) -> None:
        for name in dict.fromkeys(row.contender for row in outcome.rows):
            points = sorted(
                (float(row.quantity.split()[1]), row.median)
                for row in outcome.rows
                if row.contender == name and row.quantity.startswith("stall, ")
            )
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
        axis.set_title("stall against the size of the state", fontsize=9)
        axis.set_xlabel("MB")
        axis.set_ylabel("s")
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
        axis.legend()

    return [(3.5, fill)]
