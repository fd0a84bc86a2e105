"""What commands say, each line with the name of who says it. A5"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from milepost.supervise.printing import Console, Labelled


class Kept(Console):
    """Keep what is passed on."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def pass_on(self, data: bytes) -> None:
        self.writes.append(data)


def test_a_command_that_says_much_is_not_kept_waiting_by_a_write_for_each_line() -> None:
    console = Kept()
    Labelled(console, "a.0").pass_on(b"y\n" * 30_000)
    assert b"".join(console.writes) == b"[a.0] y\n" * 30_000
    assert len(console.writes) < 100


@given(
    st.lists(
        st.text(alphabet="ab\n", max_size=9).map(str.encode) | st.integers(0, 9000).map(lambda size: b"x" * size), max_size=9
    )
)
def test_whatever_comes_is_passed_on_in_whole_lines_that_others_can_write_between(pieces: list[bytes]) -> None:
    console = Kept()
    output = Labelled(console, "a.0")
    for piece in pieces:
        output.pass_on(piece)
    output.end()
    said = b"".join(console.writes)
    assert all(line.startswith(b"[a.0] ") for line in said.splitlines())
    assert all(write.endswith(b"\n") for write in console.writes)
    assert said.replace(b"[a.0] ", b"").replace(b"\n", b"") == b"".join(pieces).replace(b"\n", b"")
