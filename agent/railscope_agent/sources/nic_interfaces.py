"""Settings and readings in the answers of one NIC."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from railscope.catalog.declare import Metric
from railscope.frame import Column, Entity
from railscope.reading import Absent, Reading
from railscope_agent.topology.network_interface import NetworkInterface

NET = "/sys/class/net"
NO_VALUE = "none"
PRIORITIES = 8
_MAX_TEXT_LENGTH = 200
_DIGEST = 8


@dataclass
class SettingAnswers:
    """Result of one query of a NIC: texts that are watched for changes, and readings."""

    nic: NetworkInterface
    texts: dict[str, str] = field(default_factory=dict)
    readings: dict[Column, Reading] = field(default_factory=dict)

    def set(self, setting: str, text: str) -> None:
        """Add a setting in its canonical form; a long text is truncated, with its digest appended."""
        if len(text) > _MAX_TEXT_LENGTH:
            # A change behind the cut still changes the text, and is an event.
            digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
            text = f"{text[:_MAX_TEXT_LENGTH]}... {digest}"
        self.texts[setting] = text

    def put(self, metric: Metric, reading: Reading, *part: str) -> None:
        """Add a number of the interface or of a part of it.

        Unsupported and missing values have no column.
        """
        if reading not in {Absent.UNSUPPORTED, Absent.GONE}:
            self.readings[metric, Entity(metric.about, (self.nic.name, *part))] = reading

    def number(self, setting: str, metric: Metric, reading: Reading, *part: str) -> None:
        """Add a setting that is a number."""
        self.put(metric, reading, *part)
        if not isinstance(reading, Absent):
            self.set(setting, str(reading))

    def switches(
        self, setting: str, metric: Metric, states: dict[int, Reading], *part: str
    ) -> None:
        """Add the on/off state of each priority; as a text only if all states are readable."""
        for priority, state in states.items():
            self.put(metric, state, *part, str(priority))
        supported = {p: s for p, s in states.items() if s not in {Absent.UNSUPPORTED, Absent.GONE}}
        # A partial list would look like a change of the setting.
        if supported and not any(isinstance(state, Absent) for state in supported.values()):
            self.set(
                setting, join_items(priority for priority, state in supported.items() if state)
            )


def join_items(items: Iterable[object]) -> str:
    """Items of a list in their order, or `NO_VALUE` if there are none."""
    return ",".join(map(str, items)) or NO_VALUE
