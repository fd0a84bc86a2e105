"""Kill real training runs again and again, and show that they end bit for bit like the runs that were left alone.

    python examples/demo.py            # or: make demo

Trains PPO (Stable-Baselines3) and DQN (its own loop) on CartPole: each once left alone, then under a killer that sends
SIGKILL at random instants, in mid-run and in start-up, and starts the script again. Writes ``learning_curves.png``.
Exits with 1 if a hash or an episode differs, if a generation that was seen published is lost, or if too few kills landed.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from killer import CALLED_OFF, NEVER, Aim, Life, ScriptFailed, live

EXAMPLES = Path(__file__).resolve().parent
Episodes = list[tuple[int, float]]
"""Each episode's end, in environment steps, and its return."""

_begun_s = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - _begun_s:6.1f} s] {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Subject:
    """Name one script to kill, and how much of it."""

    name: str
    title: str
    script: str
    steps: int
    kills: int
    """Kills aimed at mid-run."""
    early_kills: int
    """Kills aimed at start-up: imports, claim and resume."""

    def command(self, root: Path) -> list[str]:
        return [sys.executable, str(EXAMPLES / self.script), "--root", str(root), "--steps", str(self.steps)]


@dataclass(frozen=True, slots=True)
class Resume:
    """Tell of one resume, as the run's own event log does."""

    generation: int
    step: int
    milliseconds: float


@dataclass(slots=True)
class Tale:
    """Collect what became of one run."""

    root: Path
    lives: list[Life] = field(default_factory=list)
    resumes: list[Resume] = field(default_factory=list)
    kills: list[tuple[int, bool]] = field(default_factory=list)
    """Where training stood at each kill, and whether the killed process had made a step."""
    repeated: list[int] = field(default_factory=list)
    """How many steps were made again after each kill that cost some."""
    generation: int = 0
    """The newest generation that was seen published, and the step it holds."""
    step: int = 0
    reached: int = 0
    """The furthest step since the last resume."""
    terms: int = 0
    """How many lives came as far as claiming the run root."""
    lost: list[str] = field(default_factory=list)

    @property
    def sha256(self) -> str:
        return self.lives[-1].sha256


# --- killing -------------------------------------------------------------------------------------------------------


def leave_alone(subject: Subject, root: Path, stop: threading.Event) -> Tale:
    """Run the script once, from its start to its end."""
    tale = Tale(root)
    say(f"{subject.name}: {subject.steps:,} steps, left alone")
    tale.lives.append(live(subject.command(root), root.with_suffix(".log"), NEVER, stop))
    note_events(tale, tale.lives[-1])
    say(f"{subject.name}: left alone, done: {tale.sha256[:12]}")
    return tale


def kill_again_and_again(subject: Subject, root: Path, start_up_s: float, rng: random.Random, stop: threading.Event) -> Tale:
    """Run the script, kill it as often as planned, start it again each time, and let the last life come to its end."""
    tale = Tale(root)
    early = [False] * subject.kills + [True] * subject.early_kills
    rng.shuffle(early)
    while not (tale.lives and tale.sha256):
        planned = len(early) > len(tale.kills)
        aim = take_aim(subject, tale, early[len(tale.kills) :], start_up_s, rng) if planned else NEVER
        life = live(subject.command(root), root.with_suffix(".log"), aim, stop)
        tale.lives.append(life)
        note_events(tale, life)
        if life.killed and not life.sha256:
            tale.kills.append((tale.reached, bool(life.steps)))
            when = f"at step {tale.reached:,}" if life.steps else "before its first step"
            held = f"generation {tale.generation} holds step {tale.step:,}"
            say(f"{subject.name}: kill {len(tale.kills)} of {len(early)} {when}, {held}")
    say(f"{subject.name}: killed {len(tale.kills)} times, done: {tale.sha256[:12]}")
    return tale


def take_aim(subject: Subject, tale: Tale, early: Sequence[bool], start_up_s: float, rng: random.Random) -> Aim:
    """Choose an instant. Kills in mid-run share what is left evenly on the whole, so that all of them find a run alive."""
    if early[0]:
        return Aim(after_s=rng.uniform(0.0, 1.1 * start_up_s))
    share = rng.uniform(0.2, 1.6) / (1 + early.count(False))
    return Aim(at_step=tale.step + share * (subject.steps - tale.step), then_s=rng.uniform(0.0, 0.3))


def note_events(tale: Tale, life: Life) -> None:
    """Read what the run's event log says of this life, and check that nothing which was seen published is lost."""
    known, resumed = tale.generation, None
    for event in new_events(tale):
        if event["event"] == "resumed":
            resumed = Resume(event["generation"], event["step"], sum(map(float, event["milliseconds"].values())))
        if event["event"] in ("resumed", "published"):
            tale.generation, tale.step = event["generation"], event["step"]
    if resumed is not None:
        tale.resumes.append(resumed)
        if resumed.generation < known:
            tale.lost.append(f"generation {known} was published, and generation {resumed.generation} resumed")
    elif life.steps and known:
        tale.lost.append(f"generation {known} was published, and training started anew")
    if resumed is not None or life.steps:
        begun = resumed.step if resumed else 0
        tale.repeated += [tale.reached - begun] if tale.reached > begun else []
        tale.reached = max(begun, tale.step, *life.steps)


def new_events(tale: Tale) -> Iterator[dict[str, Any]]:
    """Yield the events that were logged since the last look: those of one term, if the life came as far as its claim."""
    logs = sorted((tale.root / "events").glob("*.jsonl"))[tale.terms :]
    tale.terms += len(logs)
    for log in logs:
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            # A kill may cut off the line it hits.
            if line.endswith("\n"):
                yield json.loads(line)


# --- showing -------------------------------------------------------------------------------------------------------


def episodes(root: Path) -> Episodes:
    """Read the episodes that a run has logged, in the order in which they ended."""
    if (log := root / "episodes.csv").exists():
        with log.open(newline="") as file:
            return [(int(row["step"]), float(row["return"])) for row in csv.DictReader(file)]
    found: Episodes = []
    monitors = sorted((root / "monitor").glob("*.monitor.csv"))
    for monitor in monitors:
        step = 0
        with monitor.open(newline="") as file:
            next(file)  # a line of JSON that says when the run began
            for row in csv.DictReader(file):
                step += len(monitors) * int(row["l"])
                found.append((step, float(row["r"])))
    return sorted(found, key=lambda episode: episode[0])


def faults(subject: Subject, alone: Tale, killed: Tale) -> list[str]:
    """Return everything that is not as promised."""
    found = list(killed.lost)
    if killed.sha256 != alone.sha256:
        found.append(f"the final parameters differ: {alone.sha256} left alone, {killed.sha256} killed")
    if episodes(killed.root) != episodes(alone.root):
        found.append(f"the episodes differ: {alone.root}, {killed.root}")
    if len(killed.kills) < subject.kills:
        found.append(f"only {len(killed.kills)} of {subject.kills} kills landed before the end")
    return [f"{subject.name}: {fault}" for fault in found]


def column(subject: Subject, alone: Tale, killed: Tale) -> dict[str, str]:
    """Return what the table says of one subject."""
    early = sum(not stepped for _, stepped in killed.kills)
    again = sum(killed.repeated)
    resumes = [resume.milliseconds for resume in killed.resumes]
    starts = [life.start_up_s for life in killed.lives if life.start_up_s is not None]
    one, other = episodes(alone.root), episodes(killed.root)
    return {
        "": subject.title,
        "kills (before the first step)": f"{len(killed.kills)} ({early})",
        "generations published, lost": f"{killed.generation}, {len(killed.lost)}",
        "steps to make": f"{subject.steps:,}",
        "steps repeated (of one kill, at most)": f"{again:,} = {again / subject.steps:.0%} ({max(killed.repeated, default=0):,})",
        "resumes": f"{len(resumes)}",
        "verify and load: median, longest": f"{median(resumes):.0f} ms, {max(resumes):.0f} ms" if resumes else "none",
        "process start to first step: median": f"{median(starts):.1f} s",
        "episodes left alone, killed": f"{len(one)}, {len(other)}" + ("" if one == other else " DIFFER"),
        "final sha256, left alone": alone.sha256[:16],
        "final sha256, killed": killed.sha256[:16],
        "hashes equal": "yes" if alone.sha256 == killed.sha256 else "NO",
    }


def table(columns: Sequence[dict[str, str]]) -> str:
    """Lay the columns side by side."""
    names = list(columns[0])
    widths = [max(map(len, names)), *(max(map(len, column.values())) for column in columns)]
    rows = [[name, *(column[name] for column in columns)] for name in names]
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * (sum(widths) + 3 * len(columns)), *lines[1:]])


def smooth(found: Episodes, window: int = 20) -> Episodes:
    """Return the mean return of the last ``window`` episodes at each episode's end."""
    tails = [[value for _, value in found[max(0, end - window) : end]] for end in range(1, len(found) + 1)]
    return [(step, sum(tail) / len(tail)) for (step, _), tail in zip(found, tails, strict=True)]


def draw(results: Sequence[tuple[Subject, Tale, Tale]], path: Path) -> None:
    """Lay both learning curves of each subject over each other, and mark where training stood at each kill."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(results), figsize=(13, 4.8), sharey=True, layout="constrained", squeeze=False)
    for axis, (subject, alone, killed) in zip(axes[0], results, strict=True):
        draw_curves(axis, alone, killed)
        equal = "same final bits" if alone.sha256 == killed.sha256 else "THE BITS DIFFER"
        axis.set_title(f"{subject.title}: {len(killed.kills)} kills, {equal}", fontsize=11, pad=14)
        axis.set(xlabel="environment steps", xlim=(0, subject.steps), ylim=(0, 520))
        axis.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
        axis.grid(axis="y", alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("return, mean of the last 20 episodes")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle("CartPole: a run left alone, and the same run killed again and again", fontsize=13)
    figure.savefig(path, dpi=130)


def draw_curves(axis: Any, alone: Tale, killed: Tale) -> None:
    wide = {"color": "#f4b183", "linewidth": 7, "solid_capstyle": "round"}
    axis.plot(*zip(*smooth(episodes(alone.root)), strict=True), label="left alone", **wide)
    axis.plot(*zip(*smooth(episodes(killed.root)), strict=True), label="killed and resumed", color="#1f3a5f", linewidth=1.3)
    for mid_run, marker, color, label in (
        (True, "v", "#c00000", "SIGKILL in mid-run"),
        (False, "^", "#7f7f7f", "SIGKILL before the first step"),
    ):
        steps = [step for step, stepped in killed.kills if stepped is mid_run]
        level = [1.02 if mid_run else 0.02] * len(steps)
        axis.vlines(steps, 0, 1, color=color, linewidth=0.6, alpha=0.45, zorder=0, transform=axis.get_xaxis_transform())
        axis.scatter(
            steps,
            level,
            marker=marker,
            s=40,
            color=color,
            label=label,
            clip_on=False,
            zorder=3,
            transform=axis.get_xaxis_transform(),
        )


# --- the whole -----------------------------------------------------------------------------------------------------


def subjects(quick: bool) -> list[Subject]:
    kills, early = (2, 1) if quick else (10, 3)
    return [
        Subject("on-policy", "PPO (Stable-Baselines3)", "ppo_cartpole.py", 16_000 if quick else 100_000, kills, early),
        Subject("off-policy", "DQN (a loop of its own)", "dqn_cartpole.py", 8_000 if quick else 50_000, kills, early),
    ]


def both(subject: Subject, out: Path, seed: int, stop: threading.Event) -> tuple[Subject, Tale, Tale]:
    """Run one subject left alone, and then killed."""
    try:
        home = out / subject.name
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        alone = leave_alone(subject, home / "left-alone", stop)
        rng = random.Random(f"{seed} {subject.name}")
        return subject, alone, kill_again_and_again(subject, home / "killed", alone.lives[0].start_up_s or 0.0, rng, stop)
    except BaseException:
        stop.set()
        raise


def main() -> int:
    parser = argparse.ArgumentParser(description="kill training runs again and again; show that they end with the same bits")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-run"), help="for runs, logs and the picture; earlier ones are removed"
    )
    parser.add_argument("--seed", type=int, help="of the instants of the kills (by default another one each time)")
    parser.add_argument("--quick", action="store_true", help="short runs and three kills each")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    say(f"the kills are drawn with --seed {seed}; runs and logs are in {args.out}")

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # An exception here could end the demo while its scripts, in groups of their own, live on.
        signal.signal(number, lambda *_: stop.set())
    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(both, subject, args.out, seed, stop) for subject in subjects(args.quick)]
        try:
            results = [task.result() for task in tasks]
        except ScriptFailed as failure:
            # The first to fail calls the other off, and only the first is news.
            errors = [str(error) for task in tasks if (error := task.exception()) is not None]
            print("failed:", next((error for error in errors if error != CALLED_OFF), failure), file=sys.stderr)
            return 1
    picture = args.out / "learning_curves.png"
    draw(results, picture)
    print(table([column(*result) for result in results]))
    print(f"\nseed {seed}; {time.monotonic() - _begun_s:.0f} s; the curves are in {picture}")
    wrong = [fault for result in results for fault in faults(*result)]
    for fault in wrong:
        print(f"failed: {fault}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
