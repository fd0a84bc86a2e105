"""Be the program ``milepost``. A verb's module is imported when that verb is asked for: to list a run needs no other."""

from __future__ import annotations

import gc
import importlib
import keyword
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

import milepost
from milepost.cli import failure

_HOMES = {
    "ls": "look",
    "show": "look",
    "diff": "compare",
    "verify": "check",
    "scrub": "scrub",
    "rollback": "change",
    "pin": "change",
    "unpin": "change",
    "gc": "collect",
    "drop": "change",
    "reset": "change",
    "sign": "change",
    "import": "importing",
    "doctor": "doctor",
    "selftest": "selftest",
    "run": "run",
    "up": "up",
    "roles": "up",
    "restart": "up",
    "drill": "drill",
    "serve": "serve",
    "status": "service",
    "top": "service",
    "fetch": "fetching",
    "unhold": "service",
    "unload": "unloading",
}
"""The module of each verb, in the order in which ``--help`` tells of them."""


class Milepost(click.Group):
    """Run one verb, and end as `milepost.cli.failure` says, whatever happens."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        given = sys.argv[1:] if args is None else list(args)
        ours = given[: given.index("--")] if "--" in given else given  # what follows is a command's own
        if args is None:
            # A list of thousands of generations is no garbage, and is not to be walked in search of it every 700 objects.
            gc.set_threshold(100_000)
        extra.setdefault("obj", {"is_a_program": args is None})
        extra["standalone_mode"] = False  # click raises instead of printing and exiting in its own way
        code = failure.run(
            lambda: super(Milepost, self).main(given, *rest, **extra),
            as_json="--json" in ours,
            verbose=not {"-v", "--verbose"}.isdisjoint(ours),
        )
        if args is None:
            gc.freeze()  # nor at the end: the process gives all of it back
        sys.exit(code)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all verbs; click asks for each when it prints help."""
        return [*_HOMES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return one verb, or None."""
        home = _HOMES.get(cmd_name)
        if home is None:
            return None
        name = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command: click.Command = getattr(importlib.import_module(f"milepost.cli.{home}"), name)
        return command


@click.group(cls=Milepost, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(milepost.__version__)
def main() -> None:
    """Keep training runs alive (run, up), try that (selftest, drill), hand weights out (serve, status, top, fetch, unhold,
    unload), and look after checkpoints (all others).

    Those take the run's directory (or url) first. A generation is called latest, latest~2, best, best:METRIC, @STEP, g000042
    or 42. A length of time is written 90s, 15m, 12h or 7d.
    """
