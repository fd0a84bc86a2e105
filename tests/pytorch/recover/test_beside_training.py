"""Saves beside training: what is live first, copies then, one generation at once when the last of them is durable. A2, A9"""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import milepost
from milepost.errors import SaveFailed, StoreError
from milepost.publish.view import read
from milepost.pytorch import TrainEngine
from tests.engine.training import local
from tests.pytorch.recover.gates import failing_blobs, held_blobs
from tests.pytorch.recover.test_round_trips import handler
from tests.pytorch.recover.training import Loader, at, digest, engines, run, train

FULL = StoreError("no space left on device", kind="disk-full", retryable=False)


def made(modes: dict[str, Any] | None = None) -> tuple[dict[str, TrainEngine], Loader]:
    trained, loader = engines(modes=modes), Loader()
    train(trained, loader)
    return trained, loader


def test_training_goes_on_while_copies_are_written_and_the_generation_is_published_at_once(tmp_path: Path) -> None:
    trained, loader = made()
    with handler(tmp_path, save_mode="async") as each, held_blobs() as gate:
        assert each.dump(trained, at(0), dataloader=loader, force=True)
        was = digest(trained, loader)
        gate.wait()
        assert each.newest is None
        run(each, trained, loader, 2, 1)
        assert digest(trained, loader) != was
        gate.open()
        assert each._saving._flight is not None
        each._saving._flight.join()  # nobody has asked: it is published all the same
        assert each.newest is not None
        assert each.newest.step == 0
    again, loader = engines(seed=3), Loader()
    with handler(tmp_path) as second:
        second.load(again, dataloader=loader)
        assert digest(again, loader) == was


def test_of_a_mixture_the_live_tensors_are_written_before_training_goes_on_and_the_copies_after(tmp_path: Path) -> None:
    trained, loader = made({"critic": "sync"})
    with handler(tmp_path, save_mode="async") as each:
        with held_blobs(after=1) as gate:
            each.dump(trained, at(0), dataloader=loader, force=True)
            was = digest(trained, loader)
            gate.wait()
            assert each.newest is None
            train(trained, loader)
        each.wait()
        newest = each.newest
        assert newest is not None
        assert {leaf.path.split("/")[0] for leaf in _leaves_of_blob(each.root, 0)} == {"critic"}
    again, loader = engines(seed=3), Loader()
    with handler(tmp_path) as second:
        second.load(again, dataloader=loader)
        assert digest(again, loader) == was


def _leaves_of_blob(root: str, blob: int) -> list[Any]:
    from milepost.publish import layout
    from milepost.publish.manifest import load_record
    from milepost.records import Manifest

    manifest = load_record(local(Path(root)), layout.manifest(1), Manifest)
    return [leaf for component in manifest.components for leaf in component.leaves if leaf.blob == blob]


def test_where_nothing_is_copied_a_dump_returns_when_it_is_published(tmp_path: Path) -> None:
    trained, loader = made()
    with handler(tmp_path, save_mode="sync") as each:
        each.dump(trained, at(0), dataloader=loader, force=True)
        assert each.newest is not None
        assert each.staged_bytes == 0


def test_the_next_save_waits_for_the_one_before(tmp_path: Path) -> None:
    trained, loader = made()
    with handler(tmp_path, save_mode="async", keep=milepost.Keep(last=9)) as each:
        for step in range(4):
            each.dump(trained, at(step), dataloader=loader, force=True)
            train(trained, loader)
        each.wait()
        assert [one.step for one in read(local(Path(each.root))).live.values()] == [0, 1, 2, 3]


def test_a_ctrl_c_in_the_wait_for_a_save_does_not_have_the_next_one_overwrite_its_copies(tmp_path: Path) -> None:
    trained, loader = made()
    with handler(tmp_path, save_mode="async", keep=milepost.Keep(last=9)) as each, held_blobs() as gate:
        each.dump(trained, at(0), dataloader=loader, force=True)
        was = digest(trained, loader)
        gate.wait()
        striking = threading.Timer(0.1, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            _ = striking.start(), each.wait()
        train(trained, loader)
        threading.Timer(0.1, gate.open).start()
        each.dump(trained, at(1), dataloader=loader, force=True)
        each.wait()
    again, loader = engines(seed=3), Loader()
    with handler(tmp_path) as second:
        second.load(again, dataloader=loader, which=1)
        assert digest(again, loader) == was


def test_what_fails_beside_training_is_raised_by_the_next_dump_whether_it_is_due_or_not(tmp_path: Path) -> None:
    trained, loader = made()
    with handler(tmp_path, save_mode="async") as each:
        with failing_blobs(FULL):
            each.dump(trained, at(0), dataloader=loader, force=True)
            assert each._saving._flight is not None
            each._saving._flight.join()
        train(trained, loader)
        with pytest.raises(SaveFailed, match="no space left on device"):
            each.dump(trained, at(1), dataloader=loader)
        each.wait()  # told once
        each.dump(trained, at(1), dataloader=loader, force=True)
        each.wait()
        assert each.newest is not None
        assert each.newest.step == 1
        assert milepost.verify(each.root).ok


def test_what_fails_beside_training_is_raised_by_close(tmp_path: Path) -> None:
    trained, loader = made()
    each = handler(tmp_path, save_mode="async")
    with failing_blobs(FULL):
        each.dump(trained, at(0), dataloader=loader, force=True)
        with pytest.raises(SaveFailed):
            each.close()
    each.close()
    with handler(tmp_path) as other:  # the root was given up all the same
        other.dump(trained, at(0), force=True)


def test_what_fails_while_training_waits_is_raised_by_that_dump_and_its_interval_is_still_due(tmp_path: Path) -> None:
    trained, loader = made()
    with handler(tmp_path, save_mode="sync", freq_steps=3) as each:
        each.dump(trained, at(1), dataloader=loader)
        with failing_blobs(FULL), pytest.raises(StoreError, match="no space left"):
            each.dump(trained, at(2), dataloader=loader)
        assert each.dump(trained, at(3), dataloader=loader)


def test_what_fails_of_a_mixture_after_training_has_gone_on_is_raised_later(tmp_path: Path) -> None:
    trained, loader = made({"critic": "sync"})
    with handler(tmp_path, save_mode="async") as each:
        with failing_blobs(FULL, nth=2):
            each.dump(trained, at(0), dataloader=loader, force=True)
            with pytest.raises(SaveFailed):
                each.wait()
        with failing_blobs(FULL, nth=1), pytest.raises(StoreError):
            each.dump(trained, at(0), dataloader=loader, force=True)
        assert each.newest is None


def test_a_reference_that_nobody_trains_is_written_once(tmp_path: Path) -> None:
    for mode in ("sync", "async"):
        torch.manual_seed(0)
        frozen = torch.nn.Linear(256, 256)
        trained = {"default": TrainEngine(torch.nn.Linear(2, 2)), "ref": TrainEngine(frozen)}
        with handler(tmp_path / mode, save_mode=mode, keep=milepost.Keep(last=9)) as each:
            for step in range(4):
                with torch.no_grad():
                    trained["default"].model.weight.add_(1)  # type: ignore[operator, arg-type]
                each.dump(trained, at(step), force=True)
            each.wait()
            live = read(local(Path(each.root))).live
        size = frozen.weight.numel() * 4
        assert [live[number].new_bytes > size for number in sorted(live)] == [True, False, False, False]
        assert milepost.verify(each.root).ok


def test_the_memory_of_copies_is_asked_for_once_and_holds_tied_weights_once(tmp_path: Path) -> None:
    trained, loader = made()
    tensors = {
        tensor.data_ptr(): tensor.numel() * tensor.element_size()
        for engine in trained.values()
        for tensor in (*engine.model.state_dict().values(), *_moments(engine))
        if isinstance(tensor, torch.Tensor)
    }
    sizes = set()
    with handler(tmp_path, save_mode="async") as each:
        for step in range(4):
            each.dump(trained, at(step), dataloader=loader, force=True)
            sizes.add(each.staged_bytes)
            train(trained, loader)
    assert sizes == {sum(-(-size // 4096) * 4096 for size in tensors.values())}


def _moments(engine: TrainEngine) -> list[torch.Tensor]:
    if engine.optimizer is None:
        return []
    return [value for state in engine.optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]


def test_what_does_not_fit_is_saved_while_training_waits_and_that_is_told_once_where_async_was_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained, loader = made()
    with caplog.at_level(logging.WARNING, "milepost"):
        with handler(tmp_path / "auto", staging_bytes=5000) as each:
            each.dump(trained, at(0), dataloader=loader, force=True)
            assert each.newest is not None
        assert not caplog.records
        with handler(tmp_path / "async", save_mode="async", staging_bytes="5KB") as each:
            for step in (0, 1):
                each.dump(trained, at(step), dataloader=loader, force=True)
                assert each.newest is not None
    assert [record.message.partition(" copies")[0] for record in caplog.records] == [
        "[recover] training waits while default, critic, ref is saved:"
    ]


def test_as_many_engines_are_copied_as_fit(tmp_path: Path) -> None:
    trained, loader = made()
    with handler(tmp_path, staging_bytes=20_000) as each, held_blobs(after=1):
        each.dump(trained, at(0), dataloader=loader, force=True)
        assert each.newest is None
        assert 0 < each.staged_bytes <= 20_000


def test_a_ctrl_c_while_training_waits_leaves_a_generation_and_a_root_that_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from milepost.pytorch.recover.flight import Flight

    trained, loader = made()

    def struck(_: Flight) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Flight, "wait_for_tensors", struck)
    each = handler(tmp_path, save_mode="sync")
    with pytest.raises(KeyboardInterrupt), each:
        each.dump(trained, at(0), dataloader=loader, force=True)
    assert each.newest is not None
    with handler(tmp_path) as other:
        assert other.load(trained, dataloader=loader) is not None


def test_a_ctrl_c_in_a_close_leaves_the_save_under_way_and_the_root_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from milepost.pytorch.recover.flight import Flight

    trained, loader = made()
    each = handler(tmp_path, save_mode="async")
    with held_blobs() as gate, monkeypatch.context() as patch:
        each.dump(trained, at(0), dataloader=loader, force=True)
        gate.wait()

        def struck(_: Flight) -> None:
            raise KeyboardInterrupt

        patch.setattr(Flight, "join", struck)
        with pytest.raises(KeyboardInterrupt):
            each.close()
        assert each.staged_bytes > 0
    each.close()
    assert each.newest is not None
    assert milepost.verify(each.root).ok
