"""Make the JSON documents of ``--json``. Fields are added, never renamed; names are snake_case and end in their unit.

Everything is ASCII (other characters escaped), so that no locale can bend it. JSON has no NaN: a metric that is not
finite is the text ``"nan"``, ``"inf"`` or ``"-inf"``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, TypeAlias

from milepost.cli.failure import SCHEMA_VERSION
from milepost.clock import utc_text
from milepost.publish.view import View
from milepost.records import ComponentRecord, Manifest, Metric, Summary
from milepost.text import name_of

Document: TypeAlias = dict[str, Any]


def encode(message_type: str, root: str, fields: Document) -> str:
    """Return one document as a line of text."""
    head = {"message_type": message_type, "schema_version": SCHEMA_VERSION, "root": root}
    return json.dumps(head | fields, allow_nan=False)


def of_run(view: View) -> Document:
    """Return what holds for the whole run."""
    return {
        "run_id": view.run_id,
        "head": view.head.number if view.head else None,
        "undecided": view.undecided,
        "highest_term": view.terms.highest,
    }


def of_generation(view: View, number: int, state: str, tags: tuple[str, ...]) -> Document:
    """Return one line of ``ls``."""
    document: Document = {"number": number, "name": name_of(number), "state": state.lower(), "tags": list(tags)}
    if number in view.marks:
        document["mark"] = {"kind": view.marks[number].kind, "reason": view.marks[number].reason}
    if number in view.unreadable:
        document["unreadable_because"] = view.unreadable[number]
    summary = view.listing.summaries.get(number)
    return document | of_summary(summary) if summary else document


def of_new(summary: Summary) -> Document:
    """Return a generation that was published just now."""
    return {"number": summary.number, "name": name_of(summary.number)} | of_summary(summary)


def of_summary(summary: Summary) -> Document:
    """Return the part of a manifest that is read without its trees."""
    return {
        "step": summary.step,
        "term": summary.term,
        "parent": summary.parent,
        "rollback_to": summary.rollback_to,
        "keep": list(summary.keep),
        "commit_timestamp_ns": summary.commit_timestamp,
        "committed_at": utc_text(summary.commit_timestamp),
        "total_bytes": summary.total_bytes,
        "new_bytes": summary.new_bytes,
        "complete": summary.complete,
        "healthy": summary.healthy,
        "nonfinite": list(summary.nonfinite),
        "metrics": {name: _metric(metric) for name, metric in summary.metrics.items()},
        "counters": dict(summary.counters),
        "elapsed_s": float.fromhex(summary.elapsed_s),
        "reason": summary.reason,
    }


def of_manifest(manifest: Manifest, *, leaves: bool) -> Document:
    """Return what ``show`` adds to `of_summary`: components, blobs, provenance, fingerprint."""
    return {
        "components": [_component(component, manifest, leaves=leaves) for component in manifest.components],
        "blobs": [dataclasses.asdict(blob) for blob in manifest.blobs],
        "provenance": dataclasses.asdict(manifest.provenance),
        "fingerprint": dict(manifest.fingerprint),
    }


def _metric(metric: Metric) -> Document:
    value = metric.number
    return {"value": value if math.isfinite(value) else str(value), "step": metric.step}


def _component(component: ComponentRecord, manifest: Manifest, *, leaves: bool) -> Document:
    document: Document = {
        "name": component.name,
        "exactness": component.exactness,
        "reason": component.reason,
        "size_bytes": sum(leaf.size_bytes for leaf in component.leaves),
        "leaf_count": len(component.leaves),
    }
    if leaves:
        named = [dataclasses.asdict(leaf) | {"blob": manifest.blobs[leaf.blob].name} for leaf in component.leaves]
        document["leaves"] = named
    return document
