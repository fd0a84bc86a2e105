"""Bad input: one error that names what, where and the next command, and everything stays as it was. B12"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import milepost
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import ConflictError, MilepostError, MismatchError, NotFoundError, SaveFailed, StoreError, UsageError
from milepost.lifecycle.triggers import every
from milepost.store.posix import Posix
from milepost.testing.faults import FaultStore, run_in_child
from tests.engine.training import Training, bits, local, snapshot, state_at

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def saved_run(root: Path) -> Path:
    with Training(root) as training:
        training.save(1)
        training.save(2)
    return root


def refused(state: dict[str, Any], root: Path, **settings: Any) -> MilepostError:
    """Resume ``state`` from ``root``; return the error, having checked that state and disk are as they were."""
    before_state, before_disk = bits(state), snapshot(local(root))
    identities = {name: id(value) for name, value in state.items()}
    with CheckpointEngine(root, state=state, writer="inline", **settings) as engine:
        with pytest.raises(MilepostError) as caught:
            engine.resume()
        with pytest.raises(MilepostError):
            engine.save(3)
    assert bits(state) == before_state
    assert {name: id(value) for name, value in state.items()} == identities
    check_that_only_the_claim_is_new(root, before_disk)
    return caught.value


def check_that_only_the_claim_is_new(root: Path, before: dict[str, bytes]) -> None:
    """Check the disk byte for byte: a claim adds its term and a line of log, and changes nothing else that counts."""
    after = snapshot(local(root))
    added = {name.partition("/")[0] for name in after.keys() - before.keys()}
    assert added <= {"terms", "events"}
    assert before.keys() <= after.keys()
    assert {name for name in before if before[name] != after[name]} <= {"LATEST"}
    assert all(after[name].startswith(before[name]) for name in before if name.startswith("events"))


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    *parents, last = path.split("/")

    def apply(state: dict[str, Any]) -> None:
        place = state
        for parent in parents:
            place = place[parent]
        if value is None:
            del place[last]
        else:
            place[last] = value

    return apply


MISFITS = {
    "wrong shape": (
        [change("policy/w", np.zeros((16, 9), np.float32))],
        ["policy/w: saved numpy float32[16, 8], here numpy float32[16, 9]"],
        "shape",
    ),
    "wrong dtype": (
        [change("policy/frozen", np.zeros(256, np.float32))],
        ["policy/frozen: saved numpy float64[256], here numpy float32[256]"],
        "dtype",
    ),
    "wrong type": (
        [change("policy/w", {"w": 1})],
        ["policy/w: saved numpy float32[16, 8], here dict"],
        "type",
    ),
    "a key that is missing here": (
        [change("policy/w", None)],
        ["policy/w: saved numpy float32[16, 8], here missing"],
        "missing",
    ),
    "a key that was not saved": (
        [change("policy/extra_head", np.zeros(3))],
        ["policy/extra_head: saved missing, here numpy float64[3]"],
        "unexpected",
    ),
    "all of it at once": (
        [
            change("policy/w", np.zeros((1, 8), np.float32)),
            change("optimizer/lr", "fast"),
            change("replay/obs", np.zeros(400, np.uint8)),
            change("replay/next_obs", np.zeros(4)),
            change("counters/step", [0]),
        ],
        [
            "policy/w: saved numpy float32[16, 8], here numpy float32[1, 8]",
            "optimizer/lr: saved float, here str",
            "replay/obs: saved numpy int64[400], here numpy uint8[400]",
            "replay/next_obs: saved missing, here numpy float64[4]",
            "counters/step: saved int, here list",
        ],
        "shape",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_state_that_does_not_fit_lists_every_difference_and_changes_nothing(tmp_path: Path, name: str) -> None:
    changes, expected, kind = MISFITS[name]
    state = state_at(0)
    for apply in changes:
        apply(state)
    error = refused(state, saved_run(tmp_path))
    assert isinstance(error, MismatchError)
    assert error.kind == kind
    assert [str(difference) for difference in error.differences] == expected
    text = str(error)
    assert f"root=`{tmp_path}` generation=`2`" in text
    assert all(line in text for line in expected)
    assert "nothing was changed" in text
    assert "hint:" in text
    assert "on_mismatch" in text


def test_the_root_of_another_script_is_a_mismatch_and_not_a_fresh_start(tmp_path: Path) -> None:
    state = {"policy": {"actor": np.zeros(5)}, "value": {"critic": np.zeros(5)}, "counters": {"timesteps": 0}}
    error = refused(state, saved_run(tmp_path))
    assert isinstance(error, MismatchError)
    paths = {difference.path for difference in error.differences}
    assert {"policy/actor", "policy/w", "policy/frozen", "value", "optimizer", "counters/step", "counters/timesteps"} <= paths
    assert "replay" not in paths, "a missing replay alone would only be a warning"


def test_a_directory_that_is_no_run_becomes_one_and_what_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/model.pt").write_bytes(b"theirs")
    with Training(tmp_path) as training:
        assert training.engine.resume() is None
        training.save(1)
    assert (tmp_path / "train.py").read_text() == "x = 1"
    assert (tmp_path / "checkpoints/model.pt").read_bytes() == b"theirs"


@pytest.mark.parametrize("below", ["", "/run"])
def test_a_root_that_is_a_file_or_below_one_is_told_by_its_path(tmp_path: Path, below: str) -> None:
    (tmp_path / "model.zip").write_bytes(b"theirs")
    training = Training(Path(f"{tmp_path}/model.zip{below}"))
    with pytest.raises(StoreError) as caught:
        training.engine.resume()
    assert "model.zip" in str(caught.value)
    assert caught.value.kind == "not-a-directory"
    assert "choose a directory" in caught.value.hint
    assert (tmp_path / "model.zip").read_bytes() == b"theirs"
    assert os.listdir(tmp_path) == ["model.zip"]


class Unreadable(Posix):
    """Refuse to open some files, or to read them."""

    def __init__(self, ending: str, number: int, *, opens: bool) -> None:
        self.ending, self.number, self.opens = ending, number, opens
        self.opened: set[int] = set()

    def open_read(self, path: str) -> int:
        if path.endswith(self.ending) and not self.opens:
            raise OSError(self.number, os.strerror(self.number), path)
        descriptor = super().open_read(path)
        self.opened -= {descriptor}
        if path.endswith(self.ending):
            self.opened.add(descriptor)
        return descriptor

    def read_into(self, descriptor: int, into: memoryview, offset: int) -> int:
        if descriptor in self.opened:
            raise OSError(self.number, os.strerror(self.number))
        return super().read_into(descriptor, into, offset)


@pytest.mark.parametrize("ending", [".safetensors", "generations/000002.json", "milepost.json", "terms/0001.json"])
@pytest.mark.parametrize(("number", "opens", "kind"), [(errno.EACCES, False, "permission"), (errno.EIO, True, "io")])
def test_a_file_that_cannot_be_read_is_named_and_is_not_taken_for_damage(
    tmp_path: Path, ending: str, number: int, opens: bool, kind: str
) -> None:
    saved_run(tmp_path)
    before = snapshot(local(tmp_path))
    training = Training(local(tmp_path, Unreadable(ending, number, opens=opens)))
    with pytest.raises(StoreError) as caught:
        training.engine.resume()
    training.engine.close()
    assert caught.value.kind == kind
    assert str(caught.value.facts["name"]).endswith(ending)
    assert str(tmp_path) in str(caught.value.facts["path"])
    assert caught.value.hint
    assert training.is_at(0)
    check_that_only_the_claim_is_new(tmp_path, before)
    with Training(tmp_path) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert (restored.generation, restored.skipped) == (2, ())


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    saved_run(tmp_path)
    (tmp_path / "generations/000002.json").chmod(0)
    with pytest.raises(StoreError) as caught:
        Training(tmp_path).engine.resume()
    assert caught.value.kind == "permission"


class Unknown:
    pass


@pytest.mark.parametrize(
    ("state", "kind", "named"),
    [
        ({}, "no-state", "state="),
        ([1], "no-state", "state="),
        ({"polisy": {}}, "unknown-component", "name=`polisy`"),
        ({"critic/polisy": {}}, "unknown-component", "name=`critic/polisy`"),
        ({7: {}}, "unknown-component", "name=`7`"),
        ({"policy": 3}, "not-restorable", "path=`policy` type=`int`"),
        ({"policy": Unknown()}, "not-restorable", "path=`policy`"),
        ({"policy": Unknown}, "not-restorable", "path=`policy`"),
        ({"policy": (1, 2)}, "not-restorable", "type=`tuple`"),
    ],
)
def test_a_state_that_cannot_be_saved_is_refused_when_the_engine_is_made(
    tmp_path: Path, state: Any, kind: str, named: str
) -> None:
    with pytest.raises(UsageError) as caught:
        CheckpointEngine(tmp_path / "run", state=state)
    assert caught.value.kind == kind
    assert named in str(caught.value)
    assert caught.value.hint
    assert not (tmp_path / "run").exists()


def test_a_typing_error_in_a_components_name_is_answered_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        CheckpointEngine(tmp_path, state={"optimiser": {}})
    assert "optimizer" in caught.value.hint
    assert "extra" in caught.value.hint


def test_an_object_nobody_knows_is_named_by_its_path_before_anything_is_written_or_loaded(tmp_path: Path) -> None:
    saved_run(tmp_path)
    state = state_at(0)
    with CheckpointEngine(tmp_path, state=state, writer="inline") as engine:
        engine.resume()
        state["policy"]["deep"] = [{"odd": Unknown()}]
        before = snapshot(local(tmp_path))
        with pytest.raises(UsageError) as caught:
            engine.save(3)
        assert caught.value.kind == "unknown-object"
        assert caught.value.facts["path"] == "policy/deep[0]/odd"
        assert "Unknown" in str(caught.value.facts["type"])
        assert "state_dict" in caught.value.hint
        assert snapshot(local(tmp_path)) == before
        with pytest.raises(MilepostError) as again:
            engine.resume()
        assert "policy/deep" in str(again.value)
        assert state["counters"]["step"] == 2


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"on_save_error": "ignore"}, "bad-setting"),
        ({"writer": "fork"}, "bad-setting"),
        ({"blob_bytes": 0}, "bad-setting"),
        ({"blob_bytes": None}, "bad-setting"),
        ({"on_mismatch": {"shape": "maybe"}}, "bad-mismatch"),
        ({"when": 1000}, "bad-setting"),
        ({"keep": 5}, "bad-setting"),
    ],
)
def test_a_setting_that_means_nothing_is_refused_when_the_engine_is_made(
    tmp_path: Path, settings: dict[str, Any], kind: str
) -> None:
    with pytest.raises(UsageError) as caught:
        CheckpointEngine(tmp_path / "run", state=state_at(0), **settings)
    assert caught.value.kind == kind
    assert caught.value.hint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("step", ["7", 1.5, None, np.float64(3), 10**30, -(10**30), pytest.param(10**5000, id="10**5000")])
def test_a_step_that_is_no_whole_number_or_no_possible_one_is_refused_and_nothing_is_written(tmp_path: Path, step: Any) -> None:
    saved_run(tmp_path)
    with Training(tmp_path, when=every(steps=1)) as training:
        training.engine.resume()
        before = snapshot(local(tmp_path))
        calls = [
            lambda: training.engine.save(step),
            lambda: training.engine.save_if_due(step),
            lambda: training.engine.save(3, episodes=step),
            lambda: training.engine.save(3, counters={"updates": step}),
            lambda: training.engine.report(step, {"return": 1.0}),
        ]
        for call in calls:
            with pytest.raises(UsageError) as caught:
                call()
            assert caught.value.kind == "bad-count"
        assert snapshot(local(tmp_path)) == before
        assert training.save(3).metrics == {}


@pytest.mark.parametrize("far", [1 << 63, -(1 << 63)])
def test_the_furthest_step_there_can_be_can_be_read_again_and_none_beyond_is_saved(tmp_path: Path, far: int) -> None:
    milepost.save(tmp_path, {"w": [1.0]}, step=far)
    for step in (far * 2, far + (1 if far > 0 else -1), "7"):
        with pytest.raises(UsageError) as caught:
            milepost.save(tmp_path, {"w": [2.0]}, step=step)  # type: ignore[arg-type]
        assert caught.value.kind == "bad-count"
    assert milepost.load(tmp_path) == {"w": [1.0]}
    with pytest.raises(UsageError):
        milepost.save(tmp_path / "new", {"w": [2.0]}, step=far * 2)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("step", [np.int64(9), np.uint8(9), True + 8])
def test_a_step_may_be_any_kind_of_whole_number(tmp_path: Path, step: Any) -> None:
    with Training(tmp_path) as training:
        training.engine.report(step, {"return": 1})
        saved = training.save(step, counters={"updates": step})
    assert (saved.step, saved.counters["updates"], saved.metrics["return"].step) == (9, 9, 9)


def test_a_metric_that_is_no_number_is_named_and_those_beside_it_are_not_noted_either(tmp_path: Path) -> None:
    with Training(tmp_path) as training:
        with pytest.raises(UsageError) as caught:
            training.engine.report(1, {"loss": 0.5, "return": "high"})  # type: ignore[dict-item]
        assert (caught.value.kind, caught.value.facts["metric"]) == ("bad-metric", "return")
        assert training.save(1).metrics == {}


HALF = "half\udcff"


def test_a_script_that_is_given_bytes_which_are_no_text_saves_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", os.fsdecode(b"--data=/data/caf\xe9")])
    with Training(tmp_path) as training:
        saved = training.save(1)
    assert saved.provenance.command == r"python train.py '--data=/data/caf\udce9'"


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [({"fingerprint": {"env/id": HALF}}, {}), ({}, {"reason": HALF}), ({}, {"counters": {HALF: 1}})],
    ids=["fingerprint", "reason", "counters"],
)
def test_a_name_that_is_no_text_is_told_as_one_and_leaves_no_blob(
    tmp_path: Path, settings: dict[str, Any], arguments: dict[str, Any]
) -> None:
    with Training(tmp_path, **settings) as training:
        with pytest.raises(SaveFailed) as caught:
            training.save(1, **arguments)
        assert (caught.value.kind, caught.value.facts["text"]) == ("not-text", r"'half\udcff'")
        assert [*training.store.list("blobs/")] == []


@pytest.mark.parametrize("which", ["newest", True, 1.0, None, "2"])
def test_a_which_that_means_nothing_is_refused_even_on_an_empty_root(tmp_path: Path, which: Any) -> None:
    for root in (tmp_path / "empty", saved_run(tmp_path / "run")):
        with Training(root) as training, pytest.raises(UsageError) as caught:
            training.engine.resume(which)
        assert caught.value.kind == "bad-which"


def test_a_generation_that_is_not_there_is_not_replaced_by_another(tmp_path: Path) -> None:
    saved_run(tmp_path)
    with Training(tmp_path) as training:
        with pytest.raises(NotFoundError) as caught:
            training.engine.resume(7)
        assert (caught.value.kind, caught.value.facts["generation"]) == ("no-such-generation", 7)
        assert f"milepost ls {tmp_path}" in caught.value.hint
        assert training.is_at(0)
        with pytest.raises(UsageError):
            training.engine.save(3)


def test_a_best_without_a_metric_says_which_setting_is_missing(tmp_path: Path) -> None:
    saved_run(tmp_path)
    with Training(tmp_path) as training, pytest.raises(UsageError) as caught:
        training.engine.resume("best")
    assert caught.value.kind == "no-metric"
    assert "by=" in caught.value.hint


def test_saving_without_a_resume_where_there_is_something_to_resume_is_refused(tmp_path: Path) -> None:
    saved_run(tmp_path)
    with Training(tmp_path, when=every(steps=1)) as training:
        before = snapshot(local(tmp_path))
        for call in (lambda: training.engine.save(9), lambda: training.engine.save_if_due(9)):
            with pytest.raises(UsageError) as caught:
                call()
            assert caught.value.kind == "not-resumed"
            assert 'resume(which="never")' in caught.value.hint
        assert snapshot(local(tmp_path)) == before
        training.engine.resume()
        training.save(9)


def test_a_closed_engine_says_so(tmp_path: Path) -> None:
    training = Training(tmp_path)
    with training:
        training.save(1)
    before = snapshot(local(tmp_path))
    calls = [
        training.engine.resume,
        training.engine.claim,
        lambda: training.engine.save(2),
        lambda: training.engine.save_if_due(2),
    ]
    for call in calls:
        with pytest.raises(UsageError) as caught:
            call()
        assert (caught.value.kind, caught.value.facts["root"]) == ("closed", str(tmp_path))
    assert snapshot(local(tmp_path)) == before


def test_a_forked_child_may_not_use_its_parents_engine_and_leaves_it_alone(tmp_path: Path) -> None:
    def in_child() -> None:
        for call in (engine.resume, lambda: engine.save(2), lambda: engine.save_if_due(2)):
            with pytest.raises(UsageError) as caught:
                call()
            assert (caught.value.kind, caught.value.facts["made_by_pid"]) == ("forked", os.getppid())
        engine.close()

    with Training(tmp_path, writer="thread") as training:
        engine = training.engine
        training.save(1)
        before = snapshot(local(tmp_path))
        assert run_in_child(in_child) == 0
        assert snapshot(local(tmp_path)) == before
        with pytest.raises(ConflictError):
            Training(tmp_path).engine.claim()
        assert training.save(2).number == 2


def test_an_engine_that_a_child_inherits_while_a_save_is_in_flight_saves_once(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Training(store, writer="thread") as training:
        gate = store.pause("commit_blob")
        training.train_to(1)
        training.engine.save(1)
        gate.wait_until_reached()
        assert run_in_child(training.engine.close) == 0
        gate.release()
        assert training.engine.wait().number == 1  # type: ignore[union-attr]
    assert len(os.listdir(tmp_path / "generations")) == 1


TRAINER = """
import signal, sys
import numpy as np
from milepost import CheckpointEngine
counters = {"step": 0}
with CheckpointEngine(sys.argv[1], state={"counters": counters}) as engine:
    engine.resume()
    counters["step"] += 1
    engine.save(counters["step"])
    print(engine.wait().number, flush=True)
    signal.pause()
"""


def start_trainer(root: Path) -> tuple[subprocess.Popen[str], int]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", TRAINER, str(root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_of_two_processes_on_one_root_the_second_is_told_who_the_first_is_and_gets_it_after_that_died(tmp_path: Path) -> None:
    process, number = start_trainer(tmp_path)
    try:
        assert number == 1
        before = snapshot(local(tmp_path))
        counters = {"step": 0}
        late = CheckpointEngine(tmp_path, state={"counters": counters}, writer="inline")
        with pytest.raises(ConflictError) as caught:
            late.resume()
        assert (caught.value.kind, caught.value.facts["pid"]) == ("held", process.pid)
        assert f"kill {process.pid}" in caught.value.hint
        assert "--take-over" in caught.value.hint
        assert str(tmp_path) in str(caught.value)
        assert snapshot(local(tmp_path)) == before
        assert counters == {"step": 0}
    finally:
        end(process)
    assert late.resume().generation == 1  # type: ignore[union-attr]
    assert counters == {"step": 1}
    late.close()


def test_a_second_engine_in_one_process_is_told_to_close_the_first(tmp_path: Path) -> None:
    with Training(tmp_path) as training:
        training.save(1)
        with pytest.raises(ConflictError) as caught:
            Training(tmp_path).engine.resume()
        assert "close the first engine" in caught.value.hint
        training.save(2)


def test_a_second_engine_may_wait_for_the_first_to_end(tmp_path: Path) -> None:
    first = Training(tmp_path)
    first.save(1)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        first.engine.close()

    with Training(local(tmp_path, wait=wait), lease_wait=30.0) as second:
        assert second.engine.resume().generation == 1  # type: ignore[union-attr]
    assert len(waits) == 1
