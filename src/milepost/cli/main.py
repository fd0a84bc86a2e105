"""Be the program ``milepost``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

import milepost
from milepost.cli import failure
from milepost.cli.change import drop, pin, reset, rollback, sign, unpin
from milepost.cli.check import verify
from milepost.cli.collect import gc
from milepost.cli.compare import diff
from milepost.cli.doctor import doctor
from milepost.cli.look import ls, show
from milepost.cli.scrub import scrub


class Milepost(click.Group):
    """Run one verb, and end as `milepost.cli.failure` says, whatever happens."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        given = sys.argv[1:] if args is None else list(args)
        extra["standalone_mode"] = False  # click raises instead of printing and exiting in its own way
        code = failure.run(
            lambda: super(Milepost, self).main(given, *rest, **extra),
            as_json="--json" in given,
            verbose=not {"-v", "--verbose"}.isdisjoint(given),
        )
        sys.exit(code)


@click.group(cls=Milepost, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(milepost.__version__)
def main() -> None:
    """Look at the checkpoints of a training run, check them, and choose where the next start begins.

    Every verb takes the run's directory (or url) first. A generation is called latest, latest~2, best, best:METRIC,
    @STEP, g000042 or 42.
    """


for command in (ls, show, diff, verify, scrub, rollback, pin, unpin, gc, drop, reset, sign, doctor):
    main.add_command(command)
