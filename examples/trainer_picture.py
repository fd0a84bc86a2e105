"""Draw what became of two runs: one left alone, one killed again and again. Used by `trainer_demo.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer_demo import Tale


def curve(tale: Tale) -> list[tuple[int, float]]:
    return [(step, float(line.split()[3])) for step, line in sorted(tale.rewards.items())]


def draw(alone: Tale, killed: Tale, path: Path) -> None:
    """Lay both reward curves over each other; below, show each life of the killed run, and what its death has cost."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(
        2, 1, figsize=(10, 6.6), sharex=True, layout="constrained", gridspec_kw={"height_ratios": [3, 2]}
    )
    draw_curves(above, alone, killed)
    draw_lives(below, killed)
    equal = "same final bits" if alone.finals == killed.finals else "THE BITS DIFFER"
    figure.suptitle(f"A policy, its critic and its reference on two ranks: {len(killed.kills)} kills, {equal}", fontsize=13)
    for axis in (above, below):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_curves(axis: Any, alone: Tale, killed: Tale) -> None:
    wide = {"color": "#f4b183", "linewidth": 7, "solid_capstyle": "round"}
    axis.plot(*zip(*curve(alone), strict=True), label="left alone", **wide)
    axis.plot(*zip(*curve(killed), strict=True), label="killed and resumed", color="#1f3a5f", linewidth=1.3)
    found = [(step, float(line.split()[3])) for step, line in sorted(killed.evaluations.items())]
    axis.scatter(*zip(*found, strict=True), s=22, color="#1f3a5f", zorder=3, label="evaluation, of both")
    axis.set(ylabel="reward", ylim=(0, 1.02))
    axis.grid(axis="y", alpha=0.25)
    axis.legend(loc="lower right", frameon=False)


def draw_lives(axis: Any, killed: Tale) -> None:
    following = [*killed.lives[1:], None]
    for number, (life, after) in enumerate(zip(killed.lives, following, strict=True), start=1):
        kept = life.made if after is None else min(life.made, after.begun)
        axis.barh(number, kept - life.begun, left=life.begun, color="#1f3a5f", height=0.55)
        axis.barh(number, life.made - kept, left=kept, color="#c00000", height=0.55, label="_" if after else "made again")
    axis.set(xlabel="step", ylabel="life", yticks=range(1, len(killed.lives) + 1))
    axis.invert_yaxis()
    for target, marker in (("rank 0", "v"), ("rank 1", "^"), ("torchrun", "s"), ("everything", "X")):
        struck = [each for each in killed.kills if each.target == target]
        # One that died before it trained stands between two that did.
        places = [each.lives + 0.5 * (each.moment in ("start", "load")) for each in struck]
        axis.scatter([each.made for each in struck], places, marker=marker, color="#e08000", s=44, label=target, zorder=3)
    axis.legend(loc="lower left", frameon=False, title="where it was killed", ncols=2)
