"""Driver events in NVML. Each event has a number, and the newest are repeated in every result."""

from __future__ import annotations

from collections import deque

from railscope.capture import Json, Moment
from simulator.model import NodeModel
from simulator.nvml.answers import NO_INSTANCE
from simulator.reports import reports

_KEPT = 256
"""More than one fault causes, and more than the agent leaves unread."""


class Events:
    """Events of a simulation, emitted as time passes."""

    def __init__(self) -> None:
        self._events: deque[Json] = deque(maxlen=_KEPT)
        self._number = 0

    def show(self, model: NodeModel, into: Moment) -> None:
        """Add the events so far to a `Moment`."""
        for _, fault in model.scenario.onsets(model.span):
            for report in reports(fault, model.machine):
                if report.event:
                    self._number += 1
                    self._events.append(
                        [self._number, fault.spec.struck, *report.event, NO_INSTANCE, NO_INSTANCE]
                    )
        into.calls["nvml.nvmlEventSetWait()"] = list(self._events)
