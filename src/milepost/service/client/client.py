"""Be the client of a checkpoint service: commit versions, fetch them, hear of news."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from milepost.clock import Clock, SystemClock
from milepost.errors import NotFoundError, UsageError
from milepost.service.client.calls import Calls, Identity
from milepost.service.client.committing import Committing, Done, Underway
from milepost.service.client.differing import Differences, check_link
from milepost.service.client.fetching import Fetching
from milepost.service.client.given import Want, check_name, check_want, check_weights, commit_of
from milepost.service.client.heartbeat import Heartbeat
from milepost.service.client.line import Line
from milepost.service.client.target import Tls, finder
from milepost.service.client.until import Until
from milepost.service.client.watching import Watch
from milepost.service.client.ways import Ways
from milepost.service.client.weights import WEIGHTS, Weights
from milepost.service.core.events import Caller
from milepost.service.core.records import Commit, Role
from milepost.service.packing import parcel
from milepost.service.proto import service_pb2 as pb
from milepost.service.rounding import check_dtype
from milepost.service.standing import Standing
from milepost.service.standing_wire import standing_of
from milepost.service.transports.host import host_id
from milepost.service.wire import check_count, pack_commit

log = logging.getLogger("milepost")

_LAST = Commit(0, 0)
"""Stands for what this client fetched last."""


def connect(
    target: str | os.PathLike[str] | None = None,
    *,
    component: str,
    role: Role,
    step: int | None = None,
    token: str | None = None,
    tls: Tls | str | bool | None = None,
    timeout: float = 60.0,
    commit_timeout: float = 120.0,
    fetch_timeout: float = 60.0,
    transport: str = "auto",
    incremental: bool = True,
    link_bytes_s: float | None = None,
    run_id: str = "",
    incarnation: str | None = None,
    epoch: int = 0,
    limit_bytes: int | None = None,
    clock: Clock | None = None,
) -> Client:
    """Return a client of the service: of a run root, of ``"host:port"``, or of what ``MILEPOST_SERVICE`` names.

    ``component`` is who this is for the service, ``"trainer"`` or ``"sampler-3"``: from now on it is this process, and an earlier
    one of that name is refused. A trainer says with ``step`` which step it goes on from; without, it begins anew, and what was
    committed before is left behind. Several processes that bring the parts of one commit have one ``component`` and one
    ``incarnation``, which they agree on. ``epoch`` is for who knows a number that rises with each start, the term of a claim for
    one: a hello that was long on its way then displaces nobody.

    The token of a run root is read from it; else ``token``, or ``MILEPOST_SERVICE_TOKEN``. ``tls``: True, a file of certificates
    to trust, or `Tls`. A service that is not there yet, or is started anew, is waited for: here for ``timeout`` seconds, in a
    commit for ``commit_timeout``, in all else for ``fetch_timeout``. ``limit_bytes`` bounds a version (default: this
    machine's memory).

    From another host only what changed travels, where that is there sooner: for it the last version that was read, and the last
    that was committed, is kept here until the next one is. ``incremental=False`` does without. How fast bytes come and go is
    measured, unless ``link_bytes_s`` says it.

    Raises `ServiceError` (kind ``unreachable``), `NotFoundError` (``no-service``), `UsageError` (``no-service-named``,
    ``bad-token``, ``other-run``), `ConflictError` (``superseded``).
    """
    if role not in ("trainer", "sampler"):
        raise UsageError("there is no such role", kind="bad-role", hint="a role is `trainer` or `sampler`", role=role)
    clock = clock or SystemClock()
    caller = Caller(check_name(component, "component"), check_name(incarnation or clock.nonce(), "incarnation"))
    step = None if step is None else check_count(step, "step")
    identity = Identity(caller, role, epoch, step, run_id, host_id(), os.uname().nodename, os.getpid())
    calls = Calls(Line(finder(target, token, tls, os.environ)), identity, clock)
    ways = Ways(calls, transport, check_link(link_bytes_s))
    differences = Differences(calls, ways, incremental=incremental)
    client = Client(calls, ways, differences, commit_timeout, fetch_timeout, limit_bytes, shared=incarnation is not None)
    try:
        client.begin_to_beat(timeout)
    except BaseException:
        client.close()
        raise
    return client


class Client:
    """Be a connection to the service, for all threads of this process. Made by `milepost.service.connect`.

    Calls go on through restarts of the service for as long as their timeout says; after that it is certain, and said, whether
    anything may have come of them.
    """

    def __init__(
        self,
        calls: Calls,
        ways: Ways,
        differences: Differences,
        commit_timeout: float,
        fetch_timeout: float,
        limit_bytes: int | None,
        *,
        shared: bool,
    ) -> None:
        self._calls = calls
        self._is_shared = shared
        self._heartbeat = Heartbeat(calls, ways.cache.close, goodbye=not shared)
        self._commits = Committing(calls, ways, differences, commit_timeout)
        self._fetches = Fetching(calls, ways, differences, self._heartbeat, fetch_timeout, limit_bytes)
        if not shared:
            self._heartbeat.reads = self._fetches.running
        self._fetch_timeout = fetch_timeout
        self._commit_timeout = commit_timeout
        self._dropped = weakref.finalize(self, _dropped, self._heartbeat, os.getpid())
        self._dropped.atexit = False
        _open.add(self)

    def begin_to_beat(self, timeout: float) -> None:
        """Say hello, and be there from now on."""
        until = Until(self._calls.clock, timeout)
        joined = self._calls.keep_trying(lambda: self._calls.join(until), until, lambda: "nothing was changed")
        self._heartbeat.start()
        me = self._calls.identity
        if me.role == "trainer" and me.step is None and joined.live is not None and not self._is_shared:
            log.warning(
                "this trainer begins anew, and its first commit leaves %s behind: connect(step=...) goes on from a step",
                joined.live,
            )

    @property
    def component(self) -> str:
        """Return who this is for the service."""
        return self._calls.identity.caller.component

    @property
    def incarnation(self) -> str:
        """Return which process of all that were this component it is."""
        return self._calls.identity.caller.incarnation

    @property
    def run_id(self) -> str:
        """Return whose versions these are."""
        joined = self._calls.joined
        return joined.run_id if joined is not None else ""

    @property
    def address(self) -> str:
        """Return where the service listens."""
        return self._calls.line.address

    # What a trainer does.

    def commit(
        self,
        step: int,
        weights: object,
        *,
        parts: Mapping[str, object] | None = None,
        durable: bool = False,
        publish_dtype: object = None,
        parent: Commit | Done | Weights | None = None,
        key: str | None = None,
        timestamp_ns: int | None = None,
    ) -> Done:
        """Make ``weights`` the newest version, and return once it is: written down durably, and readable for all samplers.

        ``weights`` maps names to tensors and arrays, as a ``state_dict`` does; ``parts`` are more of the version, an optimizer's
        state for one, any tree that a checkpoint holds. All of it is copied before this returns: training may go on. With
        ``durable`` it also survives the host by then. ``publish_dtype`` rounds the floats of ``weights`` (``"bfloat16"``).

        ``parent`` is the version that this one was trained from, if not the one committed or gone on from last. ``key`` names the
        commit: said again under it, by this process or the next, it is the same one.

        Raises `ServiceError` (kinds ``unreachable``, which says what is certain, ``commit-timeout``, ``lost-branch``: it was
        trained from a version that was rolled back), `ConflictError` (``superseded``), `StoreError` (``not-written``),
        `UsageError` naming what cannot be saved, or ``key-reused``. A version is visible whole or not at all.
        """
        dtype = check_dtype(publish_dtype)
        self._check()
        parcels = {WEIGHTS: parcel(check_weights(weights), WEIGHTS, dtype)}
        for name, value in (parts or {}).items():
            if name == WEIGHTS:
                raise UsageError(
                    "this name is that of the weights", kind="bad-part-name", hint="give the part another", part=name
                )
            parcels[name] = parcel(value, name)
        sizes = {slot: each.size_bytes for slot, each in parcels.items()}
        commit = self._begun(step, sizes, key or self._new_key(), parent, timestamp_ns)
        return self._commits.commit(commit, parcels, durable=durable)

    def size_of(self, value: object, publish_dtype: object = None) -> int:
        """Return how many bytes a part has: what `begin` is to be told of it."""
        return parcel(value, WEIGHTS, check_dtype(publish_dtype)).size_bytes

    def begin(
        self,
        step: int,
        sizes: Mapping[str, int],
        *,
        key: str,
        parent: Commit | Done | Weights | None = None,
        timestamp_ns: int | None = None,
    ) -> Underway:
        """Announce a commit whose parts several processes bring; each of them says this, with the same ``key`` and ``sizes``.

        A slot ``weights.0-of-4`` is one of four of the part ``weights``; `size_of` says how large it is. The parts are one
        version once all are there; until then nobody sees any.
        """
        self._check()
        commit = self._begun(step, sizes, key, parent, timestamp_ns)
        self._commits.begin(commit)
        return commit

    def bring(self, commit: Underway, slot: str, value: object, *, publish_dtype: object = None) -> None:
        """Bring one part of a commit. It is copied before this returns; it stays in memory until `finish`."""
        self._check()
        packed = parcel(value, slot, check_dtype(publish_dtype))
        if commit.sizes.get(slot) != packed.size_bytes:
            raise UsageError(
                "a part is not as large as it was announced, or was not announced",
                kind="not-announced",
                hint="begin(sizes=...) with what size_of says, the same in all processes",
                part=slot,
                size_bytes=packed.size_bytes,
                announced_bytes=commit.sizes.get(slot),
            )
        self._commits.bring(commit, slot, packed)

    def finish(self, commit: Underway, *, durable: bool = False) -> Done:
        """Return once all parts of a commit are there, and it is live. Each process that brought a part says this."""
        self._check()
        return self._commits.finish(commit, durable=durable)

    def wait_durable(self, done: Done | str, timeout: float | None = None) -> Done:
        """Return once a version, or one that it led to, survives the host. ``done`` may be a commit's key.

        Raises `ServiceError` (kind ``commit-timeout``) if it takes longer than ``timeout`` seconds (default: the commit's), and
        ``lost-branch`` if it never will; `StoreError` (kind ``not-durable``) where the disk refuses it.
        """
        self._check()
        until = Until(self._calls.clock, self._commit_timeout if timeout is None else timeout)
        key = done if isinstance(done, str) else done.key
        return self._commits.wait(key, until, durable=True, certain=lambda: "whether it is durable is not known")

    def link(self, done: Done | Commit, generation: int) -> None:
        """Have the service know which generation of the trainer's own checkpoints holds a version.

        Raises `NotFoundError` (kind ``unknown-version``), `ServiceError` (``unreachable``), `StoreError` (``not-written``).
        """
        self._ask(
            "Link", pb.LinkRequest(caller=self._calls.caller, at=pack_commit(commit_of(done, "done")), generation=generation)
        )

    def hold(self) -> None:
        """Let no fetch be answered with weights from now on, until `resume`: this trainer is about to bring restored ones.

        It is written down when this returns, and holds through restarts of the service and of the trainer. Raises `ServiceError`
        (``unreachable``), `UsageError` (``no-trainer``), `StoreError` (``not-written``).
        """
        self._ask("Hold", pb.HoldRequest(caller=self._calls.caller))

    def resume(self) -> None:
        """Let fetches be answered again. Raises as `hold`."""
        self._ask("Resume", pb.ResumeRequest(caller=self._calls.caller))

    # What a sampler does.

    def fetch(
        self,
        timeout: float = 0.0,
        *,
        want: Want = "newest",
        at: Commit | Done | Weights | int | None = None,
        parts: Sequence[str] = (WEIGHTS,),
        has: Commit | Done | Weights | None = _LAST,
    ) -> Weights | None:
        """Return the newest version if it is another than this client fetched last; else None, after ``timeout`` seconds.

        Another, not a newer one: after a rollback it is an older one. ``want="at least"`` waits for version ``at`` or any after
        it, ``"exact"`` for that very one; a number as ``at`` is that of people, ``at.number``. ``parts`` are those to have, by
        the names that the commit gave them. ``has`` is what the caller has, if not what was fetched last; None: nothing.
        ``timeout`` is for how long news is waited for, as long as it takes with ``float("inf")``; the time that the service is
        away comes on top, up to the client's ``fetch_timeout``.

        On the service's host nothing is copied. All of it is one version, and stays as it is. Raises `NotFoundError` (kinds
        ``unknown-version``, ``gone``, ``no-such-part``), `CorruptError` (``damaged-shard``) naming the part of which no whole
        copy can be reached, `ServiceError` (``unreachable``, ``lost-branch``, ``not-yet``, ``held``, ``fetch-timeout``,
        ``too-large``).
        """
        self._check()
        if isinstance(parts, str):
            parts = (parts,)
        have = self._fetches.has if has is _LAST else commit_of(has, "has")
        wanted = self._named(at, check_want(want)) if isinstance(at, int) else commit_of(at, "at")
        return self._fetches.fetch(timeout, check_want(want), wanted, parts, have)

    def watch(self, timeout: float | None = None) -> Watch:
        """Return what yields news as it comes, the first at once. It ends when it, or this client, is closed.

        ``timeout`` is for how long the service may be away (default: a fetch's).
        """
        self._check()
        return Watch(self._calls, self._fetch_timeout if timeout is None else timeout, self)

    # What everybody does.

    def rollback(self, to: int | Commit | Done | Weights, reason: str) -> None:
        """Make an older version live again; samplers get it, and what came after it is left behind for good.

        Raises `NotFoundError` (kinds ``unknown-version``, ``gone``), `ServiceError` (``lost-branch``).
        """
        number = to if isinstance(to, int) else commit_of(to, "to").number  # type: ignore[union-attr]  # it is no None
        request = pb.RollBackRequest(caller=self._calls.caller, number=number, reason=reason, key=self._calls.clock.nonce())
        self._ask("RollBack", request, "it may have been rolled back: milepost status says which version is live")

    def status(self) -> Standing:
        """Return how the service stands: its versions, who is there, what it holds."""
        return standing_of(self._ask("Status", pb.StatusRequest()), self.address)

    def close(self) -> None:
        """Say goodbye, and leave no thread. What was fetched stays readable. A second call does nothing."""
        if os.getpid() == self._calls.identity.pid and self._dropped.detach() is not None:
            self._heartbeat.stop()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self.component} of the service at {self.address}>"

    def _ask(self, method: str, request: Any, certain: str = "it may have been done; it can be said again") -> Any:
        self._check()
        return self._calls.ask(method, request, Until(self._calls.clock, self._fetch_timeout), certain=lambda: certain)

    def _check(self) -> None:
        self._calls.check()

    def _begun(self, step: int, sizes: Mapping[str, int], key: str, parent: Any, timestamp_ns: int | None) -> Underway:
        return self._commits.underway(step, sizes, check_name(key, "key"), commit_of(parent, "parent"), timestamp_ns)

    def _new_key(self) -> str:
        return f"{self.incarnation[:64]}-{self._calls.clock.nonce()}"

    def _named(self, number: int, want: Want) -> Commit:
        """Return which version people mean by a number; one that has not come yet will be of this term, or a later one."""
        standing = self.status()
        found = next((each.weights.at for each in standing.versions if each.weights.at.number == number), None)
        if found is None and want == "exact":
            hint = "milepost status shows which there are"
            raise NotFoundError("there is no such version here", kind="unknown-version", hint=hint, version=f"v{number}")
        return found or Commit(standing.term, number)


def _dropped(heartbeat: Heartbeat, pid: int) -> None:
    if os.getpid() == pid:  # in a child that was forked there is nothing to end
        heartbeat.let_go()


_open: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Let the service know that this process ends, and not only find that out by its silence."""
    for client in [*_open]:
        client.close()
