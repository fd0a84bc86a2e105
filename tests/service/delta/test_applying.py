"""The old version stays what it is: whoever applies the wrong delta, a damaged one, or is killed in the midst of it. C6"""

from __future__ import annotations

import mmap
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from milepost.errors import CorruptError, MismatchError, UsageError
from milepost.service.delta.applying import apply
from milepost.service.delta.encoding import encode
from milepost.service.delta.records import Delta, Tensor
from milepost.service.delta.settings import How
from milepost.service.delta.wire import pack
from tests.service.delta.sets import bytes_of, sent, tensor

NAMES = ("embed", "layer", "head")
WORDS = 5000


def version(number: int) -> dict[str, Tensor]:
    """Return version 0, or one that came out of it by so many updates."""
    rng = np.random.default_rng(1)
    arrays = {name: rng.integers(0, 1 << 16, WORDS, dtype=np.uint16) for name in NAMES}
    for update in range(number):
        for array in arrays.values():
            array[rng.integers(0, WORDS, 50)] += np.uint16(1 + update)
    return {name: tensor(array, "bfloat16") for name, array in arrays.items()}


def rooms() -> dict[str, memoryview]:
    return {name: memoryview(bytearray(2 * WORDS)) for name in NAMES}


def test_a_reader_that_is_behind_applies_one_delta_after_the_other_or_is_given_the_version_whole() -> None:
    at = version(0)
    for number in range(4):
        at = apply(sent(encode(version(number), version(number + 1))), at)
    assert bytes_of(at) == bytes_of(version(4))
    assert bytes_of(apply(sent(encode({}, version(4))), version(1))) == bytes_of(version(4))


def test_every_tensor_that_is_not_the_one_it_was_told_against_is_named_and_nothing_is_written() -> None:
    delta = sent(encode(version(2), version(3)))
    base = {**version(1), "layer": version(2)["layer"]}
    base["head"] = tensor(np.zeros(3, np.float32))
    into = rooms()
    with pytest.raises(MismatchError) as caught:
        apply(delta, base, into)
    assert caught.value.kind == "wrong-base"
    assert [difference.path for difference in caught.value.differences] == ["embed", "head"]
    assert "head: saved bfloat16[5000]" in str(caught.value)
    assert "here float32[3] of other bytes" in str(caught.value)
    assert "hint: ask for the version whole" in str(caught.value)
    assert not any(any(room) for room in into.values())
    with pytest.raises(MismatchError, match=r"embed: saved .* here nothing"):
        apply(delta, {})


def test_what_was_applied_is_no_base_for_the_same_delta_again() -> None:
    delta = sent(encode(version(0), version(1)))
    made = apply(delta, version(0))
    with pytest.raises(MismatchError):
        apply(delta, made)
    assert bytes_of(made) == bytes_of(version(1))


def test_a_new_version_is_written_into_memory_that_is_given_and_is_handed_out_read_only() -> None:
    into = rooms()
    made = apply(sent(encode(version(0), version(1))), version(0), into)
    assert {name: bytes(room) for name, room in into.items()} == {name: bytes(one.data) for name, one in version(1).items()}
    assert all(memoryview(one.data).readonly for one in made.values())


def test_memory_in_which_the_base_or_another_tensor_lies_is_refused_before_anything_is_written() -> None:
    base, delta = version(0), encode(version(0), version(1))
    before = bytes_of(base)
    whole = memoryview(bytearray(6 * WORDS))
    inside = memoryview(base["layer"].data)
    assert isinstance(base["layer"].data, memoryview)
    bad = {
        "missing": {"embed": whole[: 2 * WORDS]},
        "short": {**rooms(), "head": whole[:10]},
        "read-only": {**rooms(), "head": whole[: 2 * WORDS].toreadonly()},
        "the base": {**rooms(), "layer": inside},
        "the base of another": {**rooms(), "head": inside},
        "each other": {**rooms(), "layer": whole[: 2 * WORDS], "head": whole[WORDS : 3 * WORDS]},
    }
    for what, into in bad.items():
        with pytest.raises(UsageError) as caught:
            apply(delta, base, into)
        assert caught.value.kind == "bad-room", what
    assert bytes_of(base) == before
    beside = {name: whole[index * 2 * WORDS : (index + 1) * 2 * WORDS] for index, name in enumerate(NAMES)}
    assert bytes_of(apply(delta, base, beside)) == bytes_of(version(1))


class Interrupted(dict[str, memoryview]):
    """Be struck by a Ctrl-C as the memory of one tensor is asked for."""

    def __getitem__(self, name: str) -> memoryview:
        if name == NAMES[1]:
            raise KeyboardInterrupt
        return super().__getitem__(name)


def test_an_interrupted_apply_leaves_the_base_and_the_next_one_works() -> None:
    """Defect D3: where XOR was applied in place, each try after a crash undid one half and did the other."""
    base, delta = version(0), sent(encode(version(0), version(1)))
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            apply(delta, base, Interrupted(rooms()))
        assert bytes_of(base) == bytes_of(version(0))
    assert bytes_of(apply(delta, base)) == bytes_of(version(1))


CHILD = """
import mmap, sys
from milepost.service.delta.applying import apply
from milepost.service.delta.wire import parse
from tests.service.delta.test_applying import Interrupted, NAMES, mapped, rooms

class Held(Interrupted):
    def __getitem__(self, name):
        if name == NAMES[1]:
            print("half", flush=True)
            sys.stdin.read()
        return dict.__getitem__(self, name)

with open(sys.argv[2], "rb") as file:
    delta = parse(file.read(), limit_bytes=1 << 30)
with open(sys.argv[1], "r+b") as file:
    base = mapped(mmap.mmap(file.fileno(), 0))
    apply(delta, base, Held(rooms()))
"""


def mapped(file: mmap.mmap) -> dict[str, Tensor]:
    view = memoryview(file)
    return {
        name: Tensor("bfloat16", (WORDS,), view[index * 2 * WORDS : (index + 1) * 2 * WORDS]) for index, name in enumerate(NAMES)
    }


def test_a_reader_that_is_killed_in_the_midst_of_it_leaves_the_version_that_it_had(tmp_path: Path) -> None:
    there, delta = tmp_path / "base", tmp_path / "delta"
    there.write_bytes(b"".join(bytes(one.data) for one in version(0).values()))
    delta.write_bytes(b"".join(bytes(part) for part in pack(encode(version(0), version(1)))))
    before = there.read_bytes()
    command = [sys.executable, "-c", CHILD, str(there), str(delta)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half\n"
        child.kill()
    assert there.read_bytes() == before


def test_a_damaged_delta_is_found_after_it_is_written_and_the_base_is_untouched() -> None:
    base = version(0)
    delta = encode(base, version(1), How(incremental_threshold=0.0))
    planes = list(delta.planes)
    flipped = bytearray(planes[-1])
    flipped[100] ^= 1
    with pytest.raises(CorruptError) as caught:
        apply(replace(delta, planes=(*planes[:-1], flipped)), base)
    assert (caught.value.kind, caught.value.facts["tensor"]) == ("damaged-delta", "head")
    assert bytes_of(base) == bytes_of(version(0))


def test_weights_that_were_trained_on_while_they_were_encoded_make_no_version() -> None:
    array = np.arange(WORDS, dtype=np.uint16)

    class Trained(Tensor):
        """Change as soon as the digest has been taken and the width is asked for."""

        @property
        def word_bytes(self) -> int:
            array[7] += 1
            return 2

    torn = encode({}, {"w": Trained("bfloat16", (WORDS,), array.view(np.uint8).data)})
    with pytest.raises(CorruptError, match="other bytes than were encoded"):
        apply(torn, {})


def test_a_delta_holds_no_memory_of_who_encoded_it() -> None:
    """A trainer goes on as soon as it has encoded, and what is still to be sent must not change with its weights."""
    rng = np.random.default_rng(0)
    for dtype in (np.uint8, np.uint16):
        array = rng.integers(0, np.iinfo(dtype).max, WORDS, dtype=dtype)
        wanted = array.tobytes()
        delta = encode({}, {"w": tensor(array)})
        array[:] = 0
        assert bytes(apply(delta, {})["w"].data) == wanted


def test_a_delta_whose_publication_failed_is_forgotten_and_the_next_is_told_against_what_readers_have() -> None:
    """Defect D5: a snapshot that goes ahead before a version is published makes deltas against bytes that nobody has."""
    published = version(0)
    encode(published, version(1))  # its publication fails
    delta: Delta = encode(published, version(2))
    assert bytes_of(apply(sent(delta), version(0))) == bytes_of(version(2))
