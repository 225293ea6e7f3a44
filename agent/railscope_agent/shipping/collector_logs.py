"""Logs of collectors: which envelopes each of them has received.

A collector names its log in each acknowledgement. One that lost its disk responds with a new log. A log that was not used
for a day is forgotten, and so is the one that was used least recently when there are too many: envelopes that only
a forgotten log has received are sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec

from railscope import timestamps, wire

MAX_LOGS = 64
"""Logs that are remembered: collectors of a group, and former logs of those that lost their disk."""
LOG_EXPIRY_NS = timestamps.DAY_NS
_MAX_POSITION = (1 << 63) - 1
_RECEIPT = rf"^[0-9A-Za-z_=-]{{0,{wire.MAX_RECEIPT_CHARACTERS}}}\Z"


class EvidenceReceipt(msgspec.Struct, frozen=True):
    """Acknowledgement of a collector with a shared database.

    `log` identifies its frame log, `position` this acknowledgement. The database has the evidence of all
    acknowledgements up to `stored`.
    """

    log: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    position: Annotated[int, msgspec.Meta(ge=0, le=_MAX_POSITION)]
    stored: Annotated[int, msgspec.Meta(ge=0, le=_MAX_POSITION)]
    receipt: Annotated[str, msgspec.Meta(pattern=_RECEIPT)] = ""
    """Signed receipt for another collector, if the envelope must be sent again; empty for a repetition."""


class ReceivedEnvelope(NamedTuple):
    """A receipt of an envelope: its position, the envelope's number, and the time."""

    position: int
    number: int
    boot_ns: int


@dataclass(slots=True)
class LogReceipts:
    """Receipts by log, in the order of their positions."""

    _receipts: dict[str, deque[ReceivedEnvelope]] = field(default_factory=dict)
    _used_ns: dict[str, int] = field(default_factory=dict)
    """Time of the last use of each log, the newest last."""

    def __len__(self) -> int:
        """Return the number of logs."""
        return len(self._receipts)

    def use(self, name: str, boot_ns: int) -> deque[ReceivedEnvelope]:
        """Return the receipts of the log that responds now, to be changed; others may be forgotten."""
        _record_use(self._used_ns, name, boot_ns)
        for forgotten in self._receipts.keys() - self._used_ns.keys():
            del self._receipts[forgotten]
        return self._receipts.setdefault(name, deque())

    def find(self, name: str) -> Iterable[ReceivedEnvelope]:
        """Return the receipts of a log; none of one that was forgotten."""
        return self._receipts.get(name, ())


def _record_use(used_ns: dict[str, int], name: str, boot_ns: int) -> None:
    """Record the use of a log; forget expired logs, and the least recently used one above the maximum."""
    while used_ns and boot_ns - used_ns[oldest := next(iter(used_ns))] > LOG_EXPIRY_NS:
        del used_ns[oldest]
    # Removed and added again, which moves it to the end: the table is in order of use.
    used_ns.pop(name, None)
    used_ns[name] = boot_ns
    if len(used_ns) > MAX_LOGS:
        del used_ns[next(iter(used_ns))]
