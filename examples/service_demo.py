"""Kill the checkpoint service, its trainer and its samplers again and again, and show that training goes on through all of it.

    python examples/service_demo.py            # or: make demo-service

Runs ``async_ppo/`` (a service, a trainer, two samplers) under ``milepost up``, and a killer that sends SIGKILL to one of them, or
to several at once. Beside it a watcher notes every version of the weights that it sees. Writes ``service.png``. Exits with 1 if a
version changed after it was visible, if what was acknowledged as durable was lost, if a sampler acted on other weights than those
committed, if something was trained on that a lost branch has made, if the policy did not learn, or if too few kills have struck.
"""

from __future__ import annotations

import argparse
import logging
import os
import queue
import random
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

import strike
from demo import say, table
from killer import CALLED_OFF, STALL_S, Process, ScriptFailed
from service_picture import draw
from service_records import Diary, Kill, Note, Seen, Witnesses, ages_of, faults

import milepost.service
from milepost.clock import SystemClock
from milepost.errors import MilepostError, NotFoundError
from milepost.service.journal import Journal
from milepost.service.unloading import unload
from milepost.supervise.control import ask
from milepost.supervise.orders import Look

EXAMPLE = Path(__file__).resolve().parent / "async_ppo"
TRAINER, SERVICE, SAMPLERS = "trainer-0", "service-0", ("sampler-0", "sampler-1")
TARGETS = (
    (TRAINER,),
    (SERVICE,),
    (SAMPLERS[0],),
    (TRAINER, SERVICE),
    (SERVICE, SAMPLERS[1]),
    (TRAINER, SAMPLERS[0]),
    (SERVICE,),
    (TRAINER,),
    (SERVICE, TRAINER, *SAMPLERS),
    (SAMPLERS[1],),
)
MAX_GAP, MOST_FAULTS = 4, 20
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Aim:
    """Say whom to kill, and when."""

    targets: tuple[str, ...]
    share: float
    """After how much of its even share of what is left to train."""
    is_hasty: bool
    """Before all have recovered from the kill before."""


@dataclass(slots=True)
class Tale:
    """Collect what becomes of the run."""

    home: Path
    trainer: Diary = field(init=False)
    samplers: dict[str, Diary] = field(init=False)
    kills: list[Kill] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    began_s: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.trainer = Diary(self.home / "run" / "diary" / "trainer.jsonl")
        self.samplers = {name: Diary(self.home / "run" / "diary" / f"{name}.jsonl") for name in SAMPLERS}

    def look(self) -> None:
        """Read what was noted since, and see whether the last kills are recovered from."""
        for diary in (self.trainer, *self.samplers.values()):
            diary.read()
        for kill in self.kills:
            if kill.closed_s is None:
                kill.look(self.commits, [diary.notes for diary in self.samplers.values()])

    @property
    def notes(self) -> int:
        """Return how much was done so far."""
        return sum(len(diary.notes) for diary in (self.trainer, *self.samplers.values()))

    @property
    def commits(self) -> list[Note]:
        return [note for note in self.trainer.notes if "number" in note]

    @property
    def step(self) -> int:
        return self.commits[-1]["step"] if self.commits else 0

    @property
    def is_closed(self) -> bool:
        """Return whether all are in touch, as far as is known."""
        return (
            bool(self.commits)
            and all(d.notes for d in self.samplers.values())
            and all(k.closed_s is not None for k in self.kills)
        )


# --- killing -------------------------------------------------------------------------------------------------------


def prepare(home: Path, steps: int) -> list[str]:
    """Copy the example to where it runs, and return the command that runs it."""
    shutil.copytree(EXAMPLE, home, ignore=shutil.ignore_patterns("__pycache__"))
    roles = (home / "pipeline.toml").read_text()
    words = f'"trainer.py", "--steps", "{steps}", "--max-gap", "{MAX_GAP}"'
    (home / "pipeline.toml").write_text(roles.replace('"trainer.py"', words))
    up = [str(Path(sys.executable).parent / "milepost"), "up", "--backoff", "0s..1s", "--log", str(home / "up.jsonl")]
    return [*up, str(home / "pipeline.toml")]


def run(tale: Tale, command: list[str], steps: int, aims: deque[Aim], stop: threading.Event) -> None:
    """Run the pipeline to its end, killing as aimed. Raises `ScriptFailed` if it fails, hangs, or is called off."""
    process = Process(command, tale.home.with_suffix(".log"))
    try:
        total, heard, heard_s = len(aims), 0, time.monotonic()
        while is_running(process):
            tale.look()
            if tale.notes > heard:
                heard, heard_s = tale.notes, time.monotonic()
            if stop.is_set() or time.monotonic() - heard_s > STALL_S:
                raise ScriptFailed(CALLED_OFF if stop.is_set() else f"nothing was done for {STALL_S:.0f} s, see {process.log}")
            if aims and is_time(aims[0], tale, steps, len(aims)):
                kill(tale, aims, process.pid, total)
        process.wait()
    finally:
        strike.kill_with_all_below(process.pid)
        process.close()
        tale.look()


def is_running(process: Process) -> bool:
    """Wait a moment, and return whether it is still there. What it says is in its log."""
    with suppress(queue.Empty):
        return process.lines.get(timeout=POLL_S) is not None
    return True


def is_time(aim: Aim, tale: Tale, steps: int, left: int) -> bool:
    """Return whether it is time to kill. Kills share evenly what is left to train, so that all of them find somebody."""
    last = tale.kills[-1] if tale.kills else None
    if aim.is_hasty and last:
        return time.time() >= last.time_s + 2 * aim.share
    first = last.step if last else 0
    return tale.is_closed and tale.step >= first + max(1, aim.share * (steps - first) / (left + 1))


def kill(tale: Tale, aims: deque[Aim], up_pid: int, total: int) -> None:
    """Kill who is aimed at, and is there. If nobody is, it is tried again."""
    answer = ask(tale.home / "pipeline.toml.sock", Look(), "", 30.0)
    pids = {f"{each['role']}-{each['index']}": each["pid"] for each in answer["standings"]}
    struck = tuple(name for name in aims[0].targets if pids.get(name) and strike.kill(pids[name], under=up_pid))
    if not struck:
        return
    aims.popleft()
    tale.look()
    last = tale.commits[-1] if tale.commits else {"step": 0, "term": 0, "attempt": 0}
    tale.kills.append(Kill(struck, time.time(), last["step"], last["term"] if SERVICE in struck else 0))
    say(f"kill {len(tale.kills)} of {total}: {tale.kills[-1].name}, at step {last['step']}")


def draw_aims(kills: int, rng: random.Random) -> deque[Aim]:
    """Draw who is killed when: each target about as often as the others, in any order, some before all have recovered."""
    targets = [TARGETS[number % len(TARGETS)] for number in range(kills)]
    rng.shuffle(targets)
    # The last one hits who is needed for the end, and all are in touch before it: a sampler might not be back in time.
    last = max((number for number, each in enumerate(targets) if not {*each} & {*SAMPLERS}), default=-1)
    targets.append(targets.pop(last))
    hasty = rng.sample(range(kills - 1), (kills - 1) // 4)
    return deque(Aim(target, rng.uniform(0.3, 1.6), number in hasty) for number, target in enumerate(targets))


class Watcher:
    """Fetch every version that comes, by a client of its own, through all restarts of the service, and note what it was."""

    def __init__(self, tale: Tale) -> None:
        self.tale, self.is_over = tale, threading.Event()
        self.thread = threading.Thread(target=self.watch, name="demo-watcher", daemon=True)

    def __enter__(self) -> Watcher:
        self.thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.is_over.set()
        self.thread.join()

    def watch(self) -> None:
        """Fetch until it is over; a service that is away for longer than a client waits is tried again."""
        while not self.is_over.wait(0.2):
            with (
                suppress(MilepostError),
                milepost.service.connect(self.tale.home / "run", component="watcher", role="sampler", fetch_timeout=5) as client,
            ):
                while not self.is_over.is_set():
                    weights = client.fetch(timeout=0.5)
                    if weights is not None:
                        with weights:
                            self.tale.seen.append(Seen.of(weights))


def forget(root: Path) -> None:
    """Give back the memory of the service: its newest versions outlive it there, for the next one, and here there is none."""
    with suppress(NotFoundError):  # it was called off before the service had begun
        unload(str(root), SystemClock())


# --- showing -------------------------------------------------------------------------------------------------------


def kills_table(kills: Sequence[Kill]) -> str:
    """Lay out what each kill has cost."""
    rows = {"kill": "at step   commit again   all in touch   who"}
    for number, kill in enumerate(kills, 1):
        waits = ["never" if wait_s is None else f"{wait_s:.1f} s" for wait_s in (kill.commit_s, kill.closed_s)]
        rows[f"{number}"] = f"{kill.step:7}   {waits[0]:>12}   {waits[1]:>12}   {kill.name}"
    return table([rows])


def summary(tale: Tale, witnesses: Witnesses) -> str:
    """Lay out what has become of the run."""
    last, commits = tale.commits[-1], tale.commits
    steps, returns = [note for note in commits if note["made_by"]], witnesses.returns
    rows = {
        "": "in all",
        "versions committed; lost with the trainer's steps": f"{len(witnesses.versions)}; {len(witnesses.lost)}",
        "of them seen by the watcher": f"{len({each.described.at for each in tale.seen})}",
        "acknowledged as durable": f"{len(tale.trainer.notes) - len(commits)}",
        "steps of the trainer; made again": f"{last['step']}; {len(steps) - last['step']}",
        "rollouts trained on; too old; orphaned": f"{last['use']}; {last['stale']}; {last['orphaned']}",
        **{f"trained on of {name}; steps old, mean (most)": ages(commits, name) for name in tale.samplers},
        **{
            f"until all are in touch, {who} killed, median (most)": spread(tale.kills, who)
            for who in (TRAINER, SERVICE, "sampler")
        },
        "mean return, first and last 100 episodes": f"{mean(returns[:100]):.0f}; {mean(returns[-100:]):.0f}",
    }
    return table([rows])


def ages(commits: Sequence[Note], sampler: str) -> str:
    found = [age for _, age in ages_of(commits, sampler)]
    return f"{len(found)}; {mean(found):.1f} ({max(found)})" if found else "0"


def spread(kills: Sequence[Kill], who: str) -> str:
    """Say how long it took to recover from those kills that hit one of these."""
    found = [kill.closed_s for kill in kills if kill.closed_s is not None and any(each.startswith(who) for each in kill.targets)]
    return f"{median(found):.1f} s ({max(found):.1f} s)" if found else "-"


# --- the whole -----------------------------------------------------------------------------------------------------


def shortfalls(tale: Tale, witnesses: Witnesses, kills: int, at_least: float) -> list[str]:
    """Return in what the run fell short: each kill has to strike and be recovered from, and the policy to learn."""
    found = [f"only {len(tale.kills)} of {kills} kills have struck before the end"] if len(tale.kills) < kills else []
    found += [f"nobody recovered from kill {number}" for number, kill in enumerate(tale.kills, 1) if kill.closed_s is None]
    reached = mean(witnesses.returns[-100:])
    return found + ([f"the mean return was {reached:.0f} at the end, and not {at_least:.0f}"] if reached < at_least else [])


def main() -> int:
    parser = argparse.ArgumentParser(description="kill a checkpoint service and all who use it; show that training goes on")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-run") / "service", help="for the run, logs and the picture; emptied"
    )
    parser.add_argument("--seed", type=int, help="of the kills (by default another one each time)")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--kills", type=int, default=len(TARGETS))
    parser.add_argument("--at-least", type=float, default=300, help="the mean return that has to be reached")
    args, begun_s = parser.parse_args(), time.monotonic()
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    say(f"the kills are drawn with --seed {seed}; the run and its logs are in {args.out}")
    shutil.rmtree(args.out, ignore_errors=True)
    tools = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([tools, os.environ.get("PATH", "")])  # the roles' python is this one

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # An exception here could end the demo while what it has started, in groups of its own, lives on.
        signal.signal(number, lambda *_: stop.set())
    logging.getLogger("milepost").setLevel(logging.ERROR)  # the watcher's client: that the service is away is no news here
    tale = Tale(args.out.absolute() / "run")
    command = prepare(tale.home, args.steps)
    try:
        with Watcher(tale):
            run(tale, command, args.steps, draw_aims(args.kills, random.Random(seed)), stop)
    except ScriptFailed as failure:
        print("failed:", failure, file=sys.stderr)
        return 1
    finally:
        forget(tale.home / "run")
    with closing(Journal(str(tale.home / "run" / "service" / "journal.sqlite3"), SystemClock())) as journal:
        entries = journal.entries()
    notes = {name: diary.notes for name, diary in tale.samplers.items()}
    witnesses = Witnesses(entries, tale.seen, tale.trainer.notes, notes)
    picture = args.out / "service.png"
    draw(witnesses, tale.kills, picture)
    print(kills_table(tale.kills), summary(tale, witnesses), sep="\n\n")
    print(f"\nseed {seed}; {time.monotonic() - begun_s:.0f} s; the picture is {picture}")
    wrong = faults(witnesses, MAX_GAP) + shortfalls(tale, witnesses, args.kills, args.at_least)
    for fault in [*wrong[:MOST_FAULTS], *([f"and {len(wrong) - MOST_FAULTS} more"] if len(wrong) > MOST_FAULTS else [])]:
        print(f"failed: {fault}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
