"""Make the records that judging and retaining need, with only what matters to a test said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from milepost.publish.view import Listing, Terms
from milepost.records import FORMAT_VERSION, BlobRecord, Fence, Metric, Pin, Reset, Settlement, Summary

RUN_ID = "a" * 32
OTHER = "f" * 32


def generation(
    number: int,
    *,
    term: int = 1,
    keep: Iterable[int] = (),
    line: Iterable[int] = (),
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
        line=(*line, number),
        complete=complete,
        healthy=healthy,
        metrics={name: Metric(float(value).hex(), number) for name, value in (metrics or {}).items()},
    )


def listing(*summaries: Summary, unreadable: Iterable[int] = (), misnamed: Mapping[int, Summary] | None = None) -> Listing:
    """Return what one listing of ``generations/`` found."""
    return Listing({s.number: s for s in summaries}, dict.fromkeys(unreadable, "damaged"), misnamed or {})


def fence(term: int) -> Fence:
    return Fence(term, "claim", "host", "boot", 1, "")


def terms(settled: Mapping[int, int | None], *, fenced: Iterable[int] = (), unsure: int = 0, reset: Reset | None = None) -> Terms:
    """Return what ``terms/`` says: the head each term settled on, None for a dead one; ``fenced`` ones have not settled.

    The highest settlement is the one that records ``unsure``; from the term of ``reset`` on they are of run `OTHER`.
    """
    counting = [term for term, head in settled.items() if head is not None]
    settlements = {}
    for term, head in settled.items():
        after = reset if reset is not None and head is not None and term >= reset.term else None
        run_id = "" if head is None else OTHER if after else RUN_ID
        doubt = unsure if counting and term == max(counting) else 0
        settlements[term] = Settlement(run_id, term, head or 0, (head or 0) + 1, doubt, after, dead=head is None)
    return Terms({term: fence(term) for term in (*settled, *fenced)}, settlements)


def held(*numbers: int) -> dict[int, Pin]:
    return {number: Pin(RUN_ID, number, "held") for number in numbers}


def wanted(*numbers: int) -> dict[int, Pin]:
    return {number: Pin(RUN_ID, number, "wanted") for number in numbers}
