"""Kill a training on several ranks again and again, and show that it ends bit for bit like the one that was left alone.

    python examples/trainer_demo.py            # or: make demo-trainer

Trains ``rlhf/train.py`` (policy, critic and reference on two ranks) under ``milepost run``: once left alone, then under a killer
that sends SIGKILL to a rank, to torchrun, or to all of it at once: while it starts, loads, trains and saves. Writes
``trainer.png``. Exits with 1 if a hash, a reward or an evaluation differs, if a generation that was seen published is lost, or
if too few kills have struck.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any, Literal, get_args

import strike
from demo import say, table
from killer import CALLED_OFF, STALL_S, Process, ScriptFailed
from trainer_picture import draw

EXAMPLES = Path(__file__).resolve().parent
RANKS = 2
Target = Literal["rank 0", "rank 1", "torchrun", "everything"]
Moment = Literal["start", "load", "train", "save"]
PHASES = {"start": "before it loaded", "load": "while it loaded", "train": "while it trained", "save": "while it saved"}
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Aim:
    """Say what to kill, and when."""

    target: Target
    moment: Moment
    share: float
    """In mid-run: after how much of its even share of what is left to train."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Say how long things take here, in seconds, so that kills are spread over all of it."""

    start_s: float
    load_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Kill:
    """Tell of one kill: what was hit, what it was doing, and how far it was."""

    target: Target
    moment: Moment
    made: int
    """How many steps were made, in all."""
    lives: int
    """How many lives had come as far as training."""


@dataclass(frozen=True, slots=True)
class Life:
    """Tell of one start that came as far as training: from where it went on, and how far it came."""

    begun: int
    made: int


@dataclass(slots=True)
class Tale:
    """Collect what became of one run."""

    home: Path
    kills: list[Kill] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    """How many steps were made again after each resume that had to."""
    rewards: dict[int, str] = field(default_factory=dict)
    """By step, as it was printed: to the last digit."""
    evaluations: dict[int, str] = field(default_factory=dict)
    finals: dict[str, str] = field(default_factory=dict)
    generation: int = 0
    """The newest that was seen published."""
    made: int = 0
    wrong: list[str] = field(default_factory=list)
    starts: tuple[int, ...] = ()
    """The process ids of all starts of torchrun."""
    is_struck: bool = True
    """Whether the life that was seen last is over, or dying, and no other has begun."""
    heard_s: dict[str, float] = field(default_factory=dict)
    """When something was last said in this life, by its first word."""
    blobs: frozenset[str] = frozenset()
    """What lay there when this life began to train."""

    @property
    def root(self) -> Path:
        return self.home / "checkpoints" / "demo" / "count-on" / "first"

    @property
    def log(self) -> Path:
        return self.home.with_suffix(".log")

    @property
    def journal(self) -> Path:
        return self.home.with_suffix(".jsonl")

    @property
    def moment(self) -> Moment:
        """Return what it is doing, as far as can be seen."""
        if "loads" not in self.heard_s:
            return "start"
        if not self.heard_s.keys() & {"goes", "begins"}:
            return "load"
        return "save" if self.is_saving else "train"

    @property
    def is_saving(self) -> bool:
        """Return whether data lies there of a generation that is not published yet."""
        newest = max(names_in(self.root / "generations"), default="")[:6]
        return any(name[:6] > newest for name in names_in(self.root / "blobs") - self.blobs)

    def look(self) -> None:
        """Note the newest generation that is published, and whether another life has begun."""
        self.generation = max([self.generation, *(int(name[:6]) for name in names_in(self.root / "generations"))])
        starts = tuple(event["pid"] for event in events_in(self.journal) if event["event"] == "started")
        if len(starts) > len(self.starts):
            self.starts, self.is_struck, self.heard_s = starts, False, {"started": time.monotonic()}

    def hear(self, line: str) -> None:
        """Note what the run says."""
        match line.split():
            case ["step", step, "reward", *_]:
                self.note(self.rewards, int(step), line)
                self.made = int(step) + 1
            case ["eval", step, *_]:
                self.note(self.evaluations, int(step), line)
            case _ if self.is_struck:
                return  # the last words of one that is dying
            case ["begins"]:
                self.begin(0, 0)
            case ["goes", *_, generation, "at", "step", step]:
                self.begin(int(step), int(generation))
            case ["final", name, value]:
                self.finals[name] = value
        self.heard_s[line.split()[0]] = time.monotonic()

    def begin(self, step: int, generation: int) -> None:
        self.blobs = frozenset(names_in(self.root / "blobs"))
        if generation < self.generation and not went_back_as_told(self.journal):
            self.wrong.append(f"generation {self.generation} was published, and {generation or 'nothing'} was gone on from")
        self.finals.clear()
        if self.lives:
            self.lives[-1] = replace(self.lives[-1], made=self.made)
        again = max(0, self.made - step)
        self.repeated += [again] if again else []
        if self.kills:
            whence = f"goes on from generation {generation} at step {step}" if generation else "begins anew"
            say(f"{whence}: " + (f"{again} step{'s' * (again > 1)} to make again" if again else "nothing lost"))
        self.lives.append(Life(step, step))
        self.made = step

    def note(self, known: dict[int, str], step: int, line: str) -> None:
        if known.setdefault(step, line) != line:
            self.wrong.append(f"made again it came out otherwise: {known[step]!r}, {line!r}")


def names_in(path: Path) -> set[str]:
    try:
        return {name for name in os.listdir(path) if re.match(r"\d{6}", name)}
    except FileNotFoundError:
        return set()


def events_in(journal: Path) -> list[dict[str, Any]]:
    """Return what `milepost run` has written down, but for a line that is cut off."""
    try:
        return [json.loads(line) for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
    except FileNotFoundError:
        return []


def went_back_as_told(journal: Path) -> bool:
    """Return whether `milepost run` has told the last start to go on from an older generation: the newest was doubted."""
    return bool([event["told"] for event in events_in(journal) if event["event"] == "started"][-1])


# --- killing -------------------------------------------------------------------------------------------------------


def command(tale: Tale, steps: int) -> list[str]:
    tools = Path(sys.executable).parent
    run = [str(tools / "milepost"), "run", "--backoff", "0s..1s", "--max-infrastructure", "-1", "--log", str(tale.journal), "--"]
    ranks = [str(tools / "torchrun"), "--standalone", "--nproc-per-node", str(RANKS)]
    return [*run, *ranks, str(EXAMPLES / "rlhf" / "train.py"), "--fileroot", str(tale.home), "--steps", str(steps)]


def live(tale: Tale, steps: int, aims: deque[Aim], pace: Pace, rng: random.Random, stop: threading.Event) -> None:
    """Start ``milepost run`` and listen to it, until it ends or all of it is killed; kill as aimed meanwhile."""
    process = Process(command(tale, steps), tale.log)
    try:
        due_s, said_s, total = float("inf"), time.monotonic(), len(tale.kills) + len(aims)
        tale.is_struck, tale.heard_s = True, {}
        while True:
            if stop.is_set() or time.monotonic() - said_s > STALL_S:
                raise ScriptFailed(CALLED_OFF if stop.is_set() else f"nothing was heard for {STALL_S:.0f} s, see {tale.log}")
            try:
                line = process.lines.get(timeout=POLL_S)
            except queue.Empty:
                line = ""
            if line is None:
                process.wait()
                return
            if line:
                said_s = time.monotonic()
                tale.hear(line.rstrip())
            tale.look()
            if aims and due_s == float("inf") and is_time(aims[0], tale, steps, len(aims)):
                due_s = time.monotonic() + delay(aims[0].moment, pace, rng)
            if time.monotonic() >= due_s and (victim := find(aims[0].target, process.pid, tale)):
                due_s = float("inf")
                kill(tale, aims, victim, process.pid, total)
    finally:
        strike.kill_with_all_below(process.pid)
        process.close()


def is_time(aim: Aim, tale: Tale, steps: int, left: int) -> bool:
    """Return whether what a kill waits for has come. Those in mid-run share evenly what is left to train."""
    begun = tale.heard_s.keys() & {"goes", "begins"}
    if tale.is_struck or aim.moment in ("start", "load"):
        return not tale.is_struck and (aim.moment == "start" or "loads" in tale.heard_s)
    first = tale.lives[-1].begun if begun else 0
    far = begun and tale.made >= first + max(1, aim.share * (steps - first) / (left + 1))
    return bool(far) and (aim.moment == "train" or tale.is_saving)


def delay(moment: Moment, pace: Pace, rng: random.Random) -> float:
    """Draw how long to wait then: so that kills hit any instant."""
    longest_s = {"start": pace.start_s, "load": pace.load_s, "train": 2 * pace.step_s, "save": 0.3 * pace.step_s}
    return rng.uniform(0.0, longest_s[moment])


def find(target: Target, pid: int, tale: Tale) -> int | None:
    """Return the process to kill, once it is there; ``pid`` is that of ``milepost run``."""
    if target == "everything":
        return pid
    if target == "torchrun":
        return tale.starts[-1]
    ranks = [each.pid for each in strike.below(tale.starts[-1]) if f"rank {strike.rank_of(each.pid)}" == target]
    return next(iter(ranks), None)


def kill(tale: Tale, aims: deque[Aim], victim: int, pid: int, total: int) -> None:
    """Kill, and note what it has hit. What had ended by itself is aimed at again."""
    moment, made = tale.moment, tale.made
    if not (strike.kill_with_all_below(pid) if victim == pid else strike.kill(victim, under=pid)):
        return
    tale.look()
    tale.kills.append(Kill(aims.popleft().target, moment, made, len(tale.lives)))
    tale.is_struck, tale.heard_s = True, {}
    what = f"{tale.kills[-1].target} {PHASES[moment]}, {made} steps made"
    say(f"kill {len(tale.kills)} of {total}: {what}, generation {tale.generation} is the newest")


def draw_aims(kills: int, rng: random.Random) -> deque[Aim]:
    """Draw what is killed when: each target and each moment about as often as the others, in any order."""
    targets = [get_args(Target)[number % 4] for number in range(kills)]
    moments = [("save", "train", "load", "save", "train", "start")[number % 6] for number in range(kills)]
    rng.shuffle(targets)
    rng.shuffle(moments)
    return deque(Aim(target, moment, rng.uniform(0.3, 1.6)) for target, moment in zip(targets, moments, strict=True))


def leave_alone(home: Path, steps: int, stop: threading.Event) -> tuple[Tale, Pace]:
    """Run it once, from its start to its end, and return how long things take."""
    tale, began_s = Tale(home), time.monotonic()
    say(f"left alone: {steps} steps on {RANKS} ranks")
    live(tale, steps, deque(), Pace(0, 0, 0), random.Random(0), stop)
    took_s = tale.heard_s["final"] - tale.heard_s["begins"]
    say(f"left alone: done, weights {tale.finals['weights']}")
    return tale, Pace(tale.heard_s["loads"] - began_s, 0.3, took_s / steps)


def kill_again_and_again(home: Path, steps: int, kills: int, pace: Pace, rng: random.Random, stop: threading.Event) -> Tale:
    """Run it, kill it as often as planned, and let the last life come to its end."""
    tale, aims = Tale(home), draw_aims(kills, rng)
    while not tale.finals:
        live(tale, steps, aims, pace, rng, stop)
    tale.lives[-1] = replace(tale.lives[-1], made=tale.made)
    say(f"killed {len(tale.kills)} times: done, weights {tale.finals['weights']}")
    return tale


# --- showing -------------------------------------------------------------------------------------------------------


def faults(alone: Tale, killed: Tale, kills: int) -> list[str]:
    """Return everything that is not as promised."""
    found = [*alone.wrong, *killed.wrong]
    for name in sorted(alone.finals.keys() | killed.finals.keys()):
        one, other = alone.finals.get(name), killed.finals.get(name)
        found += [f"the final {name} differs: {one} left alone, {other} killed"] if one != other else []
    for name in ("rewards", "evaluations"):
        one, other = getattr(alone, name), getattr(killed, name)
        steps = [step for step in sorted(one.keys() | other.keys()) if one.get(step) != other.get(step)]
        found += [f"the {name} differ, first at step {steps[0]}"] if steps else []
    if len(killed.kills) < kills:
        found.append(f"only {len(killed.kills)} of {kills} kills have struck before the end")
    return found


def column(title: str, tale: Tale) -> dict[str, str]:
    """Return what the table says of one run."""
    rewards = [float(line.split()[3]) for _, line in sorted(tale.rewards.items())]
    targets, moments = Counter(each.target for each in tale.kills), Counter(each.moment for each in tale.kills)
    count = len(rewards) // 8
    return {
        "": title,
        "kills": f"{len(tale.kills)}",
        **{f"  {name}": f"{targets[name]}" for name in get_args(Target)},
        **{f"  {phase}": f"{moments[moment]}" for moment, phase in PHASES.items()},
        "starts of torchrun": f"{len(tale.starts)}",
        "generations published, lost": f"{tale.generation}, {sum('was published' in each for each in tale.wrong)}",
        "steps to make": f"{len(rewards)}",
        "steps made again (after one kill, at most)": f"{sum(tale.repeated)} ({max(tale.repeated, default=0)})",
        f"mean reward, first and last {count} steps": f"{mean(rewards[:count]):.2f}, {mean(rewards[-count:]):.2f}",
        **{f"final {name}": value for name, value in tale.finals.items()},
    }


# --- the whole -----------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description="kill a training on several ranks; show that it ends with the same bits")
    parser.add_argument("--out", type=Path, default=Path("demo-run") / "trainer", help="for runs, logs and the picture; emptied")
    parser.add_argument("--seed", type=int, help="of the kills (by default another one each time)")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--kills", type=int, default=10)
    args, begun_s = parser.parse_args(), time.monotonic()
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    say(f"the kills are drawn with --seed {seed}; runs and logs are in {args.out}")
    shutil.rmtree(args.out, ignore_errors=True)
    scratch = args.out.absolute() / "tmp"
    scratch.mkdir(parents=True)
    os.environ["TMPDIR"] = str(scratch)  # who is killed leaves files there

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # An exception here could end the demo while what it has started, in groups of its own, lives on.
        signal.signal(number, lambda *_: stop.set())
    try:
        alone, pace = leave_alone(args.out / "left-alone", args.steps, stop)
        killed = kill_again_and_again(args.out / "killed", args.steps, args.kills, pace, random.Random(seed), stop)
    except ScriptFailed as failure:
        print("failed:", failure, file=sys.stderr)
        return 1
    picture = args.out / "trainer.png"
    draw(alone, killed, picture)
    print(table([column("left alone", alone), column("killed", killed)]))
    print(f"\nseed {seed}; {time.monotonic() - begun_s:.0f} s; the picture is {picture}")
    wrong = faults(alone, killed, args.kills)
    for fault in wrong:
        print(f"failed: {fault}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
