"""Make the records that judging and retaining need, with only what matters to a test said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from milepost.publish.view import Listing, Terms
from milepost.records import FORMAT_VERSION, BlobRecord, Fence, Metric, Pin, RunRecord, Settlement, Summary

RUN_ID = "a" * 32
RUN = RunRecord(FORMAT_VERSION, RUN_ID, "")


def generation(
    number: int,
    *,
    term: int = 1,
    keep: Iterable[int] = (),
    run_id: str = RUN_ID,
    complete: bool = True,
    healthy: bool = True,
    rollback_to: int | None = None,
    trim_of: int | None = None,
    metrics: Mapping[str, float] | None = None,
    blobs: Iterable[str] = (),
) -> Summary:
    """Return what a manifest says."""
    return Summary(
        format_version=FORMAT_VERSION,
        run_id=run_id,
        number=number,
        term=term,
        write_id=f"w{term}.{number}",
        parent=number - 1,
        keep=(*keep, number),
        rollback_to=rollback_to,
        term_head=0,
        term_next=1,
        step=number,
        commit_timestamp=number,
        blobs=tuple(BlobRecord(name, 1, "") for name in blobs),
        trim_of=trim_of,
        complete=complete,
        healthy=healthy,
        metrics={name: Metric(float(value).hex(), number) for name, value in (metrics or {}).items()},
    )


def listing(*summaries: Summary, unreadable: Iterable[int] = (), foreign: Iterable[int] = ()) -> Listing:
    """Return what one listing of ``generations/`` found."""
    return Listing({s.number: s for s in summaries}, dict.fromkeys(unreadable, "damaged"), frozenset(foreign))


def fence(term: int) -> Fence:
    return Fence(RUN_ID, term, "claim", "host", "boot", 1, "")


def terms(settled: Mapping[int, int | None], *, fenced: Iterable[int] = ()) -> Terms:
    """Return what ``terms/`` says: the head each term settled on, None for a dead one; ``fenced`` ones have not settled."""
    settlements = {
        term: Settlement(RUN_ID, term, head or 0, (head or 0) + 1, dead=head is None) for term, head in settled.items()
    }
    return Terms({term: fence(term) for term in (*settled, *fenced)}, settlements)


def held(*numbers: int) -> dict[int, Pin]:
    return {number: Pin(RUN_ID, number, "held") for number in numbers}


def wanted(*numbers: int) -> dict[int, Pin]:
    return {number: Pin(RUN_ID, number, "wanted") for number in numbers}
