"""Railscope: GPU, PCIe, RoCE and tenant telemetry of a training cluster on one clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__version__ = "0.3.0"


class RailscopeError(Exception):
    """Base of the errors of the shared packages: input or settings that the caller reports or rejects."""


@contextmanager
def convert_errors(
    caught: type[Exception] | tuple[type[Exception], ...],
    convert: Callable[[str], Exception],
    prefix: str = "",
) -> Iterator[None]:
    """Convert caught errors to another type, with a prefix before their text."""
    try:
        yield
    except caught as error:
        raise convert(prefix + str(error)) from error
