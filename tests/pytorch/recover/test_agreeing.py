"""What one rank has heard, all do at the same dump: a table, and every case that hypothesis thinks of. B11"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.lifecycle.stopping import INTERRUPTED, StopBy
from milepost.pytorch.recover.agreeing import TRAIN, Verdict, Word, agreed, is_urgent

S = 10**9
QUIET = Word(duration_s=1.0, slowest_s=1.0, gap_s=1.0)
TERM = StopBy("SIGTERM", 30 * S)
INT = StopBy("SIGINT", None, INTERRUPTED)
LIMIT = StopBy("limit 24h", 9000 * S, at_once=False)
NOTICE = StopBy("notice ec2", 100 * S, at_once=False, early=True)


def heard(*requests: StopBy, **facts: object) -> Word:
    return replace(QUIET, requests=requests, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ([QUIET], TRAIN),
        ([QUIET, QUIET, QUIET], TRAIN),
        ([heard(TERM)], Verdict("leave", TERM)),
        ([QUIET, heard(TERM), QUIET], Verdict("leave", TERM)),
        # One signal, heard at two times: the nearer deadline counts.
        ([heard(TERM), heard(replace(TERM, deadline_ns=20 * S))], Verdict("leave", replace(TERM, deadline_ns=20 * S))),
        # A Ctrl-C at one and a SIGTERM at another: as in one process, who knows a deadline decides.
        ([heard(INT), heard(TERM)], Verdict("leave", TERM)),
        ([heard(TERM), heard(INT)], Verdict("leave", TERM)),
        # A limit that is far away is nobody's business yet, and when it is near it is everybody's.
        ([heard(LIMIT), QUIET], TRAIN),
        ([heard(replace(LIMIT, deadline_ns=3 * S)), QUIET], Verdict("leave", replace(LIMIT, deadline_ns=3 * S))),
        # As late as is safe: for the slowest rank, and the one whose steps are longest.
        ([heard(LIMIT), replace(QUIET, slowest_s=9000.0)], Verdict("leave", LIMIT)),
        ([heard(LIMIT), replace(QUIET, gap_s=9000.0)], Verdict("leave", LIMIT)),
        ([heard(LIMIT, duration_s=0.0), replace(QUIET, duration_s=0.0, size_bytes=1 << 40)], Verdict("leave", LIMIT)),
        # A deadline that is over was wrong: what the next start goes on from is still worth a save.
        ([heard(replace(TERM, deadline_ns=-5 * S)), QUIET], Verdict("leave", replace(TERM, deadline_ns=-5 * S))),
        # Where less time is left than a save takes it is tried all the same: there is nothing to leave out of it.
        ([heard(replace(TERM, deadline_ns=S // 2)), QUIET], Verdict("leave", replace(TERM, deadline_ns=S // 2))),
        # A machine that is to go: once ahead, whoever has seen the notice; and not again.
        ([heard(NOTICE), QUIET], Verdict("save", early=("notice ec2",))),
        ([heard(NOTICE, saved=frozenset({"notice ec2"})), replace(QUIET, saved=frozenset({"notice ec2"}))], TRAIN),
        # One rank has withdrawn the notice, and heard it again: it is a new one.
        ([heard(NOTICE), heard(NOTICE, saved=frozenset({"notice ec2"}))], Verdict("save", early=("notice ec2",))),
        ([heard(NOTICE), heard(TERM)], Verdict("leave", replace(TERM, early=True))),
    ],
)
def test_all_ranks_do_what_one_has_heard(words: list[Word], verdict: Verdict) -> None:
    assert agreed(words) == verdict


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (TRAIN, ""),
        (Verdict("leave", TERM), "stopped by SIGTERM"),
        (Verdict("save", early=("a", "b")), "ahead of the end: a, b"),
    ],
)
def test_a_save_says_why(verdict: Verdict, why: str) -> None:
    assert verdict.why == why


requests = st.builds(
    StopBy,
    st.sampled_from(["SIGTERM", "SIGINT", "limit", "notice"]),
    st.one_of(st.none(), st.integers(-10 * S, 100 * S)),
    st.sampled_from([75, INTERRUPTED]),
    st.booleans(),
    st.booleans(),
)
spans = st.floats(0, 50, allow_nan=False)
words = st.builds(
    Word,
    st.lists(requests, max_size=3, unique_by=lambda each: each.path).map(tuple),
    st.frozensets(st.sampled_from(["limit", "notice"])),
    spans,
    spans,
    spans,
    st.integers(0, 1 << 40),
)


@given(st.lists(words, min_size=1, max_size=4))
def test_what_is_urgent_for_a_rank_by_itself_all_ranks_act_on_and_what_is_for_none_may_wait(ranks: list[Word]) -> None:
    # All measured the same: else a rank that has measured nothing yet may take its size for slow, and the others know better.
    alike = [replace(word, duration_s=1.0, slowest_s=2.0, gap_s=1.0) for word in ranks]
    verdict = agreed(alike)
    if any(is_urgent(word) for word in alike):
        assert verdict != TRAIN
    if not any(word.requests for word in alike):
        assert verdict == TRAIN
    if verdict.leaves:
        assert verdict.request is not None
        assert verdict.request.path in {each.path for word in alike for each in word.requests}


@given(st.lists(words, min_size=1, max_size=4), st.randoms())
def test_in_whichever_order_they_speak_it_comes_to_the_same_end_and_the_same_code(ranks: list[Word], chance: object) -> None:
    mixed = list(ranks)
    chance.shuffle(mixed)  # type: ignore[attr-defined]
    one, other = agreed(ranks), agreed(mixed)
    assert (one.action, one.early) == (other.action, other.early)
    if one.request is not None and other.request is not None:
        assert one.request.deadline_ns == other.request.deadline_ns
