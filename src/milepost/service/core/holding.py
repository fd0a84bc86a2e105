"""Keep all weights back while a trainer is about to bring restored ones: no rollout begins with others before them."""

from __future__ import annotations

from collections.abc import Callable

from milepost.service.core.catalogue import Catalogue
from milepost.service.core.desk import Desk
from milepost.service.core.events import Accepted, Hold, Refused, Resume
from milepost.service.core.records import Entry, Held, Resumed
from milepost.service.core.turns import Turn


def hold(desk: Desk, event: Hold | Resume, changed: Callable[[], None]) -> Turn:
    """Return the turn in which a trainer holds, or resumes. Said again, it is accepted again. ``changed`` is called when it is
    written down.

    A hold is its component's, and not its process's: of a load that failed the next process of that name says the end.
    """
    component = event.caller.component

    def decide() -> tuple[Entry, ...]:
        if (component in desk.catalogue.held) == isinstance(event, Hold):
            desk.reply(event.request, Accepted())
            return ()
        return (Held(component) if isinstance(event, Hold) else Resumed(component),)

    def done() -> None:
        desk.reply(event.request, Accepted())
        changed()

    return Turn(decide, done, lambda why: desk.not_written(event.request, why))


def held(catalogue: Catalogue) -> Refused:
    """Return what a reader is told that has waited for as long as it wanted to."""
    hint = "wait for it, or start it again: it says when its restored weights are there; milepost status shows who it is"
    by = ", ".join(sorted(catalogue.held))
    return Refused("held", "a trainer is about to bring restored weights, and nobody is given others meanwhile", hint, {"by": by})
