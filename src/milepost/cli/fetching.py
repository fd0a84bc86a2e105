"""Take a version of a checkpoint service out as files (``fetch``): from the service, or from what it has left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from milepost.cli import document
from milepost.cli.failure import SCHEMA_VERSION
from milepost.cli.progress import progress
from milepost.cli.service import of_a_service
from milepost.cli.text import plain, size
from milepost.clock import Clock, SystemClock
from milepost.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from milepost.service.asking import Reach
    from milepost.service.core.records import Weights
    from milepost.service.standing import Standing
    from milepost.service.writing_out import Part

_VERSION = re.compile(r"v?(\d{1,18})", re.ASCII)


@of_a_service
@click.option("--to", required=True, type=click.Path(file_okay=False), help="The directory to make.")
@click.option("--at", "version", metavar="VERSION", help="Not the live one: v42, or 42.")
@click.option("--step", type=click.IntRange(0), help="Not the live one: the newest of this step that training has not left.")
@click.option("--part", "parts", multiple=True, help="Only this part, like weights; more than one may be given.  [default: all]")
@click.option("--force", is_flag=True, help="Replace files of the same names in a directory that is not empty.")
def fetch(
    reach: Reach, to: str, version: str | None, step: int | None, parts: tuple[str, ...], force: bool, as_json: bool
) -> int:
    """Write weights of a checkpoint service into a directory.

    As safetensors files, of the live version unless another is named: milepost fetch runs/ppo --to out. A version.json beside
    them says which. All bytes are checked, and the directory appears whole or not at all. Where no service answers the version is
    taken from what it has left.
    """
    from milepost.cli.service_document import of_weights
    from milepost.service.looking import look
    from milepost.service.writing_out import write_out

    clock = SystemClock()
    standing = look(reach, clock).standing
    chosen = choose(standing, _number(version), step, reach.where)
    slots = _slots(chosen, parts)
    files = {slot: f"{slot}.safetensors" for slot in slots}
    record = {"message_type": "version", "schema_version": SCHEMA_VERSION} | of_weights(chosen) | {"files": files}
    total = sum(shard.size_bytes for shard in chosen.shards if shard.slot in slots)
    data = json.dumps(record, indent=2).encode() + b"\n"
    with (
        _parts_of(chosen, slots, reach, clock, is_served=standing.serving is not None) as found,
        progress("fetch", total, quiet=as_json) as shown,
    ):
        names = write_out(to, found, data, clock, force=force, progress=shown.advance)
    if as_json:
        click.echo(document.encode("fetch", reach.where, {"to": to, "version": of_weights(chosen), "files": files}))
    else:
        step_text = f"{chosen.at} (step {chosen.version.step:,}, {size(total)})"
        click.echo(f"{step_text} is in {plain(to)}: {', '.join(map(plain, names))}")
    return 0


def choose(standing: Standing, number: int | None, step: int | None, where: str) -> Weights:
    """Return the version that is meant: of this number, the newest of this step, or the live one. Raises `NotFoundError`."""
    if number is not None and step is not None:
        raise UsageError("--at and --step are two versions", kind="usage", hint="give one of them")
    if number is None and step is None:
        if standing.live is None:
            raise NotFoundError("nothing has been committed yet", kind="no-version", hint="milepost status", service=where)
        return standing.live
    there = [each for each in standing.versions if number == each.weights.at.number or (step is not None and not each.is_lost)]
    found = [each.weights for each in there if step in (None, each.weights.version.step)]
    if found:
        return max(found, key=lambda weights: weights.at)
    hint = f"milepost status {plain(where)} shows which there are"
    if step is not None and there:
        nearest = min(there, key=lambda each: abs(each.weights.version.step - step)).weights.version.step
        hint = f"nearest: --step {nearest}; {hint}"
    wanted = f"v{number}" if number is not None else None
    raise NotFoundError("the bytes of such a version are not kept here", kind="gone", hint=hint, version=wanted, step=step)


def _number(version: str | None) -> int | None:
    if version is None:
        return None
    found = _VERSION.fullmatch(version)
    if found is None:
        raise UsageError("this does not name a version", kind="bad-ref", hint="like v42, or 42", at=version)
    return int(found[1])


def _slots(weights: Weights, parts: Sequence[str]) -> list[str]:
    from milepost.service.client.weights import part_of

    there = [shard.slot for shard in weights.shards]
    for part in parts:
        if part not in there and part not in map(part_of, there):
            raise NotFoundError(
                "this version has no such part", kind="no-such-part", hint=f"it has {', '.join(there)}", part=part
            )
    return [slot for slot in there if not parts or slot in parts or part_of(slot) in parts]


@contextmanager
def _parts_of(weights: Weights, slots: list[str], reach: Reach, clock: Clock, *, is_served: bool) -> Iterator[list[Part]]:
    if not is_served:
        assert reach.root is not None
        yield _left(weights, slots, reach.root, clock)
        return
    from milepost.service.client.client import connect
    from milepost.service.index import Chunks
    from milepost.service.standing import OPERATOR

    with connect(reach.where, component=OPERATOR, role="sampler", token=reach.token, tls=reach.tls) as client:
        taken = client.fetch(want="exact", at=weights.at, parts=slots, has=None)
        assert taken is not None
        with taken:
            yield [_part(slot, Chunks.of(view), view) for slot, view in taken.files().items()]


def _part(slot: str, chunks: Any, view: memoryview) -> Part:
    from milepost.service.writing_out import Part

    def read_into(start: int, into: memoryview) -> None:
        into[:] = view[start : start + len(into)]

    return Part(slot, chunks, read_into)


def _left(weights: Weights, slots: list[str], root: str, clock: Clock) -> list[Part]:
    """Return parts that lie in a tier of a service that does not run; on disk, if they do: what is there needs no service."""
    from milepost.service.index import blob_of, place_of_weights
    from milepost.service.resting import read_rest
    from milepost.service.transports.base import Blob
    from milepost.service.writing_out import Part

    rest, place = read_rest(root, clock), place_of_weights(weights)
    tier = rest.disk if "disk" in rest.tiers(weights.at) else rest.memory
    index = tier.index(place)
    if index is None:
        raise NotFoundError(
            "the bytes of this version have just gone", kind="gone", hint="a service has begun: again", at=weights.at
        )

    def part(slot: str) -> Part:
        return Part(slot, index.chunks[slot], lambda start, into: tier.read_into(Blob(place, blob_of(slot)), start, into))

    return [part(slot) for slot in slots]
