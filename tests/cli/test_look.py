"""`milepost ls` and `milepost show`: what a person sees and what a script reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from milepost.cli.main import main
from milepost.lifecycle.retain import Keep
from milepost.publish import quarantine
from milepost.publish.generation import build_on
from milepost.publish.pins import pin
from tests.cli.runs import Run, measured


def milepost(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="milepost")


def document(*arguments: object) -> dict[str, Any]:
    result = milepost(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def columns(text: str) -> dict[str, dict[str, str]]:
    """Return the table by generation and column; columns begin where their head begins."""
    head, *rows = text.splitlines()
    names = head.split()
    return {row.split()[0]: dict(zip(names, row.split(), strict=False)) for row in rows if row.startswith("g0")}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "ppo")


class TestLs:
    def test_it_lists_the_newest_first_with_what_is_known_of_each(self, run: Run) -> None:
        run.save(1000, **measured(3.5, 900))
        run.save(210_000, **measured(1.25, 209_000))
        result = milepost("ls", run.root)
        assert result.exit_code == 0
        lines = result.stdout.splitlines()
        assert lines[0].split() == ["GEN", "STEP", "AGE", "SIZE", "NEW", "STATE", "METRICS", "TAGS"]
        assert lines[1].split()[:2] == ["g000002", "210,000"]
        assert lines[1].split()[3:] == ["4", "KiB", "4", "KiB", "live", "eval/return=1.25", "latest", "resume"]
        assert lines[2].split()[-3:] == ["live", "eval/return=3.5", "best"]
        assert len(lines) == 3

    def test_columns_nobody_filled_are_not_there(self, run: Run) -> None:
        run.save(1)
        assert "METRICS" not in milepost("ls", run.root).stdout

    def test_a_run_without_a_save_says_so(self, run: Run) -> None:
        assert milepost("ls", run.root).stdout == "no generation has been published yet\n"
        assert document("ls", run.root)["generations"] == []

    def test_pins_are_tags(self, run: Run) -> None:
        run.saves([1, 2])
        pin(run.store, 1)
        assert milepost("ls", run.root).stdout.splitlines()[2].split()[-1] == "pinned"
        assert document("ls", run.root)["generations"][1]["tags"] == ["pinned"]

    @pytest.mark.parametrize(
        ("fields", "state"),
        [({}, "live"), ({"healthy": False, "nonfinite": ("policy/w",)}, "unhealthy"), ({"complete": False}, "incomplete")],
    )
    def test_the_state_is_what_the_records_say(self, run: Run, fields: dict[str, object], state: str) -> None:
        run.save(1)
        run.save(2, **fields)
        listed = document("ls", run.root)["generations"]
        assert listed[0]["state"] == state
        assert "resume" in listed[0 if state == "live" else 1]["tags"]
        assert state in milepost("ls", run.root).stdout.lower()

    def test_a_mark_is_shown_with_its_reason(self, run: Run) -> None:
        run.saves([1, 2])
        quarantine.mark(
            run.store, run.clock, run_id=run.chain.run_id, term=1, number=2, kind="kills-loader", reason="segfault in load"
        )
        text = milepost("ls", run.root).stdout
        assert "KILLS-LOADER" in text
        assert "g000002 is marked kills-loader: segfault in load" in text
        assert document("ls", run.root)["generations"][0]["mark"] == {"kind": "kills-loader", "reason": "segfault in load"}

    def test_a_damaged_manifest_is_listed_as_unreadable_and_hides_nothing_else(self, run: Run) -> None:
        run.saves([1, 2, 3])
        (run.root / "generations/000002.json").write_bytes(b"half a rec")
        text = milepost("ls", run.root).stdout
        assert [line.split()[0] for line in text.splitlines()[1:4]] == ["g000003", "g000002", "g000001"]
        assert "UNREADABLE" in text
        assert "g000002 cannot be read: a record is damaged" in text

    def test_what_no_longer_counts_is_shown_only_on_request(self, run: Run) -> None:
        run.saves([1, 2])
        later = Run(run.root)
        with pytest.raises(Exception, match="claimed this run"):
            run.save(3)
        assert "g000003" not in columns(milepost("ls", later.root).stdout)
        assert f"1 more no longer count: milepost ls --all {later.root}" in milepost("ls", later.root).stdout
        assert document("ls", later.root, "--all")["generations"][0]["state"] == "void"

    def test_a_limit_shows_the_newest_and_says_how_many_there_are(self, run: Run) -> None:
        run.saves(range(5))
        text = milepost("ls", run.root, "-n", 2).stdout
        assert list(columns(text)) == ["g000005", "g000004"]
        assert "2 of 5 generations" in text

    def test_an_unfinished_claim_makes_the_head_undecided(self, run: Run) -> None:
        from milepost.publish.manifest import encode
        from milepost.records import Fence

        run.saves([1])
        run.store.create("terms/0002.json", encode(Fence(2, "c", "host8", "boot", 7, "")))
        assert document("ls", run.root)["undecided"] is True
        assert "undecided" in milepost("ls", run.root).stdout.splitlines()[1]

    def test_retired_generations_are_gone(self, tmp_path: Path) -> None:
        run = Run(tmp_path, Keep(last=2)).saves(range(4))
        assert [g["number"] for g in document("ls", run.root, "--all")["generations"]] == [4, 3]

    def test_the_document_has_every_field_in_its_unit(self, run: Run) -> None:
        run.save(1000, **measured(float("inf"), 900), counters={"episodes": 12}, elapsed_s=(1.5).hex())
        listed = document("ls", run.root)
        assert listed["message_type"] == "generations"
        assert listed["schema_version"] == 1
        assert listed["root"] == str(run.root)
        assert listed["run_id"] == run.chain.run_id
        assert listed["head"] == 1
        assert listed["generations"] == [
            {
                "number": 1,
                "name": "g000001",
                "state": "live",
                "tags": ["latest", "resume", "best"],
                "step": 1000,
                "term": 1,
                "parent": 0,
                "rollback_to": None,
                "keep": [1],
                "commit_timestamp_ns": run.chain.last_timestamp,
                "committed_at": "2023-11-14T22:14:20Z",
                "total_bytes": 4096,
                "new_bytes": 4096,
                "complete": True,
                "healthy": True,
                "nonfinite": [],
                "metrics": {"eval/return": {"value": "inf", "step": 900}},
                "counters": {"episodes": 12},
                "elapsed_s": 1.5,
                "reason": "every 1000 steps",
            }
        ]

    def test_it_changes_nothing_on_disk(self, run: Run) -> None:
        run.saves([1, 2])
        before = {path: path.stat().st_mtime_ns for path in run.root.rglob("*")}
        milepost("ls", run.root, "--all")
        milepost("show", run.root)
        assert {path: path.stat().st_mtime_ns for path in run.root.rglob("*")} == before


class TestShow:
    def test_it_tells_where_the_generation_came_from(self, run: Run) -> None:
        run.save(1000)
        run.save(2000, **measured(487.2, 1900), counters={"episodes": 1731, "epochs": 2}, elapsed_s=(7300.0).hex())
        text = milepost("show", run.root).stdout
        assert text.startswith(f"run {run.chain.run_id}  generation g000002  step 2,000  live  (latest, resume, best)\n")
        for fact in (
            "by pid 4121 on host7",
            "every 1000 steps",
            "2h",
            "episodes 1,731, epochs 2",
            "4 KiB in 1 file, 4 KiB of it new",
            "g000001",
            "numpy 2.0",
        ):
            assert fact in text
        assert ["policy", "4", "KiB", "1", "exact"] in [line.split() for line in text.splitlines()]
        assert ["eval/return", "487.2", "1,900"] in [line.split() for line in text.splitlines()]

    def test_leaves_and_fingerprint_come_on_request(self, run: Run) -> None:
        run.save(1)
        assert "uint8" not in milepost("show", run.root).stdout
        assert ["policy/w", "numpy", "uint8[4096]"] in [
            line.split()[:3] for line in milepost("show", run.root, "--leaves").stdout.splitlines()
        ]
        assert ["threads", "1"] in [line.split() for line in milepost("show", run.root, "--env").stdout.splitlines()]

    def test_a_generation_that_goes_on_from_another_says_which(self, run: Run) -> None:
        run.saves([1, 2])
        build_on(run.chain, 1)
        run.save(1)
        assert "g000002, continuing from g000001" in milepost("show", run.root).stdout

    def test_the_document_has_components_and_their_leaves_on_request(self, run: Run) -> None:
        run.saves([1, 2])
        shown = document("show", run.root, "latest~1")["generation"]
        assert shown["number"] == 1
        assert shown["components"] == [
            {"name": "policy", "exactness": "exact", "reason": "", "size_bytes": 4096, "leaf_count": 1},
        ]
        assert shown["provenance"]["host"] == "host7"
        [component] = document("show", run.root, "--leaves")["generation"]["components"]
        assert component["leaves"][0]["path"] == "policy/w"
        assert component["leaves"][0]["blob"].startswith("blobs/000002-")


class TestHostileText:
    def test_names_from_files_cannot_steer_the_terminal_or_forge_a_line(self, run: Run) -> None:
        run.save(1, **measured(1.0, 1, by="x\x1b[2J\ng000009  9"), reason="\u202egnp.exe", counters={"a\tb": 1})
        for text in (milepost("ls", run.root).stdout, milepost("show", run.root, "--leaves", "--env").stdout):
            assert not [c for c in text if c != "\n" and not c.isprintable()]
            assert "\ng000009" not in text

    def test_json_is_ascii_whatever_the_names(self, run: Run) -> None:
        run.save(1, **measured(1.0, 1, by="Rückgabe/日本"))
        result = milepost("ls", run.root, "--json")
        assert result.stdout.isascii()
        assert "Rückgabe/日本" in json.loads(result.stdout)["generations"][0]["metrics"]


def test_listing_imports_neither_numpy_nor_torch(run: Run) -> None:
    run.save(1)
    script = (
        "import sys; from milepost.cli.main import main\ntry: main()\nfinally: print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    for verb in ("ls", "show", "verify"):
        done = subprocess.run([sys.executable, "-c", script, verb, str(run.root)], capture_output=True, text=True, check=True)
        assert "g000001" in done.stdout
        loaded = set(done.stderr.split())
        assert "milepost.publish.view" in loaded
        assert loaded.isdisjoint({"numpy", "torch", "gymnasium", "stable_baselines3", "rich", "traceback", "milepost.store.lock"})
