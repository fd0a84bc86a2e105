"""`--read-data-subset`: t runs over t parts read everything once; a share or a size is about what was asked for. B4"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.clock import FakeClock
from milepost.errors import UsageError
from milepost.lifecycle.amounts import bytes_of, seconds_of
from milepost.lifecycle.subset import parse
from milepost.records import BlobRecord

blobs = st.dictionaries(st.integers(0, 999_999), st.integers(1, 1 << 40), max_size=30).map(
    lambda sizes: [BlobRecord(f"blobs/{number:06d}-t1-0.safetensors", size, "") for number, size in sizes.items()]
)


@given(blobs, st.integers(1, 12))
def test_the_parts_are_disjoint_and_cover_everything(there: list[BlobRecord], parts: int) -> None:
    chosen = [parse(f"{part}/{parts}", FakeClock()).choose(there) for part in range(1, parts + 1)]
    assert sorted(name for part in chosen for name in part) == sorted(blob.name for blob in there)


@given(blobs, blobs, st.integers(1, 5))
def test_a_blob_keeps_its_part_whatever_else_is_there(one: list[BlobRecord], more: list[BlobRecord], parts: int) -> None:
    part = parse(f"1/{parts}", FakeClock())
    assert part.choose(one) == part.choose([*one, *more]) & {blob.name for blob in one}


@given(blobs, st.sampled_from(["30%", "100%", "0.5%", "500M", "1", "4T"]), st.data())
def test_a_share_or_a_size_is_reached_by_whole_blobs_and_not_by_one_too_many(
    there: list[BlobRecord], spec: str, data: st.DataObject
) -> None:
    seed = data.draw(st.from_regex(r"[0-9a-f]{1,4}", fullmatch=True))
    total = sum(blob.size_bytes for blob in there)
    wanted = total * float(spec[:-1]) / 100 if spec.endswith("%") else min(bytes_of(spec), total)
    chosen = [blob for blob in there if blob.name in parse(f"{spec}:{seed}", FakeClock()).choose(there)]
    assert sum(blob.size_bytes for blob in chosen) >= wanted * (1 - 1e-9)
    last = max((blob.size_bytes for blob in chosen), default=0)
    assert sum(blob.size_bytes for blob in chosen) - last <= wanted
    assert bool(chosen) == bool(wanted)


def test_another_run_reads_another_share_and_the_printed_seed_reads_the_same() -> None:
    there = [BlobRecord(f"blobs/{number:06d}-t1-0.safetensors", 100, "") for number in range(100)]
    clock = FakeClock()
    first, second = parse("20%", clock), parse("20%", clock)
    assert first.choose(there) != second.choose(there)
    assert parse(str(first), clock).choose(there) == first.choose(there)
    size = parse("1K", clock)
    assert parse(str(size), clock).choose(there) == size.choose(there)


@pytest.mark.parametrize(
    "text", ["", "0/3", "4/3", "1/0", "0%", "101%", "-5%", "x", "5 of 7", "0", "nan%", "1/2/3", "٣/٤", "5%:"]
)
def test_what_names_no_part_is_one_clear_error(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, FakeClock())
    assert (caught.value.kind, caught.value.facts["given"]) == ("bad-subset", text)


@pytest.mark.parametrize("text", ["", "7", "x", "-1d", "1e9d", "7 days", "infd"])
def test_what_is_no_length_of_time_is_one_clear_error(text: str) -> None:
    if text == "7":
        assert seconds_of(text) == 7
        return
    with pytest.raises(UsageError) as caught:
        seconds_of(text)
    assert caught.value.kind == "bad-duration"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1])
def test_a_number_that_is_no_length_of_time_neither(value: float) -> None:
    with pytest.raises(UsageError):
        seconds_of(value)
