"""Sign what is written to a run root and refuse what is not signed, for those who hold a key.

Whoever can write to the directory can still delete from it, or put all of it back to an older state. What he cannot do is
make a holder of the key load bytes that no holder saved: a record's signature covers its name and all that it says, and
manifests name blobs and leaves by SHA-256. See docs/decisions/0005-signed-records.md.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from contextlib import suppress

import msgspec

from milepost.clock import Clock
from milepost.encode.digest import is_strong, seal, unseal, unseal_signed
from milepost.errors import CorruptError, InternalError, NotFoundError, UsageError
from milepost.publish import layout
from milepost.publish.key import find_key
from milepost.store.base import BlobReader, BlobWriter, Buffer, Capabilities, Entry, Guard, Store
from milepost.store.resolve import Where, open_store, redirected

_DOMAIN = b"milepost record 1\0"
_UNSEALED = frozenset({layout.BALLAST, layout.LOCK, layout.LEASE})


def open_root(where: Where, clock: Clock, key_file: str | os.PathLike[str] | None = None, *, only_to_read: bool = False) -> Store:
    """Return the store that ``where`` names; where there is a key (`milepost.publish.key.find_key`), one that signs and checks.

    A `SignedStore` is returned as it is. Nothing is created or contacted by this; the key file is read. The one place where
    ``MILEPOST_ROOT`` moves run roots, see `milepost.store.resolve.redirected`.
    """
    store = open_store(redirected(where, clock, only_if_there=only_to_read), clock)
    if isinstance(store, SignedStore):
        return store
    key = find_key(key_file)
    return store if key is None else SignedStore(store, key)


class SignedStore(Store):
    """Sign every record on its way into ``inner``, and check it on its way out. Blobs pass: manifests carry their SHA-256.

    Reading raises `CorruptError`: kind ``unsigned`` for a sound record without a signature, ``bad-signature`` for one that
    another key has signed, or this one under another name, ``weak-digest`` for a manifest that names bytes by XXH3. Bytes
    that are no sealed record are returned: `milepost.encode.digest.unseal` refuses them. Every method raises it if
    ``milepost.json`` is such a record: then this root is not the key's, and nothing is read or written.

    It is the outermost store: what wraps it is taken for one without a key.
    """

    def __init__(self, inner: Store, key: bytes) -> None:
        self.url = inner.url
        self._inner = inner
        # The key itself is not kept: nothing that prints, copies or logs an object can come upon it.
        self._mac = hmac.new(key, _DOMAIN, "sha256")
        self._known = False
        self.lend_key: Callable[[], bytes] = lambda: key
        """Return the key, for a process that signs on behalf of this one."""

    def __repr__(self) -> str:
        return f"SignedStore({self._inner!r})"

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        if not is_record(name) or stop == start == 0:
            return self._root().read(name, start, stop)
        if within(name).startswith(layout.EVENTS):
            return self._lines(name, self._root().read(name, start, stop))
        # Wholly, whatever part is asked for: a part has no signature.
        data = self._root().read(name, 0, layout.most_bytes(name) + 1)
        self._check(name, data)
        return data[start:stop]

    def drop_cached(self, name: str) -> None:
        self._inner.drop_cached(name)

    def is_cached(self, name: str) -> bool:
        return self._inner.is_cached(name)

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        if not is_record(name):
            return self._root().read_into(name, start, into)
        data = self.read(name, start, start + len(into))
        into[: len(data)] = data
        return len(data)

    def open_reader(self, name: str) -> BlobReader:
        return super().open_reader(name) if is_record(name) else self._root().open_reader(name)

    def list(self, prefix: str) -> list[Entry]:
        return self._root().list(prefix)

    def create(self, name: str, data: Buffer, *, label: str = "t0") -> bool:
        return self._root().create(name, self.stored(name, data), label=label)

    def replace(self, name: str, data: Buffer, *, durable: bool = True, label: str = "t0") -> None:
        self._root().replace(name, self.stored(name, data), durable=durable, label=label)

    def replace_if(self, name: str, expected: bytes | None, data: Buffer, *, label: str = "t0") -> bool:
        known = expected if expected is None else bytes(self.stored(name, expected))
        return self._root().replace_if(name, known, self.stored(name, data), label=label)

    def append(self, name: str, data: Buffer) -> None:
        self._root().append(name, self.stored(name, data))

    def open_blob(self, name: str, *, size_bytes: int | None = None) -> BlobWriter:
        if is_record(name):
            raise InternalError("a record is written whole, or it cannot be signed", kind="not-a-blob", name=name)
        return self._root().open_blob(name, size_bytes=size_bytes)

    def delete(self, name: str) -> None:
        self._root().delete(name)

    def move(self, name: str, to: str) -> None:
        if within(name) != within(to) and not layout.is_aside(to):
            raise InternalError("a signed record keeps its name", kind="renamed", name=name, to=to)
        self._root().move(name, to)

    def sync(self, prefix: str) -> None:
        self._root().sync(prefix)

    def free_bytes(self) -> int | None:
        return self._inner.free_bytes()

    def guard(self, *, wait_s: float, take_over: bool) -> Guard:
        return self._root().guard(wait_s=wait_s, take_over=take_over)

    def stored(self, name: str, data: Buffer) -> Buffer:
        """Return the bytes under which the store keeps ``data``, signed or not: the same each time."""
        if not is_record(name):
            return data
        body = unseal(bytes(data), name)
        return seal(body, self._signature(name, body))

    def _root(self) -> Store:
        """Return the inner store, once its marker is known to be signed with this key, not there, or merely damaged.

        Without this a claim with a wrong key would fence the writer of somebody else's run before it fails, and a run that
        was saved before there was a key would be told record by record that it is damaged.
        """
        if not self._known:
            with suppress(NotFoundError):
                self._check(layout.RUN, _marker(self._inner))
            self._known = True
        return self._inner

    def _lines(self, name: str, data: bytes) -> bytes:
        """Return the lines of an event log; one that is sealed but not signed is made unreadable, and hides no other.

        Nothing moves: readers come back for the next lines by their offset. No line that was written holds a carriage
        return; left in, one reader might split there what another takes for one line.
        """
        lines = data.replace(b"\r", b"!").split(b"\n")
        for index, line in enumerate(lines):
            try:
                self._check(name, line + b"\n")
            except CorruptError:
                lines[index] = b"!" + line[1:]
        return b"\n".join(lines)

    def _check(self, name: str, data: bytes) -> None:
        try:
            body, found = unseal_signed(data, name)
        except CorruptError:
            # Damaged, or torn by a power cut: which of them, and that it is refused, is for the reader, with a key or without.
            return
        if not found:
            raise CorruptError(
                "a record is not signed, and a key is set",
                kind="unsigned",
                hint="if it was saved without a key: milepost sign OLD NEW makes a signed run of it; else somebody put it there",
                root=self.url,
                name=name,
            )
        if not hmac.compare_digest(found, self._signature(name, body)):
            raise CorruptError(
                "a record is not signed with this key for this name",
                kind="bad-signature",
                hint="check the key (key_file=, --key-file, MILEPOST_KEY_FILE); if it is right, somebody changed or moved it",
                root=self.url,
                name=name,
            )
        if within(name).startswith(layout.GENERATIONS) and not _is_strong(body):
            raise CorruptError(
                "a signed manifest names bytes by a digest that anyone can forge",
                kind="weak-digest",
                hint="milepost verify names what may still be resumed from; look who else has the key",
                root=self.url,
                name=name,
            )

    def _signature(self, name: str, body: bytes) -> str:
        mac = self._mac.copy()
        mac.update(within(name).encode() + b"\0" + body)
        return f"hmac-sha256:{mac.hexdigest()}"


class _Digested(msgspec.Struct):
    digest: str


class _Component(msgspec.Struct):
    leaves: list[_Digested]


class _Named(msgspec.Struct):
    blobs: list[_Digested]
    components: list[_Component]


def _is_strong(body: bytes) -> bool:
    try:
        manifest = msgspec.json.decode(body, type=_Named)
    except (msgspec.DecodeError, RecursionError):
        return False
    leaves = (leaf for component in manifest.components for leaf in component.leaves)
    return all(is_strong(each.digest) for each in (*manifest.blobs, *leaves))


def _marker(store: Store) -> bytes:
    """Return the bytes of ``milepost.json``. What looks damaged is read once more, from the medium: else it opens the gate."""
    data = store.read(layout.RUN, 0, layout.most_bytes(layout.RUN))
    with suppress(CorruptError):
        unseal(data, layout.RUN)
        return data
    store.drop_cached(layout.RUN)
    return store.read(layout.RUN, 0, layout.most_bytes(layout.RUN))


def is_record(name: str) -> bool:
    """Return whether a name is one of a sealed record. Every name is that milepost does not know to be something else."""
    name = within(name)
    return not name.startswith(layout.BLOBS) and name not in _UNSEALED


def within(name: str) -> str:
    """Return a name as it is within its run root: a run that was set aside is a root of its own, and keeps its signatures."""
    while name.startswith(layout.ASIDE) and name.count("/") > 1:
        name = name.split("/", 2)[2]
    return name


def is_signing(store: Store) -> bool:
    """Return whether what is written to ``store`` is signed: digests must be strong then."""
    return isinstance(store, SignedStore)


def unwrapped(store: Store) -> tuple[Store, bytes | None]:
    """Return the store below, and the key if it signs: what another process needs to write the same."""
    return (store._inner, store.lend_key()) if isinstance(store, SignedStore) else (store, None)


def as_stored(store: Store, name: str, data: bytes) -> bytes:
    """Return the bytes that ``store`` keeps for a record."""
    return bytes(store.stored(name, data)) if isinstance(store, SignedStore) else data


def refuse_unsigned(store: Store) -> None:
    """Raise `UsageError` (kind ``no-key``) before something without a signature is written to a signed run.

    A start that has lost its key would otherwise go on, and leave a run that no holder of the key accepts any more.
    """
    if isinstance(store, SignedStore):
        return
    try:
        signature = unseal_signed(_marker(store), layout.RUN)[1]
    except (NotFoundError, CorruptError):
        return
    if signature:
        raise UsageError(
            "this run is signed; without its key it can be read, and nothing can be added",
            kind="no-key",
            hint="pass the key: key_file=, --key-file, or MILEPOST_KEY_FILE in the environment",
            root=store.url,
        )
