"""What a person types for a generation, and which one that is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from milepost.cli.main import main
from milepost.cli.refs import resolve
from milepost.errors import NotFoundError, UsageError
from milepost.publish.view import read
from tests.cli.runs import Run, measured
from tests.engine.training import snapshot, without_git


def number(run: Run, ref: str) -> int:
    return resolve(read(run.store), ref, str(run.root)).number


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "ppo").saves([0, 1000, 2000, 12_000, 3000, 12_000])


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("latest", 6),
        ("latest~0", 6),
        ("latest~2", 4),
        ("g000003~2", 1),
        ("latest~1~1", 4),
        ("g000002", 2),
        ("2", 2),
        ("000002", 2),
        ("@1000", 2),
        ("@1_000", 2),
        ("@12,000", 6),
        ("@12000~1", 5),
    ],
)
def test_a_ref_names_one_generation(run: Run, ref: str, expected: int) -> None:
    assert number(run, ref) == expected


@pytest.mark.parametrize("ref", ["", "newest", "@", "@x", "latest~", "~1", "-1", "g", "best:", "4.0", "latest~-1"])
def test_what_names_nothing_is_a_usage_error_that_lists_the_forms(run: Run, ref: str) -> None:
    with pytest.raises(UsageError) as caught:
        number(run, ref)
    assert "latest~2" in caught.value.hint


@pytest.mark.parametrize("ref", ["7", "g999999", "0", "@999", "latest~6"])
def test_what_is_not_there_is_not_found(run: Run, ref: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        number(run, ref)
    assert caught.value.kind == "no-such-generation"


def test_a_step_that_was_not_saved_names_the_nearest(run: Run) -> None:
    with pytest.raises(NotFoundError, match="nearest: @3000"):
        number(run, "@2600")


def test_a_run_without_a_save_has_no_latest(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        number(Run(tmp_path), "latest")
    assert caught.value.kind == "nothing-saved"


class TestBest:
    @pytest.fixture
    def run(self, tmp_path: Path) -> Run:
        run = Run(tmp_path)
        for step, value in enumerate([1.0, 9.0, 9.0, float("nan"), 2.0]):
            run.save(step, **measured(value, step))
        return run

    def test_it_is_what_the_script_called_best_and_a_tie_goes_to_the_newer(self, run: Run) -> None:
        assert number(run, "best") == 3
        assert number(run, "best~1") == 2

    def test_a_metric_and_a_direction_can_be_named(self, run: Run) -> None:
        assert number(run, "best:eval/return") == 3
        assert number(run, "best:eval/return:min") == 1

    def test_the_recorded_direction_holds_for_the_recorded_metric(self, tmp_path: Path) -> None:
        run = Run(tmp_path / "loss")
        for step, value in enumerate([1.0, 0.1, 3.0]):
            run.save(step, **measured(value, step, "eval/loss", "min"))
        assert number(run, "best") == number(run, "best:eval/loss") == 2
        assert number(run, "best:eval/loss:max") == 3

    def test_an_unhealthy_one_is_never_best(self, run: Run) -> None:
        run.save(9, **measured(100.0, 9), healthy=False, nonfinite=("policy/w",))
        assert number(run, "best") == 3

    def test_a_metric_nobody_reported_is_not_found_and_the_known_ones_are_named(self, run: Run) -> None:
        with pytest.raises(NotFoundError, match="known: eval/return"):
            number(run, "best:eval/length")

    def test_without_a_rule_best_asks_for_a_metric(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            number(Run(tmp_path / "plain").saves([1]), "best")
        assert caught.value.kind == "no-best-metric"


class TestWhatNoLongerCounts:
    def test_a_retired_number_says_that_nothing_has_it(self, tmp_path: Path) -> None:
        from milepost.lifecycle.retain import Keep

        run = Run(tmp_path, Keep(last=2)).saves(range(5))
        with pytest.raises(NotFoundError) as caught:
            number(run, "1")
        assert caught.value.facts["because"] == "no manifest has this number"

    def test_a_damaged_manifest_says_so(self, run: Run) -> None:
        (run.root / "generations/000003.json").write_bytes(b"{}")
        with pytest.raises(NotFoundError) as caught:
            number(run, "3")
        assert str(caught.value.facts["because"]).startswith("its manifest cannot be read")
        assert number(run, "latest~3") == 2, "what cannot be read is stepped over"

    def test_a_void_one_says_so(self, run: Run) -> None:
        old = run.chain
        later = Run(run.root)
        with pytest.raises(Exception, match="claimed this run"):
            run.save(7000)
        assert old.term < later.chain.term
        with pytest.raises(NotFoundError) as caught:
            number(later, "7")
        assert str(caught.value.facts["because"]).startswith("it is void")


class TestEveryVerb:
    @pytest.mark.parametrize("verb", ["show", "verify", "diff", "pin", "unpin", "rollback", "drop"])
    def test_a_ref_that_names_nothing_is_one_clear_error_and_changes_nothing(self, tmp_path: Path, verb: str) -> None:
        run = Run(tmp_path).saves([1000, 2000, 3000])
        before = snapshot(run.store)
        bad = {"nonsense": 2, "latest~x": 2, "@": 2, "best": 2, "best:nothing": 10, "latest~7": 10, "@1500": 10}
        for ref, code in bad.items():
            result = CliRunner().invoke(main, [verb, str(run.root), ref], prog_name="milepost")
            assert (result.exit_code, result.stdout) == (code, ""), ref
            first, *_, last = result.stderr.splitlines()
            assert first.startswith("error: ")
            assert last.startswith("hint: ")
        assert snapshot(run.store) == before

    @pytest.mark.parametrize("verb", ["show", "verify", "diff", "pin", "unpin", "rollback"])
    def test_every_form_means_the_same_to_every_verb(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
        without_git(monkeypatch)
        run = Run(tmp_path / "0")
        for step, value in ((1000, 9.0), (2000, 5.0), (3000, 7.0)):
            run.save(step, **measured(value, step))
        for ref in ("latest~2", "best", "best:eval/return:max", "@1000", "g000001", "1"):
            root = Path(shutil.copytree(run.root, tmp_path / ref.replace("/", "-")))
            result = CliRunner().invoke(main, [verb, str(root), ref], prog_name="milepost")
            assert result.exit_code == 0, result.output
            assert "g000001" in result.stdout
