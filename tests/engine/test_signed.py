"""With a key, whatever somebody else does to the files, what is loaded is what a holder of the key saved, whole, or nothing."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import milepost
from milepost import Keep
from milepost.clock import FakeClock
from milepost.encode.digest import seal, sha256, unseal, unseal_signed, xxh3
from milepost.engine import oneshot
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import CorruptError, MilepostError, NotFoundError, UsageError
from milepost.lifecycle.scrub import Scrub
from milepost.lifecycle.verify import verify
from milepost.publish import layout, pins
from milepost.publish.manifest import decode_manifest
from milepost.publish.signed import SignedStore, is_record, within
from milepost.publish.view import read
from milepost.store.base import Store
from milepost.store.memory import MemoryStore
from milepost.testing.faults import FaultStore, Killed
from tests.engine.training import Training, bits, local, set_to, state_at

KEY = b"PLANTED-0123456789abcdef-PLANTED"
OLD_RUN = Path(__file__).parents[1] / "old_runs" / "1"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "the.key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return path


def signed(inner: Store, key: bytes = KEY) -> SignedStore:
    return SignedStore(inner, key)


Files = dict[str, bytes]


def files_of(store: Store) -> Files:
    return {entry.name: store.read(entry.name) for entry in store.list("")}


def holding(files: Mapping[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    for name, data in files.items():
        store.replace(name, data)
    return store


def train(store: Store, salt: int, times: int = 4) -> list[Files]:
    """Save some generations, with pins and marks, in several terms; return all files as they were after each."""
    history = []
    for at in range(1, times + 1):
        oneshot.save(store, state_at(100 * salt + at), step=at, keep=Keep(last=2))
        if at == 1:
            pins.pin(store, 1)
        history.append(files_of(store._inner if isinstance(store, SignedStore) else store))
    return history


def train_and_reset() -> list[Files]:
    inner = MemoryStore()
    oneshot.save(signed(inner), state_at(101), step=1)
    before = [files_of(inner)]
    oneshot.reset(signed(inner))
    before.append(files_of(inner))
    oneshot.save(signed(inner), state_at(102), step=2)
    return [*before, files_of(inner)]


HERE, OTHER = train(signed(MemoryStore()), 1), train(signed(MemoryStore()), 2)
STRANGERS = train(signed(MemoryStore(), b"of another run, as it should be"), 3)
SAVED_HERE = {json.dumps(bits(state_at(100 + at)), default=repr, sort_keys=True) for at in range(1, 5)}
RESET = train_and_reset()
SAVED_THERE = {json.dumps(bits(state_at(200 + at)), default=repr, sort_keys=True) for at in range(1, 5)}


def without_chance(name: str) -> str:
    """Return the name without its drawn part: a test has one name, whichever process collects it."""
    return re.sub(r"-[0-9a-f]{16}", "", name)


def loaded_from(store: Store) -> str | None:
    """Return what a holder of the key loads, by any of the ways to load, or None if it is refused."""
    found = set()
    ways: list[Callable[[], object]] = [lambda: oneshot.load(signed(store))]
    ways += [lambda number=number: oneshot.load(signed(store), which=number) for number in range(1, 6)]  # type: ignore[misc]
    for way in ways:
        try:
            found.add(json.dumps(bits(way()), default=repr, sort_keys=True))
        except MilepostError:
            continue
    return "\n".join(sorted(found)) or None


def only_from(store: Store, *saved: set[str]) -> bool:
    found = loaded_from(store)
    return found is None or set(found.split("\n")) <= set().union(*saved)


def test_what_was_saved_with_a_key_comes_back_with_it_and_without(key_file: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    for at in range(3):
        milepost.save(root, state_at(at), step=at, key_file=key_file)
    assert bits(milepost.load(root, key_file=key_file)) == bits(state_at(2))
    assert bits(milepost.load(root)) == bits(state_at(2))
    assert milepost.verify(root, key_file=key_file).ok
    assert milepost.verify(root).ok
    newest = milepost.load(root, key_file=key_file, which=3)
    assert bits(newest) == bits(state_at(2))


def test_every_record_is_signed_every_digest_is_sha256_and_unchanged_leaves_are_still_shared(tmp_path: Path) -> None:
    inner = local(tmp_path / "run")
    train(signed(inner), 1)
    files = files_of(inner)
    for name, data in files.items():
        lines = data.splitlines(keepends=True) if name.startswith(layout.EVENTS) else [data]
        assert not is_record(name) or all(unseal_signed(line, name)[1] for line in lines), name
    manifest = decode_manifest(files[layout.manifest(4)], layout.manifest(4))
    for blob in manifest.blobs:
        assert blob.digest == f"sha256:{sha256(files[blob.name])}"
    for leaf in (leaf for component in manifest.components for leaf in component.leaves):
        assert leaf.digest == f"sha256:{sha256(files[manifest.blobs[leaf.blob].name][leaf.start : leaf.stop])}"
    assert min(layout.blob_number(blob.name) or 4 for blob in manifest.blobs) < 4  # "frozen" has not been written again
    latest = json.loads(unseal(files[layout.LATEST], layout.LATEST))
    assert latest["manifest_digest"] == sha256(files[layout.manifest(4)])


def test_an_engine_trains_resumes_rolls_back_and_resets_under_a_key(key_file: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    for start in range(3):
        state = state_at(0)
        with CheckpointEngine(root, state=state, keep=Keep(last=2), key_file=key_file) as engine:
            restored = engine.resume()
            assert (restored.step if restored else 0) == start
            assert bits(state) == bits(state_at(start))
            set_to(state, start + 1)
            engine.save(start + 1)
    assert oneshot.rollback(root, 2, key_file=key_file).number == 4
    assert bits(milepost.load(root, key_file=key_file)) == bits(state_at(2))
    assert milepost.verify(root, key_file=key_file).ok
    aside = oneshot.reset(root, key_file=key_file).to
    milepost.save(root, state_at(9), key_file=key_file)
    assert milepost.verify(root, key_file=key_file).ok
    assert bits(milepost.load(root / aside, key_file=key_file)) == bits(state_at(2))
    assert milepost.verify(root / aside, key_file=key_file).ok


@pytest.mark.parametrize("name", sorted(name for name in HERE[-1] if name != layout.BALLAST), ids=without_chance)
def test_any_changed_byte_of_a_signed_run_is_refused_and_named(name: str) -> None:  # B8
    rng = np.random.default_rng(len(name))
    data = HERE[-1][name]
    assert verify(signed(holding(HERE[-1]))).ok
    for at in {0, len(data) - 1, *rng.integers(0, len(data), 4).tolist()}:
        altered = bytearray(data)
        altered[at] ^= 1 << int(rng.integers(8))
        store = holding(HERE[-1] | {name: bytes(altered)})
        assert only_from(store, SAVED_HERE)
        try:
            report = verify(signed(store))
        except CorruptError:
            continue
        assert name in {problem.name for problem in report.problems}


RECORDS = sorted(name for name in HERE[-1] if is_record(name) and not name.startswith(layout.EVENTS))


def numbers_in(body: bytes) -> list[tuple[int, int]]:
    return [found.span(1) for found in re.finditer(rb'":(\d+)[,}]', body)]


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("keep_signature", [True, False])
def test_a_record_that_somebody_changed_and_sealed_again_is_refused(name: str, keep_signature: bool) -> None:
    body, signature = unseal_signed(HERE[-1][name], name)
    for start, stop in numbers_in(body)[:6] or [(len(body) - 3, len(body) - 3)]:
        forged = seal(body[:start] + str(int(body[start:stop] or b"0") + 1).encode() + body[stop:], signature * keep_signature)
        store = holding(HERE[-1] | {name: forged})
        with pytest.raises(CorruptError):
            unseal(signed(store).read(name), name)
        assert only_from(store, SAVED_HERE)


def test_bytes_that_somebody_changed_with_all_digests_made_anew_are_refused_with_the_key_and_pass_without() -> None:
    name = layout.manifest(4)
    body, signature = unseal_signed(HERE[-1][name], name)
    manifest = decode_manifest(HERE[-1][name], name)
    leaf = next(leaf for each in manifest.components for leaf in each.leaves if leaf.path == "policy/w")
    blob = manifest.blobs[leaf.blob]
    forged = bytearray(HERE[-1][blob.name])
    forged[leaf.start : leaf.stop] = np.full((16, 8), 666, np.float32).tobytes()
    for strong in (True, False):
        altered = body
        for old, data in ((leaf.digest, forged[leaf.start : leaf.stop]), (blob.digest, forged)):
            altered = altered.replace(old.encode(), (f"sha256:{sha256(data)}" if strong else xxh3(data)).encode())
        files = HERE[-1] | {blob.name: bytes(forged), name: seal(altered, signature)}
        # The attack is a good one: whoever has no key loads it.
        assert oneshot.load(holding(files))["policy"]["w"][0, 0] == 666  # type: ignore[index]
        assert only_from(holding(files), SAVED_HERE)
        with pytest.raises(CorruptError):
            oneshot.load(signed(holding(files)), which=4)


@given(data=st.data())
@settings(max_examples=60)
def test_records_under_each_others_names_are_refused(data: st.DataObject) -> None:
    one, two = data.draw(st.lists(st.sampled_from(RECORDS), min_size=2, max_size=2, unique=True))
    store = holding(HERE[-1] | {one: HERE[-1][two], two: HERE[-1][one]})
    for name in (one, two):
        if name == layout.RUN:
            continue  # then nothing at all can be read
        with pytest.raises(CorruptError):
            unseal(signed(store).read(name), name)
    assert only_from(store, SAVED_HERE)


@given(data=st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
def test_any_mixture_of_earlier_files_loads_one_generation_whole_or_nothing(data: st.DataObject) -> None:
    """Replay: each name as it is now, as it was at any time before, or gone."""
    store = holding(mixed(data, HERE))
    assert only_from(store, SAVED_HERE)
    # And whoever goes on from there with the key does so from what it loads, or not at all.
    try:
        oneshot.save(signed(store), state_at(199), step=199)
    except MilepostError:
        return
    assert bits(oneshot.load(signed(store))) == bits(state_at(199))


def mixed(data: st.DataObject, *histories: list[Files]) -> Files:
    times = [files for history in histories for files in history]
    names = sorted({name for files in times for name in files})
    found: Files = dict(histories[0][-1])
    for name in data.draw(st.lists(st.sampled_from(names), max_size=12, unique=True)):
        known = data.draw(st.sampled_from([files[name] for files in times if name in files] + [b""]))
        found.pop(name, None)
        found |= {name: known} if known else {}
    return found


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_a_run_that_was_set_aside_and_the_one_in_its_place_are_never_mixed_into_a_generation(data: st.DataObject) -> None:
    """Its records keep their names within it, and so can be put back: that is the directory as it was before the reset."""
    everywhere = [files | {within(name): data for name, data in files.items()} for files in RESET]
    assert only_from(holding(mixed(data, everywhere)), SAVED_HERE)


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_files_of_a_run_with_another_key_never_become_this_ones(data: st.DataObject) -> None:
    assert only_from(holding(mixed(data, HERE, STRANGERS)), SAVED_HERE)


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_files_of_a_run_with_the_same_key_are_never_mixed_into_a_generation(data: st.DataObject) -> None:
    """Which of two runs with one key lies here is then for who can write here to say; a key for each run keeps them apart."""
    assert only_from(holding(mixed(data, HERE, OTHER)), SAVED_HERE, SAVED_THERE)


@pytest.mark.parametrize("name", sorted({*RECORDS, *OTHER[-1]} - {layout.BALLAST}), ids=without_chance)
def test_one_record_of_another_run_with_the_same_key_brings_nothing_of_it_here(name: str) -> None:
    if name in OTHER[-1]:
        assert only_from(holding(HERE[-1] | {name: OTHER[-1][name]}), SAVED_HERE)


def test_hints_of_another_time_change_nothing_but_a_doubt() -> None:
    for earlier in HERE[:-1]:
        for name in (layout.LATEST, layout.PROGRESS, layout.pin(1)):
            files = HERE[-1] | ({name: earlier[name]} if name in earlier else {})
            assert bits(oneshot.load(signed(holding(files)))) == bits(state_at(104))
    # A retired manifest that somebody puts back is dead by rule 2.
    files = HERE[-1] | {layout.manifest(2): HERE[1][layout.manifest(2)]}
    assert 2 not in read(signed(holding(files))).live
    # The newest generation taken away is missed, by LATEST. With that put back, too, it is not: nobody can tell.
    gone = {name: data for name, data in HERE[-1].items() if name != layout.manifest(4)}
    assert read(signed(holding(gone))).lost == 4
    gone[layout.LATEST] = HERE[2][layout.LATEST]
    assert read(signed(holding(gone))).lost == 0


def test_a_blob_that_is_changed_after_it_was_verified_is_refused_while_it_is_loaded(tmp_path: Path, key_file: Path) -> None:
    root = tmp_path / "run"
    milepost.save(root, state_at(7), key_file=key_file)
    with CheckpointEngine(root, state=state_at(0), key_file=key_file) as engine:
        peeked = engine.peek()  # every byte of it verifies
        assert peeked is not None
        path = root / peeked.blobs[0].name
        path.write_bytes(path.read_bytes()[:-8] + b"\x01" * 8)
        with pytest.raises(CorruptError):
            engine.resume()
        with pytest.raises(MilepostError):
            engine.save(1)  # what is half loaded is not saved either


def test_with_a_key_too_a_torn_hint_is_told_from_a_damaged_one() -> None:
    for torn in (b"", bytes(100), HERE[-1][layout.LATEST][:20]):
        report = verify(signed(holding(HERE[-1] | {layout.LATEST: torn})))
        assert layout.LATEST not in {problem.name for problem in report.problems}, torn
    name = layout.events(4)
    planted = HERE[-1][name] + seal(b'{"event":"planted"}')
    assert name in {problem.name for problem in verify(signed(holding(HERE[-1] | {name: planted}))).problems}
    assert verify(holding(HERE[-1] | {name: planted})).ok  # without a key it is a line like any other


def test_a_scrub_without_the_key_leaves_no_record_that_the_key_refuses() -> None:
    store = holding(HERE[-1])
    report = Scrub(store, FakeClock()).run(lambda _: None)
    assert report.ok
    assert "signed" in report.not_remembered
    assert files_of(store) == HERE[-1]
    assert not Scrub(signed(store), FakeClock()).run(lambda _: None).not_remembered
    assert verify(signed(store)).ok


@pytest.mark.parametrize("action", ["save", "sign", "reset"])
def test_a_kill_before_any_operation_leaves_a_signed_root_that_its_key_goes_on_with(action: str) -> None:
    old = holding({})
    oneshot.save(old, state_at(1), step=1)

    def act(store: Store) -> object:
        if action == "sign":
            return oneshot.sign(old, signed(store))
        return oneshot.save(signed(store), state_at(2)) if action == "save" else oneshot.reset(signed(store))

    for number in range(1, 200):
        inner = holding({})
        if action != "sign":
            oneshot.save(signed(inner), state_at(1), step=1)
        store = FaultStore(inner)
        store.kill_before(number)
        try:
            act(store)
        except Killed:
            pass
        else:
            break
        root = holding(files_of(inner))  # nobody holds its lock
        nothing_yet = () if action == "save" else (NotFoundError,)  # before the copy is published; after the reset
        with suppress(*nothing_yet):
            assert bits(oneshot.load(signed(root))) in [bits(state_at(step)) for step in (1, 2)]
        oneshot.save(signed(root), state_at(3), step=3)
        assert bits(oneshot.load(signed(root))) == bits(state_at(3))
        assert verify(signed(root)).ok
    assert 20 < number < 199


def test_a_lost_answer_to_a_signed_manifest_is_read_back_as_success() -> None:  # rule 12
    store = FaultStore(MemoryStore())
    store.lose_answer("create", "generations/*")
    assert oneshot.save(signed(store), state_at(1)).number == 1
    assert bits(oneshot.load(signed(store.inner))) == bits(state_at(1))


def ways_in(root: object, key_file: Path | None) -> list[Callable[[], object]]:
    where: Any = root
    return [
        lambda: milepost.load(where, key_file=key_file),
        lambda: milepost.save(where, {"policy": 1}, key_file=key_file),
        lambda: milepost.verify(where, key_file=key_file),
        lambda: CheckpointEngine(where, state={"policy": {"w": 1}}, key_file=key_file).claim(),
        lambda: oneshot.rollback(where, 1, key_file=key_file),
        lambda: oneshot.reset(where, key_file=key_file),
        lambda: oneshot.drop(where, 1, key_file=key_file),
    ]


@pytest.mark.parametrize("at", range(len(ways_in("", None))))
def test_a_run_saved_without_a_key_is_refused_with_one_and_left_as_it_was(tmp_path: Path, key_file: Path, at: int) -> None:
    root = tmp_path / "run"
    for step in range(2):
        milepost.save(root, state_at(step), step=step)
    before = files_of(local(root))
    with pytest.raises(CorruptError) as caught:
        ways_in(root, key_file)[at]()
    assert caught.value.kind == "unsigned"
    assert "milepost sign" in caught.value.hint
    assert files_of(local(root)) == before


@pytest.mark.parametrize("at", range(1, len(ways_in("", None))))
def test_a_start_that_lost_its_key_adds_nothing_to_a_signed_run(tmp_path: Path, key_file: Path, at: int) -> None:
    root = tmp_path / "run"
    for step in range(2):
        milepost.save(root, state_at(step), step=step, key_file=key_file)
    before = files_of(local(root))
    if at == 2:
        assert milepost.verify(root).ok  # for that one needs no key
    else:
        with pytest.raises(UsageError) as caught:
            ways_in(root, None)[at]()
        assert caught.value.kind in ("no-key", "readable")
    after = {name: data for name, data in files_of(local(root)).items() if name != layout.LOCK}
    assert after == {name: data for name, data in before.items() if name != layout.LOCK}
    assert bits(milepost.load(root, key_file=key_file)) == bits(state_at(1))


def test_a_run_without_signatures_is_copied_to_a_signed_one(tmp_path: Path, key_file: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(OLD_RUN, old)
    before = files_of(local(old))
    plain = milepost.load(old)
    with pytest.raises(CorruptError):
        milepost.load(old, key_file=key_file)
    with pytest.raises(UsageError) as caught:
        oneshot.sign(old, new)
    assert caught.value.kind == "no-key"
    made = oneshot.sign(old, new, key_file=key_file)
    assert made.reason == "signed"
    assert repr(milepost.load(new, key_file=key_file)) == repr(plain)
    assert milepost.verify(new, key_file=key_file).ok
    there = files_of(local(new))
    with pytest.raises(UsageError) as caught:
        oneshot.sign(old, new, key_file=key_file)
    assert caught.value.kind == "not-empty"
    assert files_of(local(new)) == there, "a slip of the finger ends no other writer's claim"
    assert files_of(local(old)) == before


class _TrainedBeside(FaultStore):
    """Be a root whose trainer keeps one generation, and saves another just before each of the first reads of a blob."""

    def __init__(self, where: Path, saves: int) -> None:
        super().__init__(local(where))
        self._where = where
        self._steps = iter(range(2, saves + 2))

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        if name.startswith(layout.BLOBS) and (step := next(self._steps, None)):
            oneshot.save(local(self._where), state_at(step), step=step, keep=Keep(last=1))
        return super().read_into(name, start, into)


@pytest.mark.parametrize("saves", [2, 5])
def test_what_a_trainer_retires_while_it_is_copied_is_no_damage_and_the_newest_is_signed(
    tmp_path: Path, key_file: Path, saves: int
) -> None:  # rule 20
    oneshot.save(tmp_path / "old", state_at(1), step=1)
    made = oneshot.sign(_TrainedBeside(tmp_path / "old", saves), tmp_path / "new", key_file=key_file)
    assert made.step == saves + 1
    assert bits(milepost.load(tmp_path / "new", key_file=key_file)) == bits(state_at(saves + 1))


def test_a_state_whose_manifest_has_everything_else_goes_along_when_it_is_signed(tmp_path: Path, key_file: Path) -> None:
    old = MemoryStore()
    with CheckpointEngine(old, state=state_at(5), fingerprint={"env/id": "CartPole-v1"}) as engine:
        engine.report(5, {"eval/return": 9.0})
        engine.save(5, episodes=3, counters={"updates": 8})
    made = oneshot.sign(old, tmp_path / "new", key_file=key_file)
    was = read(old).head
    assert was is not None
    assert (made.step, made.counters, made.metrics, made.elapsed_s) == (was.step, was.counters, was.metrics, was.elapsed_s)
    state = state_at(0)
    with CheckpointEngine(tmp_path / "new", state=state, fingerprint={"env/id": "CartPole-v1"}, key_file=key_file) as engine:
        restored = engine.resume()
    assert restored is not None
    assert restored.exact
    assert bits(state) == bits(state_at(5))


def forms_of(key: bytes) -> list[bytes]:
    return [key, key.hex().encode(), repr(key).encode()[2:-1], str(list(key)).encode()]


def test_the_key_is_in_no_file_no_error_no_log_and_no_object(
    tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MILEPOST_KEY", KEY.decode())
    monkeypatch.setattr("sys.orig_argv", ["python", "train.py", "--key-file", str(key_file)])
    root = tmp_path / "run"
    texts = []
    with caplog.at_level(logging.DEBUG):
        with CheckpointEngine(root, state=state_at(0)) as engine:
            engine.save(1)
            engine.wait()
            texts += [repr(engine), repr(vars(engine)), repr(engine.claim())]
        for name, data in files_of(local(root)).items():
            if is_record(name) and name != layout.RUN and not name.startswith(layout.EVENTS):
                (root / name).write_bytes(seal(unseal(data, name)))
        texts.append(repr(milepost.verify(root)))
        for look in (lambda: milepost.load(root), lambda: milepost.save(root, 1)):
            with pytest.raises(MilepostError) as caught:
                look()
            texts += [str(caught.value), repr(caught.value.facts), repr(caught.value)]
    haystack = "\n".join([*texts, caplog.text]).encode() + b"\n".join(files_of(local(root)).values())
    assert len(haystack) > 10_000
    for form in forms_of(KEY):
        assert form not in haystack


def test_an_engine_that_is_told_of_no_key_takes_the_one_in_the_environment(
    tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILEPOST_KEY_FILE", str(key_file))
    with Training(tmp_path / "run") as training:
        training.save(1)
    assert unseal_signed((tmp_path / "run" / layout.RUN).read_bytes(), layout.RUN)[1]
    monkeypatch.delenv("MILEPOST_KEY_FILE")
    assert bits(milepost.load(tmp_path / "run", key_file=key_file)) == bits(state_at(1))
