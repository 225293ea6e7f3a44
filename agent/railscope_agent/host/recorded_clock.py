"""Clock of a recorded node."""

from __future__ import annotations

from dataclasses import dataclass

from railscope import capture as capture_format, frame


@dataclass(slots=True)
class RecordedClock:
    """Clock of the recorded node; it advances only when a caller sleeps."""

    about: capture_format.CaptureMetadata
    offset_ns: int = 0
    """Offset into the capture."""
    deviation_ns: int = 0
    """Deviation of the wall clock."""

    def now(self) -> frame.NodeTimestamp:
        """Return wall and boot clock of the recorded node."""
        wall_ns = self.about.started_wall_ns + self.offset_ns + self.deviation_ns
        return frame.NodeTimestamp(wall_ns, self.about.started_boot_ns + self.offset_ns)

    async def sleep_until(self, boot_ns: int) -> None:
        """Advance to a time without waiting."""
        self.go_to(boot_ns - self.about.started_boot_ns)

    @property
    def is_running(self) -> bool:
        """False: time does not pass by itself."""
        return False

    def go_to(self, offset_ns: int) -> None:
        """Advance to an offset; never back."""
        # A source may ask for a time that has passed: the clocks of a node never go back.
        self.offset_ns = max(self.offset_ns, offset_ns)
