"""Values of SNMP objects as readings and texts, and the rows of a table in one poll."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from railscope.reading import Absent, Reading
from railscope.untrusted_text import printable
from railscope_collector.switches import switch_reading as base

SnmpValue: TypeAlias = object
"""Value of an object as the library returns it: an integer, bytes, or the text of an OID or address."""
Index: TypeAlias = tuple[int, ...]
Rows: TypeAlias = dict[Index, SnmpValue]
"""Values of one column of a table, by the index of their row."""
MAC_BYTES = 6
LANES = range(1, 9)
"""Lanes of a transceiver, as Comware numbers them."""
_NO_ROWS: Rows = {}
_LINE_BREAK = re.compile(r"\s*[\r\n]+\s*")
_NO_VALUE = (1 << 31) - 1
"""Largest Integer32: what Comware returns for optics that the transceiver does not report."""


@dataclass(slots=True)
class TableRows:
    """Columns of a table that were read; or the reason why they could not be."""

    columns: Mapping[str, Rows] = field(default_factory=dict)
    failure: Absent | None = None

    def column(self, name: str) -> Rows:
        """Return the rows of a column."""
        return self.columns.get(name, _NO_ROWS)

    @property
    def is_missing(self) -> bool:
        """True if the switch does not have the table."""
        return self.failure is None and not any(self.columns.values())

    def text(self, name: str, index: Index) -> str:
        """Return a text; empty if there is none."""
        return as_text(self.column(name).get(index, b""))


def as_signed(value: SnmpValue | None) -> Reading:
    """Return an Integer32 of a transceiver; its largest value stands for none."""
    if value is None or value == _NO_VALUE:
        return Absent.UNSUPPORTED
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and -_NO_VALUE <= value <= _NO_VALUE else Absent.ERROR  # type: ignore[return-value, operator]  # checked


def as_text(value: SnmpValue) -> str:
    """Return a value as printable text of limited length."""
    # A text that is not UTF-8 must not end the poll: its bytes are shown escaped.
    text = value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)
    return base.cut_text(printable(_LINE_BREAK.sub(" ", text.rstrip("\0"))))


def as_identifier(value: SnmpValue, *, is_mac: bool) -> str:
    """Return the identifier of a chassis or port; a MAC address as aa:bb:cc:dd:ee:ff."""
    if is_mac and isinstance(value, bytes) and len(value) == MAC_BYTES:
        return value.hex(":")
    return as_text(value)
