"""Sequence numbers of audited events: a missing number is an event that was lost in transit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from railscope.frame import Event, Frame


@dataclass(slots=True)
class Numbering:
    """Numbers the audited events of one run of the agent, from 1 and without gaps."""

    last: int = 0

    def numbered(self, frame: Frame) -> Frame:
        """Return the frame for the collector, with numbers in its events."""
        if not any(event.event_class.audited for event in frame.events):
            return frame
        return replace(frame, events=tuple(self._numbered(event) for event in frame.events))

    def _numbered(self, event: Event) -> Event:
        if not event.event_class.audited:
            return event
        self.last += 1
        return replace(event, number=self.last)
