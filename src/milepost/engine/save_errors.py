"""Decide what a failed save means for training: raise, warn and go on, or refuse every save from then on."""

from __future__ import annotations

import logging
from typing import Literal

from milepost.errors import ConflictError, MilepostError, SaveFailed, UsageError

log = logging.getLogger("milepost")


class SaveErrors:
    """Remember how many saves may still fail, and what forbids saving at all. A fenced writer is refused for good."""

    def __init__(self, root: str, policy: Literal["raise", "warn"], most: int) -> None:
        self._root = root
        self._policy = policy
        self._left = self._most = most
        self._refusal: Exception | None = None
        self.failures = 0
        """How many saves have failed so far, whatever was made of it."""

    def check(self) -> None:
        """Raise what forbids a save: a lost claim, or a state that a broken-off resume left half loaded."""
        if self._refusal is not None:
            raise self._refusal

    def judge(self, failure: BaseException | None) -> None:
        """Raise what the last save died of, or warn, as the user chose; None: it succeeded."""
        if failure is None:
            self._left = self._most
            return
        if isinstance(failure, ConflictError):
            self._refusal = failure
            raise failure
        self._left -= 1
        self.failures += 1
        if self._policy == "warn" and self._left > 0:
            log.warning("a save failed, training goes on (%d more may fail): %s", self._left, failure)
            return
        raise self.failed(failure) from failure

    def failed(self, failure: BaseException) -> SaveFailed:
        """Return what a user is told of a save that died of ``failure``."""
        return SaveFailed(
            "a save failed; what was published before is unharmed",
            kind=getattr(failure, "kind", "save-failed"),
            hint=getattr(failure, "hint", "") or 'on_save_error="warn" trains on through failed saves',
            root=self._root,
            cause=getattr(failure, "message", repr(failure)),
            **{name: value for name, value in getattr(failure, "facts", {}).items() if name not in ("root", "cause")},
        )

    def half_loaded(self, error: BaseException) -> None:
        """Refuse saves, since a resume was broken off in the middle of the live objects."""
        if isinstance(self._refusal, ConflictError):
            return  # it lasts longer
        self._refusal = error if isinstance(error, MilepostError) else self._mixture(error)

    def loaded(self) -> None:
        """Allow saves again: what an earlier resume left half loaded has been overwritten, all of it."""
        if not isinstance(self._refusal, ConflictError):
            self._refusal = None

    def _mixture(self, error: BaseException) -> UsageError:
        return UsageError(
            "a resume was broken off, and the state is half loaded; saving it would publish a mixture",
            kind="half-loaded",
            hint="call engine.resume() again, or start the script anew",
            root=self._root,
            cause=repr(error),
        )
