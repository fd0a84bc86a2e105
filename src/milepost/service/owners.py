"""Say whose the versions in memory and on disk are, and remove from memory those that are nobody's any more.

Memory outlives the service, and nobody would free what a root leaves that is never served again. Whose a directory is lies in it,
in a file that its service keeps locked for as long as it lives.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from milepost.encode.digest import seal, unseal
from milepost.errors import ConflictError, CorruptError, StoreError
from milepost.service.tiers.memory import OWNER_NAME, MemoryTier
from milepost.store.base import Store
from milepost.store.lock import FileLock
from milepost.store.posix import Posix, failures_of
from milepost.store.process import boot_id

PREFIX = "milepost-"
_RECORD_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Owner:
    """Say whose a directory of versions is."""

    run_id: str
    root: str
    journal: str
    """The path of the service's journal."""
    journal_id: str
    boot_id: str
    namespace: str
    """Of mounts: in another one the same path may lead elsewhere, or nowhere."""

    @property
    def directory_name(self) -> str:
        """Return the name of the directory: that of no other root, nor of a root that was begun anew under the same path."""
        named = hashlib.sha256(f"{self.root}\n{self.journal_id}".encode()).hexdigest()[:16]
        return f"{PREFIX}{''.join(letter for letter in self.run_id if letter.isalnum())[:12]}-{named}"

    def encode(self) -> bytes:
        """Return it as a sealed record."""
        return seal(msgspec.json.encode(self))


def owner_of(run_id: str, root: str, journal: str, journal_id: str) -> Owner:
    """Describe a service of this machine."""
    return Owner(run_id, os.path.realpath(root), os.path.realpath(journal), journal_id, boot_id(), _namespace())


def take(tier: MemoryTier, owner: Owner, posix: Posix) -> FileLock:
    """Make the directory of a memory tier this service's until the lock is given up. Raises `ConflictError` (kind ``held``)."""
    tier.make()
    lock = FileLock(os.path.join(tier.directory, OWNER_NAME), posix)
    with failures_of("lock", lock.path):
        if not lock.try_lock():
            raise ConflictError(
                "another service has these versions in memory",
                kind="held",
                hint="end it: fuser names the process that has the file open",
                path=lock.path,
            )
        try:
            lock.write(owner.encode())
        except BaseException:
            lock.unlock()
            raise
    return lock


def claim(store: Store, owner: Owner) -> None:
    """Write down whose the versions of a store are, durably. Raises `ConflictError` (kind ``not-ours``) where they are another's.

    To each of two services that share a store the versions of the other are strangers, which it would sweep.
    """
    if store.create(OWNER_NAME, owner.encode()):
        return
    other = _decoded(store.read(OWNER_NAME), f"{store.url}/{OWNER_NAME}")
    if other.journal_id != owner.journal_id and other.root != owner.root:  # a root that was begun anew has its own again
        raise ConflictError(
            "the versions of another run lie in this store",
            kind="not-ours",
            hint="give each root a directory of its own: milepost serve --disk DIR",
            store=store.url,
            root=other.root,
            run_id=other.run_id,
        )


def reap(base: str, mine: Owner, posix: Posix) -> list[str]:
    """Remove what services below ``base`` have left that will not come back; return their directories.

    Those of another start of this machine, of a root that is gone, and of a journal that was here before ``mine``. Never those of
    a service that lives, nor of one that is down and can come back, nor what is not this user's.
    """
    reaped = []
    for name in posix.scan(base)[0]:
        path = os.path.join(base, name)
        if name.startswith(PREFIX) and name != mine.directory_name and _is_ours(path):
            try:
                if _reap(path, mine, posix):
                    reaped.append(path)
            except StoreError as error:
                logging.getLogger("milepost").warning("what a service has left in memory could not be removed: %s", error)
    return reaped


def _reap(path: str, mine: Owner, posix: Posix) -> bool:
    owner = _read(os.path.join(path, OWNER_NAME))
    if owner is None or not _is_left(owner, mine):
        return False
    lock = FileLock(os.path.join(path, OWNER_NAME), posix)
    with failures_of("lock", lock.path):
        if not lock.try_lock():
            return False
    try:
        give_back(MemoryTier(path, posix), posix)
    finally:
        lock.unlock()
    return True


def give_back(tier: MemoryTier, posix: Posix | None = None) -> None:
    """Remove all versions in memory, and the directory. For who has it locked (`take`)."""
    posix = posix or Posix()
    for place in tier.places():
        tier.erase(place)
    with failures_of("remove", tier.directory):
        posix.unlink(os.path.join(tier.directory, OWNER_NAME))
        with suppress(OSError):  # something else lies there: it is not ours to remove
            posix.rmdir(tier.directory)


def _is_left(owner: Owner, mine: Owner) -> bool:
    if owner.boot_id and mine.boot_id and owner.boot_id != mine.boot_id:
        return True
    if owner.namespace != mine.namespace:
        return False
    return owner.journal == mine.journal or not os.path.lexists(owner.journal)


def _is_ours(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _read(path: str) -> Owner | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            return _decoded(file.read(_RECORD_BYTES), path)
    except (OSError, CorruptError):
        return None  # not one of ours, or of a service that was killed while it began: it is taken by that one again


def _decoded(record: bytes, what: str) -> Owner:
    try:
        return msgspec.json.decode(unseal(record, what), type=Owner)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        hint = "find out whose it is, and delete the record: the service that begins next writes it anew"
        raise CorruptError(
            "the record of whose versions these are is damaged", kind="damaged-record", hint=hint, what=what
        ) from error


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/mnt")
    except OSError:
        return ""
