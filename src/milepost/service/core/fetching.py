"""Say what a fetch is answered: weights, nothing new, a refusal, or to wait. By inequality: to go back is news, too."""

from __future__ import annotations

from collections.abc import Callable

from milepost.service.core.catalogue import Catalogue
from milepost.service.core.events import Fetch, NotModified, Refused
from milepost.service.core.records import Commit

Verdict = Commit | NotModified | Refused | None
"""The version to hand out; or an answer; or None: it may come yet."""


def judge(catalogue: Catalogue, fetch: Fetch, is_there: Callable[[Commit], bool]) -> Verdict:
    """Judge a fetch by what there is now; ``is_there`` says whether the bytes of a version are in any tier."""
    if fetch.want == "newest":
        return _new_to(fetch, catalogue.live)
    at = fetch.at
    if at is None:
        return Refused("no-version", "which version is wanted was not said", "give one, or ask for the newest")
    if at in catalogue.lost:
        facts = {"version": str(at), "live": str(catalogue.live)}
        return Refused("lost-branch", "this version is on a branch that training has left", "fetch the newest", facts)
    if at not in catalogue.weights:
        return _unknown(catalogue, at)
    if fetch.want == "at least":
        return _new_to(fetch, catalogue.live)  # what is known and not lost is the live version, or older
    if fetch.has != at and not is_there(at):
        return Refused("gone", "the bytes of this version are kept no longer", "fetch the newest", {"version": str(at)})
    return _new_to(fetch, at)


def _new_to(fetch: Fetch, at: Commit | None) -> Verdict:
    if at is not None and at != fetch.has:
        return at
    return None if at is None or fetch.want == "newest" else NotModified(at)


def _unknown(catalogue: Catalogue, at: Commit) -> Refused | None:
    if at.number >= catalogue.next_number and at.term >= catalogue.term:
        return None
    hint = "fetch the newest; milepost status shows which there are"
    return Refused("unknown-version", "there never was such a version here", hint, {"version": str(at)})


def at_the_end(fetch: Fetch) -> NotModified | Refused:
    """Return what a fetch is answered that has waited for as long as it wanted to."""
    if fetch.want == "newest":
        return NotModified(fetch.has)
    return Refused("not-yet", "this version has not come", "wait longer, or fetch the newest", {"version": str(fetch.at)})
