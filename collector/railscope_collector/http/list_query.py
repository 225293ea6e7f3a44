"""Queries of lists, the same of the API and of the console: the part of a list, and its order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeVar

import msgspec

MAX_ROWS = 1000
"""Rows of one response."""
RowT = TypeVar("RowT")
SearchText = Annotated[str, msgspec.Meta(max_length=100)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]


class PartQuery(msgspec.Struct, frozen=True):
    """Query of a list: the part that is returned."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)] = 100
    offset: Offset = 0


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
