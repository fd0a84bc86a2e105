"""Model what a disk holds of what was asked of it: what is durable for certain, and what a power cut may take or leave.

- ``fsync`` of a file makes that file's bytes durable, and nothing else: not its name.
- A sync of a directory makes that directory's own entries durable, and nothing else: no file's bytes, no other directory.
- A change of names (create, link, unlink, mkdir, rmdir) is a unit that is kept or lost by itself, in any order with others. A
  rename is one unit too: both names or neither, durable once the *new* name's directory is synced.
- A directory whose own entry is lost takes along all that is below it, synced or not.
- Bytes that were not synced are there or not, up to any write, torn within the last one, as zeros, or with a hole. Direct
  writes are no exception: what they wrote may lie in a drive's cache, and what says where it lies in no journal yet.
- What was preallocated and not written reads as zeros, and a power cut may take it back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from milepost.testing.power_recorder import Record

SECTOR_BYTES = 512
"""What a disk writes whole or not at all: the size of a hole."""


class BlindSpotError(AssertionError):
    """Report that files were changed behind the recorder's back: what it tells of a power cut would be worth nothing."""


class Unit:
    """Be one change of names that a power cut keeps or takes as a whole."""

    __slots__ = ("durable", "home", "label", "places")

    def __init__(self, label: str, home: Directory) -> None:
        self.label = label
        self.home = home
        self.durable = False
        self.places: list[tuple[Directory, str]] = []


class File:
    """Be one file's bytes, whatever its names are."""

    __slots__ = ("_contents", "durable", "pending")

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.pending: list[tuple[int, bytes | None]] = []
        """Writes (offset, bytes), and truncates and preallocations (new size, None), since the last fsync."""
        self._contents: dict[str, bytes] = {}

    def change(self, offset: int, data: bytes | None) -> None:
        self.pending.append((offset, data))
        self._contents.clear()

    def sync(self) -> None:
        self.durable = self.content("all")
        self.pending.clear()
        self._contents.clear()

    def fates(self) -> tuple[str, ...]:
        """Return what may become of these bytes in a power cut."""
        if not self.pending:
            return ("all",)
        return ("none", "all", "torn", "zeros", "hole", *(f"{count} writes" for count in range(1, len(self.pending))))

    def content(self, fate: str) -> bytes:
        if not self.pending:
            return self.durable
        if fate not in self._contents:
            self._contents[fate] = self._after(fate)
        return self._contents[fate]

    def _after(self, fate: str) -> bytes:
        if fate == "none":
            return self.durable
        done, data = len(self.pending), bytearray(self.durable)
        if fate.endswith(" writes"):
            done = int(fate.split()[0])
        for number, (offset, written) in enumerate(self.pending[:done], 1):
            if fate == "torn" and number == done and written is not None:
                written = written[: len(written) // 2]
            _apply(data, offset, written)
        if fate in ("zeros", "hole"):
            _blank(data, self.pending, SECTOR_BYTES if fate == "hole" else len(data))
        return bytes(data)


def _apply(data: bytearray, offset: int, written: bytes | None) -> None:
    if written is None:
        del data[offset:]
    end = offset + len(written or b"")
    if len(data) < end:
        data.extend(bytes(end - len(data)))
    data[offset:end] = written or b""


def _blank(data: bytearray, pending: list[tuple[int, bytes | None]], size_bytes: int) -> None:
    """Put zeros where pending writes went, from the first such byte on, for so many bytes."""
    start = min((offset for offset, written in pending if written), default=len(data))
    for offset, written in pending:
        stop = min(offset + len(written or b""), start + size_bytes, len(data))
        if stop > offset:
            data[offset:stop] = bytes(stop - offset)


class Directory:
    """Be one directory: for each name the units that gave it or took it away, oldest first."""

    __slots__ = ("slots",)

    def __init__(self) -> None:
        self.slots: dict[str, list[tuple[Unit, File | Directory | None]]] = {}

    def entries(self, kept: Collection[Unit] | None) -> Iterator[tuple[str, File | Directory]]:
        """Yield what is there if of all pending units these are kept; None: all of them."""
        for name, changes in self.slots.items():
            for unit, node in reversed(changes):
                if kept is None or unit.durable or unit in kept:
                    if node is not None:
                        yield name, node
                    break


@dataclass(frozen=True, slots=True)
class Tree:
    """Hold files and directories by their paths."""

    directories: frozenset[str] = frozenset()
    files: dict[str, bytes] = field(default_factory=dict)


class Disk:
    """Follow a journal, record by record."""

    def __init__(self) -> None:
        self._root = Directory()
        self._nodes: dict[int, File | Directory] = {}
        self.pending: dict[Unit, None] = {}
        """Changes of names that a power cut may take, oldest first."""
        self.dirty: dict[File, None] = {}
        """Files with bytes that a power cut may take."""

    def apply(self, record: Record) -> None:
        """Do what a record says. Raises `BlindSpotError` if it is of a file that no record told of."""
        if record.name == "note":
            return
        if record.name == "found":
            self._found(record)
        elif record.name in ("write", "write_at", "preallocate", "truncate"):
            file = self._file(record)
            file.change(record.offset, record.data)
            self.dirty[file] = None
        elif record.name == "fsync":
            file = self._file(record)
            file.sync()
            self.dirty.pop(file, None)
        elif record.name == "sync_directory":
            home = self._nodes.get(record.inode)
            for unit in [unit for unit in self.pending if unit.home is home]:
                self._make_durable(unit)
        else:
            self._change_names(record)

    def now(self) -> Tree:
        """Return what programs see while the power is on."""
        return self.tree(None, lambda file: file.content("all"))

    def tree(self, kept: Collection[Unit] | None, content: Callable[[File], bytes]) -> Tree:
        """Return what lies there after a power cut which leaves these pending units and these contents."""
        directories: set[str] = set()
        files: dict[str, bytes] = {}
        left: list[tuple[str, Directory]] = [("", self._root)]
        while left:
            below, directory = left.pop()
            for name, node in directory.entries(kept):
                if isinstance(node, File):
                    files[below + name] = content(node)
                else:
                    directories.add(below + name)
                    left.append((f"{below}{name}/", node))
        return Tree(frozenset(directories), files)

    def _found(self, record: Record) -> None:
        if not record.path:
            self._nodes[record.inode] = self._root
            return
        node = self._nodes.get(record.inode) or (Directory() if record.data is None else File(record.data))
        self._nodes[record.inode] = node
        home, name = self._home(record.path)
        self._make_durable(self._unit(record, home, (home, name, node)))

    def _change_names(self, record: Record) -> None:
        home, name = self._home(record.path)
        if record.name in ("unlink", "rmdir"):
            self._there(home, name, record)
            self._unit(record, home, (home, name, None))
        elif record.name in ("link", "rename_new", "replace"):
            node = self._there(home, name, record)
            target, to = self._home(record.to)
            if target.slots.get(to, [(None, None)])[-1][1] is node:
                return  # two names of one file: the kernel does nothing
            changes = [(target, to, node)] + ([(home, name, None)] if record.name != "link" else [])
            self._unit(record, target, *changes)
        else:
            node = self._nodes[record.inode] = Directory() if record.name == "mkdir" else File()
            self._unit(record, home, (home, name, node))

    def _unit(self, record: Record, home: Directory, *changes: tuple[Directory, str, File | Directory | None]) -> Unit:
        unit = Unit(f"{record.name} {record.to or record.path}", home)
        for directory, name, node in changes:
            directory.slots.setdefault(name, []).append((unit, node))
            unit.places.append((directory, name))
        self.pending[unit] = None
        return unit

    def _make_durable(self, unit: Unit) -> None:
        unit.durable = True
        self.pending.pop(unit, None)
        for directory, name in unit.places:
            changes = directory.slots[name]
            index = next(index for index, (each, _) in enumerate(changes) if each is unit)
            for earlier, _ in changes[:index]:
                # Whatever becomes of it, this name is past it.
                earlier.places.remove((directory, name))
                if not earlier.places:
                    self.pending.pop(earlier, None)
            del changes[:index]

    def _file(self, record: Record) -> File:
        node = self._nodes.get(record.inode)
        if not isinstance(node, File):
            raise BlindSpotError(f"`{record}` is of a file that was created behind the recorder's back")
        return node

    def _home(self, path: str) -> tuple[Directory, str]:
        parent, name = os.path.split(path)
        directory: File | Directory | None = self._root
        for part in filter(None, parent.split("/")):
            changes = directory.slots.get(part) if isinstance(directory, Directory) else None
            directory = changes[-1][1] if changes else None
        if not isinstance(directory, Directory):
            raise BlindSpotError(f"{parent} was made or moved behind the recorder's back")
        return directory, name

    def _there(self, home: Directory, name: str, record: Record) -> File | Directory:
        node = home.slots.get(name, [(None, None)])[-1][1]
        if node is None:
            raise BlindSpotError(f"`{record}`: {name} was made or moved behind the recorder's back")
        return node
