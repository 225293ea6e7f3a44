"""Result of one poll of a switch, the same for readers of all protocols, and the interface of these readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from railscope import RailscopeError
from railscope.frame import Column
from railscope.reading import Reading

MAX_PORTS = 512
"""Ports of one switch: a schema has at most 20,000 columns, and a port up to 32 in one stream."""
PRIORITIES = range(8)
MAX_TEXT = 255
"""Characters of a text of a switch; longer ones are cut."""

PORTS, PRIORITY, QUEUES, NEIGHBOURS, SWITCH = (
    "switch_ports", "switch_priorities", "switch_queues", "switch_neighbours", "switch",
)  # fmt: skip
"""Streams of the frames of a switch."""
FailureReason: TypeAlias = Literal["timeout", "error", "limit"]


class SwitchReadError(RailscopeError):
    """A switch that cannot be read: the problem, and its reason in the metrics."""

    def __init__(self, problem: str, reason: FailureReason = "error") -> None:
        super().__init__(problem)
        self.reason: FailureReason = reason


StreamReadings: TypeAlias = list[tuple[Column, Reading]]


@dataclass(frozen=True, slots=True)
class SwitchReading:
    """Readings of a switch by stream, as of one poll."""

    streams: Mapping[str, StreamReadings]
    uptime_ns: int | None = None
    """Time since the switch started, as it states; None if it states none."""
    uptime_range_ns: int = 1 << 63
    """Time after which the stated uptime begins again at 0."""


class SwitchReader(Protocol):
    """Reads one switch by one protocol."""

    async def read(self) -> SwitchReading:
        """Return the current readings. Raises SwitchReadError; the caller limits the duration."""


def cut_text(text: str) -> str:
    """Return a text of a switch without surrounding space, of limited length."""
    return text.strip()[:MAX_TEXT]
