"""Draw what became of a service, its trainer and its samplers while they were killed. Used by `service_demo.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service_records import Kill, Witnesses, ages_of

BLUE, ORANGE, RED, PALE = "#1f3a5f", "#e08000", "#c00000", "#f4b183"
ROLES = ("service-0", "trainer-0", "sampler-0", "sampler-1")
SHADES = ("#5b8db8", "#8f6bb0")


def draw(witnesses: Witnesses, kills: Sequence[Kill], path: Path) -> None:
    """Show over time: what the policy was worth, which versions there were, how far samplers were behind, and who was killed."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    ratios = {"height_ratios": [3, 3, 1.6, 1.6]}
    figure, axes = plt.subplots(4, 1, figsize=(11, 9.6), sharex=True, layout="constrained", gridspec_kw=ratios)
    zero_s = witnesses.commits[0]["time_s"]
    draw_returns(axes[0], witnesses, zero_s)
    draw_versions(axes[1], witnesses, zero_s)
    draw_ages(axes[2], witnesses, zero_s)
    draw_kills(axes[3], kills, zero_s)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        for kill in kills:
            axis.axvline(kill.time_s - zero_s, color=ORANGE, linewidth=0.8, alpha=0.5, zorder=0)
    figure.suptitle(f"A policy trained apart from its samplers: {len(kills)} times somebody was killed", fontsize=13)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_returns(axis: Any, witnesses: Witnesses, zero_s: float) -> None:
    lost, window = witnesses.lost, list[float]()
    kept, gone = list[tuple[float, float]](), list[tuple[float, float]]()
    for note in witnesses.commits:
        if note["number"] in lost:
            gone.append((note["time_s"] - zero_s, sum(note["returns"]) / max(1, len(note["returns"]))))
            continue
        window = [*window, *note["returns"]][-100:]
        kept += [(note["time_s"] - zero_s, sum(window) / len(window))] if window else []
    axis.plot(*zip(*kept, strict=True), color=BLUE, linewidth=1.6)
    axis.set(ylabel="mean return,\nlast 100 episodes", ylim=(0, None))
    axis.grid(axis="y", alpha=0.25)


def draw_versions(axis: Any, witnesses: Witnesses, zero_s: float) -> None:
    lost = witnesses.lost
    for title, color, is_lost, size in (("committed", BLUE, False, 5), ("lost with the trainer: made again", RED, True, 9)):
        found = [note for note in witnesses.commits if (note["number"] in lost) == is_lost]
        places = [(note["time_s"] - zero_s, note["step"]) for note in found]
        axis.scatter(*zip(*places or [(0, 0)], strict=True), s=size, color=color, label=title, zorder=3 + is_lost)
    found = [note for note in witnesses.trainer if "durable" in note]
    places = [(note["time_s"] - zero_s, note["step"]) for note in found]
    axis.scatter(
        *zip(*places, strict=True), s=36, marker="s", facecolors="none", edgecolors=BLUE, label="durable, in a checkpoint"
    )
    axis.set(ylabel="the trainer's step", ylim=(0, None))
    axis.legend(loc="upper left", frameon=False)
    axis.grid(axis="y", alpha=0.25)


def draw_ages(axis: Any, witnesses: Witnesses, zero_s: float) -> None:
    for row, (shade, name) in enumerate(zip(SHADES, witnesses.samplers, strict=False)):
        # Beside each other: most of both are of one age.
        places = [(time_s - zero_s, age + 0.2 * row) for time_s, age in ages_of(witnesses.commits, name)]
        axis.plot(*zip(*places or [(0, 0)], strict=True), ".", color=shade, markersize=3, label=name)
    axis.set(ylabel="steps old,\nwhen trained on", ylim=(-0.5, None))
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.legend(loc="upper right", frameon=False, ncols=2, bbox_to_anchor=(1, 1.25), markerscale=3)


def draw_kills(axis: Any, kills: Sequence[Kill], zero_s: float) -> None:
    for kill in kills:
        at_s = kill.time_s - zero_s
        for target in kill.targets:
            row = ROLES.index(target)
            axis.barh(row, kill.closed_s or 0, left=at_s, height=0.5, color=PALE)
            axis.barh(row, kill.commit_s or 0, left=at_s, height=0.5, color=ORANGE, alpha=0.6)
            axis.plot(at_s, row, "X", color=RED, markersize=8, zorder=3)
    axis.barh(0, 0, color=ORANGE, alpha=0.6, label="until the next commit")
    axis.barh(0, 0, color=PALE, label="until all sample with it")
    axis.set(yticks=range(len(ROLES)), yticklabels=ROLES, xlabel="seconds", ylim=(3.6, -0.6))
    axis.legend(loc="upper right", frameon=False, ncols=2, bbox_to_anchor=(1, 1.25))
