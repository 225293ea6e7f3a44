"""One test of many declarations: it names the one that fails, without the cost of a test for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

_Declared = TypeVar("_Declared")


def of_each(
    declared: Iterable[_Declared], name: Callable[[_Declared], str] = str
) -> Callable[[Callable[[_Declared], None]], Callable[[], None]]:
    """Return a decorator that makes a check of one declaration a test of all."""
    every = list(declared)

    def decorate(check: Callable[[_Declared], None]) -> Callable[[], None]:
        def test() -> None:
            assert every
            for one in every:
                try:
                    check(one)
                except AssertionError as error:
                    error.add_note(name(one))
                    raise

        test.__doc__ = check.__doc__
        return test

    return decorate
