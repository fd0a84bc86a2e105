"""`milepost diff`: what changed between two generations, told from their manifests alone."""

from __future__ import annotations

import dataclasses
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import milepost
from milepost.cli.main import main
from milepost.engine import oneshot
from milepost.errors import CorruptError
from milepost.lifecycle.diff import diff
from milepost.publish import layout
from milepost.publish.view import read
from milepost.records import ComponentRecord, Manifest, Summary
from milepost.testing.faults import FaultStore
from tests.cli.runs import Run, measured
from tests.engine.training import local, without_git
from tests.publish.summaries import generation


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["diff", *map(str, arguments)], prog_name="milepost")


def document(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call(*arguments, "--json").stdout)
    return found


def changes(found: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["change"] for one in found["components"]}


def leaves(found: dict[str, Any], component: str) -> dict[str, tuple[str, str, str]]:
    [one] = [one for one in found["components"] if one["name"] == component]
    return {leaf["path"]: (leaf["change"], leaf["old"], leaf["new"]) for leaf in one["leaves"]}


def tree(step: int) -> dict[str, Any]:
    return {
        "policy": {"w": np.full(8, step, np.float32), "frozen": np.arange(4096.0)},
        "optimizer": {"lr": 0.5 / step, "betas": (0.9, 0.999), "name": "adam", "steps": np.int64(step)},
        "counters": {"step": step},
        "rng": {"state": 7},
    }


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("origin") / "ppo"
    with pytest.MonkeyPatch.context() as patch:
        without_git(patch)
        for step in (1, 2):
            milepost.save(made, tree(step), step=step)
        third = tree(2) | {"extra": {"note": "new"}}
        third["policy"]["w"] = np.full(8, 2, np.float64)
        third["policy"]["b"] = np.zeros(3, np.float32)
        del third["policy"]["frozen"], third["rng"]
        milepost.save(made, third, step=3)
    return made


@pytest.fixture
def root(origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    without_git(monkeypatch)
    return Path(shutil.copytree(origin, tmp_path / "ppo"))


def test_what_changed_is_told_by_component_and_the_code_is_that_of_diff(root: Path) -> None:
    found = document(root, 1, 2)
    assert changes(found) == {"policy": "changed", "optimizer": "changed", "counters": "changed", "rng": "unchanged"}
    assert found["same"] is False
    policy = found["components"][0]
    assert (policy["changed"], policy["added"], policy["removed"], policy["changed_bytes"]) == (1, 0, 0, 32)
    result = call(root, 1, 2)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0].startswith("g000001 (step 1) to g000002 (step 2): 3 of 4 components differ; ")


def test_leaves_and_values_are_told_with_what_they_were_and_are(root: Path) -> None:
    found = document(root, 1, 2, "--leaves")
    assert leaves(found, "policy") == {"policy/w": ("changed", "numpy float32[8]", "numpy float32[8]")}
    assert leaves(found, "optimizer") == {
        "optimizer/lr": ("changed", "0.5", "0.25"),
        "optimizer/steps": ("changed", "numpy int64 0100000000000000", "numpy int64 0200000000000000"),
    }
    assert leaves(found, "counters") == {"counters/step": ("changed", "1", "2")}
    rows = [line.split() for line in call(root, 1, 2, "--leaves").stdout.splitlines()]
    assert ["optimizer/lr", "changed", "0.5", "0.25"] in rows


def test_what_was_added_removed_or_has_another_dtype_is_told(root: Path) -> None:
    found = document(root, 2, "latest", "--leaves")
    assert changes(found)["rng"] == "removed"
    assert changes(found)["extra"] == "added"
    assert leaves(found, "policy") == {
        "policy/w": ("changed", "numpy float32[8]", "numpy float64[8]"),
        "policy/frozen": ("removed", "numpy float64[4096]", ""),
        "policy/b": ("added", "", "numpy float32[3]"),
    }
    assert leaves(found, "extra") == {"extra/note": ("added", "", "'new'")}


def test_a_generation_is_the_same_as_itself_and_as_its_rollback(root: Path) -> None:
    assert call(root, "latest", "latest").exit_code == 0
    oneshot.rollback(root, 1)
    result = call(root, 1)
    assert result.exit_code == 0
    assert "the state is the same, bit for bit" in result.stdout
    found = document(root, 1)
    assert found["same"] is True
    assert {"because"} <= {fact["name"] for fact in found["facts"]}
    assert found["shared_bytes"] == found["new"]["total_bytes"]


def test_steps_metrics_and_fingerprints_are_told_where_they_differ(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(1000, **measured(10.0, 900))
    run.save(2000, **measured(12.5, 1900), fingerprint={"threads": "4"})
    facts = {fact["name"]: (fact["old"], fact["new"]) for fact in document(tmp_path, 1, 2)["facts"]}
    assert facts == {
        "step": ("1,000", "2,000"),
        "saved": ("2023-11-14T22:14:20Z", "2023-11-14T22:15:20Z"),
        "metrics/eval/return": ("10.0", "12.5"),
        "fingerprint/threads": ("1", "4"),
    }


def test_two_runs_are_compared_with_other(root: Path, tmp_path: Path) -> None:
    milepost.save(tmp_path / "b", tree(1), step=1)
    found = document(root, 1, "latest", "--other", tmp_path / "b")
    assert (found["same"], found["shared_bytes"]) == (True, 0)
    assert "run" in {fact["name"] for fact in found["facts"]}
    assert "in files of both" not in call(root, 1, 1, "--other", tmp_path / "b").stdout


def test_no_data_is_read(root: Path) -> None:
    shutil.rmtree(root / "blobs")
    assert call(root, 1, 2).exit_code == 1
    store = FaultStore(local(root))
    read(store)
    assert not [name for name in store.names_asked("read") if name.startswith(layout.BLOBS)]


@pytest.mark.parametrize(("refs", "code"), [((1, 99), 10), (("latest~9",), 10), (("nonsense",), 2), ((), 2)])
def test_a_failure_is_no_difference(root: Path, refs: tuple[object, ...], code: int) -> None:
    result = call(root, *refs)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("error: ")


def manifest(*values: Any) -> Manifest:
    """Return a generation of one component with these trees in it."""
    summary = {field.name: getattr(generation(1), field.name) for field in dataclasses.fields(Summary)}
    return Manifest(**summary, components=tuple(ComponentRecord("extra", value, ()) for value in values))


def test_paths_that_repeat_and_long_values_that_begin_alike_are_told_apart() -> None:
    def with_tree(*values: list[Any]) -> Manifest:
        return manifest(["dict", [["a", each] for each in values]])

    found = diff(with_tree(["str", "x" * 99 + "1"], ["int", "1"]), with_tree(["str", "x" * 99 + "2"], ["int", "1"]))
    assert [(leaf.path, leaf.change) for leaf in found.components[0].leaves] == [
        ("extra/a", "changed"),
        ("extra/a (2)", "unchanged"),
    ]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=4)
    | st.sampled_from(["dict", "list", "float", "object", "array"]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_a_tree_that_is_none_is_damage_or_text_and_never_a_crash(node: Any) -> None:
    with suppress(CorruptError):
        assert diff(manifest(node), manifest(node)).same


@pytest.mark.parametrize("node", [[], ["dict", [1]], ["float", "zz"], 7])
def test_a_tree_that_is_none_is_named_as_damage(node: Any) -> None:
    with pytest.raises(CorruptError):
        diff(manifest(), manifest(node))
