"""What `milepost status` and `milepost top` say, from how a service stands alone."""

from __future__ import annotations

import dataclasses

import pytest

from milepost.cli.service_text import Rates, lines_of
from milepost.records import Version
from milepost.service.core.records import Commit, Shard, Weights
from milepost.service.standing import ComponentStanding, Serving, StagingStanding, Standing, VersionStanding

NOW_NS = 1_700_000_000 * 10**9
MIB = 1 << 20


def weights(number: int, step: int, age_s: float = 60, parent: int | None = None) -> Weights:
    return Weights(
        at=Commit(3, number),
        version=Version("run", step, NOW_NS - round(age_s * 1e9)),
        shards=(Shard("weights", 412 * MIB, "d" * 32),),
        parent=None if parent is None else Commit(3, parent),
        producer="trainer",
        incarnation="a",
        key=f"k{number}",
    )


V40, V41, V42 = weights(40, 118, 70), weights(41, 119, 40, 40), weights(42, 120, 12, 41)
STANDING = Standing(
    run_id="3f0e",
    term=3,
    live=V42,
    durable=V40,
    versions=(
        VersionStanding(V42, ("memory",), readers=2),
        VersionStanding(V41, ("memory", "disk")),
        VersionStanding(V40, ("disk",), generation=12, readers=1),
    ),
    components=(
        ComponentStanding("sampler-0", "b", "sampler", 1.2, (V42.at,), "node1", 4122),
        ComponentStanding("sampler-1", "c", "sampler", 3.0, (V40.at,), "node2", 77),
        ComponentStanding("trainer", "a", "trainer", 0.4, (), "node1", 4120),
    ),
    memory_bytes=824 * MIB,
    memory_limit_bytes=8192 * MIB,
    disk_bytes=824 * MIB,
    serving=Serving("127.0.0.1:41873", 4121, 7300, "0.1.0"),
)


def said(standing: Standing, rest: str = "not running", rates: Rates | None = None) -> str:
    return "\n".join(lines_of(standing, "runs/ppo", NOW_NS, rest, rates))


def test_a_running_service_shows_its_pointers_its_versions_and_who_is_there() -> None:
    assert said(STANDING) == (
        """\
run 3f0e at 127.0.0.1:41873 (pid 4121, term 3, up 2h)
live     v42  step 120  412 MiB  12s old  from trainer
durable  v40  step 118  412 MiB  70s old  from trainer
memory   824 MiB of 8 GiB
disk     824 MiB

VERSION  STEP  AGE     SIZE  WHERE        STATE    READERS  GENERATION
v42       120  12s  412 MiB  memory       live           2
v41       119  40s  412 MiB  memory disk
v40       118  70s  412 MiB  disk         durable        1  g000012

COMPONENT  ROLE     READS  BEHIND                HEARD   PID  HOST
sampler-0  sampler  v42    nothing              1s ago  4122  node1
sampler-1  sampler  v40    2 versions, 2 steps  3s ago    77  node2
trainer    trainer                              0s ago  4120  node1"""
    )


def test_where_nobody_answers_the_first_line_says_so_and_what_is_there() -> None:
    at_rest = dataclasses.replace(STANDING, serving=None, memory_limit_bytes=None)
    first, *_, last = said(at_rest, rest="not running since 2023-11-14T22:00:00Z").splitlines()
    assert first == "not running since 2023-11-14T22:00:00Z; live v42 step 120, durable v40"
    assert last == "milepost serve runs/ppo goes on from there"


def test_a_service_without_a_version_says_so() -> None:
    empty = Standing("3f0e", 1, None, None, (), (), 0, 0)
    assert said(empty).splitlines()[0] == "not running; no version yet"
    assert "live     none" in said(empty)


def test_held_sampling_is_told_with_the_command_that_ends_it() -> None:
    held = dataclasses.replace(STANDING, held_by="trainer")
    assert said(held).splitlines()[-1] == (
        "held by trainer: no fetch is answered until it resumes; milepost unhold runs/ppo ends that"
    )


def test_a_commit_on_its_way_says_what_is_missing_and_a_refusal_of_the_disk_is_told() -> None:
    missing = tuple(f"weights.{number}-of-6" for number in range(6))
    coming = dataclasses.replace(
        STANDING, stagings=(StagingStanding("trainer", "k43", 121, missing),), last_failure="no space left on device"
    )
    *_, way, disk = said(coming).splitlines()
    assert way.startswith("step 121 of trainer is on its way; 6 parts missing: weights.0-of-6, ")
    assert way.endswith("weights.3-of-6 ...")
    assert disk == "the disk has refused: no space left on device"


def test_a_reader_of_a_lost_branch_is_told_apart_from_one_that_is_behind() -> None:
    back = dataclasses.replace(
        STANDING, live=V40, versions=(VersionStanding(V42, ("memory",), is_lost=True, readers=2), *STANDING.versions[1:])
    )
    assert "lost branch" in next(line for line in said(back).splitlines() if line.startswith("v42"))
    assert "lost branch" in next(line for line in said(back).splitlines() if line.startswith("sampler-0"))


def test_what_a_peer_calls_itself_cannot_move_the_cursor() -> None:
    bent = dataclasses.replace(STANDING.components[0], component="sampler\x1b[2J", host="\r\nlive v99")
    text = said(dataclasses.replace(STANDING, components=(bent,)))
    assert "\x1b" not in text
    assert "\r" not in text
    assert len(text.splitlines()) == len(said(STANDING).splitlines()) - 2


@pytest.mark.parametrize(
    ("before", "now", "seconds", "expected"),
    [
        ({"commits": 1, "bytes.bulk": 10}, {"commits": 3, "fetches": 8, "bytes.bulk": 50, "bytes.grpc": 4}, 2.0, Rates(1, 4, 22)),
        ({"commits": 5}, {"commits": 5}, 0.0, None),
        ({"commits": 5}, {"commits": 1}, 2.0, None),  # another process, which counts from nothing
    ],
)
def test_rates_are_differences_of_two_looks_at_one_process(
    before: dict[str, int], now: dict[str, int], seconds: float, expected: Rates | None
) -> None:
    assert Rates.between(before, now, seconds) == expected


def test_rates_stand_below_the_pointers() -> None:
    assert said(STANDING, rates=Rates(0.5, 12, 512 * MIB)).splitlines()[5] == "0.5 commits/s  12 fetches/s  512 MiB/s over links"
