"""Say where a generation stands: its state in one word, and its tags. From records alone: bytes are for ``verify``."""

from __future__ import annotations

from milepost.cli.refs import recorded_rule
from milepost.lifecycle.retain import rank, resumable
from milepost.publish.view import View


def states_of(view: View, *, everything: bool) -> dict[int, str]:
    """Return the state of each generation by number, newest first; with ``everything`` also of what no longer counts."""
    listing = view.listing
    numbers = {*view.live, *view.unreadable}
    if everything:
        numbers |= {*listing.summaries}
    return {number: state_of(view, number) for number in sorted(numbers, reverse=True)}


def state_of(view: View, number: int) -> str:
    """Return what a generation counts for. What needs attention stands in capitals."""
    if number in view.unreadable:
        return "UNREADABLE"
    if number in view.foreign:
        return "foreign"
    if number in view.void:
        return "void"
    if number not in view.live:
        return "retired"
    if number in view.marks:
        return view.marks[number].kind.upper()
    if not view.live[number].healthy:
        return "UNHEALTHY"
    if not view.live[number].complete:
        return "incomplete"
    return "undecided" if view.undecided and number == max(view.live) else "live"


def tags_of(view: View) -> dict[int, tuple[str, ...]]:
    """Return the tags of each generation that has one: latest, resume (what a resume would take), best, pinned."""
    tags: dict[int, tuple[str, ...]] = {}
    if view.head is not None:
        tags[view.head.number] = ("latest",)
    next_start = resumable(view, view.live)
    if next_start is not None:
        tags[next_start] = (*tags.get(next_start, ()), "resume")
    rule = recorded_rule(view)
    for number in rank(view.line, *rule)[:1] if rule else ():
        tags[number] = (*tags.get(number, ()), "best")
    for number, pin in view.pins.items():
        tags[number] = (*tags.get(number, ()), "pinned" if pin.state == "held" else "pin-wanted")
    return tags
