"""Change what the next start begins from, and what stays: ``rollback``, ``reset``, ``drop``, ``sign``, ``pin``, ``unpin``."""

from __future__ import annotations

import os

import click

from milepost.cli import document
from milepost.cli.options import need_service, open_store, verb
from milepost.cli.progress import progress
from milepost.cli.refs import numbered, resolve, version_numbered
from milepost.cli.service import how_to_reach, reach
from milepost.cli.text import plain
from milepost.errors import NotFoundError
from milepost.publish import pins
from milepost.publish.view import read
from milepost.records import Summary
from milepost.store.base import Store
from milepost.text import name_of

_take_over = click.option(
    "--take-over", is_flag=True, help="Claim the run from a process that holds its lock; that process can save no more."
)


@verb
@click.argument("ref")
@_take_over
@click.option("--reason", default="", help="Of a version: why, for the log.")
@how_to_reach
def rollback(root: str, ref: str, take_over: bool, reason: str, as_json: bool, **how: str | None) -> None:
    """Make an older generation the newest again, or version v42 live.

    A new generation is published with the same content. History only grows: what came after it stays until retention takes it.
    A version is a checkpoint service's: samplers get it with their next fetch. ROOT may be the service's HOST:PORT then.
    """
    if (version := version_numbered(ref)) is not None:
        need_service()
        from milepost.cli.service_change import go_back

        go_back(reach(root, **how), version, reason, as_json=as_json)
        return
    from milepost.engine import oneshot  # it brings numpy, which looking at a run does without

    store = open_store(root)
    target = _target(store, ref, root)
    with progress("rollback", target.total_bytes, quiet=as_json) as shown:
        made = oneshot.rollback(store, target.number, take_over=take_over, progress=shown.advance)
    if as_json:
        click.echo(document.encode("rollback", root, {"to": target.number, "generation": document.of_new(made)}))
        return
    click.echo(f"{name_of(made.number)} is the newest now, with the content of {name_of(target.number)} (step {made.step:,})")
    if _has_service(root):
        click.echo(
            f"its checkpoint service hands out what it did: milepost status {plain(root)}, then rollback to one of its versions"
        )


def _target(store: Store, ref: str, root: str) -> Summary:
    try:
        return resolve(read(store), ref, root)
    except NotFoundError as error:
        if _has_service(root) and numbered(ref) is not None:
            error.hint = (
                f"a version of its checkpoint service is called v{numbered(ref)}: milepost rollback {root} v{numbered(ref)}"
            )
        raise


def _has_service(root: str) -> bool:
    return os.path.isdir(os.path.join(root, "service"))


@verb
@_take_over
def reset(root: str, take_over: bool, as_json: bool) -> None:
    """Set the run aside, so that the next start is a fresh one.

    It stays within its directory, whole, as a run root of its own.
    """
    from milepost.engine import oneshot  # it brings numpy, which looking at a run does without

    store = open_store(root)
    record = oneshot.reset(store, take_over=take_over)
    if as_json:
        fields = {"run_id": record.run_id, "new_run_id": read(store).run_id, "moved_to": record.to}
        click.echo(document.encode("reset", root, fields))
        return
    aside = plain(f"{root.rstrip('/')}/{record.to.rstrip('/')}")
    click.echo(f"run {record.run_id} is set aside; the next start is a fresh one\nmilepost ls {aside} shows what it was")


@verb
@click.argument("ref", metavar="NUMBER")
@_take_over
def drop(root: str, ref: str, take_over: bool, as_json: bool) -> None:
    """Give up a generation whose manifest cannot be read.

    Until then nothing as old as it is ever deleted, since it may stand on that.
    """
    from milepost.engine import oneshot  # it brings numpy, which looking at a run does without

    store = open_store(root)
    number = numbered(ref)
    if number is None:
        number = resolve(read(store), ref, root).number  # which can be read, and so is refused by the same words
    oneshot.drop(store, number, take_over=take_over)
    _say("drop", root, number, f"{name_of(number)} is given up; the next start deletes what it alone had named", as_json)


@verb
@click.argument("to", type=click.Path(file_okay=False))
def sign(root: str, to: str, as_json: bool) -> None:
    """Copy a run that was saved without a key to a new root, signed.

    It takes the newest sound generation. Train on from the copy: from now on you vouch for what was copied. The old run
    stays as it is.
    """
    from milepost.engine import oneshot  # it brings numpy, which looking at a run does without

    made = oneshot.sign(root, open_store(to))
    text = f"{plain(to)} holds it, signed, as {name_of(made.number)} (step {made.step:,})"
    fields = {"to": to, "generation": document.of_new(made)}
    click.echo(document.encode("sign", root, fields) if as_json else text)


@verb
@click.argument("ref", default="latest")
def pin(root: str, ref: str, as_json: bool) -> None:
    """Keep a generation whatever retention says, until it is unpinned.

    That is the latest by default.
    """
    store = open_store(root)
    while True:
        number = resolve(read(store), ref, root).number
        try:
            found = pins.pin(store, number, by="milepost pin")
            break
        except NotFoundError:
            # A trainer has retired it since it was looked up: `latest` is another one by now.
            if resolve(read(store), ref, root).number == number:
                raise
    _say("pin", root, found.number, f"{name_of(found.number)} (step {found.step:,}) stays until it is unpinned", as_json)


@verb
@click.argument("ref")
def unpin(root: str, ref: str, as_json: bool) -> None:
    """Leave a generation to retention again. The next save may take it."""
    store = open_store(root)
    view = read(store)
    number = numbered(ref)
    if number is None:
        number = resolve(view, ref, root).number
    pins.unpin(store, number)
    what = "is left to retention again" if number in view.pins else "was not pinned"
    _say("unpin", root, number, f"{name_of(number)} {what}", as_json)


def _say(message_type: str, root: str, number: int, text: str, as_json: bool) -> None:
    fields = {"number": number, "name": name_of(number)}
    click.echo(document.encode(message_type, root, fields) if as_json else text)
