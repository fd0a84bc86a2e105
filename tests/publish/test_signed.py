"""A key's holder takes no record from anybody else, under no other name; and the key is told to nobody."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.clock import FakeClock
from milepost.encode.digest import seal, unseal, unseal_signed
from milepost.errors import CorruptError, InternalError, UsageError
from milepost.publish import layout, pins
from milepost.publish.key import find_key
from milepost.publish.signed import SignedStore, as_stored, is_record, is_signing, open_root, refuse_unsigned, within
from milepost.publish.term import Identity, claim
from milepost.store.base import Entry, Store
from milepost.store.memory import MemoryStore

KEY = b"0123456789abcdef0123456789abcdef"
WHO = Identity("here", "boot", 1)
RECORDS = [
    layout.RUN,
    layout.LATEST,
    layout.PROGRESS,
    layout.SCRUB,
    layout.fence(7),
    layout.settlement(7),
    layout.pin(4),
    layout.mark(4),
    layout.events(7),
    "something/new.json",
]


def signed(inner: Store, key: bytes = KEY) -> SignedStore:
    return SignedStore(inner, key)


def body_of(value: object) -> bytes:
    return msgspec.json.encode({"v": value})


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_comes_back_as_it_was_written_and_its_digest_still_covers_all_of_it(name: str) -> None:
    inner = MemoryStore()
    signed(inner).create(name, seal(body_of(1)))
    data = signed(inner).read(name)
    assert data == inner.read(name)
    assert unseal(data, name) == body_of(1)  # so a reader without the key can check it, and read it
    assert b'"signature":"hmac-sha256:' in data


def test_all_ways_to_write_a_record_sign_it() -> None:
    inner = MemoryStore()
    store = signed(inner)
    store.create("pins/000001", seal(body_of(1)))
    store.replace("LATEST", seal(body_of(2)))
    assert store.replace_if("scrub.json", None, seal(body_of(3)))
    assert store.replace_if("scrub.json", seal(body_of(3)), seal(body_of(4)))  # as it was sealed
    assert store.replace_if("scrub.json", store.read("scrub.json"), seal(body_of(5)))  # as it was read
    assert not store.replace_if("scrub.json", seal(body_of(3)), seal(body_of(6)))
    store.append("events/0001.jsonl", seal(body_of(7)))
    store.append("events/0001.jsonl", seal(body_of(8)))
    lines = inner.read("events/0001.jsonl").splitlines(keepends=True)
    for data in (inner.read("pins/000001"), inner.read("LATEST"), inner.read("scrub.json"), *lines):
        assert unseal_signed(data, "x")[1]
    assert [unseal(line, "x") for line in lines] == [body_of(7), body_of(8)]
    assert unseal(store.read("scrub.json"), "x") == body_of(5)


@given(value=st.integers() | st.text(max_size=8), names=st.permutations(RECORDS), other=st.binary(min_size=16, max_size=40))
def test_a_record_is_refused_under_another_name_from_another_key_and_without_its_signature(
    value: object, names: list[str], other: bytes
) -> None:
    name, elsewhere = [each for each in names if not each.startswith(layout.EVENTS)][:2]
    inner = MemoryStore()
    signed(inner).create(name, seal(body_of(value)))
    genuine = inner.read(name)
    cases = {"bad-signature": (elsewhere, genuine), "unsigned": (name, seal(body_of(value)))}
    for kind, (under, data) in cases.items():
        with pytest.raises(CorruptError) as caught:
            signed(holding(under, data)).read(under)
        assert caught.value.kind == kind
        assert caught.value.hint
    if other != KEY:
        with pytest.raises(CorruptError) as caught:
            signed(holding(name, genuine), other).read(name)
        assert caught.value.kind == "bad-signature"


def holding(name: str, data: bytes) -> MemoryStore:
    inner = MemoryStore()
    inner.replace(name, data)
    return inner


@pytest.mark.parametrize("name", ["terms/0007.json", "LATEST"])
def test_no_byte_of_a_record_can_be_changed_added_or_taken_away_even_by_one_who_seals_it_again(name: str) -> None:
    data = bytes(as_stored(signed(MemoryStore()), name, seal(b'{"a":1,"b":"x"}')))
    body, signature = unseal_signed(data, name)
    changed = {data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for at in range(len(data)) for bit in range(8)}
    cut = {data[:at] + data[at + 1 :] for at in range(len(data))}
    grown = {data[:at] + bytes([extra]) + data[at:] for at in range(len(data) + 1) for extra in b'\n ,{}"0'}
    bodies = [body[:at] + bytes([body[at] ^ 1 << bit]) + body[at + 1 :] for at in range(1, len(body) - 1) for bit in range(8)]
    resealed = {seal(altered, signature) for altered in bodies} | {seal(b"{}", signature), seal(body + b"}", signature)}
    for forged in (changed | cut | grown | resealed) - {data}:
        with pytest.raises(CorruptError):
            unseal(signed(holding(name, forged)).read(name), name)


def test_a_comma_that_changes_nothing_is_a_change() -> None:
    empty = as_stored(signed(MemoryStore()), "LATEST", seal(b"{}"))
    padded = seal(b'{,"signature":"' + unseal_signed(empty, "x")[1].encode() + b'"}')
    assert unseal(empty, "x") == b"{}"
    with pytest.raises(CorruptError):
        signed(holding("LATEST", padded)).read("LATEST")


def test_a_part_of_a_record_is_checked_like_all_of_it() -> None:
    inner = MemoryStore()
    signed(inner).create("LATEST", seal(body_of(1)))
    assert signed(inner).read("LATEST", 1, 4) == inner.read("LATEST", 1, 4)
    into = bytearray(4)
    assert signed(inner).read_into("LATEST", 0, memoryview(into)) == 4
    assert into == inner.read("LATEST", 0, 4)
    forged = signed(holding("LATEST", seal(body_of(2))))
    for look in (lambda: forged.read("LATEST", 0, 4), lambda: forged.read_into("LATEST", 0, memoryview(into))):
        with pytest.raises(CorruptError):
            look()


def test_a_forged_line_of_an_event_log_cannot_be_read_and_hides_no_other() -> None:
    inner = MemoryStore()
    store = signed(inner)
    name = layout.events(1)
    store.append(name, seal(body_of("first")))
    inner.append(name, seal(body_of("planted")))
    inner.append(name, as_stored(store, layout.events(2), seal(body_of("moved here"))))
    inner.append(name, b'{"torn":\n')
    inner.append(name, b"behind\r" + seal(body_of("planted")))
    inner.append(name, seal(b'{"v":\r"planted"}'))
    store.append(name, seal(body_of("last")))
    readable = []
    for line in store.read(name).splitlines(keepends=True):
        try:
            readable.append(unseal(line, name))
        except CorruptError:
            continue
    assert readable == [body_of("first"), body_of("last")]
    assert len(store.read(name)) == len(inner.read(name))
    assert len(store.read(name).split(b"\n")) == len(inner.read(name).split(b"\n"))


def test_blobs_ballast_and_locks_pass_as_they_are() -> None:
    inner = MemoryStore()
    store = signed(inner)
    name = layout.blob(1, 1, "0" * 16)
    with store.open_blob(name) as sink:
        sink.write(b"bytes")
        sink.commit()
    store.replace(layout.BALLAST, bytes(8))
    assert store.read(name) == b"bytes"
    assert store.read(layout.BALLAST) == bytes(8)
    into = bytearray(3)
    assert store.read_into(name, 1, memoryview(into)) == 3
    assert into == b"yte"
    assert not any(map(is_record, (name, layout.BALLAST, layout.LOCK, layout.LEASE, "reset/ab/" + name)))
    assert all(map(is_record, RECORDS))


def test_what_cannot_be_signed_is_not_written() -> None:
    store = signed(MemoryStore())
    with pytest.raises(InternalError):
        store.open_blob(layout.manifest(1))
    with pytest.raises(CorruptError):
        store.create("LATEST", b"not sealed")
    assert store.list("") == []


def test_a_run_that_was_set_aside_keeps_its_signatures_and_no_record_gets_another_name() -> None:
    inner = MemoryStore()
    store = signed(inner)
    store.create(layout.manifest(3), seal(b'{"blobs":[],"components":[]}'))
    store.move(layout.manifest(3), "reset/ab12/" + layout.manifest(3))
    data = store.read("reset/ab12/" + layout.manifest(3))
    assert signed(holding(layout.manifest(3), data)).read(layout.manifest(3)) == data  # as a root of its own
    with pytest.raises(InternalError):
        store.move("reset/ab12/" + layout.manifest(3), layout.manifest(4))
    assert within("reset/a/reset/b/LATEST") == "LATEST"
    assert within("reset/a") == "reset/a"


WEAK, STRONG = "0" * 32, "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("blob", "leaf", "sound"), [(STRONG, STRONG, True), (WEAK, STRONG, False), (STRONG, WEAK, False), (None, STRONG, False)]
)
def test_a_signed_manifest_that_names_bytes_by_a_digest_anyone_can_forge_is_refused(
    blob: str | None, leaf: str, sound: bool
) -> None:
    body = msgspec.json.encode({"blobs": [{"digest": blob}], "components": [{"leaves": [{"digest": leaf}]}]})
    store = signed(MemoryStore())
    store.create(layout.manifest(1), seal(body))
    if sound:
        store.read(layout.manifest(1))
        return
    with pytest.raises(CorruptError) as caught:
        store.read(layout.manifest(1))
    assert caught.value.kind == "weak-digest"


def everything_done_to(store: Store) -> list[tuple[str, object]]:
    return [
        ("read", lambda: store.read("LATEST")),
        ("read_into", lambda: store.read_into("blobs/x", 0, memoryview(bytearray(1)))),
        ("list", lambda: store.list("")),
        ("create", lambda: store.create("pins/000001", seal(b"{}"))),
        ("replace", lambda: store.replace("LATEST", seal(b"{}"))),
        ("replace_if", lambda: store.replace_if("LATEST", None, seal(b"{}"))),
        ("append", lambda: store.append("events/0001.jsonl", seal(b"{}"))),
        ("open_blob", lambda: store.open_blob("blobs/x")),
        ("delete", lambda: store.delete("LATEST")),
        ("move", lambda: store.move("LATEST", "reset/a/LATEST")),
        ("sync", lambda: store.sync("")),
        ("guard", lambda: store.guard(wait_s=0, take_over=True)),
        ("claim", lambda: claim(store, FakeClock(), WHO)),
    ]


@pytest.mark.parametrize("at", range(len(everything_done_to(MemoryStore()))))
@pytest.mark.parametrize("kind", ["unsigned", "bad-signature"])
def test_a_root_that_is_not_the_keys_is_left_alone_whatever_is_asked_of_it(kind: str, at: int) -> None:
    inner = MemoryStore()
    claim(inner if kind == "unsigned" else signed(inner, b"another key, of more than 16"), FakeClock(), WHO)
    before = bytes_of(inner)
    call = everything_done_to(signed(inner))[at][1]
    with pytest.raises(CorruptError) as caught:
        call()  # type: ignore[operator]
    assert caught.value.kind == kind
    assert bytes_of(inner) == before  # a claim with a wrong key has fenced nobody


def bytes_of(store: Store) -> dict[str, bytes]:
    entries: list[Entry] = store.list("")
    return {entry.name: store.read(entry.name) for entry in entries}


def test_a_damaged_marker_is_damage_and_loses_no_run() -> None:
    inner = MemoryStore()
    first = claim(signed(inner), FakeClock(), WHO)
    data = bytearray(inner.read(layout.RUN))
    data[5] ^= 1
    inner.replace(layout.RUN, bytes(data))
    assert claim(signed(inner), FakeClock(), WHO).run_id == first.run_id
    inner.delete(layout.RUN)
    assert claim(signed(inner), FakeClock(), WHO).run_id == first.run_id


def test_without_its_key_nothing_is_added_to_a_signed_run() -> None:
    inner = MemoryStore()
    claim(signed(inner), FakeClock(), WHO)
    before = bytes_of(inner)
    for add in (lambda: claim(inner, FakeClock(), WHO), lambda: pins.pin(inner, 1)):
        with pytest.raises(UsageError) as caught:
            add()
        assert caught.value.kind == "no-key"
    assert bytes_of(inner) == before
    refuse_unsigned(signed(inner))


class Flaky(MemoryStore):
    """Read milepost.json wrong, until it is read from the medium."""

    flaky = True

    def drop_cached(self, name: str) -> None:
        self.flaky = self.flaky and name != layout.RUN

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        data = super().read(name, start, stop)
        return data[:-1] if self.flaky and name == layout.RUN else data


def test_a_flaky_read_of_the_marker_opens_no_gate() -> None:
    there = MemoryStore("flaky marker")
    claim(signed(there), FakeClock(), WHO)
    before = bytes_of(there)
    with pytest.raises(UsageError):
        refuse_unsigned(Flaky("flaky marker"))
    for store in (signed(Flaky("flaky marker"), b"another key of enough bytes"), Flaky("flaky marker")):
        with pytest.raises((CorruptError, UsageError)):
            claim(store, FakeClock(), WHO)
    assert bytes_of(there) == before


def test_planted_terms_are_to_a_key_what_unreadable_ones_are() -> None:  # rules 3a, 13
    inner = MemoryStore()
    claim(signed(inner), FakeClock(), WHO)
    plain = MemoryStore()
    claim(plain, FakeClock(), WHO)
    claim(plain, FakeClock(), WHO)
    # A fence fences by its name alone: whoever can write can always stop a writer.
    inner.replace(layout.fence(2), plain.read(layout.fence(2)))
    assert claim(signed(inner), FakeClock(), WHO).term == 3
    # A settlement that is not signed settles nothing, and what counts is then not guessed.
    inner.replace(layout.settlement(3), plain.read(layout.settlement(2)))
    with pytest.raises(CorruptError) as caught:
        claim(signed(inner), FakeClock(), WHO)
    assert caught.value.kind == "damaged-settlement"


# The key


def test_a_key_is_the_bytes_of_a_file_without_its_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for written, key in [
        (KEY, KEY),
        (KEY + b"\n", KEY),
        (KEY + b"\r\n", KEY),
        (KEY + b"\n\n", KEY + b"\n"),
        (b"\0" * 16, b"\0" * 16),
    ]:
        path.write_bytes(written)
        path.chmod(0o600)
        assert find_key(path) == key


def test_the_environment_names_a_key_or_holds_it_and_not_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "key", tmp_path / "other"
    path.write_bytes(KEY)
    other.write_bytes(KEY[::-1])
    assert find_key() is None
    monkeypatch.setenv("MILEPOST_KEY", KEY.decode())
    assert find_key() == KEY
    assert find_key(other) == KEY[::-1]  # what is named in the call counts
    monkeypatch.setenv("MILEPOST_KEY_FILE", str(path))
    with pytest.raises(UsageError) as caught:
        find_key()
    assert caught.value.kind == "bad-key"
    assert KEY.decode() not in str(caught.value)
    monkeypatch.delenv("MILEPOST_KEY")
    assert find_key() == KEY
    monkeypatch.setenv("MILEPOST_KEY_FILE", "")
    with pytest.raises(UsageError):
        find_key()  # a variable that came out empty is a mistake, and no permission to go on without a key


@pytest.mark.parametrize("key", [b"", b"tiny!", KEY[:15], b"0123456789abcde\n", bytes(1 << 17)])
def test_what_is_too_short_or_no_key_at_all_is_refused_and_not_repeated(tmp_path: Path, key: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(key)
    with pytest.raises(UsageError) as caught:
        find_key(path)
    assert caught.value.kind == "bad-key"
    assert not key or key.strip().decode() not in str(caught.value)


def test_an_empty_key_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_KEY", "")
    with pytest.raises(UsageError):
        find_key()


def test_a_key_file_that_is_not_there_is_an_error_and_never_no_key(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError) as caught:
            find_key(path)
        assert caught.value.kind == "no-key"
        with pytest.raises(UsageError):
            open_root(MemoryStore(), FakeClock(), path)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True), (0o602, True)])
def test_a_key_that_every_user_can_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        find_key(path)
    assert [str(path) in record.getMessage() for record in caplog.records] == [True] * warned
    assert KEY.decode() not in caplog.text


def test_a_store_is_wrapped_once_and_only_if_there_is_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = MemoryStore()
    assert open_root(plain, FakeClock()) is plain
    path = tmp_path / "key"
    path.write_bytes(KEY)
    store = open_root(plain, FakeClock(), path)
    assert is_signing(store)
    assert store.url == plain.url
    assert store.capabilities == plain.capabilities
    assert store.free_bytes() == plain.free_bytes()
    monkeypatch.setenv("MILEPOST_KEY", "another key that is long enough")
    assert open_root(store, FakeClock()) is store
    assert is_signing(open_root(plain, FakeClock()))


def test_a_store_keeps_no_key_that_could_be_printed() -> None:
    store = signed(MemoryStore())
    held = [getattr(store, name) for name in vars(store)]
    assert KEY not in held
    for form in (KEY.decode(), KEY.hex(), repr(KEY)):
        assert form not in repr(store) + repr(held)
