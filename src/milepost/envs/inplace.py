"""Stand in for a method of one object, on the instance: the class stays as it is, and so do all its other objects."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import weakref
from collections.abc import Iterator
from typing import Any


class InPlace:
    """Be what an object's own dict holds in the place of one of its methods.

    The object is held weakly, so that it goes when its owner lets it go. A pickle or a copy of it gets the plain method.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self._owner = weakref.ref(owner)
        self._name = name
        self.inner = _own(owner, name)
        """What somebody else had put there; None for the method of the class."""
        # Gymnasium's checker looks at it, and warns where it finds no seed.
        with contextlib.suppress(ValueError):  # a method that is written in C may have none
            self.__signature__ = inspect.signature(getattr(owner, name))

    def __reduce__(self) -> tuple[Any, ...]:
        return (getattr, (self.owner, self._name)) if self.inner is None else (functools.partial, (self.inner,))

    @property
    def owner(self) -> Any:
        """Return the object."""
        owner = self._owner()
        assert owner is not None, "its owner's dict holds this"
        return owner

    def call(self, owner: Any) -> Any:
        """Return the method that this stands in for."""
        return getattr(type(owner), self._name).__get__(owner) if self.inner is None else self.inner

    def put(self) -> None:
        """Take the method's place."""
        vars(self.owner)[self._name] = self


def standing_in(owner: Any, name: str) -> Iterator[InPlace]:
    """Yield all that stands in for a method of ``owner``, outermost first."""
    found = vars(owner).get(name)
    while isinstance(found, InPlace):
        yield found
        found = found.inner


def take_away(owner: Any, kind: type[InPlace]) -> None:
    """Undo the outermost of ``kind`` at each method of ``owner``; what had been there is there again."""
    for name, found in list(vars(owner).items()):
        if isinstance(found, kind):
            if found.inner is None:
                del vars(owner)[name]
            else:
                vars(owner)[name] = found.inner


def _own(owner: Any, name: str) -> Any:
    found = vars(owner).get(name)
    if isinstance(found, types.MethodType) and found.__self__ is owner and found.__func__ is getattr(type(owner), name, None):
        return None  # what a copy of such an object was given: held by itself it would never go by itself
    return found
