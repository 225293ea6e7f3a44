"""Shipping: frames are packed into envelopes, spooled, and sent until the collector acknowledges them.

Audited events have sequence numbers: a missing number is an event that was lost in transit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from railscope.frame import Event, Frame


class ShippingError(Exception):
    """Base of the errors of shipping: an invalid link to the collector, an invalid response."""


@dataclass(slots=True)
class EventNumbering:
    """Numbers the audited events of one run of the agent, from 1 and without gaps."""

    last: int = 0

    def number_events(self, frame: Frame) -> Frame:
        """Return the frame for the collector, with numbers in its events."""
        if not any(event.event_class.audited for event in frame.events):
            # Nearly all frames are without audited events: they are not copied.
            return frame
        return replace(frame, events=tuple(self._number_event(event) for event in frame.events))

    def _number_event(self, event: Event) -> Event:
        if not event.event_class.audited:
            return event
        self.last += 1
        return replace(event, number=self.last)
