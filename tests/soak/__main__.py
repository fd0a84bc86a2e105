"""Lay siege to milepost: kills, power cuts, sick disks, flipped bits, signals, so many of each; then grow old; `make soak`.

Prints what was tried and what was lost, and exits with 1 if anything was, or if less was tried than asked for.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.soak.ages import aged, grown, writers
from tests.soak.drills import VERBS, drills
from tests.soak.ranks import struck
from tests.soak.service import stories
from tests.soak.siege import Counts, siege


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=4000)
    parser.add_argument("--cuts", type=int, default=7000)
    parser.add_argument("--faults", type=int, default=2000)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--deaths", type=int, default=120, help="of trainers and of their writer processes")
    parser.add_argument("--strikes", type=int, default=2000, help="by signals, on trainers in every phase")
    parser.add_argument("--rounds", type=int, default=400, help="saves of one process that is to stay as large as it is")
    parser.add_argument("--drills", type=int, default=8, help="runs of the sample that are struck, of each drill")
    parser.add_argument("--ranks", type=int, default=100, help="strikes on ranks of a training, in every phase")
    parser.add_argument("--service", type=int, default=600, help="strikes on the checkpoint service, its trainer and their host")
    parser.add_argument("--seed", type=int, default=None, help="repeat a run; printed by each")
    asked = parser.parse_args()
    seed = asked.seed if asked.seed is not None else secrets.randbelow(1 << 32)
    print(f"seed {seed}", flush=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it runs in the background ignore Ctrl-C
    logging.disable()  # thousands of saves are made to fail, and each would tell of it
    place = Path(tempfile.mkdtemp(prefix="milepost-soak-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    counts = Counts(asked.kills, asked.cuts, asked.faults, asked.flips, asked.deaths, asked.strikes)
    total = siege(place, counts, seed, tell=lambda line: print(line, flush=True))
    for writer in writers():
        found = aged(place / writer, asked.rounds, writer)
        total.lost += [f"with the {writer} writer a process grew: {says}" for says in grown(found["looks"], noise_bytes=1 << 20)]
        print(f"{asked.rounds} rounds with the {writer} writer: {found['saved']} saves, {found['resumed']} resumes", flush=True)
    for verb in VERBS if asked.drills else ():
        found = list(drills(verb, asked.drills))
        total.lost += found
        print(f"drill {verb}: {asked.drills} runs, {len(found)} lost", flush=True)
    if asked.ranks:
        runs = list(struck(place / "ranks", asked.ranks, seed))
        total.lost += [each for _, lost in runs for each in lost]
        print(f"ranks: {sum(hit for hit, _ in runs)} strikes in {len(runs)} runs", flush=True)
    if asked.service:
        told = list(stories(place / "service", asked.service, seed))
        total.lost += [each for story in told for each in story.lost]
        acks, durable = sum(story.acks for story in told), sum(story.durable for story in told)
        print(f"service: {sum(story.strikes for story in told)} strikes, {acks} commits, {durable} of them durable", flush=True)
    print(f"\n{total}")
    for line in total.lost:
        print(f"LOST: {line}", file=sys.stderr)
    missing = counts.missing(total)
    if missing:
        print(f"tried less than asked for: {missing}", file=sys.stderr)
    if total.lost:
        print(f"what is left to look at: {place}", file=sys.stderr)
    else:
        shutil.rmtree(place)
    return 1 if total.lost or missing else 0


if __name__ == "__main__":
    sys.exit(main())
