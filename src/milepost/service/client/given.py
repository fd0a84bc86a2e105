"""Check what training code has given before anything is sent: a fault of a call is told in the words of that call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from milepost.errors import UsageError
from milepost.service.core.records import Commit
from milepost.service.wire import MAX_NAME

if TYPE_CHECKING:
    from milepost.service.client.committing import Done
    from milepost.service.client.weights import Weights

Want: TypeAlias = Literal["newest", "exact", "at least"]


def check_name(name: Any, what: str) -> str:
    """Return a name that may travel. Raises `UsageError` (kind ``bad-name``)."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        message = f"a {what} is a text of 1 to {MAX_NAME} printable characters"
        raise UsageError(message, kind="bad-name", hint="like trainer, or sampler-3", **{what: str(name)[:MAX_NAME]})
    return name


def check_weights(weights: object) -> Mapping[Any, Any]:
    """Return what is no other than a mapping of names. Raises `UsageError` (kind ``bad-weights``)."""
    if isinstance(weights, Mapping):
        return weights
    hint = "commit(step, policy.state_dict()); any other tree is one of parts={...}"
    message = "weights are a mapping of names to tensors and arrays"
    raise UsageError(message, kind="bad-weights", hint=hint, given=type(weights).__name__)


def check_want(want: Any) -> Want:
    """Return which version is wanted. Raises `UsageError` (kind ``bad-want``)."""
    if want in get_args(Want):
        found: Want = want
        return found
    hint = "want is `newest`, `exact` or `at least`, of which the last two take at="
    raise UsageError("this does not say which version is wanted", kind="bad-want", hint=hint, want=want)


def commit_of(named: Commit | Done | Weights | None, what: str) -> Commit | None:
    """Return the version that something is, or is of. Raises `UsageError` (kind ``bad-version``)."""
    at = named if named is None or isinstance(named, Commit) else getattr(named, "at", named)
    if at is None or isinstance(at, Commit):
        return at
    hint = f"{what} is what a commit or a fetch returned, or its .at"
    raise UsageError("this is no version", kind="bad-version", hint=hint, **{what: at})
