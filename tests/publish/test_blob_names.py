"""A blob's name says for which generation and in which term it was written, whatever a log in it is called (rules 3a, 8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.publish import layout

NONCE = "0123456789abcdef"


@given(
    st.integers(1, layout.HIGHEST),
    st.integers(0, layout.HIGHEST),
    st.integers(0, 9),
    st.text() | st.sampled_from([f"x-t9-{NONCE}", f"-t9-{NONCE}.safetensors", "a/b", "..", "é", "x" * 500]),
    st.integers(0, 1 << 62),
    st.booleans(),
)
def test_number_and_term_come_back_whatever_the_log_is_called(
    number: int, term: int, part: int, log: str, row: int, compressed: bool
) -> None:
    for rows in ("", f"{log}.{row}-{row + 7}"):
        name = layout.blob(number, term, NONCE, part, rows, compressed)
        for left in (name, name + ".part"):
            assert (layout.blob_number(left), layout.blob_term(left)) == (number, term)
        assert layout.is_blob(name)
        assert not layout.is_blob(name + ".part")
        assert name.endswith(".safetensors.zst" if compressed else ".safetensors")
        assert len(name) < 200


def test_a_name_is_as_the_page_says() -> None:
    assert layout.blob(42, 7, NONCE, 1, "replay.917504-983040", compressed=True) == (
        f"blobs/000042-t7-{NONCE}-1.replay.917504-983040.safetensors.zst"
    )
    assert layout.blob(42, 7, NONCE) == f"blobs/000042-t7-{NONCE}.safetensors"


@pytest.mark.parametrize(
    "name",
    [
        f"blobs/000042-t7-{NONCE}.x-t9-{NONCE}.safetensors",  # no writer writes such a log's name
        f"blobs/000042-t7-{NONCE}.replay.1-2.3-4.safetensors",
        f"blobs/000042-t7-{NONCE}.replay.1-2/3.safetensors",
    ],
)
def test_what_no_writer_writes_is_of_no_other_term(name: str) -> None:
    assert layout.blob_term(name) in (None, 7)


def test_temporary_files_are_of_the_term_in_them() -> None:
    assert layout.blob_term(f"blobs/LATEST-t7-{NONCE}.tmp") == 7
    assert layout.blob_number(f"blobs/LATEST-t7-{NONCE}.tmp") is None
    assert layout.blob_term(f"blobs/000042.json-t7-{NONCE}.tmp") == 7
