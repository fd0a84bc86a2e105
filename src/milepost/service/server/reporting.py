"""Say how the service is: for who is woken at three in the morning, and for who watches."""

from __future__ import annotations

import os

import milepost
from milepost.service import wire
from milepost.service.core.events import Caller
from milepost.service.proto import service_pb2 as pb
from milepost.service.server.shell import Shell
from milepost.service.transports.bulk_server import Counts


class Report:
    """Be what `Status` tells. Knows of each component where it runs, as far as it has said."""

    def __init__(self, shell: Shell, bulk: Counts, run_id: str, limit_bytes: int) -> None:
        self._shell = shell
        self._bulk = bulk
        self._run_id = run_id
        self._limit_bytes = limit_bytes
        self._begun_ns = shell.clock.monotonic_ns()
        self._homes: dict[str, tuple[Caller, str, str, int]] = {}

    def joins(self, caller: Caller, host: str, machine: str, pid: int) -> None:
        """Note where a process runs that has joined."""
        self._homes[caller.component] = caller, host, machine, pid

    async def status(self) -> pb.StatusReply:
        """Return how the service is now."""
        shell, catalogue = self._shell, self._shell.core.catalogue
        disk_bytes = sum(catalogue.weights[at].size_bytes for at in catalogue.stored)
        return pb.StatusReply(
            run_id=self._run_id,
            term=catalogue.term,
            live=None if catalogue.live is None else wire.pack_weights(catalogue.weights[catalogue.live], {}),
            durable=None if catalogue.durable is None else wire.pack_weights(catalogue.weights[catalogue.durable], {}),
            versions=self._versions(),
            components=[self._component(name) for name in sorted(catalogue.current)],
            memory_bytes=shell.core.memory_bytes,
            memory_limit_bytes=self._limit_bytes,
            disk_bytes=disk_bytes,
            uptime_ms=(shell.clock.monotonic_ns() - self._begun_ns) // 10**6,
            pid=os.getpid(),
            is_held_by=", ".join(sorted(catalogue.held)),
            counts=self._counts(),
            stagings=[
                pb.StagingStatus(component=begin.caller.component, key=begin.key, step=begin.step, missing=missing[:64])
                for begin, missing in shell.core.under_way()
            ],
            last_failure="; ".join(filter(None, [*shell.failures.values(), shell.offers.last_failure])),
            milepost_version=milepost.__version__,
        )

    def _counts(self) -> dict[str, int]:
        shell = self._shell
        now = {"commits": shell.counts["entries.Committed"], "waiting": shell.waiting, "watchers": len(shell.watchers)}
        return {**shell.counts, **now, "bytes.bulk": self._bulk.bytes_in + self._bulk.bytes_out}

    def _versions(self) -> list[pb.VersionStatus]:
        core, catalogue = self._shell.core, self._shell.core.catalogue
        there = [(at, core.tiers(at)) for at in sorted(catalogue.weights, reverse=True)]
        return [
            pb.VersionStatus(
                weights=wire.pack_weights(catalogue.weights[at], {}),
                tiers=tiers,
                is_lost=at in catalogue.lost,
                generation=catalogue.generations.get(at),
                readers=core.readers(at),
            )
            for at, tiers in there
            if tiers
        ]

    def _component(self, name: str) -> pb.ComponentStatus:
        core = self._shell.core
        joined = core.catalogue.current[name]
        caller = Caller(name, joined.incarnation)
        home, host, machine, pid = self._homes.get(name, (caller, "", "", 0))
        is_home, has = home == caller, core.last(caller)
        weights = None if has is None else core.catalogue.weights.get(has)
        heard_ns = core.heard_ns(caller)
        silent_ms = -1 if heard_ns is None else (self._shell.clock.monotonic_ns() - heard_ns) // 10**6
        return pb.ComponentStatus(
            caller=wire.pack_caller(caller),
            role=joined.role,
            silent_ms=silent_ms,
            reads=[pb.Commit(term=at.term, number=at.number) for at in core.reads(caller)],
            host=host if is_home else "",
            pid=pid if is_home else 0,
            has=wire.pack_commit(has if weights is not None else None),
            has_step=0 if weights is None else weights.version.step,
            has_lost=has in core.catalogue.lost,
            machine=machine if is_home else "",
        )


def news(shell: Shell, reason: str) -> pb.News:
    """Return what the pointers are now, for who watches."""
    catalogue = shell.core.catalogue
    live = None if catalogue.live is None else catalogue.weights[catalogue.live]
    return pb.News(
        live=None if live is None else wire.pack_weights(live, {}),
        durable=wire.pack_commit(catalogue.durable),
        term=catalogue.term,
        reason=reason,
    )
