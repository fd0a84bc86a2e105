"""The demo of a service, a trainer and samplers that are killed, in short. And its judgement, which must be able to say no."""

from __future__ import annotations

import importlib
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from milepost.records import Version
from milepost.service.core.records import Began, Commit, Committed, Entry, Joined, Saved, Shard, Stored, Weights
from tests.at_length import AT_LENGTH
from tests.service.leftovers import nothing_outlives_the_tests

__all__ = ["nothing_outlives_the_tests"]  # a fixture, found by its name

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("service_demo")


@pytest.fixture
def records(demo: ModuleType) -> ModuleType:
    return importlib.import_module("service_records")


@pytest.mark.timeout(600)
def test_a_service_its_trainer_and_its_samplers_are_killed_and_training_goes_on(tmp_path: Path) -> None:
    # C1, C4, C13. Half a minute: four processes that import torch, and each kill starts one or more of them again.
    kills, steps = (9, 200) if AT_LENGTH else (2, 40)
    script = [sys.executable, str(EXAMPLES / "service_demo.py"), "--out", str(tmp_path), "--at-least", "0"]
    script += ["--steps", f"{steps}", "--kills", f"{kills}"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{done.stdout}"
    assert len(re.findall(rf"\] kill \d of {kills}: ", done.stderr)) == kills
    assert "never" not in done.stdout
    assert (tmp_path / "service.png").stat().st_size > 10_000


# A run in small: three versions, of which the last was lost with the trainer, and its step made again.


def weights(number: int, step: int, parent: int | None, term: int = 1) -> Weights:
    above = None if parent is None else Commit(1, parent)
    version = Version("run", step, 1_000 + number)
    shards = (Shard("weights", 4, f"{number:032x}"),)
    return Weights(Commit(term, number), version, shards, above, "trainer", f"life-{1 + (number > 3)}", f"key-{number}")


ENTRIES: tuple[Entry, ...] = (
    Began(1, None),
    Joined("trainer", "trainer", "life-1", 0, None),
    Committed(weights(1, 0, None)),
    Committed(weights(2, 1, 1)),
    Stored(Commit(1, 2)),
    Saved(Commit(1, 2), 1),
    Committed(weights(3, 2, 2)),
    Joined("trainer", "trainer", "life-2", 0, Commit(1, 2)),
    Committed(weights(4, 1, 2)),
    Began(2, Commit(1, 4)),
    Committed(weights(5, 2, 4, term=2)),
)


def commit(number: int, step: int, *made_by: tuple[str, int, int], term: int = 1) -> dict[str, Any]:
    counts = {"use": 0, "stale": 0, "orphaned": 0}
    base = {"time_s": float(number), "attempt": 1, "term": term, "number": number, "step": step, "weights": f"hash-{number}"}
    return {**base, **counts, "made_by": [*made_by], "returns": [9.0]}


TRAINER = (
    commit(1, 0),
    commit(2, 1, ("sampler-0", 1, 0)),
    {"time_s": 2.5, "attempt": 1, "durable": 2, "step": 1, "generation": 1},
    commit(3, 2, ("sampler-0", 2, 1)),
    commit(4, 1),
    commit(5, 2, ("sampler-0", 4, 1), term=2),
)
SAMPLER = tuple({"time_s": 1.5 + n, "number": n, "step": 0, "weights": f"hash-{n}", "returns": []} for n in (1, 2, 4))


def found(records: ModuleType, **instead: Any) -> list[str]:
    seen = [records.Seen(float(number), weights(*each), f"hash-{number}") for number, each in enumerate(SEEN, 1)]
    given = {"entries": ENTRIES, "seen": seen, "trainer": TRAINER, "samplers": {"sampler-0": SAMPLER}, **instead}
    faults: list[str] = records.faults(records.Witnesses(**given), 4)
    return faults


SEEN = ((1, 0, None), (2, 1, 1), (3, 2, 2))


def without(entries: Sequence[Entry], *which: int) -> tuple[Entry, ...]:
    return tuple(entry for number, entry in enumerate(entries) if number not in which)


def test_a_sound_run_has_no_faults(records: ModuleType) -> None:
    assert found(records) == []


def test_the_demo_sees_a_version_that_changed(records: ModuleType) -> None:
    changed = records.Seen(1.0, replace(weights(2, 1, 1), shards=(Shard("weights", 4, "other"),)), "hash-2")
    (fault,) = found(records, seen=[changed])
    assert fault.startswith("v2 was seen as")
    forgotten = found(records, trainer=(*TRAINER, commit(6, 3, term=2)))
    assert forgotten == ["the trainer was told of v6, which is not written down, or not so"]


def test_the_demo_sees_a_pointer_that_goes_back_for_no_reason(records: ModuleType) -> None:
    # The trainer has said of nothing that it went back, and the version before is left behind all the same.
    assert found(records, entries=without(ENTRIES, 7)) == ["v4 left v3 behind, and nobody has said why"]
    back = [records.Seen(float(number), weights(*SEEN[number - 1]), f"hash-{number}") for number in (2, 1)]
    assert found(records, seen=back) == ["v1 was live after v2, and nobody has rolled back"]


def test_the_demo_sees_versions_that_a_service_has_lost(records: ModuleType) -> None:
    lost = (*ENTRIES[:9], Began(2, Commit(1, 1)), Committed(weights(5, 2, 1, term=2)))
    assert "v2 was durable, and a service began without it" in found(records, entries=lost)
    assert "a service began with v1, and v4 was live: its bytes were lost with a process" in found(records, entries=lost)


def test_the_demo_sees_a_durable_commit_that_is_gone(records: ModuleType) -> None:
    unsaved = found(records, entries=without(ENTRIES, 5))
    assert unsaved == ["v2 is in generation 1, and the journal does not say so"]
    fallen = found(records, trainer=(*TRAINER[:4], {**commit(4, 0), "step": 0}), entries=ENTRIES)
    assert "step 1 was saved and durable, and the trainer went on from step 0" in fallen


def test_the_demo_sees_samplers_with_other_weights_than_those_committed(records: ModuleType) -> None:
    other = ({**SAMPLER[0], "weights": "another"}, *SAMPLER[1:])
    assert found(records, samplers={"sampler-0": other}) == [
        "sampler-0 got weights of v1 that are not those which were committed",
    ]
    assert found(records, samplers={"sampler-0": SAMPLER[::-1]})[0] == "sampler-0 went back from v4 to v2"
    invented = ({**SAMPLER[0], "number": 9},)
    assert found(records, samplers={"sampler-0": invented}) == ["sampler-0 got v9, which there never was"]
    # Of a version that the trainer has lived to commit, and not to note, two samplers have to agree.
    unnoted = {"trainer": (*TRAINER[:3], *TRAINER[4:]), "samplers": {"a": [{**SAMPLER[0], "number": 3}], "b": SAMPLER}}
    unnoted["samplers"]["b"] = [{**SAMPLER[0], "number": 3, "weights": "another"}]
    assert found(records, seen=[], **unnoted) == ["b got weights of v3 that are not those which were committed"]


def test_the_demo_sees_training_on_what_is_too_old_or_lost(records: ModuleType) -> None:
    old = (*TRAINER[:-1], commit(5, 2, ("sampler-0", 3, 2), ("sampler-1", 1, -4), term=2))
    assert found(records, trainer=old) == [
        "step 2 was trained on what sampler-0 made with v3, which was lost",
        "step 2 was trained on what sampler-1 made at step -4",
    ]


def test_a_kill_is_over_when_a_new_service_has_taken_a_commit_and_all_sample_with_it(records: ModuleType) -> None:
    kill = records.Kill(("service-0",), 1.2, 1, term=1)
    early, notes = [commit(2, 1), commit(3, 2)], [{"time_s": 2.1, "number": 2}]
    kill.look(early, [notes, notes])
    assert (kill.commit_s, kill.closed_s) == (None, None)  # an acknowledgement that was on its way when it died
    commits = [*early, commit(5, 2, term=2)]
    kill.look(commits, [[*notes, {"time_s": 5.7, "number": 5}], notes])
    assert (kill.commit_s, kill.closed_s) == (pytest.approx(3.8), None)
    kill.look(commits, [[*notes, {"time_s": 5.7, "number": 5}], [{"time_s": 6.2, "number": 6}]])
    assert kill.closed_s == pytest.approx(5.0)


def test_the_demo_fails_for_too_few_kills_and_a_policy_that_does_not_learn(demo: ModuleType, records: ModuleType) -> None:
    tale = demo.Tale(Path("nowhere"))
    tale.kills.append(records.Kill(("trainer-0",), 1.0, 1))
    run = records.Witnesses(ENTRIES, [], TRAINER, {"sampler-0": SAMPLER})
    assert demo.shortfalls(tale, run, 2, 300) == [
        "only 1 of 2 kills have struck before the end",
        "nobody recovered from kill 1",
        "the mean return was 9 at the end, and not 300",
    ]


def test_ten_kills_hit_each_part_alone_and_with_others(demo: ModuleType) -> None:
    aims = demo.draw_aims(10, random.Random(1))
    assert {aim.targets for aim in aims} == {*demo.TARGETS}
    assert sum(aim.is_hasty for aim in aims) == 2


@pytest.mark.parametrize("seed", range(20))
def test_the_last_kill_hits_who_is_needed_for_the_end(demo: ModuleType, seed: int) -> None:
    last = demo.draw_aims(10, random.Random(seed))[-1]
    assert not {*last.targets} & {*demo.SAMPLERS}
    assert not last.is_hasty


def test_a_line_that_is_not_whole_yet_is_read_later(records: ModuleType, tmp_path: Path) -> None:
    diary = records.Diary(tmp_path / "diary.jsonl")
    diary.read()
    (tmp_path / "diary.jsonl").write_text('{"a": 1}\n{"a":')
    diary.read()
    assert diary.notes == [{"a": 1}]
    with (tmp_path / "diary.jsonl").open("a") as file:
        file.write(" 2}\n")
    diary.read()
    assert diary.notes == [{"a": 1}, {"a": 2}]
