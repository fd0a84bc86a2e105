"""Say how an environment is captured, and prove it: the text and the document of ``doctor env``."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from milepost.cli import document
from milepost.cli.failure import NOT_EXACT
from milepost.cli.text import counted, plain, size, table

if TYPE_CHECKING:
    from milepost.envs.verifying import Verdict
    from milepost.lifecycle.divergence import Divergence

_WAYS = {
    "own": "by its own methods",
    "snapshot": "by a registered snapshotter",
    "ale": "the emulator's state, with its generator",
    "mujoco": "the simulator's state, with all derived arrays",
    "workers": "each worker is asked",
    "plain": "its attributes",
    "replay": "its actions since the reset, played again",
    "pickle": "a pickle, compared with it each time",
    "elsewhere": "by somebody else",
}


@click.command("env")
@click.argument("factory", metavar="MODULE:FACTORY")
@click.option("--steps", type=click.IntRange(1), default=200, show_default=True, help="Go on for so many steps, twice.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the env, and of the random actions.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of a failure.")
def env(factory: str, steps: int, seed: int, as_json: bool) -> int:
    """Say how an environment is captured, layer by layer, and prove it.

    MODULE:FACTORY is a function that returns an env, a vector env or a VecEnv, as Python would import it from here; or an id
    that gymnasium.make takes. After random steps it is captured, restored into a fresh one in a new process, and both go on
    with the same actions, over a reset: all that they give back is compared, bit for bit. Exits with 20 if it is not exact.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as python -m has it
    from milepost.envs.verifying import verify_named  # it brings numpy, and the env whatever it needs

    verdict = verify_named(factory, steps, seed)
    click.echo(document.encode("doctor_env", factory, _document(verdict)) if as_json else "\n".join(_lines(verdict)))
    return 0 if verdict.exact else NOT_EXACT


def _document(verdict: Verdict) -> document.Document:
    return dataclasses.asdict(verdict) | {"exact": verdict.exact}


def _lines(verdict: Verdict) -> Iterator[str]:
    yield plain(verdict.env)
    rows = [
        (
            "  " * layer.depth + (f"{layer.count} x " if layer.count > 1 else "") + plain(layer.name),
            _WAYS.get(layer.way, layer.way) if layer.whole else "NOT CAPTURED",
            size(layer.size_bytes) if layer.whole else "",
            "" if layer.milliseconds is None else f"{layer.milliseconds:.2f}",
        )
        for layer in verdict.layers
    ]
    yield from ("", *table(("LAYER", "CAPTURED", "SIZE", "MS"), rows, right=("SIZE", "MS")), "")
    yield from (f"left out: {plain(left)}" for left in verdict.left_out)
    if not verdict.whole:
        yield "NOT EXACT: not every layer is captured. It has to be reset after a resume, and training goes on with other bits"
    elif verdict.error:
        yield "NOT EXACT: in a new process it could not be brought back, or failed after that"
        yield from (f"  {plain(line)}" for line in verdict.error.splitlines())
    elif verdict.difference is not None:
        yield "NOT EXACT: the env that was brought back in a new process is another one"
        yield from _difference(verdict.difference)
        yield "hint: something it depends on is not among what was captured: give it milepost_get_state and milepost_set_state"
    else:
        yield (
            "exact: brought back in a new process, every bit is the same, "
            f"over {counted(verdict.steps, 'step')}, {counted(verdict.episodes, 'end')} of an episode and a reset"
        )
    if verdict.whole and not verdict.error:
        took = f"captured in {verdict.capture_ms:.1f} ms, brought back in {verdict.restore_ms:.1f} ms"
        yield f"{size(verdict.size_bytes)} a save; {took}"


def _difference(found: Divergence) -> Iterator[str]:
    at = f"[{', '.join(map(str, found.index))}]" if found.index else ""
    here, there = found.values if found.count else (found.one or "nothing", found.other or "nothing")
    yield f"  {plain(_when(found.path))}{at}: {plain(here)} where it went on, {plain(there)} where it was brought back"


def _when(path: str) -> str:
    steps = path.removeprefix("extra/steps[")
    number, _, rest = steps.partition("]")
    if steps == path or not number.isdigit():
        return f"at the end, {path}"
    return f"step {int(number) + 1:,}{rest.replace('/', ', ', 1)}"
