"""Give back the memory of a checkpoint service whose run is over: ``unload``."""

from __future__ import annotations

import os

import click

from milepost.cli import document
from milepost.cli.options import need_service
from milepost.cli.text import plain, size
from milepost.clock import SystemClock
from milepost.errors import NotFoundError


@click.command()
@click.argument("root", type=click.Path(file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of a failure.")
def unload(root: str, as_json: bool) -> int:
    """Give back the memory of a checkpoint service whose run is over.

    Versions in memory outlive the service, for its next start. Here each that is nowhere else is written to disk first, and then
    all of them are removed from memory; a service that is started later goes on from what is on disk. To be said on the machine
    that it ran on. Exits with 11 while a service has the root, and changes nothing then.
    """
    need_service()
    from milepost.cli.service_document import of_weights
    from milepost.service.unloading import unload as unload_memory

    if not os.path.isdir(root):
        raise NotFoundError("there is no such run root", kind="no-such-root", hint="give a run root that is there", root=root)
    done = unload_memory(root, SystemClock())
    if as_json:
        spilled = [of_weights(each) for each in done.spilled]
        fields = {"freed_bytes": done.freed_bytes, "brought_to_disk": spilled, "directory": done.directory}
        click.echo(document.encode("unload", root, fields))
        return 0
    for each in done.spilled:
        click.echo(f"{each.at} (step {each.version.step:,}, {size(each.size_bytes)}) was in memory only, and is on disk now")
    nothing = f"nothing of {plain(root)} is in this machine's memory"
    click.echo(f"gave back {size(done.freed_bytes)} of memory" if done.freed_bytes else nothing)
    return 0
