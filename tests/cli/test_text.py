"""The text a terminal gets: aligned, plain, and without surprises."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.cli.progress import Progress
from milepost.cli.text import duration, plain, size, table, width
from milepost.clock import FakeClock


@given(st.text())
def test_plain_text_has_nothing_that_moves_a_cursor_or_ends_a_line(text: str) -> None:
    assert plain(text).isprintable()


@given(st.text(alphabet=st.characters(categories=["L", "N"])))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert plain(text) == text


@given(st.integers(min_value=0, max_value=2**60))
def test_a_size_is_the_truth_rounded_to_what_it_shows(count: int) -> None:
    amount, unit = size(count).replace(",", "").split()
    exact = count / 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit)
    assert float(amount) == pytest.approx(exact, rel=0, abs=0.0501 if exact < 99.95 else 0.501)
    assert exact < 1024 or unit == "PiB"


@given(st.integers(min_value=0, max_value=10**8))
def test_a_duration_never_promises_more_than_has_passed(seconds: int) -> None:
    text = duration(seconds)
    assert int(text[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[text[-1]] <= seconds


CELLS = st.text(alphabet="abé日 ", min_size=1, max_size=6).map(lambda text: text.strip() or "x")


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=5))
def test_the_cells_of_a_column_begin_at_the_same_place(rows: list[tuple[str, ...]]) -> None:
    lines = table(("A", "B", "C"), rows)
    first = max(width(row[0]) for row in [("A",), *rows])
    for line, row in zip(lines[1:], rows, strict=True):
        assert line.startswith(row[0])
        begin = line.index(row[1], len(row[0]))
        assert width(line[:begin]) == first + 2 or row[1] in row[0]


def test_numbers_end_at_the_same_place() -> None:
    assert table(("N", "X"), [("1", "a"), ("1,000", "b")], right=("N",)) == ["    N  X", "    1  a", "1,000  b"]


def test_an_empty_column_is_left_out() -> None:
    assert table(("A", "B", "C"), [("a", "", "c")]) == ["A  C", "a  c"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def advance_to(progress: Progress, clock: FakeClock, part: int) -> None:
    for _ in range(part):
        clock.advance(seconds=0.2)
        progress.advance(10)


def test_progress_at_a_terminal_rewrites_one_line_and_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    clock, terminal = FakeClock(), Terminal()
    with Progress("verify", 100, clock, terminal) as progress:
        advance_to(progress, clock, 10)
    shown = terminal.getvalue().split("\r")
    assert "\n" not in terminal.getvalue()
    assert "verify  50%  50 B  50 B/s  eta 1s  [##########----------]" in [line.rstrip() for line in shown]
    assert shown[-1] == ""
    assert shown[-2].strip() == ""


@pytest.mark.parametrize("columns", [10, 20, 30])
def test_progress_at_a_narrow_terminal_never_wraps(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    clock, terminal = FakeClock(), Terminal()
    with Progress("verify", 100, clock, terminal) as progress:
        advance_to(progress, clock, 5)
    shown = terminal.getvalue().split("\r")
    assert max(map(len, shown)) == columns - 1
    assert shown[5].startswith("verify  5")


def test_progress_leaves_nothing_behind_at_a_ctrl_c() -> None:
    clock, terminal = FakeClock(), Terminal()
    try:
        with Progress("verify", 100, clock, terminal) as progress:
            advance_to(progress, clock, 3)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        *_, shown, blank, end = terminal.getvalue().split("\r")
    assert (len(blank), blank.strip(), end) == (len(shown), "", "")


@pytest.mark.parametrize(("stream", "quiet"), [(io.StringIO(), False), (Terminal(), True)])
def test_progress_says_nothing_in_a_pipe_and_beside_a_json_document(stream: io.StringIO, quiet: bool) -> None:
    clock = FakeClock()
    with Progress("verify", 100, clock, stream, quiet=quiet) as progress:
        advance_to(progress, clock, 10)
    assert stream.getvalue() == ""


def test_a_short_check_shows_no_progress_at_all() -> None:
    terminal = Terminal()
    with Progress("verify", 100, FakeClock(), terminal) as progress:
        progress.advance(100)
    assert terminal.getvalue() == ""
