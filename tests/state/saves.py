"""A save and a load without a store: what a base holds by path, spec and digest, and a count of every byte that was copied."""

from __future__ import annotations

import json
from typing import Any

from milepost.encode.digest import digest_of, matches
from milepost.records import LeafRecord, LeafSpec, Node
from milepost.state.leaves import KeptLeaf
from milepost.state.merging import Limits, merge
from milepost.state.tree import Flat, flatten


class Generation:
    """What a save published: a tree, its records and their bytes. It is the `LeafSource` for reading it, too."""

    def __init__(self, tree: Node, records: list[LeafRecord], data: list[bytes]) -> None:
        self.tree: Node = json.loads(json.dumps(tree))
        self.records = tuple(records)
        self.data = data
        self.by_content = {(leaf.path, leaf.spec, leaf.digest): content for leaf, content in zip(records, data, strict=True)}
        self.reads = 0
        self._queued: list[tuple[int, memoryview]] = []

    def have(self, path: str, spec: LeafSpec, digest: str) -> bool:
        return (path, spec, digest) in self.by_content

    def bytes_of(self, leaf: KeptLeaf) -> bytes:
        return self.by_content[leaf.path, leaf.spec, leaf.digest]

    def read_into(self, index: int, into: memoryview) -> None:
        assert into.nbytes == len(self.data[index])
        assert into.nbytes > 0
        assert not into.readonly
        self.reads += 1
        self._queued.append((index, into))

    def settle(self) -> None:
        """Fill what was asked for only now, last first: nobody may count on more than the contract says."""
        while self._queued:
            index, into = self._queued.pop()
            into[:] = self.data[index]


class Saves:
    """Save one component again and again, as an engine would."""

    def __init__(self, *, strong: bool = False, limits: Limits | None = None) -> None:
        self.base: Generation | None = None
        self.strong = strong
        self.limits = limits
        self.merged_bytes = 0
        self.checks = True
        self.staged_bytes = 0
        self.kept = 0

    def stage(self, value: object, path: str = "replay") -> tuple[Flat, Generation]:
        """Flatten and copy, as the training thread does; nothing is committed."""
        have = self.base.have if self.base else None
        flat = flatten(value, path, have=have, matches=matches if self.checks else None)
        records, data = [], []
        for leaf in flat.leaves:
            if isinstance(leaf, KeptLeaf):
                assert self.base is not None
                content, digest = self.base.bytes_of(leaf), leaf.digest
                self.kept += 1
            else:
                memory = bytearray(b"\xa5" * leaf.size_bytes)
                leaf.copy_into(memoryview(memory))
                content, digest = bytes(memory), digest_of(memory, strong=self.strong)
                self.staged_bytes += leaf.size_bytes
            spec = leaf.spec
            assert len(content) == leaf.size_bytes
            records.append(LeafRecord(leaf.path, spec.kind, spec.dtype, spec.shape, 0, 0, leaf.size_bytes, digest))
            data.append(content)
        return flat, Generation(flat.node, records, data)

    def merged(self, generation: Generation) -> Generation:
        """Merge what is small, as a writer does before it publishes."""
        assert self.limits is not None
        found = merge(generation.tree, generation.records, generation.data.__getitem__, self.limits)
        if found is None:
            return generation
        records, data = [], []
        for leaf in found.leaves:
            if isinstance(leaf, int):
                records.append(generation.records[leaf])
                data.append(generation.data[leaf])
            else:
                asked: list[int] = []
                content = bytes(leaf.assemble(lambda index: asked.append(index) or generation.data[index]))  # noqa: B023
                assert len(set(asked)) == len(asked), "each leaf is read once"
                self.merged_bytes += len(content)
                assert len(content) == leaf.size_bytes
                spec, digest = leaf.spec, digest_of(content, strong=self.strong)
                records.append(LeafRecord(leaf.path, spec.kind, spec.dtype, spec.shape, 0, 0, leaf.size_bytes, digest))
                data.append(content)
        return Generation(found.tree, records, data)

    def commit(self, staged: tuple[Flat, Generation]) -> Generation:
        """Publish what was staged."""
        flat, generation = staged
        if self.limits is not None:
            generation = self.merged(generation)
        self.base = generation
        for mark in flat.logs:
            mark.settle(generation.records, generation.tree)
        return generation

    def save(self, value: Any, path: str = "replay") -> Generation:
        """Stage and commit."""
        return self.commit(self.stage(value, path))
