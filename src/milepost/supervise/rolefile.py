"""Read ``pipeline.toml``: every fault of the file in one error, each with its line, its role, its key and what is allowed."""

from __future__ import annotations

import difflib
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from milepost.errors import NotFoundError, UsageError
from milepost.lifecycle.amounts import seconds_of
from milepost.supervise.control import CONTROL
from milepost.supervise.environment import OF_EACH_START
from milepost.supervise.roles import Plan, Ready, Role, circle, in_order

MAX_COUNT = 4096
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ADDRESS = re.compile(r"tcp://(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>\d{1,5})")
_LIKE_AN_ADDRESS = re.compile(r"[A-Za-z0-9_.-]+:\d+")
_OF_A_SHELL = {"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1", "2>"}
OURS = frozenset({*OF_EACH_START, CONTROL, "MILEPOST_ROLE", "MILEPOST_INDEX", "MILEPOST_COUNT"})
OF_RANKS = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
_RESERVED = {"all": "'milepost restart all' means every role"}

T = TypeVar("T")


class _Unfit(Exception):
    """Say what is wrong with one value."""


def read_plan(path: Path) -> Plan:
    """Return the plan in a file. Raises `NotFoundError` (kind ``no-such-pipeline``) or `UsageError` (kind ``bad-pipeline``)."""
    try:
        text = path.read_bytes().decode("utf-8")
        tables = tomllib.loads(text)
    except FileNotFoundError as error:
        hint = "name the file: milepost up path/to/pipeline.toml"
        raise NotFoundError("there is no such file", kind="no-such-pipeline", hint=hint, path=path) from error
    except OSError as error:
        hint = "name the file itself, which this user may read: milepost up path/to/pipeline.toml"
        raise UsageError(f"the pipeline cannot be read: {error.strerror}", kind="bad-pipeline", hint=hint, path=path) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        hint = "a role begins with [role.NAME]; text stands in quotes"
        raise UsageError(f"this is not TOML: {error}", kind="bad-pipeline", hint=hint, path=path) from error
    reading = _Reading(text, path.absolute().parent)
    plan = reading.plan(tables)
    if reading.faults:
        count = len(reading.faults)
        head = f"{path.name} has {'a fault' if count == 1 else f'{count} faults'}"
        hint = "docs/pipelines.md has every key of a role"
        raise UsageError("\n".join([head, *reading.faults]), kind="bad-pipeline", hint=hint, path=path)
    return plan


@dataclass(slots=True)
class _Reading:
    """Go through one file, and collect what is wrong with it."""

    text: str
    folder: Path
    faults: list[str] = field(default_factory=list)

    def plan(self, tables: Mapping[str, Any]) -> Plan:
        for key in tables.keys() - {"role"}:
            self.fault("", key, f"unknown; the file holds roles only, each as [role.NAME]{_meant(key, ['role'])}")
        named = tables.get("role", {})
        if not isinstance(named, Mapping) or not all(isinstance(table, Mapping) for table in named.values()):
            self.fault("", "role", "is no table; a role begins with [role.NAME]")
            return Plan(())
        if not named and not self.faults:
            self.fault("", "", "there is no role; one begins with [role.NAME] and needs cmd")
        roles = [role for name, table in named.items() if (role := self.role(name, table))]
        if not self.faults:
            self.related(roles)
        return Plan(in_order(roles)[0])

    def role(self, name: str, table: Mapping[str, Any]) -> Role | None:
        if not _NAME.fullmatch(name):
            self.fault(name, "", "the name of a role is a letter, then letters, digits, _ and -, 63 at most")
        if name in _RESERVED:
            self.fault(name, "", f"this name is taken: {_RESERVED[name]}")
        for key in table.keys() - _KEYS.keys():
            self.fault(name, key, f"unknown{_meant(key, list(_KEYS))} Allowed: {', '.join(_KEYS)}")
        values = {key: value for key in _KEYS if key in table and (value := self.value(name, key, table[key])) is not None}
        if "cmd" not in table:
            self.fault(name, "cmd", 'is lacking: the command, as ["python", "train.py"]')
        if "cmd" not in values:
            return None
        if "count" in table and "ranks" in table:
            self.fault(name, "ranks", "and count exclude each other: count is for processes that do not know each other")
        is_ranks = "ranks" in table
        if is_ranks and table.get("restart") == "worker":
            self.fault(name, "restart", '"worker" is not for ranks: they start together. Allowed: "trainer", "all"')
        for variable in self.taken(values.get("env", ()), is_ranks):
            self.fault(name, "env", f"{variable} is set by milepost up itself")
        fields = {_FIELDS.get(key, key): value for key, value in values.items() if key not in ("count", "ranks", "cwd")}
        # A role that serves another has nothing to save: what it takes to end is taken from whoever has.
        usual = {"grace_s": 5.0 if values.get("until") else 30.0, "restart": "trainer" if is_ranks else "worker"}
        count, cwd = values.get("ranks") or values.get("count") or 1, self.folder / values.get("cwd", "")
        return Role(name, cwd=cwd, count=count, is_ranks=is_ranks, **usual | fields)

    def value(self, name: str, key: str, value: object) -> Any:
        try:
            return _KEYS[key](value)
        except _Unfit as unfit:
            self.fault(name, key, str(unfit))
            return None

    def taken(self, env: tuple[tuple[str, str], ...], is_ranks: bool) -> list[str]:
        return [variable for variable, _ in env if variable in (OURS | OF_RANKS if is_ranks else OURS)]

    def related(self, roles: list[Role]) -> None:
        names = [role.name for role in roles]
        for role in roles:
            for key, others in (("depends_on", role.depends_on), ("until", role.until)):
                for other in others:
                    if other not in names:
                        self.fault(role.name, key, f'there is no role "{other}"{_meant(other, names)} Roles: {", ".join(names)}')
                    elif other == role.name:
                        self.fault(role.name, key, "names the role itself")
        for key in ("depends_on", "until"):
            if not self.faults and (names_round := circle({role.name: getattr(role, key) for role in roles})):
                what = "nothing could start first" if key == "depends_on" else "none of them would ever end"
                self.fault(names_round[0], key, f"goes in a circle ({' -> '.join(names_round)}): {what}")

    def fault(self, role: str, key: str, what: str) -> None:
        where = [f"line {line}"] if (line := self.line(role, key)) else []
        where += [f"role {role}"] if role else []
        where += [key] if key else []
        self.faults.append(f"{', '.join(where)}{': ' if where else ''}{what}")

    def line(self, role: str, key: str) -> int:
        """Return the line of a key, or of its role, as far as it is written in the usual way; 0 if it is not found."""
        found, within = 0, not role
        for number, line in enumerate(self.text.splitlines(), 1):
            if header := re.match(r"\s*\[([^\]]*)\]", line):
                words = [word.strip(" \t\"'") for word in header[1].split(".")]
                within = words[:2] == ["role", role] if role else words[0] == key
                found = number if within and not found else found
                if within and words[-1] == key:
                    return number
            elif within and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
                return number
        return found


def _meant(word: str, among: list[str]) -> str:
    close = difflib.get_close_matches(word, among, 1)
    return f'; did you mean "{close[0]}"?' if close else "."


def _command(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise _Unfit(f"cannot be split into words: {error}") from error
        if shells := sorted(_OF_A_SHELL.intersection(words)):
            raise _Unfit(f'{shells[0]} is for a shell, and there is none. If you need one: ["bash", "-c", "exec …"]')
    elif isinstance(value, list) and all(isinstance(word, str) for word in value):
        words = value
    else:
        raise _Unfit('is a list of texts, as ["python", "train.py"], or one text, as "python train.py"')
    if not words or not words[0]:
        raise _Unfit("is empty")
    if any("\0" in word for word in words):
        raise _Unfit("holds a null character")
    return tuple(words)


def _whole(lowest: int, highest: int) -> Callable[[object], int]:
    def whole(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            low = "-1 (without a bound)" if lowest == -1 else lowest
            raise _Unfit(f"{_shown(value)} is not a whole number from {low} to {highest}")
        return value

    return whole


def _restart(value: object) -> str:
    if value not in ("worker", "trainer", "all"):
        raise _Unfit(f'{_shown(value)} is not known. Allowed: "worker", "trainer", "all"')
    return str(value)


def _names(value: object) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _Unfit('is the name of a role, or a list of them, as ["service"]')
    return tuple(dict.fromkeys(names))


def _env(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping):
        raise _Unfit('is a table of texts, as { OMP_NUM_THREADS = "1" }')
    for name, text in value.items():
        if not _VARIABLE.fullmatch(name):
            raise _Unfit(f"{_shown(name)} is not the name of an environment variable")
        if not isinstance(text, str) or "\0" in text:
            raise _Unfit(f'{name} is to be text: write {name} = "{text}"')
    return tuple(value.items())


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _Unfit(f"{_shown(value)} is not a path")
    return value


def _ready(value: object) -> Ready:
    text = _text(value)
    if found := _ADDRESS.fullmatch(text):
        if not 0 < int(found["port"]) < 65536:
            raise _Unfit(f"{_shown(value)}: a port is a number from 1 to 65535")
        return Ready(host=found["host"].strip("[]"), port=int(found["port"]))
    if _LIKE_AN_ADDRESS.fullmatch(text):
        raise _Unfit(f'write "tcp://{text}" for an address, "./{text}" for a file')
    if "://" in text:
        raise _Unfit(f'{_shown(value)} is neither a path nor an address, as "tcp://127.0.0.1:7000"')
    return Ready(path=text)


def _seconds(value: object) -> float:
    try:
        return seconds_of(value if isinstance(value, str) else _number(value))
    except UsageError as error:
        raise _Unfit(f"{_shown(value)} is not a length of time ({error.hint})") from error


def _above_0(value: object) -> float:
    seconds = _seconds(value)
    if seconds <= 0:
        raise _Unfit(f"{_shown(value)} is no time at all: it is to be above 0")
    return seconds


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Unfit(f"{_shown(value)} is not a length of time (like 90s, 15m, 12h)")
    return float(value)


def _hang(value: object) -> float | str:
    return value if isinstance(value, str) and value in ("auto", "off") else _above_0(value)


def _shown(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


_KEYS: Mapping[str, Callable[[object], Any]] = {
    "cmd": _command,
    "count": _whole(1, MAX_COUNT),
    "ranks": _whole(1, MAX_COUNT),
    "restart": _restart,
    "depends_on": _names,
    "until": _names,
    "ready": _ready,
    "ready_within": _above_0,
    "env": _env,
    "cwd": _text,
    "grace": _above_0,
    "hang_after": _hang,
    "max_failures": _whole(-1, 10**6),
    "max_infrastructure": _whole(-1, 10**6),
    "max_preemptions": _whole(-1, 10**6),
}
"""Every key of a role, and who reads its value."""
_FIELDS = {"cmd": "command", "ready_within": "ready_within_s", "grace": "grace_s"}
