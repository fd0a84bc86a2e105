"""Feed milepost's readers with whatever bytes there are: a target returns, or what it raises is a finding.

Bytes that change a sound record are sealed anew first: whoever can write to a run root can seal, too. Nothing here needs a
fuzzer, so that the tests replay the corpus; `fuzz/run.py` drives the same functions with one.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import milepost
from milepost.clock import FakeClock
from milepost.encode.digest import seal, unseal
from milepost.encode.frames import read_range
from milepost.errors import InternalError, MilepostError
from milepost.lifecycle.recover import choose
from milepost.publish import layout
from milepost.publish.manifest import decode
from milepost.publish.term import Identity, claim
from milepost.publish.view import read
from milepost.records import (
    Fence,
    Latest,
    LeafRecord,
    Manifest,
    Pin,
    Progress,
    QuarantineMark,
    RunRecord,
    Scrubbed,
    Settlement,
    Summary,
)
from milepost.state import opaque
from milepost.state.compare import compare
from milepost.state.dtypes import dtype_name, dtype_named
from milepost.state.inflate import check_tree, inflate, skeleton
from milepost.state.restore import restore
from milepost.store.base import is_name
from milepost.store.lease import decode_lease
from milepost.store.lock import read_holder
from milepost.store.memory import MemoryStore

BASE = Path(__file__).resolve().parent.parent / "tests" / "old_runs" / "1"
"""A small run with every kind of value in it."""

RECORDS: tuple[tuple[type, str], ...] = (
    (RunRecord, layout.RUN),
    (Fence, layout.fence(7)),
    (Settlement, layout.settlement(7)),
    (Summary, layout.manifest(3)),
    (Manifest, layout.manifest(3)),
    (Latest, layout.LATEST),
    (Progress, layout.PROGRESS),
    (Pin, layout.pin(2)),
    (QuarantineMark, layout.mark(2)),
    (Scrubbed, layout.SCRUB),
)


class PickleWasRead(BaseException):
    """Say that bytes of a run root were unpickled, though nobody trusts them. No handler of milepost's catches this."""


def _refuse_pickle(*_: object, **__: object) -> None:
    raise PickleWasRead


@contextlib.contextmanager
def _ours() -> Iterator[None]:
    """Let milepost's own errors pass, each of which must also be one that can be told; whatever else comes is a finding."""
    loads, opaque.pickle.loads = opaque.pickle.loads, _refuse_pickle  # type: ignore[assignment]
    try:
        yield
    except InternalError:
        raise
    except MilepostError as error:
        _check_text(str(error))
    finally:
        opaque.pickle.loads = loads


def _check_text(said: str) -> None:
    assert all(line.isprintable() for line in said.split("\n")), "what is printed steers the terminal"
    assert "this is a bug in milepost" not in said, said


def record(data: bytes) -> None:
    """Decode any kind of record from a body that is sealed, or from bytes that are not."""
    if not data:
        return
    kind, name = RECORDS[data[0] % len(RECORDS)]
    body = data[1:]
    sealed = seal(body) if body[:1] == b"{" and body[-1:] == b"}" else body
    with _ours():
        unseal(sealed, name)
    with _ours():
        made = decode(sealed, kind, name)
        again = seal(msgspec.json.encode(made))
        assert decode(again, kind, name) == made, "a record is read, and read otherwise once written"


class _Source:
    """Give any bytes as those of leaves: their digests are not what is asked here."""

    def __init__(self, data: bytes) -> None:
        self._data = data or b"\x5a"

    def read_into(self, _index: int, into: memoryview) -> None:
        assert len(into) <= 1 << 26, "memory was taken for more than the blobs hold"
        into[:] = (self._data * (len(into) // len(self._data) + 1))[: len(into)]

    def settle(self) -> None:
        """Return: all is read."""


def _live() -> Any:
    return {
        "policy": OrderedDict(weight=np.zeros((2, 3), np.float32), bias=np.array(0.0), frozen=np.zeros(300)),
        "rng": np.random.Generator(np.random.MT19937(1)),
        "replay": {"rows": np.zeros((4, 5), np.uint8), "position": 0, "full": False},
        "ring": milepost.Rows({"a": np.zeros((6, 2)), "b": np.zeros(6, np.int32)}),
        "queue": milepost.Items(deque(maxlen=4)),
    }


def tree(data: bytes) -> None:
    """Build, compare and restore a stored tree: JSON ``[node, [[kind, dtype, shape, size], ...]]`` and a rest for the bytes."""
    text, _, rest = data.partition(b"\0")
    try:
        node, specs = msgspec.json.decode(text, type=tuple[list[Any], list[tuple[str, str, tuple[int, ...], int]]])
    except (msgspec.DecodeError, RecursionError, ValueError):
        return
    leaves = [LeafRecord("x", kind, dtype, shape, 0, 0, size, "") for kind, dtype, shape, size in specs if 0 <= size < 1 << 20]
    source = _Source(rest)
    for ask in (
        lambda: skeleton(node, leaves),
        lambda: check_tree(node, leaves),
        lambda: _draw(inflate(node, leaves, source)),
        lambda: compare(_live(), node, leaves, "x"),
        lambda: _draw(restore(_live(), node, leaves, source, "x")),
    ):
        with _ours():
            ask()


def _draw(value: Any) -> None:
    """Draw from every generator that was built: a planted position is read from only then."""
    for each in value.values() if isinstance(value, dict) else [value]:
        if isinstance(each, np.random.Generator):
            each.integers(10, size=3)
        elif isinstance(each, np.random.RandomState):
            each.randint(10, size=3)


def names(data: bytes) -> None:
    """Read names of files, dtypes and refs."""
    text = data.decode("utf-8", "replace")
    for number_of, name_of in (
        (layout.fence_term, layout.fence),
        (layout.settlement_term, layout.settlement),
        (layout.generation_number, layout.manifest),
        (layout.pin_number, layout.pin),
        (layout.mark_number, layout.mark),
        (layout.events_term, layout.events),
    ):
        number = number_of(text)
        assert number is None or (name_of(number) == text and 0 < number <= layout.HIGHEST)
    assert not layout.is_blob(text) or (is_name(text) and text.startswith(layout.BLOBS) and text.count("/") == 1)
    with _ours():
        dtype = dtype_named(text)
        assert dtype_name(dtype) == text
        assert not dtype.hasobject


def holder(data: bytes) -> None:
    """Read what somebody wrote into the lock file or the lease."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as file:
        file.write(data)
        file.flush()
        read_holder(file.name)
    decode_lease(data)
    body = data if data[:1] == b"{" and data[-1:] == b"}" else b"{}"
    decode_lease(seal(body))


# --- a whole root


def base() -> dict[str, bytes]:
    """Return the files of the small run."""
    return {path.relative_to(BASE).as_posix(): path.read_bytes() for path in sorted(BASE.rglob("*")) if path.is_file()}


_BASE = base()
ODD: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 2, 3, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, 10**12, 10**12 - 1, 10**20, -(10**30)),
    *("", "x", "../x", "blobs/../milepost.json", "generations/000003.json", "\x1b[2J\nforged", "nan", "0x1p99999", "O", "|V9"),
    *(
        [],
        {},
        [[]],
        ["array", 0],
        ["array", 10**9],
        ["opaque"],
        ["list", [["none"]]],
        ["object", "numpy.Generator", ["dict", []]],
    ),
)


def edited(data: bytes) -> dict[str, bytes]:
    """Return the files of the small run after the edits that ``data`` spells; records are sealed anew."""
    files, at = dict(_BASE), 0

    def number(size: int) -> int:
        nonlocal at
        at += size
        return int.from_bytes(data[at - size : at], "little")

    while at < len(data) and at < 400:
        all_names = sorted(files)
        if not all_names:
            break
        what, name = number(1) % 8, all_names[number(1) % len(all_names)]
        old = files[name]
        if what == 0:
            del files[name]
        elif what == 1:
            files[name] = old[: number(2) % (len(old) + 1)]
        elif what == 2:
            files[all_names[number(1) % len(all_names)]] = old
        elif what == 3:
            place, length = number(2) % (len(old) + 1), number(1)
            at += length
            files[name] = _sealed(name, old[:place] + data[at - length : at] + old[place + length :])
        elif what == 4:
            length = number(1) % 40
            at += length
            new = data[at - length : at].decode("latin-1")
            if is_name(new):
                files[new] = old
        else:
            files[name] = _with(name, old, number(2), number(1))
    return files


def _sealed(name: str, data: bytes) -> bytes:
    """Return a record with a fitting seal, if it has the form of one; a blob as it is."""
    end = data.rfind(b',"digest":"sha256:') if data[:1] == b"{" else 0
    return seal(data[:end] + b"}") if end > 0 and not name.startswith(("blobs/", "events/")) else data


def _with(name: str, data: bytes, place: int, odd: int) -> bytes:
    """Return a record in which one value is another."""
    try:
        body = json.loads(unseal(data, name))
    except (MilepostError, ValueError):
        return data
    spots: list[tuple[Any, Any]] = []
    pending: list[Any] = [body]
    while pending:
        here = pending.pop()
        keys = list(here) if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else ()
        spots += [(here, key) for key in keys]
        pending += [here[key] for key in keys]
    if spots:
        here, key = spots[place % len(spots)]
        here[key] = ODD[odd % len(ODD)]
    return seal(json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode())


def root(data: bytes) -> None:
    """Look at, check, load and resume a whole root, as a user of the command line and of the library would."""
    files = edited(data)
    for use in (_look, _load, _resume, _command_line):
        store = MemoryStore("fuzz")
        for entry in store.list(""):
            store.delete(entry.name)
        for name, content in files.items():
            store.replace(name, content)
        with _ours():
            use(store)


def _look(store: MemoryStore) -> None:
    view = read(store)
    choose(store, view)
    milepost.verify(store)


def _load(store: MemoryStore) -> None:
    _draw(milepost.load(store))


def _resume(store: MemoryStore) -> None:
    clock = FakeClock(prefix="aaaa")
    claim(store, clock, Identity("host", "boot", 1))
    live = {"policy": _live()["policy"], "replay": _live()["replay"], "counters": {"step": 0, "episodes": 0}, "extra": {}}
    with milepost.CheckpointEngine(store, state=live) as engine:
        engine.resume()
        engine.save(99)


_VERBS = ("ls --all", "ls --json", "show", "show --leaves --env", "show best", "verify", "diff latest~1", "pin 2", "rollback 2")


def _command_line(store: MemoryStore) -> None:
    from milepost.cli.main import main

    for words in _VERBS:
        verb, *rest = words.split()
        shown, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):
            code = _exit_code(lambda: main([verb, store.url, *rest]))  # noqa: B023 - called at once
        assert code in (0, 1, 2, 10, 11, 13, 14, 15), f"{words}: exit code {code}"
        _check_text(shown.getvalue() + errors.getvalue())


def _exit_code(program: Callable[[], object]) -> object:
    try:
        program()
    except SystemExit as end:
        return end.code
    return None


def blob(data: bytes) -> None:
    """Load leaves from a blob of any bytes: whatever loads is what was saved."""
    store = MemoryStore()
    for name, content in _BASE.items():
        store.replace(name, data if name.startswith("blobs/000003") else content)
    with _ours():
        loaded: Any = milepost.load(store, which=3)
        assert loaded["policy"]["weight"].tolist() == [[30, 31, 32], [33, 34, 35]]
        assert loaded["replay"]["rows"].tolist() == [[30] * 5] * 4


def frame(data: bytes) -> None:
    """Unpack any bytes as a frame that is to give so many: that many come, or it is damaged, and the next is unpacked as ever."""
    size = int.from_bytes(data[:2], "little")
    for start in (0, size // 2):
        into = bytearray(size - start)
        with _ours():
            assert read_range(_reader(data[2:]), [(size, len(data) - 2)], start, memoryview(into)) == size - start
    sound = bytearray(5)
    assert read_range(_reader(FRAME), [(5, len(FRAME))], 0, memoryview(sound)) == 5
    assert sound == b"sound"


FRAME = bytes.fromhex("28b52ffd2005290000") + b"sound"
"""One block, stored as it is."""


def _reader(data: bytes) -> Callable[[int, memoryview], int]:
    def read_into(start: int, into: memoryview) -> int:
        part = data[start : start + len(into)]
        into[: len(part)] = part
        return len(part)

    return read_into


TARGETS: dict[str, Callable[[bytes], None]] = {
    "record": record,
    "tree": tree,
    "names": names,
    "holder": holder,
    "root": root,
    "blob": blob,
    "frame": frame,
}
"""What can be fuzzed, by name."""
