"""Queries of resources, the same of the API and of the console: the part of a list, its order, and its filters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from http import HTTPStatus
from typing import Annotated, TypeVar

import msgspec

from railscope_collector.http import ResourceError

MAX_ROWS = 1000
"""Rows of one response."""
RowT = TypeVar("RowT")
QueryT = TypeVar("QueryT", bound=msgspec.Struct)
_MAX_QUOTED = 40
_MAX_WHOLE = 1_000_000
SearchText = Annotated[str, msgspec.Meta(max_length=100)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]


class NoQuery(msgspec.Struct, frozen=True):
    """Query of a resource without parameters."""


class PartQuery(msgspec.Struct, frozen=True):
    """Query of a list: the part that is returned."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)] = 100
    offset: Offset = 0


class WholeQuery(msgspec.Struct, frozen=True):
    """Query of a list that is returned whole, unless a part is selected."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=_MAX_WHOLE)] = _MAX_WHOLE
    offset: Offset = 0


def parse_query(kind: type[QueryT], pairs: Iterable[tuple[str, str]]) -> QueryT:
    """Parse the parameters of a request: of several values the first, or all for a tuple. Raises ResourceError."""
    fields = {each.encode_name: each for each in msgspec.structs.fields(kind)}
    values = defaultdict[str, list[str]](list)
    for name, text in pairs:
        values[name].append(text)
    for name in sorted(set(values) - set(fields)):
        expected = f"one of {', '.join(fields)}" if fields else "none"
        message = f"unknown parameter {name[:_MAX_QUOTED]!r}: expected {expected}"
        raise ResourceError(HTTPStatus.BAD_REQUEST, message)
    known: dict[str, object] = {}
    for name, texts in values.items():
        of_value = msgspec.inspect.type_info(fields[name].type)
        is_several = isinstance(of_value, msgspec.inspect.VarTupleType)
        given = [text for text in texts if text] if is_several else texts[0]
        try:
            known[name] = msgspec.convert(given, fields[name].type, strict=False)
        except msgspec.ValidationError:
            expected = _expectation(of_value)
            text = ", ".join(given) if is_several else texts[0]
            message = f"invalid {name} {text[:_MAX_QUOTED]!r}: expected {expected}"
            raise ResourceError(HTTPStatus.BAD_REQUEST, message) from None
    return kind(**{fields[name].name: value for name, value in known.items()})


def _expectation(kind: msgspec.inspect.Type) -> str:
    match kind:
        case msgspec.inspect.LiteralType(values=values):
            return f"one of {', '.join(map(str, filter(None, values)))}"
        case msgspec.inspect.IntType(ge=low, le=high):
            return f"a number from {low} to {high}"
        case msgspec.inspect.StrType(max_length=length):
            return f"at most {length} characters"
        case msgspec.inspect.UnionType(types=(of_value, *_)):  # a parameter without a default
            return _expectation(of_value)
        case msgspec.inspect.VarTupleType(item_type=of_value):
            return _expectation(of_value)
    message = f"unsupported type of a parameter: {kind}"
    raise TypeError(message)


def sort_rows(rows: Iterable[RowT], field: str) -> list[RowT]:
    """Return rows by a field: numbers with the largest first, texts in their order, unknown ones last.

    Rows with equal values, and all rows without a field, keep their order.
    """
    listed = list(rows)
    if not field:
        return listed
    known = [row for row in listed if getattr(row, field) not in {None, ""}]
    is_text = bool(known) and isinstance(getattr(known[0], field), str)
    known.sort(key=lambda row: getattr(row, field), reverse=not is_text)
    return known + [row for row in listed if getattr(row, field) in {None, ""}]
