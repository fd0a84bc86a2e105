"""Change what a checkpoint service hands out: have an older version live again."""

from __future__ import annotations

import click

from milepost.cli import document
from milepost.cli.service_document import of_weights
from milepost.cli.text import plain
from milepost.errors import ServiceError
from milepost.service.asking import Asking, Reach


def go_back(reach: Reach, number: int, reason: str, *, as_json: bool) -> None:
    """Make version ``number`` live again, and say what that means for whom."""
    with Asking(reach) as asking:
        before = asking.standing()
        asking.roll_back(number, reason)
        after = asking.standing()
    live, was = after.live, before.live
    if live is None or live.at.number != number:
        hint = f"milepost status {plain(reach.where)} says what is live"
        raise ServiceError("another version has come meanwhile", kind="overtaken", hint=hint, live=str(live and live.at))
    if as_json:
        fields = {"was": of_weights(was) if was else None, "live": of_weights(live)}
        click.echo(document.encode("rollback", reach.where, fields))
        return
    if was is not None and was.at == live.at:
        click.echo(f"{live.at} (step {live.version.step:,}) is live already")
        return
    click.echo(
        f"{live.at} (step {live.version.step:,}) is live again, and what came after it a lost branch; samplers get it with their "
        f"next fetch\nthe trainer goes on as it was, and its commits are refused until it goes on from {live.at} or before"
    )
