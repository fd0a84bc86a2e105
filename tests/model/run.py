"""Explore the cases of families.py and say what was found.

python run.py [family or part of a case's name ...] [--deep] [--states N] [--walk SECONDS] [-v]
"""

import argparse
import sys

import proto
from core import walk
from families import CASES, Case, damage, lost_and_delayed, new, old, pin, read, rot


def show(found: dict, verbose: bool) -> None:
    for name, steps in sorted(found.items(), key=lambda x: len(x[1])):
        print(f"     !! {name} ({len(steps)} steps)")
        for step in steps if verbose else ():
            print("        ", step)


def run(case: Case, deep: bool, verbose: bool, states: int) -> bool:
    seconds = 300.0 if deep else 20.0
    good = True
    for off in (True, False) if case.off and not deep else (False,):
        found, stats = case.explore(off, states, seconds, deep and not off)
        bound = case.deep if deep and not off else case.switches
        reach = "all" if stats["full"] else "stopped"
        print(
            f"{case.family}: {case.name} {case.off if off else 'on'}: {stats['states']:,} states ({reach}, "
            f"{'every interleaving' if bound is None else f'{bound} switches'}), {stats['cpu']} s",
            flush=True,
        )
        show(found, verbose)
        good = good and (any(b.startswith(case.breaks) for b in found) if off else not found)
    return good


def wander(seconds: float, verbose: bool) -> bool:
    """Random long runs of the whole protocol with every fault at once."""
    worlds = {
        "damage": lambda v: [damage(2, 3, 4)],
        "rot m3 m5": lambda v: [rot("m3", "m5"), new(v, "F", "drop", "save")],
        "rot m2 s2": lambda v: [rot("m2", "s2"), new(v, "F", "drop", "save")],
        "rot m4 t3": lambda v: [rot("m4", "t3"), damage(3)],
    }
    good = True
    for seed, (name, extra) in enumerate(worlds.items()):
        v = proto.V(pins="held", on_lost="fail" if seed % 2 else "retry")
        who = [
            old(v, "save", "save", "trim", "save"),
            new(v, "B", "resume", "save", "rollback", "save"),
            new(v, "C", "oldest", "save", "save", "save"),
            new(v, "D", "resume", "save", "never", "save", "save"),
            read(v),
            pin(v),
            *extra(v),
        ]
        found, stats = walk(v, who, lost_and_delayed(), proto.check, seconds, seed)
        print(f"random, {name}: {stats['runs']:,} runs, {stats['steps']:,} steps, {stats['cpu']} s", flush=True)
        show(found, verbose)
        good = good and not found
    return good


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("what", nargs="*")
    ask.add_argument("--deep", action="store_true", help="more switches between processes; only with all rules on")
    ask.add_argument("--states", type=int, default=200_000, help="stop a case at so many (about 1 kB of memory each)")
    ask.add_argument("--walk", type=float, metavar="SECONDS")
    ask.add_argument("-v", action="store_true", help="print the traces")
    args = ask.parse_args()
    chosen = [c for c in CASES if not args.what or any(w == c.family or w in c.name for w in args.what)]
    if args.deep:
        chosen = list({c.world: c for c in chosen}.values())
    good = [run(c, args.deep, args.v, args.states) for c in (chosen if args.walk is None or args.what else [])]
    good += [wander(args.walk, args.v)] if args.walk is not None else []
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
