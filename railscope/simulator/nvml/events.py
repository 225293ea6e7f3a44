"""What the driver reports through NVML. Each event has a number, and all are given again."""

from __future__ import annotations

from railscope.capture import Moment
from railscope.simulator.model import NodeModel
from railscope.simulator.nvml.answers import NO_INSTANCE
from railscope.simulator.reports import reports


class Events:
    """All events of a simulation, given out as time passes."""

    def __init__(self, model: NodeModel) -> None:
        struck = model.spec.struck
        told = [report.event for report in reports(model.scenario, model.machine) if report.event]
        self._onset_ns = model.scenario.onset_ns
        self._events = [
            [number, struck, *event, NO_INSTANCE, NO_INSTANCE]
            for number, event in enumerate(told, 1)
        ]

    def show(self, model: NodeModel, into: Moment) -> None:
        """Put the events so far into a moment."""
        happened = model.offset_ns >= self._onset_ns
        into.calls["nvml.nvmlEventSetWait()"] = self._events if happened else []
