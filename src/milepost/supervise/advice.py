"""Say what somebody whose run is not exact should look at next. Pure: from what a selftest has found."""

from __future__ import annotations

from collections.abc import Iterator

from milepost.records import Manifest
from milepost.supervise.judging import inexact
from milepost.supervise.selftest import Request, Verdict

_SEED = (
    "seed all that it draws from: random, numpy, torch, the env (reset(seed=), or seed= of the model), generators of its own; "
    "and sets of text come in another order in each process: sort them"
)
_BY_KIND = {
    "never-saved": "it saved nothing: is CheckpointEngine or Checkpointing reached, and MILEPOST_ROOT passed on to it?",
    "saved-elsewhere": "it did not save where MILEPOST_ROOT says: something clears the environment, or has another milepost",
    "saved-only-once": "there is nothing to go on from: let it save on the way, not only at its end: when=every(steps=...)",
    "other-roots": "a run root with the time or a pid in its name is another run at each start: give it a name that stays",
    "never-resumed": 'it began anew although there was something to go on from: call engine.resume(), and without which="never"',
    "ended-before-a-kill": "it ended before it could be killed: let it run longer, or save earlier: when=every(steps=...)",
    "killed-too-late": "its end was saved when it was killed: let it run longer, or save more often: when=every(steps=...)",
    "timed-out": "give it fewer steps, or more time: --timeout 1h",
    "failed-after-a-kill": "alone it ended, killed and started again it fails: what it finds of the first start is in its way",
    "twice-alone": _SEED,
    "before-any-kill": _SEED,
}


def advice(verdict: Verdict, request: Request) -> Iterator[str]:
    """Yield what to do next, the likeliest first."""
    if verdict.kind == "failed-by-itself" and request.here is None:
        yield "it runs in an empty directory, and files that it opens by relative paths are not there: --here runs it in this one"
    if verdict.kind in _BY_KIND:
        yield _BY_KIND[verdict.kind]
    parting = verdict.comparison.parting if verdict.comparison else None
    if parting is None:
        return
    if verdict.kind == "state-differs":
        yield from _of_a_difference(parting.one, parting.other)
    yield from _of_threads(parting.one, parting.other)
    if verdict.kind == "state-differs":
        root = parting.root.path.name
        yield (
            f"to look closer: --keep, then milepost diff KEPT/alone/roots/{root} latest --other KEPT/killed/roots/{root} --leaves"
        )


def _of_a_difference(one: Manifest, other: Manifest) -> Iterator[str]:
    missing = list(inexact(other))
    if missing:
        yield "it was saved without a part of its state, and said so:"
        yield from (f"  {each}" for each in missing)
    else:
        yield (
            "what was saved came back as it was saved, so something that is not in state= goes on, and starts again with the"
            " process: a generator of the script's own, an env, a counter, a schedule"
        )
    if one.counters != other.counters:
        yield f"counters: {one.counters} alone, {other.counters} killed and resumed"


def _of_threads(one: Manifest, other: Manifest) -> Iterator[str]:
    for name in dict.fromkeys((*one.fingerprint, *other.fingerprint)):
        left, right = one.fingerprint.get(name, "-"), other.fingerprint.get(name, "-")
        if left != right:
            yield f"{name} was {left} in one and {right} in the other: bits depend on it"
    if one.fingerprint.get("threads/torch", "1") != "1":
        yield f"torch has {one.fingerprint['threads/torch']} threads: try it with OMP_NUM_THREADS=1, sums then have one order"
