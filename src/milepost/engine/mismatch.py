"""Decide what a difference between saved and live means: an error, a question or a warning, per kind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from milepost.errors import MismatchError, UsageError
from milepost.records import Difference

Answer: TypeAlias = Literal["error", "ask", "warn"]

DEFAULTS: Mapping[str, Answer] = {
    "missing": "error",
    "unexpected": "error",
    "shape": "error",
    "dtype": "error",
    "type": "error",
    "value": "error",
    "env": "error",
    "missing-optional": "warn",
    "version": "warn",
    "threads": "warn",
    "schedule": "warn",
    "code": "warn",
    "machine": "warn",
    "cpu_capability": "warn",
}
"""What happens for each kind unless ``on_mismatch`` says otherwise; a kind not named here warns."""


@dataclass(frozen=True, slots=True)
class Mismatches:
    """Hold what the user chose per kind."""

    chosen: Mapping[str, Answer] = field(default_factory=dict)
    strict: bool = False
    known: frozenset[str] = frozenset()
    """Kinds beside those of `DEFAULTS`: the first parts of the fingerprint's names."""
    ask: Callable[[str], str] | None = None
    """How to ask; None asks on the terminal, and without one takes the question for an error."""

    def __post_init__(self) -> None:
        for kind, answer in self.chosen.items():
            if answer not in ("error", "ask", "warn") or kind not in {*DEFAULTS, *self.known}:
                raise UsageError(
                    'on_mismatch takes "error", "ask" or "warn" per kind',
                    kind="bad-mismatch",
                    hint=f"kinds are {', '.join(sorted({*DEFAULTS, *self.known}))}",
                    **{kind: answer},
                )

    def judge(self, found: Sequence[Difference], *, root: str, generation: int) -> list[str]:
        """Return the differences that were let pass, as text; raise `MismatchError` with all the others."""
        refused = [difference for difference in found if self._answer(difference) == "error"]
        asked = [difference for difference in found if self._answer(difference) == "ask"]
        if asked and not refused and not self._accepted(asked):
            refused = asked
        if refused:
            raise MismatchError(
                "the saved state does not fit; nothing was changed",
                refused,
                kind=refused[0].kind,
                hint=f"{_give(refused)}make the script fit again, "
                f"resume another generation with which=, {_accept(refused[0].kind)}"
                'or start anew with which="never"',
                root=root,
                generation=generation,
            )
        return [str(difference) for difference in found]

    def _answer(self, difference: Difference) -> Answer:
        chosen = self.chosen.get(difference.kind)
        if chosen is None and self.strict and difference.kind == "missing-optional":
            return "error"
        return chosen or DEFAULTS.get(difference.kind, "warn")

    def _accepted(self, asked: Sequence[Difference]) -> bool:
        question = "the saved state differs:\n  " + "\n  ".join(map(str, asked)) + "\ncontinue all the same? [y/N] "
        if self.ask is not None:
            return self.ask(question).strip().lower() in ("y", "yes")
        return sys.stdin.isatty() and input(question).strip().lower() in ("y", "yes")


def _accept(kind: str) -> str:
    # An env that is built otherwise does not come back, whoever accepts that: to offer it would lead to the next error.
    return "" if kind == "env" else f'accept a kind with on_mismatch={{"{kind}": "warn"}}, '


def _give(refused: Sequence[Difference]) -> str:
    names = [difference.path for difference in refused if (difference.saved, difference.live) == ("a component", "nothing")]
    return f"add {', '.join(names)} to state=, or load the others alone with resume(parts=[...]); else " if names else ""
