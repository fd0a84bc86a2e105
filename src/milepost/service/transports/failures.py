"""Word what goes wrong on the way of bytes, so that every transport says the same."""

from __future__ import annotations

from milepost.errors import MilepostError, NotFoundError, ServiceError
from milepost.service.transports.base import Blob

FAILED, NO_SUCH_BLOB = "transport-failed", "no-such-blob"


def no_such_blob(blob: Blob, *, ends_at: int | None = None) -> NotFoundError:
    """Say that these bytes are not there: no such blob, or it ends before them."""
    return NotFoundError(
        "there are no such bytes" if ends_at is None else "a blob ends early",
        kind=NO_SUCH_BLOB,
        hint="milepost status says which versions there are, and where their bytes lie",
        blob=str(blob),
        ends_at=ends_at,
    )


def failed(what: str, transport: str, address: str, error: object = None, **facts: object) -> ServiceError:
    """Say that a way to the bytes has failed: not what they are, and not that they are gone."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return ServiceError(
        f"{what}: {reason}" if reason else what,
        kind=FAILED,
        hint="is the service up, and reachable from here? milepost status asks it",
        transport=transport,
        address=address,
        **facts,
    )


def refused(kind: str, message: str, hint: str) -> MilepostError:
    """Return what the other side has refused, as an error of this one. Its text was written by whoever is there."""
    if kind == NO_SUCH_BLOB:
        return NotFoundError(message, kind=NO_SUCH_BLOB, hint=hint)
    return ServiceError(message, kind=kind, hint=hint)
