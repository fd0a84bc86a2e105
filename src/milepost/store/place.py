"""Say on which file system a path lies, and what that kind of file system promises before anything is tried on it.

`milepost.store.probe` tries it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.store.base import Survives
from milepost.store.posix import Posix

Kind: TypeAlias = Literal["disk", "memory", "overlay", "network", "fuse", "unknown"]

_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "disk",
        re.compile(r"ext[234]|xfs|btrfs|zfs|f2fs|bcachefs|jfs|nilfs2|apfs|hfs|ufs|vfat|exfat|ntfs3?|fuseblk|squashfs|erofs"),
    ),
    ("memory", re.compile(r"tmpfs|ramfs|devtmpfs|hugetlbfs")),
    ("network", re.compile(r"nfs4?|cifs|smb3|lustre|ceph|gpfs|beegfs|afs|panfs|wekafs|orangefs|gfs2|ocfs2")),
    ("network", re.compile(r"fuse\.(?:glusterfs|ceph|ceph-fuse|juicefs)")),
    ("overlay", re.compile(r"overlay|(?:fuse\.)?fuse-overlayfs")),
    ("fuse", re.compile(r"fuse.*")),
)

_NO_FLUSH = frozenset({"nobarrier", "barrier=0", "volatile", "fsync=volatile"})
"""Mount options under which fsync returns before the bytes are safe."""
_LOCAL_LOCKS = frozenset({"nolock", "local_lock=flock", "local_lock=all", "localflock", "nobrl"})
"""Mount options of network file systems under which a lock is known to this machine only."""


@dataclass(frozen=True, slots=True)
class Place:
    """Name the mounted file system on which a path lies. All fields are empty where the system does not say (not Linux)."""

    file_system: str = ""
    mount_point: str = ""
    source: str = ""
    options: tuple[str, ...] = ()
    """Those of this mount, then those of the file system."""
    upper: Place | None = None
    """Of an overlay: where its changes are kept, if that can be seen from here. From within a container it mostly cannot."""

    @property
    def kind(self) -> Kind:
        """Return what sort of file system it is."""
        return next((kind for kind, names in _KINDS if names.fullmatch(self.file_system)), "unknown")

    @property
    def is_read_only(self) -> bool:
        """Say whether it is mounted so that nobody can write to it."""
        return "ro" in self.options

    @property
    def flushes(self) -> bool:
        """Say whether fsync waits until the bytes are safe, as far as mount options tell."""
        return _NO_FLUSH.isdisjoint(self.options)

    @property
    def survives(self) -> Survives:
        """Return what an acknowledged write outlives here. Where nobody can know, the less is said.

        A program behind a FUSE mount may do with fsync as it likes, so only a kill is promised there.
        """
        if self.kind in ("memory", "fuse") or not self.flushes:
            return "kill"
        if self.upper is not None:
            return self.upper.survives
        return "machine-loss" if self.kind == "network" else "power-cut"

    @property
    def locks_reach_other_hosts(self) -> bool:
        """Say whether a lock keeps out writers on other machines, too."""
        return self.kind == "network" and _LOCAL_LOCKS.isdisjoint(self.options)

    @property
    def listings_may_lag(self) -> bool:
        """Say whether a listing may miss what another machine wrote seconds ago: NFS without close-to-open consistency."""
        return self.file_system in ("nfs", "nfs4") and "nocto" in self.options


def place_of(path: str, posix: Posix) -> Place:
    """Return the file system on which ``path`` lies, or will lie once it is made."""
    where = os.path.realpath(path)
    try:
        while where != os.path.dirname(where) and not posix.exists(where):
            where = os.path.dirname(where)
        text = posix.mounts()
        number = posix.status(where).st_dev
    except OSError:
        return Place()
    return _place(where, f"{os.major(number)}:{os.minor(number)}", text, posix)


def _place(path: str, device: str, mountinfo: str, posix: Posix) -> Place:
    found, at = None, ("", False)
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if "-" not in fields[6:] or len(fields) < 10:
            continue
        point = _unescaped(fields[4])
        if point != "/" and path != point and not path.startswith(point + "/"):
            continue
        # A mount on a directory above hides one below it that is older: the one whose device the path has is it. (Some,
        # as btrfs, show another device in stat: then the longest will do.) Of two on one point the later one is on top.
        matches = fields[2] == device
        if found is None or (matches, len(point)) >= (at[1], len(at[0])):
            found, at = fields, (point, matches)
    if found is None:
        return Place()
    kind, source, more = [*found[found.index("-", 6) + 1 :], "", "", ""][:3]
    mounted = found[5].split(",")
    options = (*mounted, *(option for option in more.split(",") if option not in ("rw", *mounted)))
    upper = next((_unescaped(option.partition("=")[2]) for option in options if option.startswith("upperdir=")), "")
    below = place_of(upper, posix) if _is_seen(upper, posix) else None
    return Place(kind, at[0], _unescaped(source), tuple(map(_unescaped, options)), below)


def _is_seen(directory: str, posix: Posix) -> bool:
    try:
        return directory.startswith("/") and posix.is_directory(directory)
    except OSError:  # root's alone, say: a container's layers mostly are
        return False


def _unescaped(text: str) -> str:
    """Undo the kernel's octal escapes of blanks and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
