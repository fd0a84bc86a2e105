"""Hold what every part of the service works with: what is written down, whose turn it is, what is to be done, the time."""

from __future__ import annotations

from milepost.service.core.catalogue import Catalogue
from milepost.service.core.events import Action, Answer, Refused, Reply, Request
from milepost.service.core.records import Entry
from milepost.service.core.settings import Settings
from milepost.service.core.turns import Turn, Turns


class Desk:
    """Be what the parts of the service share."""

    def __init__(self, settings: Settings, catalogue: Catalogue) -> None:
        self.settings = settings
        self.catalogue = catalogue
        self.now_ns = 0
        self.actions: list[Action] = []
        self.turns = Turns(catalogue, self.actions.append)

    def do(self, action: Action) -> None:
        """Have something done, after all that was decided before."""
        self.actions.append(action)

    def reply(self, request: Request, answer: Answer) -> None:
        """Answer a request."""
        self.actions.append(Reply(request, answer))

    def write_down(self, turn: Turn) -> None:
        """Let a decision be made, and written down, when its turn comes."""
        self.turns.take(turn)

    def refuse(self, request: Request, kind: str, message: str, hint: str, **facts: object) -> tuple[Entry, ...]:
        """Refuse a request; there is nothing to write down then."""
        self.reply(request, Refused(kind, message, hint, facts))
        return ()

    def not_written(self, request: Request, why: str) -> None:
        """Answer a request whose decision could not be written down."""
        self.refuse(
            request, "not-written", "it could not be written down, and was not done", "free some space, then try again", cause=why
        )
