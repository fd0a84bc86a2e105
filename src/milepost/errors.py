"""The errors milepost raises, grouped by what the caller does next.

::

    MilepostError                     .kind  .facts  .hint  .exit_code
    |-- UsageError (ValueError)       fix the call or the configuration
    |-- MissingExtraError (ImportError)  install the extra it names
    |-- NotFoundError (LookupError)   no such run, generation or name: start fresh, or look elsewhere
    |-- MismatchError                 the data is sound but does not fit; lists every difference
    |-- CorruptError                  the data is damaged; resume falls back, verify names it
    |-- ConflictError                 another writer holds or has taken the run root: stop
    |-- StoreError (OSError)          the disk or network failed; .retryable says whether to try again
    |-- SaveFailed                    a background save failed; raised at the next save, wait or close
    |-- ServiceError                  the checkpoint service or a peer failed
    `-- InternalError                 a broken invariant of milepost itself: report it

A class says what to do; ``kind`` says exactly what happened and is stable (kinds are added, never renamed); ``facts``
holds the values; ``hint`` names the next command or call. The message is lower case with its values last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from milepost.text import plain

if TYPE_CHECKING:
    from milepost.records import Difference


_PLAIN = (str, int, float, bool, type(None))
_USERINFO = re.compile(r"(?<=://)[^/\s@'\"`]+@")


class MilepostError(Exception):
    """Be the root of every error milepost raises on purpose."""

    exit_code = 1

    def __init__(self, message: str, *, kind: str, hint: str = "", **facts: object) -> None:
        self.message = message
        self.kind = kind
        self.hint = hint
        self.facts: Mapping[str, object] = facts
        super().__init__(message)

    def __str__(self) -> str:
        values = " ".join(f"{name}=`{plain(value)}`" for name, value in self.facts.items() if value is not None)
        head, *lines = map(plain, self.message.split("\n"))
        text = "\n".join([f"{head}: {values}" if values else head, *lines])
        hint = plain(self.hint)
        # This is what ends up in logs, and a run root may be a URL with a password.
        return _USERINFO.sub("***@", f"{text}\nhint: {hint}" if hint else text)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors travel between processes, from one rank to all: an exception that cannot be made again from its message alone
        # ends whoever reads it, in the middle of a collective, and leaves the others waiting.
        facts = {name: value if isinstance(value, _PLAIN) else plain(value) for name, value in self.facts.items()}
        return _again, (type(self), self.args, {**self.__dict__, "facts": facts})


class UsageError(MilepostError, ValueError):
    """Report a call or a setting that cannot work as given."""

    exit_code = 2


class MissingExtraError(MilepostError, ImportError):
    """Report an optional dependency that is not installed, with the command that installs it."""

    exit_code = 2

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(
            "an optional dependency is not installed",
            kind="missing-extra",
            hint=f"pip install 'milepost[{extra}]'",
            module=module,
        )


class NotFoundError(MilepostError, LookupError):
    """Report a run root, generation or name that does not exist."""

    exit_code = 10


class MismatchError(MilepostError):
    """Report sound data that does not fit the live objects or the running code.

    ``differences`` lists every one of them, not only the first.
    """

    exit_code = 15

    def __init__(self, message: str, differences: Sequence[Difference], *, kind: str, hint: str = "", **facts: object) -> None:
        super().__init__(message, kind=kind, hint=hint, **facts)
        self.differences = tuple(differences)

    def __str__(self) -> str:
        lines = "".join(f"\n  {plain(difference)}" for difference in self.differences)
        head, _, hint = super().__str__().partition("\nhint: ")
        return f"{head}{lines}\nhint: {hint}" if hint else head + lines


class CorruptError(MilepostError):
    """Report bytes that are not what was written: damaged, truncated, or never milepost's."""

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """Return 14 if data exists but nothing may be loaded, else 13."""
        return 14 if self.kind == "nothing-valid" else 13


class ConflictError(MilepostError):
    """Report another writer: the lock is held, or this writer has been fenced by a later one."""

    exit_code = 11


class StoreError(MilepostError, OSError):
    """Report a failed disk or network operation. It never means damage.

    ``undone`` is true where it is certain that nothing was done; else it may have been, or may still be.
    """

    def __init__(
        self, message: str, *, kind: str, retryable: bool, hint: str = "", undone: bool = False, **facts: object
    ) -> None:
        super().__init__(message, kind=kind, hint=hint, **facts)
        self.retryable = retryable
        self.undone = undone

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """Return 16 for a full disk or an exhausted quota, 12 where nobody may write or not this user, else 1."""
        return {"disk-full": 16, "quota": 16, "permission": 12, "read-only": 12}.get(self.kind, 1)


class SaveFailed(MilepostError):
    """Report a save that failed in the background; the cause is chained.

    Nothing that was published before is harmed. The next save, ``wait()`` or ``close()`` raises it.
    """


class ServiceError(MilepostError):
    """Report a lost peer, a stale answer or a timeout of the checkpoint service."""


class InternalError(MilepostError):
    """Report a broken invariant of milepost itself."""


def _again(kind: type[MilepostError], args: tuple[object, ...], state: dict[str, object]) -> MilepostError:
    """Make an error again that was pickled: as it was, but for facts that are no plain values, which are their text."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
