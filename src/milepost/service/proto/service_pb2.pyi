from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Caller(_message.Message):
    __slots__ = ("component", "incarnation")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    component: str
    incarnation: str
    def __init__(self, component: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("term", "number")
    TERM_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    term: int
    number: int
    def __init__(self, term: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("slot", "size_bytes", "digest", "chunk_bytes", "chunk_digests")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    slot: str
    size_bytes: int
    digest: str
    chunk_bytes: int
    chunk_digests: bytes
    def __init__(self, slot: _Optional[str] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[str] = ..., chunk_bytes: _Optional[int] = ..., chunk_digests: _Optional[bytes] = ...) -> None: ...

class Weights(_message.Message):
    __slots__ = ("at", "run_id", "step", "commit_timestamp", "shards", "parent", "producer", "incarnation", "key", "place")
    AT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    at: Commit
    run_id: str
    step: int
    commit_timestamp: int
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    parent: Commit
    producer: str
    incarnation: str
    key: str
    place: str
    def __init__(self, at: _Optional[_Union[Commit, _Mapping]] = ..., run_id: _Optional[str] = ..., step: _Optional[int] = ..., commit_timestamp: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., parent: _Optional[_Union[Commit, _Mapping]] = ..., producer: _Optional[str] = ..., incarnation: _Optional[str] = ..., key: _Optional[str] = ..., place: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("kind", "message", "hint", "facts")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    hint: str
    facts: _containers.ScalarMap[str, str]
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ..., facts: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("caller", "role", "epoch", "step", "run_id", "pid", "host", "versions")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    role: str
    epoch: int
    step: int
    run_id: str
    pid: int
    host: str
    versions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., role: _Optional[str] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., run_id: _Optional[str] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., versions: _Optional[_Iterable[str]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("live", "durable", "run_id", "term", "heartbeat_ms", "server_host")
    LIVE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    SERVER_HOST_FIELD_NUMBER: _ClassVar[int]
    live: Commit
    durable: Commit
    run_id: str
    term: int
    heartbeat_ms: int
    server_host: str
    def __init__(self, live: _Optional[_Union[Commit, _Mapping]] = ..., durable: _Optional[_Union[Commit, _Mapping]] = ..., run_id: _Optional[str] = ..., term: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ..., server_host: _Optional[str] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("live", "durable", "term", "is_held")
    LIVE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    IS_HELD_FIELD_NUMBER: _ClassVar[int]
    live: Commit
    durable: Commit
    term: int
    is_held: bool
    def __init__(self, live: _Optional[_Union[Commit, _Mapping]] = ..., durable: _Optional[_Union[Commit, _Mapping]] = ..., term: _Optional[int] = ..., is_held: bool = ...) -> None: ...

class GoodbyeRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ...) -> None: ...

class Slot(_message.Message):
    __slots__ = ("slot", "size_bytes")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    slot: str
    size_bytes: int
    def __init__(self, slot: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class BeginRequest(_message.Message):
    __slots__ = ("caller", "key", "step", "commit_timestamp", "slots", "parent")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    key: str
    step: int
    commit_timestamp: int
    slots: _containers.RepeatedCompositeFieldContainer[Slot]
    parent: Commit
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., key: _Optional[str] = ..., step: _Optional[int] = ..., commit_timestamp: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[Slot, _Mapping]]] = ..., parent: _Optional[_Union[Commit, _Mapping]] = ...) -> None: ...

class Bring(_message.Message):
    __slots__ = ("slots", "tier", "place", "sinks", "service_keeps_base")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    SINKS_FIELD_NUMBER: _ClassVar[int]
    SERVICE_KEEPS_BASE_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedScalarFieldContainer[str]
    tier: str
    place: str
    sinks: _containers.RepeatedCompositeFieldContainer[Source]
    service_keeps_base: int
    def __init__(self, slots: _Optional[_Iterable[str]] = ..., tier: _Optional[str] = ..., place: _Optional[str] = ..., sinks: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., service_keeps_base: _Optional[int] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("transport", "address", "host")
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    transport: str
    address: str
    host: str
    def __init__(self, transport: _Optional[str] = ..., address: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class ArrivedRequest(_message.Message):
    __slots__ = ("caller", "key", "shard", "base", "told")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    key: str
    shard: Shard
    base: Commit
    told: Shard
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., key: _Optional[str] = ..., shard: _Optional[_Union[Shard, _Mapping]] = ..., base: _Optional[_Union[Commit, _Mapping]] = ..., told: _Optional[_Union[Shard, _Mapping]] = ...) -> None: ...

class FinishRequest(_message.Message):
    __slots__ = ("caller", "key", "durable", "wait_ms")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    key: str
    durable: bool
    wait_ms: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., key: _Optional[str] = ..., durable: bool = ..., wait_ms: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("weights", "durable")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    weights: Weights
    durable: bool
    def __init__(self, weights: _Optional[_Union[Weights, _Mapping]] = ..., durable: bool = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("caller", "key", "reason")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    key: str
    reason: str
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., key: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class LinkRequest(_message.Message):
    __slots__ = ("caller", "at", "generation")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    at: Commit
    generation: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., at: _Optional[_Union[Commit, _Mapping]] = ..., generation: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("caller", "has", "want", "at", "wait_ms")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    HAS_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    has: Commit
    want: str
    at: Commit
    wait_ms: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., has: _Optional[_Union[Commit, _Mapping]] = ..., want: _Optional[str] = ..., at: _Optional[_Union[Commit, _Mapping]] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class FetchReply(_message.Message):
    __slots__ = ("take", "not_modified")
    TAKE_FIELD_NUMBER: _ClassVar[int]
    NOT_MODIFIED_FIELD_NUMBER: _ClassVar[int]
    take: Take
    not_modified: NotModified
    def __init__(self, take: _Optional[_Union[Take, _Mapping]] = ..., not_modified: _Optional[_Union[NotModified, _Mapping]] = ...) -> None: ...

class Take(_message.Message):
    __slots__ = ("weights", "sources")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    weights: Weights
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    def __init__(self, weights: _Optional[_Union[Weights, _Mapping]] = ..., sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ...) -> None: ...

class NotModified(_message.Message):
    __slots__ = ("at",)
    AT_FIELD_NUMBER: _ClassVar[int]
    at: Commit
    def __init__(self, at: _Optional[_Union[Commit, _Mapping]] = ...) -> None: ...

class OfferRequest(_message.Message):
    __slots__ = ("caller", "base", "at", "slots", "link_bytes_s")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    LINK_BYTES_S_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    base: Commit
    at: Commit
    slots: _containers.RepeatedScalarFieldContainer[str]
    link_bytes_s: float
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., base: _Optional[_Union[Commit, _Mapping]] = ..., at: _Optional[_Union[Commit, _Mapping]] = ..., slots: _Optional[_Iterable[str]] = ..., link_bytes_s: _Optional[float] = ...) -> None: ...

class OfferReply(_message.Message):
    __slots__ = ("told",)
    TOLD_FIELD_NUMBER: _ClassVar[int]
    told: _containers.RepeatedCompositeFieldContainer[Told]
    def __init__(self, told: _Optional[_Iterable[_Union[Told, _Mapping]]] = ...) -> None: ...

class Told(_message.Message):
    __slots__ = ("slot", "blob")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    slot: str
    blob: Shard
    def __init__(self, slot: _Optional[str] = ..., blob: _Optional[_Union[Shard, _Mapping]] = ...) -> None: ...

class DownloadRequest(_message.Message):
    __slots__ = ("caller", "place", "blob", "offset", "size_bytes")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    place: str
    blob: str
    offset: int
    size_bytes: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., place: _Optional[str] = ..., blob: _Optional[str] = ..., offset: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("caller", "place", "blob", "offset", "data")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    place: str
    blob: str
    offset: int
    data: bytes
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., place: _Optional[str] = ..., blob: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("caller", "at")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    at: Commit
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., at: _Optional[_Union[Commit, _Mapping]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ...) -> None: ...

class News(_message.Message):
    __slots__ = ("live", "durable", "term", "reason")
    LIVE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    live: Weights
    durable: Commit
    term: int
    reason: str
    def __init__(self, live: _Optional[_Union[Weights, _Mapping]] = ..., durable: _Optional[_Union[Commit, _Mapping]] = ..., term: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class RollBackRequest(_message.Message):
    __slots__ = ("number", "reason", "caller", "key")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    number: int
    reason: str
    caller: Caller
    key: str
    def __init__(self, number: _Optional[int] = ..., reason: _Optional[str] = ..., caller: _Optional[_Union[Caller, _Mapping]] = ..., key: _Optional[str] = ...) -> None: ...

class HoldRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("run_id", "term", "live", "durable", "versions", "components", "memory_bytes", "memory_limit_bytes", "disk_bytes", "uptime_ms", "pid", "is_held_by", "counts", "stagings", "last_failure", "milepost_version")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    IS_HELD_BY_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    STAGINGS_FIELD_NUMBER: _ClassVar[int]
    LAST_FAILURE_FIELD_NUMBER: _ClassVar[int]
    MILEPOST_VERSION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    term: int
    live: Weights
    durable: Weights
    versions: _containers.RepeatedCompositeFieldContainer[VersionStatus]
    components: _containers.RepeatedCompositeFieldContainer[ComponentStatus]
    memory_bytes: int
    memory_limit_bytes: int
    disk_bytes: int
    uptime_ms: int
    pid: int
    is_held_by: str
    counts: _containers.ScalarMap[str, int]
    stagings: _containers.RepeatedCompositeFieldContainer[StagingStatus]
    last_failure: str
    milepost_version: str
    def __init__(self, run_id: _Optional[str] = ..., term: _Optional[int] = ..., live: _Optional[_Union[Weights, _Mapping]] = ..., durable: _Optional[_Union[Weights, _Mapping]] = ..., versions: _Optional[_Iterable[_Union[VersionStatus, _Mapping]]] = ..., components: _Optional[_Iterable[_Union[ComponentStatus, _Mapping]]] = ..., memory_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., uptime_ms: _Optional[int] = ..., pid: _Optional[int] = ..., is_held_by: _Optional[str] = ..., counts: _Optional[_Mapping[str, int]] = ..., stagings: _Optional[_Iterable[_Union[StagingStatus, _Mapping]]] = ..., last_failure: _Optional[str] = ..., milepost_version: _Optional[str] = ...) -> None: ...

class VersionStatus(_message.Message):
    __slots__ = ("weights", "tiers", "is_lost", "generation", "readers")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    IS_LOST_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    weights: Weights
    tiers: _containers.RepeatedScalarFieldContainer[str]
    is_lost: bool
    generation: int
    readers: int
    def __init__(self, weights: _Optional[_Union[Weights, _Mapping]] = ..., tiers: _Optional[_Iterable[str]] = ..., is_lost: bool = ..., generation: _Optional[int] = ..., readers: _Optional[int] = ...) -> None: ...

class ComponentStatus(_message.Message):
    __slots__ = ("caller", "role", "silent_ms", "reads", "host", "pid")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    role: str
    silent_ms: int
    reads: _containers.RepeatedCompositeFieldContainer[Commit]
    host: str
    pid: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., role: _Optional[str] = ..., silent_ms: _Optional[int] = ..., reads: _Optional[_Iterable[_Union[Commit, _Mapping]]] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class StagingStatus(_message.Message):
    __slots__ = ("component", "key", "step", "missing")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    component: str
    key: str
    step: int
    missing: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, component: _Optional[str] = ..., key: _Optional[str] = ..., step: _Optional[int] = ..., missing: _Optional[_Iterable[str]] = ...) -> None: ...
