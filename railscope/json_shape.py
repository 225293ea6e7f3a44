"""Check of the shape of foreign JSON before it is read."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)
_STEP = re.compile(r"\[([0-9]+)\]|([^.\[\]]+)")
_MAX_SHOWN = 40


class ShapeError(ValueError):
    """A value is not of the expected type; `field` is its path, empty for the top level."""

    def __init__(self, field: str, reason: str) -> None:
        self.field, self.reason = field, reason
        super().__init__(f"{field}: {reason}" if field else reason)


def check_shape(value: Any, shape: Any) -> None:
    """Compare decoded JSON with a type. Raises ShapeError with field, value and expected type."""
    try:
        msgspec.convert(value, shape, strict=True)
    except msgspec.ValidationError as error:
        found = _AT.fullmatch(str(error))
        what, field = (found[1], found[2]) if found else (str(error), "")
        reason = what[:1].lower() + what[1:]
        raise ShapeError(field, f"{shown(_value_at(value, field))}: {reason}") from error


def shown(value: object) -> str:
    """Format a value for a message, on one line and with a length limit."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _value_at(value: Any, field: str) -> Any:
    """Return the value at a path; for keys that the path does not name, the mapping that contains them."""
    for index, name in _STEP.findall(field):
        if isinstance(value, list) and index:
            value = value[int(index)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            break
    return value
