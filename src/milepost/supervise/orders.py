"""Name what can be ordered of a running pipeline by a decision made elsewhere, and how that is written on a line. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from milepost.errors import MilepostError, NotFoundError, UsageError
from milepost.supervise.roles import Place, Plan

VERSION = 1
MAX_LINE_BYTES = 64 << 10
_LONGEST_TEXT = 1024


@dataclass(frozen=True, slots=True)
class RestartWorker:
    """Start one process again; of a group of ranks all of them, since none can come back alone.

    ``attempt``: the start that the decision was made about (``MILEPOST_ATTEMPT``). Where a later one runs already the
    order is carried out: whoever saw the same failure was faster. None: start it again whatever runs.
    ``now``: kill it at once, where it is known to hang; else it has its grace period to save.
    """

    role: str
    index: int
    attempt: int | None = None
    now: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class RestartRole:
    """Start all processes of one role again, as a group. ``attempt``: as above, of each of them."""

    role: str
    attempt: int | None = None
    now: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class RestartAll:
    """End everything in good order, and start all again that was not done."""

    now: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """Change nothing; ask what runs."""


Order: TypeAlias = RestartWorker | RestartRole | RestartAll | Look
KINDS: Mapping[str, type[RestartWorker | RestartRole | RestartAll | Look]] = {
    "restart-worker": RestartWorker,
    "restart-role": RestartRole,
    "restart-all": RestartAll,
    "roles": Look,
}


@dataclass(frozen=True, slots=True)
class Standing:
    """Say how one process of a pipeline stands."""

    role: str
    index: int
    standing: str
    """``waiting``, ``starting``, ``ready``, ``stopping`` or ``done``."""
    pid: int
    """0 where none runs."""
    attempt: int
    """How often it was started."""
    why: str = ""
    """Why it was started the last time, or is waiting."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Say how an order was carried out."""

    outcome: str
    """``restarted``; ``already``: all of it had been started again since; ``seen`` for a `Look`."""
    standings: tuple[Standing, ...]
    """Of what the order named."""


def targets(plan: Plan, order: Order, finished: frozenset[str]) -> frozenset[Place]:
    """Return the places that an order starts again. Raises `NotFoundError` (``no-such-role``, ``no-such-worker``)."""
    if isinstance(order, Look):
        return frozenset()
    if isinstance(order, RestartAll):
        return frozenset(place for place in plan.places if place.role not in finished)
    if order.role not in plan:
        names = ", ".join(role.name for role in plan.roles)
        raise NotFoundError("there is no such role", kind="no-such-role", hint=f"its roles: {names}", role=order.role)
    role = plan[order.role]
    if isinstance(order, RestartRole):
        return frozenset(role.places)
    if not 0 <= order.index < role.count:
        hint = f"they are numbered from 0 to {role.count - 1}"
        raise NotFoundError("there is no such worker", kind="no-such-worker", hint=hint, role=order.role, index=order.index)
    return plan.unit(Place(order.role, order.index))


def written(order: Order, key: str) -> bytes:
    """Return an order as a line."""
    name = next(name for name, kind in KINDS.items() if type(order) is kind)
    defaults = {field.name: field.default for field in dataclasses.fields(order)}
    fields = {field: value for field, value in dataclasses.asdict(order).items() if value is not defaults[field]}
    return _line({"version": VERSION, "order": name} | ({"key": key} if key else {}) | fields)


def read(line: bytes) -> tuple[Order, str]:
    """Return the order on a line, and its key. Raises `UsageError` (kind ``bad-order``), whatever the line holds."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _bad("this line is no JSON") from error
    if not isinstance(given, dict):
        raise _bad("an order is a JSON object")
    version, name, key = (given.pop(field, None) for field in ("version", "order", "key"))
    if version != VERSION or isinstance(version, bool):
        raise _bad(f"this milepost up speaks version {VERSION} of the control protocol", version=version)
    if not isinstance(name, str) or name not in KINDS:
        raise _bad(f"an order is one of {', '.join(KINDS)}", order=name)
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= 200):
        raise _bad("a key is a text of 1 to 200 characters")
    kind = KINDS[name]
    types = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    for field, value in given.items():
        if field not in types:
            # What it does not know could change what the order means: it is not carried out half understood.
            raise _bad(f"{name} knows only {', '.join(types) or 'no fields'}", field=field)
        if not _fits(value, types[field]):
            raise _bad(f"{field} of {name} is to be {types[field]}", given=str(value)[:60])
    needed = {field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING}
    if lacking := needed - given.keys():
        raise _bad(f"{name} needs {', '.join(sorted(lacking))}")
    return kind(**given), key or ""


def answered(key: str, answer: Answer | MilepostError) -> bytes:
    """Return an answer as a line."""
    if isinstance(answer, Answer):
        return _line({"version": VERSION, "ok": True, "key": key} | dataclasses.asdict(answer))
    facts = {name: str(value) for name, value in answer.facts.items() if value is not None}
    error = {"kind": answer.kind, "message": answer.message, "hint": answer.hint, "facts": facts, "exit_code": answer.exit_code}
    return _line({"version": VERSION, "ok": False, "key": key, "error": error})


def _fits(value: object, wanted: str) -> bool:
    if wanted == "bool":
        return isinstance(value, bool)
    if wanted == "str":
        return isinstance(value, str) and len(value) <= _LONGEST_TEXT
    is_number = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53
    return is_number or (value is None and "None" in wanted)


def _bad(message: str, **facts: object) -> UsageError:
    return UsageError(message, kind="bad-order", hint="docs/pipelines.md has the lines of the control socket", **facts)


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"
