"""Read how a service stands from what it says of itself."""

from __future__ import annotations

from typing import cast

from milepost.service import wire
from milepost.service.core.records import Commit, Role, Tier, Weights
from milepost.service.proto import service_pb2 as pb
from milepost.service.standing import ComponentStanding, Serving, StagingStanding, Standing, VersionStanding


def standing_of(reply: pb.StatusReply, address: str) -> Standing:
    """Return how the service at ``address`` stands. Raises `UsageError` (kind ``bad-message``) for what cannot be."""
    return Standing(
        run_id=reply.run_id,
        term=reply.term,
        live=_weights(reply, "live"),
        durable=_weights(reply, "durable"),
        versions=tuple(map(_version, reply.versions)),
        components=tuple(map(_component, reply.components)),
        memory_bytes=reply.memory_bytes,
        disk_bytes=reply.disk_bytes,
        memory_limit_bytes=reply.memory_limit_bytes,
        serving=Serving(address, reply.pid, reply.uptime_ms / 1e3, reply.milepost_version),
        held_by=reply.is_held_by,
        counts=dict(reply.counts),
        stagings=tuple(StagingStanding(each.component, each.key, each.step, tuple(each.missing)) for each in reply.stagings),
        last_failure=reply.last_failure,
    )


def _weights(reply: pb.StatusReply, name: str) -> Weights | None:
    return wire.unpack_weights(getattr(reply, name)).weights if reply.HasField(name) else None


def _version(each: pb.VersionStatus) -> VersionStanding:
    generation = each.generation if each.HasField("generation") else None
    tiers = cast(tuple[Tier, ...], tuple(each.tiers))
    return VersionStanding(wire.unpack_weights(each.weights).weights, tiers, each.is_lost, generation, each.readers)


def _component(each: pb.ComponentStatus) -> ComponentStanding:
    caller = wire.unpack_caller(each.caller)
    return ComponentStanding(
        caller.component,
        caller.incarnation,
        cast(Role, each.role),
        each.silent_ms / 1e3 if each.silent_ms >= 0 else None,
        tuple(Commit(at.term, at.number) for at in each.reads),
        each.host,
        each.pid,
    )
