"""Make the JSON documents that tell of a service. The rules are those of `milepost.cli.document`."""

from __future__ import annotations

from milepost.cli.document import Document
from milepost.cli.service_text import Rates, state_of
from milepost.clock import utc_text
from milepost.service.core.records import Commit, Weights
from milepost.service.standing import ComponentStanding, Standing, VersionStanding, lag_of


def of_standing(standing: Standing, rates: Rates | None = None) -> Document:
    """Return all of how a service stands."""
    serving, stagings = standing.serving, standing.stagings
    return {
        "running": serving is not None,
        "address": serving.address if serving else None,
        "pid": serving.pid if serving else None,
        "uptime_s": serving.uptime_s if serving else None,
        "milepost_version": serving.milepost_version if serving else None,
        "run_id": standing.run_id,
        "term": standing.term,
        "live": of_weights(standing.live) if standing.live else None,
        "durable": of_weights(standing.durable) if standing.durable else None,
        "versions": [_version(each, standing) for each in standing.versions],
        "components": [_component(each, standing) for each in standing.components],
        "memory_bytes": standing.memory_bytes,
        "memory_limit_bytes": standing.memory_limit_bytes,
        "disk_bytes": standing.disk_bytes,
        "held_by": standing.held_by or None,
        "counts": dict(standing.counts),
        "rates": {"commits_s": rates.commits, "fetches_s": rates.fetches, "bytes_s": rates.bytes_s} if rates else None,
        "commits_under_way": [
            {"component": each.component, "key": each.key, "step": each.step, "missing": list(each.missing)} for each in stagings
        ],
        "last_failure": standing.last_failure or None,
    }


def of_weights(weights: Weights) -> Document:
    """Return what one version is."""
    return {
        **_named(weights.at),
        "run_id": weights.version.run_id,
        "step": weights.version.step,
        "commit_timestamp_ns": weights.version.commit_timestamp,
        "committed_at": utc_text(weights.version.commit_timestamp),
        "parent": str(weights.parent) if weights.parent else None,
        "producer": weights.producer,
        "incarnation": weights.incarnation,
        "key": weights.key,
        "size_bytes": weights.size_bytes,
        "parts": [{"part": each.slot, "size_bytes": each.size_bytes, "digest": each.digest} for each in weights.shards],
    }


def _named(at: Commit) -> Document:
    return {"version": str(at), "number": at.number, "term": at.term}


def _version(each: VersionStanding, standing: Standing) -> Document:
    state = state_of(each, standing)
    more = {"tiers": list(each.tiers), "state": state, "generation": each.generation, "readers": each.readers}
    return of_weights(each.weights) | more


def _component(each: ComponentStanding, standing: Standing) -> Document:
    lag = lag_of(standing, each)
    return {
        "component": each.component,
        "incarnation": each.incarnation,
        "role": each.role,
        "silent_s": each.silent_s,
        "reads": [_named(at) for at in each.reads],
        "versions_behind": lag.versions if lag else None,
        "steps_behind": lag.steps if lag else None,
        "on_lost_branch": lag.is_lost if lag else None,
        "host": each.host,
        "pid": each.pid or None,
    }
