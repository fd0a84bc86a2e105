"""Names stay inside the root, and a local store and the model agree on every sequence of operations."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from milepost.clock import SystemClock
from milepost.errors import MilepostError
from milepost.store.base import BlobWriter, Store, is_name
from milepost.store.local import LocalStore
from milepost.store.memory import MemoryStore


@given(st.text(alphabet=st.sampled_from("./\\a\0é ~-\n"), max_size=12) | st.text())
@example("..")
@example("a/../../b")
def test_whatever_is_a_name_lies_below_the_root_and_is_spelled_one_way(name: str) -> None:
    if is_name(name):
        path = os.path.join("/somewhere/run", name)
        assert os.path.normpath(path) == path
        assert path.startswith("/somewhere/run/")


NAMES = st.sampled_from(["LATEST", "blobs/1", "blobs/2", "terms/1", "terms/deep/2"])
DATA = st.sampled_from([b"", b"a", b"bc", b"a" * 5000])


class StoresAgree(RuleBasedStateMachine):
    """Do the same to a local store and to a memory store, and compare every answer and every byte."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="milepost-test-")
        self.stores: tuple[Store, Store] = (LocalStore(self.root, SystemClock()), MemoryStore())
        self.blobs: dict[str, tuple[BlobWriter, BlobWriter]] = {}

    def teardown(self) -> None:
        for pair in self.blobs.values():
            for blob in pair:
                blob.abort()
        shutil.rmtree(self.root)

    def both(self, operation: Callable[[Any], object], on: tuple[Any, Any] | None = None) -> None:
        local, model = (outcome(operation, thing) for thing in on or self.stores)
        assert local == model

    @rule(name=NAMES, data=DATA)
    def create(self, name: str, data: bytes) -> None:
        self.both(lambda store: store.create(name, data))

    @rule(name=NAMES, data=DATA, durable=st.booleans())
    def replace(self, name: str, data: bytes, durable: bool) -> None:
        self.both(lambda store: store.replace(name, data, durable=durable))

    @rule(name=NAMES, expected=st.none() | DATA, data=DATA)
    def replace_if(self, name: str, expected: bytes | None, data: bytes) -> None:
        self.both(lambda store: store.replace_if(name, expected, data))

    @rule(name=NAMES, data=DATA)
    def append(self, name: str, data: bytes) -> None:
        self.both(lambda store: store.append(name, data))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.both(lambda store: store.delete(name))

    @rule(name=NAMES, to=NAMES)
    def move(self, name: str, to: str) -> None:
        self.both(lambda store: store.move(name, to))

    @rule(name=NAMES)
    def start_blob(self, name: str) -> None:
        opened = [outcome(lambda store: store.open_blob(name), store) for store in self.stores]
        if all(isinstance(blob, BlobWriter) for blob in opened):
            self.blobs[name] = (opened[0], opened[1])  # type: ignore[assignment]
        else:
            assert opened[0] == opened[1]

    @rule(name=NAMES, data=DATA, end=st.sampled_from(["", "commit", "abort"]))
    def go_on_with_a_blob(self, name: str, data: bytes, end: str) -> None:
        if name in self.blobs and not os.path.exists(os.path.join(self.root, name)):
            self.both(lambda blob: blob.write(data), self.blobs[name])
            if end:
                self.both(lambda blob: getattr(blob, end)(), self.blobs.pop(name))

    @rule(name=NAMES, start=st.integers(0, 6), stop=st.none() | st.integers(0, 6))
    def read(self, name: str, start: int, stop: int | None) -> None:
        self.both(lambda store: store.read(name, start, stop))
        into = (bytearray(4), bytearray(4))
        local, model = (
            outcome(lambda s, i=i: s.read_into(name, start, memoryview(i)), s) for s, i in zip(self.stores, into, strict=True)
        )  # type: ignore[misc]
        assert (local, into[0]) == (model, into[1])

    @invariant()
    def check_that_the_same_names_have_the_same_bytes(self) -> None:
        for prefix in ("", "blobs/", "terms/", "terms/deep/"):
            local, model = ([e for e in store.list(prefix) if not e.name.endswith(".lock")] for store in self.stores)
            finished = [entry for entry in local if not entry.name.endswith(".part")]
            assert finished == [entry for entry in model if not entry.name.endswith(".part")]
            assert [entry.name for entry in local] == [entry.name for entry in model]
            for entry in finished:
                assert Path(self.root, entry.name).read_bytes() == self.stores[1].read(entry.name)


def outcome(operation: Callable[[Any], object], on: object) -> object:
    """Return the answer, or the kind of error."""
    try:
        return operation(on)
    except MilepostError as error:
        return type(error).__name__, error.kind


TestStoresAgree = StoresAgree.TestCase
TestStoresAgree.settings = settings(max_examples=40, stateful_step_count=20)
