"""What a save shares: the same leaf once, no blob that is mostly dead, and files of a ring until they are dead. B4, B5"""

from __future__ import annotations

import pytest

from milepost.encode.blob import PAGE_BYTES
from milepost.encode.plan import NewLeaf, Stored, alone, plan
from milepost.records import BlobRecord, ComponentRecord, LeafRecord, Manifest

MB = 1 << 20


def base_of(blobs: list[list[tuple[str, int]]]) -> Manifest:
    """Return a generation with these leaves, path and size, in these blobs."""
    leaves, records = [], []
    for number, inside in enumerate(blobs):
        start = PAGE_BYTES
        for path, size in inside:
            leaves.append(LeafRecord(path, "numpy", "uint8", (size,), number, start, start + size, f"digest of {path}"))
            start += size
        records.append(BlobRecord(f"blobs/{number + 1:06d}-t1-x.safetensors", start, "d"))
    return Manifest(
        2, "run", 1, 1, "w", 0, (), None, 0, 1, 1, 1, tuple(records), components=(ComponentRecord("replay", [], tuple(leaves)),)
    )


def same(base: Manifest, *paths: str) -> list[NewLeaf]:
    [component] = base.components
    return [
        NewLeaf(component.name, leaf.path, leaf.spec, leaf.size_bytes, leaf.digest)
        for leaf in component.leaves
        if leaf.path in paths
    ]


def test_what_is_the_same_is_shared_and_the_rest_is_fresh() -> None:
    base = base_of([[("a", MB), ("b", MB)]])
    a, b = same(base, "a", "b")
    planned = plan([a, NewLeaf("replay", "b", b.spec, MB, "another"), NewLeaf("policy", "a", a.spec, MB, a.digest)], base)
    assert planned.shared == {0: base.components[0].leaves[0]}
    assert planned.fresh == (1, 2)
    assert alone(planned).moved == (0,)


def test_of_one_stored_leaf_two_alike_share_it_once_whether_planned_together_or_in_waves() -> None:
    base = base_of([[("a", MB)]])
    twins = same(base, "a") * 2
    assert plan(twins, base).fresh == (1,)
    stored = Stored(base)
    assert [stored.plan([twin]).fresh for twin in twins] == [(), (0,)]
    assert stored.record(twins[0]) is base.components[0].leaves[0], "it can still be read back"


def test_a_leaf_without_a_digest_is_fresh() -> None:
    base = base_of([[("a", MB)]])
    [leaf] = same(base, "a")
    assert plan([NewLeaf(leaf.component, leaf.path, leaf.spec, leaf.size_bytes, "")], base).fresh == (0,)


def test_leaves_of_a_blob_that_is_less_than_half_in_use_move() -> None:
    base = base_of([[("a", 4 * MB), ("b", 6 * MB)], [("c", MB)]])
    assert plan(same(base, "a", "c"), base).moved == (0,)
    assert plan(same(base, "b", "c"), base).moved == ()


@pytest.mark.parametrize("rows", [1, 3])
def test_a_file_of_a_ring_is_left_to_die_while_more_lives_than_is_dead(rows: int) -> None:
    old = [(f"replay.obs[{at}:{at + 1}]", MB) for at in range(10)]
    new = [(f"replay.obs[{at}:{at + 1}]", MB) for at in range(10, 20)]
    base = base_of([old, new])
    kept = [path for path, _ in [*old[-rows:], *new]]
    assert plan(same(base, *kept), base).moved == ()


def test_scattered_rows_move_once_more_is_dead_than_lives() -> None:
    files = [[(f"replay.obs[{10 * file + at}:{10 * file + at + 1}]", MB) for at in range(10)] for file in range(4)]
    base = base_of(files)
    kept = [path for file in files for path, _ in file[:4]]
    assert len(plan(same(base, *kept), base).moved) == 16
    kept = [path for file in files for path, _ in file[:6]]
    assert plan(same(base, *kept), base).moved == ()


def test_what_is_dense_moves_out_of_a_file_however_much_of_logs_lives() -> None:
    base = base_of([[("w", MB), ("v", 9 * MB)], [("replay.obs[0:9]", 50 * MB)]])
    assert plan(same(base, "w", "replay.obs[0:9]"), base).moved == (0,)
