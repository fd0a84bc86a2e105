"""Ask the run roots that a command has named what stands in them: the truth of what it has published, whoever wrote it last."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from milepost.clock import Clock
from milepost.engine.beats import Beats
from milepost.errors import MilepostError
from milepost.publish.signed import open_root
from milepost.publish.view import View, read
from milepost.records import Summary


@dataclass(frozen=True, slots=True)
class Newest:
    """Say what is the newest generation of a root, and whether an attempt has published it."""

    root: str
    run_id: str
    number: int
    """0: there is none, or it could not be asked for."""
    step: int
    is_new: bool
    older: tuple[int, ...] | None = None
    """The generations that its state goes back to, so far as they are kept; None: nobody has looked."""


class Question:
    """Ask what stands in some roots, in a thread of its own (``milepost-look``): a disk that hangs keeps only that waiting."""

    def __init__(self, found: Iterable[Beats], began: str, clock: Clock) -> None:
        """``found`` is what its engines said last; ``began`` when it was started, as `milepost.clock.utc_text` tells it."""
        self._beats = [*found]
        self._began = began
        self._clock = clock
        self._answers: dict[str, Newest] = {}
        self._thread = threading.Thread(target=self._ask, name="milepost-look", daemon=True)
        self._thread.start()

    @property
    def is_answered(self) -> bool:
        """Say whether all is known that can be."""
        return not self._thread.is_alive()

    @property
    def answer(self) -> tuple[Newest, ...]:
        """Return what is known: of a root that did not answer what its engine said itself."""
        return tuple(dict([(each.root, newest_by_beat(each)) for each in self._beats] + [*self._answers.items()]).values())

    def _ask(self) -> None:
        for each in self._beats:
            try:
                view = read(open_root(each.root, self._clock, only_to_read=True))
            except MilepostError:
                # Signed with a key that only the script has, in another process's memory, gone: its own word stands.
                continue
            before = self._answers.get(each.root)
            self._answers[each.root] = newest_of(each, view, self._began, before is not None and before.is_new)


def newest_by_beat(each: Beats) -> Newest:
    """Return what an engine itself said that it has published last."""
    return Newest(each.root, each.run_id, each.generation, each.step if each.generation else -1, each.generation > 0)


def newest_of(each: Beats, view: View, began: str, was_new: bool = False) -> Newest:
    """Return what stands in a root. Pure.

    It is new if the engine has said so, or if it was published under a claim of that very process: a writer process publishes
    what was staged after its trainer was killed, when nobody can say so any more. But only what the next start can go on from,
    and what is of another step than that from which this one did: else a run that saves on its way into the same crash, or that
    is always stopped with too little time for its replay buffer, would be started again for ever.
    """
    head = view.head
    terms = {
        term
        for term, fence in view.terms.fences.items()
        if fence is not None and fence.pid == each.pid and fence.claimed_at >= began
    }
    its_own = [summary for number, summary in view.live.items() if number == each.generation or summary.term in terms]
    # What is not there any more was retired, by something newer, or by somebody: it was published.
    is_gone = each.generation > 0 and each.generation not in view.live
    resumed = view.live.get(each.resumed)
    is_new = was_new or is_gone or any(_gets_on(summary, resumed) for summary in its_own)
    if head is None:
        return Newest(each.root, view.run_id, 0, -1, is_new, ())
    return Newest(each.root, view.run_id, head.number, head.step, is_new, tuple(view.line))


def _gets_on(summary: Summary, resumed: Summary | None) -> bool:
    return summary.complete and summary.trim_of is None and (resumed is None or summary.step != resumed.step)


def older_of(answer: Iterable[Newest]) -> tuple[tuple[str, int], ...] | None:
    """Return what there is to go back to in all roots: run id and number of each; None if no root could be asked."""
    known = [each for each in answer if each.older is not None]
    return tuple((each.run_id, number) for each in known for number in each.older or ()) if known else None
