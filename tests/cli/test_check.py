"""`milepost verify`: what is damaged is named, what a resume would take is said, and the exit code tells both apart."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import milepost
from milepost.cli import check
from milepost.cli.main import main
from milepost.clock import SystemClock
from milepost.errors import CorruptError
from milepost.publish import layout, quarantine
from milepost.publish.manifest import decode_manifest, encode
from milepost.publish.view import read
from milepost.records import Latest, Manifest
from milepost.store.local import LocalStore
from milepost.testing.sick import READS, SickPosix, failing
from tests.cli.runs import Run


def milepost_(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="milepost")


def document(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(milepost_(*arguments, "--json").stdout)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "ppo").saves([1000, 2000, 3000])


def flip(run: Run, number: int) -> str:
    """Flip one bit of the blob of a generation and return its name."""
    name = read(run.store).listing.summaries[number].blobs[0].name
    data = bytearray((run.root / name).read_bytes())
    data[100] ^= 1
    (run.root / name).write_bytes(data)
    return name


def test_a_sound_run_is_all_valid_and_the_exit_code_is_zero(run: Run) -> None:
    result = milepost_("verify", run.root)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.splitlines()[:3] == ["g000001  valid", "g000002  valid", "g000003  valid"]
    assert result.stdout.splitlines()[-1] == "a resume would take g000003"


def test_damage_is_named_and_the_next_best_generation_too(run: Run) -> None:
    name = flip(run, 3)
    result = milepost_("verify", run.root)
    assert result.exit_code == 13
    assert "g000003  DAMAGED" in result.stdout
    assert f"  {name} (policy): its digest is not the one that was written" in result.stdout
    assert result.stdout.splitlines()[-1] == "a resume would take g000002"
    found = document("verify", run.root)
    assert (found["ok"], found["resume_from"]) == (False, 2)
    assert [one["state"] for one in found["generations"]] == ["valid", "valid", "damaged"]
    assert found["problems"][0]["name"] == name
    assert found["problems"][0]["components"] == ["policy"]


def test_with_nothing_left_to_resume_from_the_code_says_so(run: Run) -> None:
    for number in (1, 2, 3):
        flip(run, number)
    result = milepost_("verify", run.root)
    assert result.exit_code == 14
    assert result.stdout.splitlines()[-1] == f"hint: milepost reset {run.root} sets the run aside for a fresh start"


def test_what_a_rollback_left_behind_is_named_where_nothing_else_is_sound(tmp_path: Path) -> None:
    root = tmp_path / "run"
    for step in (1, 2, 3):
        milepost.save(root, {"policy": np.full(64, float(step))}, step=step)
    assert milepost_("rollback", root, "1").exit_code == 0
    [own] = [blob.name for blob in read(LocalStore(root, SystemClock())).live[1].blobs]
    data = bytearray((root / own).read_bytes())
    data[-1] ^= 1
    (root / own).write_bytes(data)
    result = milepost_("verify", root)
    assert result.exit_code == 14
    assert result.stdout.splitlines()[-1].startswith(f"hint: milepost rollback {root} g000003 goes back to one that is sound; ")
    with pytest.raises(CorruptError, match=f"milepost rollback {root} 3 goes back"):
        resume(root)
    assert milepost_("rollback", root, "3").exit_code == 0
    assert resume(root) == 3


def resume(root: Path) -> int:
    state = {"policy": np.zeros(64)}
    with milepost.CheckpointEngine(root, state=state) as engine:
        restored = engine.resume()
        assert restored is not None
        return restored.step


def test_a_run_of_unhealthy_generations_has_nothing_to_resume_from_either(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(1, healthy=False, nonfinite=("policy/w",))
    assert milepost_("verify", run.root).exit_code == 14


def test_a_run_without_a_save_is_fine(tmp_path: Path) -> None:
    result = milepost_("verify", Run(tmp_path).root)
    assert (result.exit_code, result.stdout.split(";")[0]) == (0, "no generations")


def test_a_damaged_record_beside_the_generations_is_named(run: Run) -> None:
    (run.root / "terms/0001.from.json").write_bytes(b"{}")
    result = milepost_("verify", run.root)
    assert result.exit_code == 13
    assert "terms/0001.from.json: a record is damaged" in result.stdout.splitlines()


def test_only_what_is_named_is_checked(run: Run) -> None:
    flip(run, 3)
    assert milepost_("verify", run.root, "latest~1", "g000001").exit_code == 0
    assert milepost_("verify", run.root, "latest").exit_code == 13, "one generation is damaged; the others may be fine: not 14"


def test_what_cannot_be_read_can_be_asked_for_by_its_number(run: Run) -> None:
    (run.root / "generations/000002.json").write_bytes(b"{}")
    result = milepost_("verify", run.root, "2")
    assert result.exit_code == 13
    assert "g000002  UNREADABLE" in result.stdout


def test_quick_sees_a_truncated_blob_and_not_a_flipped_bit(run: Run) -> None:
    name = flip(run, 3)
    assert milepost_("verify", run.root, "--quick").exit_code == 0
    (run.root / name).write_bytes(b"short")
    result = milepost_("verify", run.root, "--quick")
    assert result.exit_code == 13
    assert "it is shorter than the 4,096 bytes that were written" in result.stdout


def test_each_damaged_generation_says_which_components_are_sound(tmp_path: Path) -> None:
    for step in (1, 2):
        tree = {"policy": {"w": np.full(9, step)}, "optimizer": {"m": np.zeros(9)}, "replay": {"o": np.full(999, step)}}
        milepost.save(tmp_path, tree, step=step)
    manifest = decode_manifest((tmp_path / layout.manifest(2)).read_bytes(), "2")
    spoil_leaf(tmp_path, manifest, "replay")
    result = milepost_("verify", tmp_path)
    assert "g000002  DAMAGED: policy, optimizer sound; replay DAMAGED" in result.stdout.splitlines()
    one = document("verify", tmp_path)["generations"][1]
    assert (one["sound_components"], one["damaged_components"]) == (["policy", "optimizer"], ["replay"])
    assert result.stdout.splitlines()[-1] == "a resume would take g000001"


def test_where_none_is_whole_it_says_what_a_resume_would_go_on_without(tmp_path: Path) -> None:
    tree = {"policy": {"w": np.ones(9)}, "replay": {"o": np.full(999, 3)}}
    milepost.save(tmp_path, tree, step=1)
    manifest = decode_manifest((tmp_path / layout.manifest(1)).read_bytes(), "1")
    spoil_leaf(tmp_path, manifest, "replay")
    result = milepost_("verify", tmp_path)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (13, "a resume would take g000001 without replay")
    found = document("verify", tmp_path)
    assert (found["resume_from"], found["resume_without"]) == (1, ["replay"])
    state = {"policy": {"w": np.zeros(9)}, "replay": {"o": np.zeros(999, int)}}
    with milepost.CheckpointEngine(tmp_path, state=state) as engine:
        restored = engine.resume()
    assert restored is not None, "and so it does"
    assert (restored.generation, restored.exact, state["policy"]["w"][0], state["replay"]["o"][0]) == (1, False, 1.0, 0)


def test_where_something_essential_is_hit_there_is_nothing_to_resume_from(tmp_path: Path) -> None:
    milepost.save(tmp_path, {"policy": {"w": np.ones(99)}, "replay": {"o": np.ones(9)}}, step=1)
    spoil_leaf(tmp_path, decode_manifest((tmp_path / layout.manifest(1)).read_bytes(), "1"), "policy")
    assert milepost_("verify", tmp_path).exit_code == 14


def test_damage_in_a_header_is_said_to_touch_no_component(tmp_path: Path) -> None:
    milepost.save(tmp_path, {"policy": {"w": np.ones(99)}}, step=1)
    [name] = (tmp_path / "blobs").iterdir()
    data = bytearray(name.read_bytes())
    data[12] ^= 1
    name.write_bytes(data)
    said = milepost_("verify", tmp_path).stdout.splitlines()
    assert said[0].startswith("g000001  DAMAGED: every component is sound; the damage is in a file's header")
    assert "(no component, only the file's header)" in said[1]


def spoil_leaf(root: Path, manifest: Manifest, component: str) -> None:
    [part] = [part for part in manifest.components if part.name == component]
    leaf = part.leaves[0]
    path = root / manifest.blobs[leaf.blob].name
    data = bytearray(path.read_bytes())
    data[leaf.start] ^= 1
    path.write_bytes(data)


class TestParts:
    def test_the_tenths_together_read_everything_and_each_says_how_much(self, run: Run) -> None:
        found = [document("verify", run.root, "--read-data-subset", f"{part}/3") for part in (1, 2, 3)]
        assert sum(one["data_read_bytes"] for one in found) == found[0]["data_bytes"] == 3 * 4096
        said = milepost_("verify", run.root, "--read-data-subset", "2/3").stdout.splitlines()[-2]
        assert said.endswith("12 KiB of data was read (2/3); of the rest only the sizes of files were checked")

    def test_damage_is_found_by_the_part_that_it_lies_in_and_by_no_other(self, run: Run) -> None:
        flip(run, 2)
        codes = [milepost_("verify", run.root, "--read-data-subset", f"{part}/3").exit_code for part in (1, 2, 3)]
        assert sorted(codes) == [0, 0, 13]

    def test_a_file_that_was_cut_off_is_found_by_every_part(self, run: Run) -> None:
        name = flip(run, 2)
        (run.root / name).write_bytes(b"short")
        for part in (1, 2, 3):
            assert milepost_("verify", run.root, "--read-data-subset", f"{part}/3").exit_code == 13

    def test_a_share_says_its_seed_and_the_seed_reads_the_same_again(self, run: Run) -> None:
        found = document("verify", run.root, "--read-data-subset", "40%")
        assert found["data_read_bytes"] == 2 * 4096
        again = document("verify", run.root, "--read-data-subset", found["subset"])
        assert (again["subset"], again["data_read_bytes"]) == (found["subset"], 2 * 4096)

    def test_quick_says_that_no_data_was_read(self, run: Run) -> None:
        said = milepost_("verify", run.root, "--quick").stdout.splitlines()[-2]
        assert said == "3 valid; none of its 12 KiB of data was read, only records and the sizes of files"

    @pytest.mark.parametrize(
        "options",
        [
            ("--full", "--quick"),
            ("--quick", "--read-data-subset", "1/2"),
            ("--clear", "--read-data-subset", "1/2"),
            ("--read-data-subset", "3/2"),
        ],
    )
    def test_what_makes_no_sense_is_a_usage_error(self, run: Run, options: tuple[str, ...]) -> None:
        result = milepost_("verify", run.root, *options)
        assert (result.exit_code, result.stdout) == (2, "")

    def test_full_is_what_happens_anyway(self, run: Run) -> None:
        assert milepost_("verify", run.root, "--full").stdout == milepost_("verify", run.root).stdout


def test_a_copy_that_lacks_the_newest_generation_says_what_that_may_be(run: Run) -> None:
    (run.root / layout.LATEST).write_bytes(encode(Latest(run.chain.run_id, 4, 4000, "0" * 64)))
    result = milepost_("verify", run.root)
    assert result.exit_code == 13
    assert "LATEST tells of g000004, which is not here: it was removed, or this is a copy" in result.stdout


class TestClear:
    @pytest.fixture
    def marked(self, run: Run) -> Run:
        for number in (2, 3):
            quarantine.mark(
                run.store, run.clock, run_id=run.chain.run_id, term=1, number=number, kind="kills-loader", reason="it crashed"
            )
        return run

    def test_a_mark_is_shown_and_stands_without_being_asked_about(self, marked: Run) -> None:
        assert "g000003  valid  (marked kills-loader: it crashed)" in milepost_("verify", marked.root).stdout
        assert document("verify", marked.root)["resume_from"] == 1
        assert read(marked.store).marks.keys() == {2, 3}

    def test_it_goes_from_what_verifies_and_stays_on_what_does_not(self, marked: Run) -> None:
        flip(marked, 2)
        result = milepost_("verify", marked.root, "--clear")
        assert "g000003  valid  (mark cleared)" in result.stdout
        assert read(marked.store).marks.keys() == {2}
        assert document("verify", marked.root)["resume_from"] == 3

    def test_it_goes_only_from_what_is_named(self, marked: Run) -> None:
        assert document("verify", marked.root, "3", "--clear")["cleared"] == [3]
        assert read(marked.store).marks.keys() == {2}

    def test_it_wants_the_whole_check(self, marked: Run) -> None:
        assert milepost_("verify", marked.root, "--clear", "--quick").exit_code == 2
        assert read(marked.store).marks.keys() == {2, 3}


@pytest.mark.parametrize("sick", [1, 3])
def test_a_file_that_cannot_be_read_hides_nothing_of_the_others(run: Run, monkeypatch: pytest.MonkeyPatch, sick: int) -> None:
    name = read(run.store).live[sick].blobs[0].name
    posix = SickPosix(failing(errno.EIO), calls=READS, lasting=True, only=lambda asked: name in str(asked.arguments[0]))
    monkeypatch.setattr(check, "open_store", lambda root: LocalStore(root, run.clock, posix=posix))
    result = milepost_("verify", run.root)
    assert result.exit_code == 1, "it is not known to be damaged"
    assert f"g00000{sick}  UNREAD\n  {name}" in result.stdout
    assert "it cannot be read now: could not read: Input/output error" in result.stdout
    assert "2 valid, 1 unread" in result.stdout
    if sick == 3:
        assert "g000003 cannot be read now, and a resume stops at it" in result.stdout
        assert f"milepost rollback {run.root}" in result.stdout
    else:
        assert result.stdout.endswith("a resume would take g000003\n")
    flip(run, 2)
    assert milepost_("verify", run.root).exit_code == 13
