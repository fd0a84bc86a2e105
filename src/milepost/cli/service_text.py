"""Say for people how a service stands: the lines of ``status`` and ``top``. Pure: a `Standing` in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from milepost.cli.text import counted, duration, plain, size, table
from milepost.service.core.records import Weights
from milepost.service.standing import OPERATOR, ComponentStanding, StagingStanding, Standing, VersionStanding, lag_of

_VERSIONS = ("VERSION", "STEP", "AGE", "SIZE", "WHERE", "STATE", "READERS", "GENERATION")
_COMPONENTS = ("COMPONENT", "ROLE", "HAS", "BEHIND", "HEARD", "PID", "MACHINE")
_RISE, _BYTES = ("commits", "fetches"), "bytes."
"""The counts that only rise while one process counts."""
_NAMED = 4
"""How many parts that are missing, or components that are gone, are named."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Say how often something happened each second, between two looks."""

    commits: float
    fetches: float
    bytes_s: float

    @classmethod
    def between(cls, before: Mapping[str, int], now: Mapping[str, int], seconds: float) -> Rates | None:
        """Return what two looks at the same process tell; None if there was no time between them, or another process."""
        since = {name: count - before.get(name, 0) for name, count in now.items() if name in _RISE or name.startswith(_BYTES)}
        if seconds <= 0 or min(since.values(), default=0) < 0:
            return None
        moved = sum(count for name, count in since.items() if name.startswith(_BYTES))
        return cls(since.get("commits", 0) / seconds, since.get("fetches", 0) / seconds, moved / seconds)


def lines_of(
    standing: Standing,
    where: str,
    now_ns: int,
    rest: str = "not running",
    rates: Rates | None = None,
    advice: str = "",
    *,
    is_over: bool = False,
) -> list[str]:
    """Return all that is said of a service.

    ``where`` is how the user named it; ``rest`` says that nobody answers, ``advice`` what to do then; ``is_over``:
    no process has what it keeps in memory.
    """
    return [
        *_head(standing, now_ns, rest, rates),
        *_section(
            _VERSIONS, [_version(each, standing, now_ns) for each in standing.versions], ("STEP", "AGE", "SIZE", "READERS")
        ),
        *_section(_COMPONENTS, [_component(each, standing) for each in standing.components if is_here(each)], ("HEARD", "PID")),
        *_remarks(standing, plain(where), plain(advice), is_over=is_over),
    ]


def _head(standing: Standing, now_ns: int, rest: str, rates: Rates | None) -> Iterator[str]:
    serving = standing.serving
    if serving is None:
        yield f"{plain(rest)}; {_pointers(standing)}"
    else:
        up = f"pid {serving.pid}, term {standing.term}, up {duration(serving.uptime_s)}"
        yield f"run {plain(standing.run_id)} at {plain(serving.address)} ({up})"
    yield from table(
        ("", ""), [*_pointer_rows(standing, now_ns), ("memory", _memory(standing)), ("disk", size(standing.disk_bytes))]
    )
    if rates is not None:
        moved = f"{size(round(rates.bytes_s))}/s"
        yield f"{rates.commits:.3g} commits/s  {rates.fetches:.3g} fetches/s  {moved} over links"


def _pointers(standing: Standing) -> str:
    live, durable = standing.live, standing.durable
    if live is None:
        return "no version yet"
    return f"live {live.at} step {live.version.step:,}, durable {durable.at if durable is not None else 'none'}"


def _pointer_rows(standing: Standing, now_ns: int) -> Iterator[tuple[str, str]]:
    for name, weights in (("live", standing.live), ("durable", standing.durable)):
        yield name, "none" if weights is None else _named(weights, now_ns)


def _named(weights: Weights, now_ns: int) -> str:
    age = _age(weights, now_ns)
    return f"{weights.at}  step {weights.version.step:,}  {size(weights.size_bytes)}  {age} old  from {plain(weights.producer)}"


def _memory(standing: Standing) -> str:
    limit = standing.memory_limit_bytes
    return size(standing.memory_bytes) + (f" of {size(limit)}" if limit is not None else "")


def _age(weights: Weights, now_ns: int) -> str:
    return duration((now_ns - weights.version.commit_timestamp) / 1e9)


def _section(head: tuple[str, ...], rows: list[tuple[str, ...]], right: tuple[str, ...]) -> Iterator[str]:
    if rows:
        yield from ("", *table(head, rows, right=right))


def _version(each: VersionStanding, standing: Standing, now_ns: int) -> tuple[str, ...]:
    weights = each.weights
    return (
        str(weights.at),
        f"{weights.version.step:,}",
        _age(weights, now_ns),
        size(weights.size_bytes),
        " ".join(each.tiers),
        state_of(each, standing),
        str(each.readers or ""),
        "" if each.generation is None else f"g{each.generation:06}",
    )


def state_of(each: VersionStanding, standing: Standing) -> str:
    """Return what a version counts for, in a word or two."""
    at = each.weights.at
    if each.is_lost:
        return "lost branch"
    named = [name for name, weights in (("live", standing.live), ("durable", standing.durable)) if weights and weights.at == at]
    return " ".join(named)


def _component(each: ComponentStanding, standing: Standing) -> tuple[str, ...]:
    return (
        plain(each.component),
        each.role,
        str(each.has or ""),
        behind(each, standing),
        "" if each.silent_s is None else f"{duration(each.silent_s)} ago",
        str(each.pid or ""),
        plain(each.machine),
    )


def is_here(each: ComponentStanding) -> bool:
    """Say whether a component was heard of at all; one that hangs was, once."""
    return each.silent_s is not None


def behind(each: ComponentStanding, standing: Standing) -> str:
    """Return how far a reader is behind, in words."""
    if each.has_lost:
        return "lost branch"
    lag = lag_of(standing, each)
    if lag is None:
        return ""
    return f"{counted(lag.versions, 'version')}, {counted(lag.steps, 'step')}" if lag.versions > 0 else "nothing"


def _remarks(standing: Standing, where: str, advice: str, *, is_over: bool) -> Iterator[str]:
    """Yield what somebody has to know who was woken for this."""
    remarks = [*_gone(standing), *map(_coming, standing.stagings), *_held(standing, where)]
    if standing.last_failure:
        remarks.append(f"the disk has refused: {plain(standing.last_failure)}")
    if is_over and standing.memory_bytes:
        kept = f"{size(standing.memory_bytes)} of memory are kept for the next start"
        remarks.append(f"{kept}; once the run is over milepost unload {where} gives them back")
    if advice:
        remarks.append(advice)
    yield from ("", *remarks) if remarks else ()


def _held(standing: Standing, where: str) -> Iterator[str]:
    if standing.held_by:
        yield f"held by {plain(standing.held_by)}: no fetch is answered until it resumes; milepost unhold {where} ends that"


def _gone(standing: Standing) -> Iterator[str]:
    names = [plain(each.component) for each in standing.components if not is_here(each) and each.component != OPERATOR]
    if names:
        named = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        why = "ended, or not heard of since the service began" if standing.serving is not None else "joined before it ended"
        yield f"{named}: {why}"


def _coming(each: StagingStanding) -> str:
    named = ", ".join(map(plain, each.missing[:_NAMED])) + (" ..." if len(each.missing) > _NAMED else "")
    still = f"{counted(len(each.missing), 'part')} missing: {named}" if each.missing else "all parts are here"
    return f"step {each.step:,} of {plain(each.component)} is on its way; {still}"
