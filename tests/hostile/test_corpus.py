"""What a fuzzer found once is never found again: every input in fuzz/corpus, and freshly drawn ones, without a fuzzer."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fuzz import targets
from fuzz.seeds import CORPUS, seeds
from milepost.errors import CorruptError

INPUTS = sorted(path for path in CORPUS.rglob("*") if path.is_file())


@pytest.mark.parametrize("target", targets.TARGETS)
def test_each_target_takes_every_input_of_its_corpus(target: str) -> None:
    inputs = [path for path in INPUTS if path.parent.name == target]
    assert inputs
    for path in inputs:
        targets.TARGETS[target](path.read_bytes())


def test_the_seeds_are_those_that_the_small_run_makes() -> None:
    made = {(target, name): data for target, inputs in seeds().items() for name, data in inputs.items()}
    kept = {(path.parent.name, path.name): path.read_bytes() for path in INPUTS if path.name.startswith("seed")}
    assert kept == made


edits = st.lists(
    st.tuples(st.just(5), st.integers(0, 255), st.integers(0, 65535), st.integers(0, 255)).map(
        lambda drawn: bytes([drawn[0], drawn[1], *drawn[2].to_bytes(2, "little"), drawn[3]])
    )
    | st.tuples(st.integers(0, 3), st.binary(min_size=2, max_size=8)).map(lambda drawn: bytes([drawn[0]]) + drawn[1]),
    min_size=1,
    max_size=3,
).map(b"".join)


@settings(max_examples=60)
@given(edits)
@example(bytes.fromhex("02fecb00c505e6af54bf"))  # a tree that is a dict, shown by `diff`
def test_a_root_with_any_value_changed_and_sealed_anew_loads_or_is_refused_in_one_clear_error(data: bytes) -> None:
    targets.root(data)


@settings(max_examples=100)
@given(st.integers(0, 9), st.binary(max_size=60))
def test_any_sealed_body_is_a_record_or_damaged(kind: int, body: bytes) -> None:
    targets.record(bytes([kind]) + b"{" + body + b"}")


def test_a_target_that_finds_something_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("not one of ours")

    monkeypatch.setattr(targets, "decode", broken)
    with pytest.raises(KeyError):
        targets.record(b"\0{}")
    monkeypatch.setattr(targets, "decode", lambda *_: targets.opaque.unpickled(b"", "x", trust=True))
    with pytest.raises(targets.PickleWasRead):
        targets.record(b"\0{}")
    assert issubclass(CorruptError, Exception)


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in INPUTS) < 1 << 20
    assert Path(CORPUS).is_dir()
