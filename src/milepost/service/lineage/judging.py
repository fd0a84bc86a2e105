"""Judge a batch by the weights that made it: use it, use it with less weight, drop it, or wait until it can be said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.service.core.catalogue import Catalogue
from milepost.service.core.records import Commit
from milepost.service.lineage.records import Batch
from milepost.service.lineage.settings import Lineage

Kind: TypeAlias = Literal["use", "down-weight", "drop", "to verify"]
Standing: TypeAlias = Literal["unknown", "orphaned", "to verify", "sound"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say what is to be done with a batch now. It may be another one later: it is final once a checkpoint covers it."""

    kind: Kind
    reason: str = ""
    """Of a drop, or of what an alert is about: ``unknown-version``, ``orphaned``, ``gap``, ``age``; stable."""
    weight: float = 1.0
    gap: int = 0
    """By how many trainer steps the oldest of its weights are behind."""
    is_alert: bool = False
    """Whether it would have been dropped, had that not been switched off."""


def judge(
    batch: Batch, catalogue: Catalogue, trained: Commit | None, step: int, now_ns: int, settings: Lineage, *, is_settled: bool
) -> Verdict:
    """Return what a batch is worth to a trainer at ``step`` that has come from version ``trained``.

    In this order: weights that never were; weights of a lost branch, unless training has made the very same again; weights that a
    trainer made which has died, and which the one that took its place has yet to come to; then gap, then age. ``is_settled``:
    nothing is waited for, since no versions are being made again.
    """
    standings = {standing(catalogue, span.at, trained) for span in batch.spans}
    if "unknown" in standings:
        return Verdict("drop", "unknown-version", 0.0)
    if "orphaned" in standings or (is_settled and "to verify" in standings):
        return Verdict("drop", "orphaned", 0.0)
    if "to verify" in standings:
        return Verdict("to verify")
    oldest = min((catalogue.weights[span.at].version.step for span in batch.spans), default=step)
    gap = max(step - oldest, 0)
    reason = _too_old(batch, gap, now_ns, settings)
    if reason and not settings.alert_only:
        return Verdict("drop", reason, 0.0, gap)
    weight = settings.down_weight ** min(gap, settings.max_version_gap)
    return Verdict("use" if weight == 1 else "down-weight", reason, weight, gap, is_alert=bool(reason))


def _too_old(batch: Batch, gap: int, now_ns: int, settings: Lineage) -> str:
    if gap > settings.max_version_gap:
        return "gap"
    if settings.max_age_ns is not None and now_ns - batch.accepted_ns > settings.max_age_ns:
        return "age"
    return ""


def standing(catalogue: Catalogue, at: Commit, trained: Commit | None) -> Standing:
    """Return where a version stands to the line of training that has come to ``trained``."""
    if at not in catalogue.weights:
        return "unknown"
    if _is_on_line(catalogue, at, trained) or _has_twin(catalogue, at, trained):
        return "sound"
    return "orphaned" if at in catalogue.lost else "to verify"


def _is_on_line(catalogue: Catalogue, at: Commit, trained: Commit | None) -> bool:
    for each in catalogue.line(trained):
        if each <= at:  # a parent's place is below its child's
            return each == at
    return False


def _has_twin(catalogue: Catalogue, at: Commit, trained: Commit | None) -> bool:
    """Return whether training has come to the very same weights at the same step: what they made is as good as ever."""
    weights = catalogue.weights[at]
    for each in catalogue.line(trained):
        other = catalogue.weights[each]
        if other.version.step < weights.version.step:
            return False
        if other.version.step == weights.version.step and other.shards == weights.shards:
            return True
    return False
