from __future__ import annotations

from pathlib import Path

import pytest

from milepost.errors import StoreError
from milepost.store.base import Store
from milepost.store.lease import Lease
from milepost.store.memory import MemoryStore
from milepost.testing import StoreTests


class TestMemoryStore(StoreTests):
    def make_store(self, tmp_path: Path) -> Store:
        return MemoryStore(str(tmp_path))

    def raw_read(self, store: Store, name: str) -> bytes | None:
        assert isinstance(store, MemoryStore)
        data = store._space.names.get(name)
        return None if data is None else bytes(data)

    def raw_write(self, store: Store, name: str, data: bytes) -> None:
        assert isinstance(store, MemoryStore)
        store._space.names[name] = data


class TestLeasedMemoryStore(TestMemoryStore):
    """Be the model of an object store: guarded by a record that is renewed."""

    def make_store(self, tmp_path: Path) -> Store:
        return MemoryStore(str(tmp_path), lease=Lease(ttl_s=60.0))


def test_stores_without_a_name_are_private() -> None:
    one, other = MemoryStore(), MemoryStore()
    one.create("a", b"x")
    assert other.list("") == []


def test_a_full_store_refuses_growth_takes_shrinking_and_knows_what_is_free() -> None:
    store = MemoryStore()
    store.capacity_bytes = 10
    assert store.create("a", b"12345678")
    assert store.free_bytes() == 2
    with pytest.raises(StoreError) as caught:
        store.create("b", b"123")
    assert (caught.value.kind, caught.value.retryable, caught.value.exit_code) == ("disk-full", False, 16)
    blob = store.open_blob("c")
    blob.write(b"12")
    with pytest.raises(StoreError):
        blob.write(b"3")
    assert [entry.name for entry in store.list("")] == ["a"]
    store.replace("a", b"123456")
    store.delete("a")
    assert store.free_bytes() == 10
