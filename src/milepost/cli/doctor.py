"""Look at what a run stands on: ``doctor fs`` tries a file system, and says what is promised there; ``doctor env`` an env."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from milepost.cli import document
from milepost.cli.doctor_env import env
from milepost.cli.text import plain, size, table
from milepost.clock import SystemClock
from milepost.store.posix import Posix

if TYPE_CHECKING:
    from milepost.store.place import Place
    from milepost.store.probe import Check, Findings

LACKING = 1

_WHAT = {
    "write": "write and read back",
    "exclusive_create": "exclusive create (O_EXCL)",
    "hard_links": "hard links",
    "rename_without_replacing": "rename without replacing",
    "atomic_replace": "atomic replace (rename)",
    "append": "append (O_APPEND)",
    "fsync_file": "fsync of a file",
    "fsync_directory": "fsync of a directory",
    "locks": "locks between processes (flock)",
    "long_names": "long names",
    "long_paths": "room for longer paths",
    "case_sensitive": "upper and lower case differ",
}
_KIND = {
    "disk": "a disk of this machine",
    "memory": "memory of this machine",
    "overlay": "layers over another file system, as in a container",
    "network": "a network file system",
    "fuse": "a program behind FUSE",
    "unknown": "a file system milepost knows nothing about",
}
_ELSEWHERE = "put the run root on a local disk, NFS, Lustre or another file system that has it"
_LACKS = {
    "writable": ("nothing can be written here", "check owner, mode and mount: ls -ld, findmnt -T"),
    "write": ("bytes do not come back as they were written", _ELSEWHERE),
    "atomic_create": ("of two writers that create one name neither can be told that it was second", _ELSEWHERE),
    "atomic_replace": ("a file cannot be replaced as a whole", _ELSEWHERE),
    "fsync_file": ("bytes cannot be made durable", _ELSEWHERE),
    "fsync_directory": ("names cannot be made durable", _ELSEWHERE),
    "locks": ("there are no locks", "mount it with flock; or make sure of one writer yourself and start with --take-over"),
    "long_names": ("names are too short for milepost's", _ELSEWHERE),
    "long_paths": ("the path is too long for what lies below a run root", "choose a shorter path"),
}
_EVENTS = (("kill", "a kill"), ("power-cut", "a power cut"), ("machine-loss", "the loss of this machine"))


@click.group()
def doctor() -> None:
    """Look at what a run stands on."""


doctor.add_command(env)


@doctor.command()
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of a failure.")
def fs(path: str, as_json: bool) -> int:
    """Try the file system at PATH, and say what is promised there.

    PATH is a run root, or where one is to be. Works in a directory of its own below it, and removes that again. Exits
    with 1 if something is missing that training stands on.
    """
    from milepost.store.probe import probe  # not at the top: no other command should pay for it

    found = probe(path, SystemClock(), Posix())
    click.echo(document.encode("doctor_fs", path, _document(found)) if as_json else "\n".join(_lines(found)))
    return LACKING if found.lacks else 0


def _document(found: Findings) -> document.Document:
    place = dataclasses.asdict(found.place) | {"kind": found.place.kind}
    fields = {
        field.name: getattr(found, field.name) for field in dataclasses.fields(found) if field.name not in ("checks", "place")
    }
    return fields | {
        "place": place,
        "checks": [dataclasses.asdict(check) for check in found.checks],
        "survives": {name: _survives(found, name) for name, _ in _EVENTS},
        "writers_kept_apart": _kept_apart(found),
        "lacks": [{"name": name, "message": _LACKS[name][0], "hint": _LACKS[name][1]} for name in found.lacks],
        "notes": list(_notes(found)),
    }


def _lines(found: Findings) -> Iterator[str]:
    yield f"{plain(found.path)}: {_described(found.place)}"
    space = [f"{size(found.free_bytes)} free" if found.free_bytes is not None else ""]
    space.append(f"{found.free_inodes:,} inodes free" if found.free_inodes is not None else "")
    if found.file_mode is not None and found.directory_mode is not None:
        space.append(f"files are made with mode {found.file_mode:04o}, directories with {found.directory_mode:04o}")
    yield "; ".join(filter(None, space))
    if found.checks:
        yield ""
        yield from table(("", "", ""), [_row(found, check) for check in found.checks])
    yield ""
    yield from _promises(found)
    yield from (f"note: {plain(note)}" for note in _notes(found))
    yield from (f"missing: {_LACKS[name][0]}\nhint: {_LACKS[name][1]}" for name in found.lacks)


def _described(place: Place) -> str:
    if not place.file_system:
        return "this system does not say which file system it is"
    of = f" ({plain(place.source)})" if place.source not in ("", "none", place.file_system) else ""
    at = f"{plain(place.file_system)} at {plain(place.mount_point)}{of}, {_KIND[place.kind]}"
    return f"{at}\nmounted {plain(','.join(place.options))}"


def _row(found: Findings, check: Check) -> tuple[str, str, str]:
    measured = {"fsync_file": found.fsync_us, "fsync_directory": found.directory_fsync_us}.get(check.name)
    detail = check.detail or ("" if measured is None else f"{measured:,.0f} us, the median of a few here")
    return (_WHAT[check.name], check.outcome, plain(detail))


def _promises(found: Findings) -> Iterator[str]:
    if found.refusal:
        yield f"a run that lies here can be read (ls, show, verify, load), but not trained: {plain(found.refusal)}"
        return
    yield "what milepost promises here:"
    said = "; ".join(f"{what}: {_survives(found, name)}" for name, what in _EVENTS)
    yield f"- an acknowledged save survives {said}"
    how = "hard link" if found.can("hard_links") else "rename"
    yield f"- a save is there whole or not at all: {f'yes (by {how})' if found.creates_atomically else 'no'}"
    yield {
        "everywhere": "- a second writer is kept out by a lock, on this machine and on others that mount this alike",
        "this machine": "- a second writer on this machine is kept out by a lock",
        "terms only": "- a second writer is not kept out; but of two only the one that came later can save (by the terms)",
    }[_kept_apart(found)]
    if _kept_apart(found) == "this machine" and found.place.kind in ("network", "fuse", "unknown"):
        yield "- one on another machine is not; but of two only the one that came later can save (by the terms)"


def _survives(found: Findings, event: str) -> str:
    order = ["nothing", *(name for name, _ in _EVENTS)]
    if found.refusal or order.index(event) > order.index(found.place.survives):
        return "no"
    if event == "kill":
        return "yes" if found.creates_atomically and found.can("atomic_replace") else "no"
    if not (found.can("fsync_file") and found.names_are_durable):
        return "no"
    return "in doubt" if found.fsync_is_doubtful else "yes"


def _kept_apart(found: Findings) -> str:
    if not found.can("locks"):
        return "terms only"
    return "everywhere" if found.place.locks_reach_other_hosts else "this machine"


def _notes(found: Findings) -> Iterator[str]:
    place = found.place
    if found.fsync_is_doubtful:
        yield (
            f"an fsync that takes {found.fsync_us:.1f} us writes nothing: is this memory after all, is libeatmydata loaded,"
            " or does the host of this machine not pass it on?"
        )
    if not place.flushes:
        yield "it is mounted so that fsync does not wait for the disk"
    if place.kind == "memory":
        yield "what lies in memory is gone when the machine restarts"
    if place.kind == "overlay":
        yield "the layer of a container goes when the container is removed: mount a volume for the run root"
    if place.kind == "fuse":
        yield "what fsync is worth is up to the program behind the mount: read its manual, and promise yourself no more"
    if place.kind == "unknown":
        yield "milepost does not know this file system; what it promises stands and falls with its fsync"
    if place.kind == "network":
        yield "a network file system keeps what its server keeps: an NFS export with async loses saves when the server fails"
    if place.listings_may_lag:
        yield "it is mounted nocto: a start on another machine may not see the newest save of the last minute. Mount it without"
    if found.clock_ahead_s is not None and abs(found.clock_ahead_s) > 5:
        ahead = "ahead of" if found.clock_ahead_s > 0 else "behind"
        yield f"the clock that stamps files is {abs(found.clock_ahead_s):,.0f} s {ahead} this machine's; nothing is decided by it"
    if found.free_inodes == 0:
        yield "no inode is left: no file can be made"
