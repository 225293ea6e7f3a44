"""Queries of lists, the same of the API and of the console: the part of a list, and its order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, TypeVar

import msgspec

from railscope_collector.http import HttpApiError

MAX_ROWS = 1000
"""Rows of one response."""
RowT = TypeVar("RowT")
QueryT = TypeVar("QueryT", bound=msgspec.Struct)
_MAX_QUOTED = 40
SearchText = Annotated[str, msgspec.Meta(max_length=100)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]


class PartQuery(msgspec.Struct, frozen=True):
    """Query of a list: the part that is returned."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)] = 100
    offset: Offset = 0


class QueryError(HttpApiError, ValueError):
    """An invalid query; the message has the parameter, its value, and what is expected."""


def parse_query(kind: type[QueryT], values: Mapping[str, str]) -> QueryT:
    """Parse the parameters of a request; unknown ones are ignored unless the type forbids them. Raises QueryError."""
    fields = {each.encode_name: each for each in msgspec.structs.fields(kind)}
    unknown = (
        sorted(set(values) - set(fields)) if kind.__struct_config__.forbid_unknown_fields else ()
    )
    for name in unknown:
        message = f"unknown parameter {name[:_MAX_QUOTED]!r}: expected one of {', '.join(fields)}"
        raise QueryError(message)
    known = {name: values[name] for name in fields if name in values}
    for name, text in known.items():
        try:
            msgspec.convert(text, fields[name].type, strict=False)
        except msgspec.ValidationError:
            expected = _expectation(msgspec.inspect.type_info(fields[name].type))
            message = f"invalid {name} {text[:_MAX_QUOTED]!r}: expected {expected}"
            raise QueryError(message) from None
    return msgspec.convert(known, kind, strict=False)


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
