"""Both ends of links: pause frames that a NIC and its switch port count over the same time.

The simulation advances in steps of a second, and both ends count the same in each of them. A switch is polled every
few seconds, a NIC every second: a count of the switch port is equal to that of the NIC in the same second, or in one nearby, as
the time of a poll is its middle, and it reads the counters of ports first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from railscope.timestamps import SECOND_NS

MIN_FRAMES_PER_SECOND = 100
"""Pause frames from which a link is shown; a healthy one has a few."""
QUIET_SECONDS = 120
"""Seconds with few pauses after which further ones are announced again: traffic pauses for a checkpoint, too."""
_PRIORITY = "3"
_SECONDS_NEARBY = range(-3, 2)
"""Seconds around the time of a poll in which its counts may have been read: a poll takes 5 seconds at most."""
_MAX_SAMPLES = 32
DIRECTIONS: Mapping[str, tuple[str, str]] = {
    "to_switch_pfc_pause_frames": ("NIC pauses switch", "the receiver is slow"),
    "to_host_pfc_pause_frames": ("switch pauses NIC", "there is congestion behind the switch"),
}
"""Direction of pause frames, and its meaning, by their name in the API."""


class LinkDirection(NamedTuple):
    """A link and a direction of pause frames on it."""

    node: str
    interface: str
    switch: str
    port: str
    quantity: str


class EndCounts(NamedTuple):
    """Counts of both ends in the same second."""

    second: int
    nic: int
    switch: int


@dataclass(slots=True)
class _LinkHistory:
    """Recent counts of a link in one direction, by the second of the simulation."""

    nic: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    waiting: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    """Counts of the switch port that have not been compared."""
    compared: deque[EndCounts] = field(default_factory=lambda: deque(maxlen=2))
    last_switch_ns: int = 0
    was_reset: bool = False
    """True if the count of the NIC has fallen: its driver was loaded again, and the ends no longer compare."""

    def add(self, nic: tuple[int, int], switch: tuple[int, int]) -> None:
        """Add samples of both ends: time, and count."""
        second, count = nic[0] // SECOND_NS, nic[1]
        self.was_reset = self.was_reset or bool(self.nic and count < self.nic[-1][1])
        # The same sample may be received several times.
        if (second, count) not in self.nic:
            self.nic.append((second, count))
        if switch[0] != self.last_switch_ns:
            self.last_switch_ns = switch[0]
            self.waiting.append((switch[0] // SECOND_NS, switch[1]))

    def compare(self) -> Iterator[EndCounts]:
        """Yield the counts that can be compared; those of the NIC are equal if any near it is."""
        while self.waiting:
            second, count = self.waiting[0]
            near = {at: nic for at, nic in self.nic if at - second in _SECONDS_NEARBY}
            is_equal = any(nic == count for at, nic in self.nic if at in near)
            is_known = is_equal or len(near) == len(_SECONDS_NEARBY)
            # Later samples of the NIC may still be equal.
            if not is_known and self.nic[-1][0] <= second + max(_SECONDS_NEARBY):
                return
            self.waiting.popleft()
            if not is_known:  # the count of the NIC in one of these seconds has not been received
                continue
            counts = EndCounts(second, count if is_equal else near[second], count)
            self.compared.append(counts)
            yield counts


@dataclass(slots=True)
class ComparedLinks:
    """Comparison of both ends of all links in both directions."""

    comparisons: int = 0
    differences: list[str] = field(default_factory=list)
    _histories: dict[LinkDirection, _LinkHistory] = field(default_factory=dict)
    _paused_at: dict[LinkDirection, int] = field(default_factory=dict)
    """Second of the last many pauses of each link."""

    def add(self, switches: Iterable[Mapping[str, Any]], started_wall_ns: int) -> None:
        """Add answers of /api/v1/switches/SWITCH; the simulation began at this time."""
        for switch in switches:
            for port in switch["ports"]:
                link = port.get("link")
                if link and link["switch_timestamp_ns"] and link["host_timestamp_ns"]:
                    self._add_link(switch["switch"], port["port"], link, started_wall_ns)

    def _add_link(self, switch: str, port: str, link: Mapping[str, Any], started_ns: int) -> None:
        times = [link[f"{end}_timestamp_ns"] - started_ns for end in ("host", "switch")]
        for row in link["counters"]:
            if row["quantity"] not in DIRECTIONS or row["priority"] != _PRIORITY:
                continue
            counts = row["host"], row["switch"]
            if any(isinstance(count, str) for count in counts):
                continue  # absent, with the reason
            key = LinkDirection(link["node"], link["interface"], switch, port, row["quantity"])
            history = self._histories.setdefault(key, _LinkHistory())
            history.add((times[0], counts[0]), (times[1], counts[1]))
            for compared in () if history.was_reset else history.compare():
                self.comparisons += 1
                if compared.nic != compared.switch:
                    self.differences.append(
                        f"{_link_text(key)}: {compared.nic} pause frames at the NIC, {compared.switch} at the port"
                    )

    @property
    def links(self) -> int:
        """Number of links whose ends were compared."""
        return len({key[:4] for key, history in self._histories.items() if history.compared})

    def paused(self) -> dict[LinkDirection, tuple[EndCounts, EndCounts]]:
        """Return the links with many pauses, those with the most first, with their last two compared counts."""
        found = {
            key: (history.compared[0], history.compared[1])
            for key, history in self._histories.items()
            if len(history.compared) == history.compared.maxlen and not history.was_reset
        }
        rates = {key: _rate(*pair) for key, pair in found.items()}
        return {
            key: found[key]
            for key in sorted(rates, key=lambda key: -rates[key])
            if rates[key] >= MIN_FRAMES_PER_SECOND
        }

    def news(self) -> list[str]:
        """Return a text for each link on which many pauses have begun since the last call."""
        texts = []
        for key, (first, last) in self.paused().items():
            if last.second - self._paused_at.get(key, -QUIET_SECONDS) >= QUIET_SECONDS:
                texts.append(_announcement(key, first, last))
            # Set at each call, so that a lasting pause is announced once.
            self._paused_at[key] = last.second
        return texts

    def rows(self) -> list[list[str]]:
        """Return the rows of the table of links with many pauses."""
        return [
            [
                f"{key.node} {key.interface}",
                f"{key.switch} {key.port}",
                DIRECTIONS[key.quantity][0],
                f"{last.second - first.second} s",
                f"{last.nic - first.nic:,}",
                f"{last.switch - first.switch:,}",
            ]
            for key, (first, last) in self.paused().items()
        ]


TABLE_HEAD = ["PAUSED LINK", "switch port", "direction", "within", "at NIC", "at port"]


def _rate(first: EndCounts, last: EndCounts) -> float:
    seconds = max(last.second - first.second, 1)
    return max(last.nic - first.nic, last.switch - first.switch) / seconds


def _link_text(key: LinkDirection) -> str:
    return f"{key.node} {key.interface} - {key.switch} {key.port}, {DIRECTIONS[key.quantity][0]}"


def _announcement(key: LinkDirection, first: EndCounts, last: EndCounts) -> str:
    return (
        f"PAUSED LINK   {_link_text(key)}: {last.nic - first.nic:,} pause frames at the NIC and"
        f" {last.switch - first.switch:,} at the port in {last.second - first.second} s;"
        f" {DIRECTIONS[key.quantity][1]}"
    )
