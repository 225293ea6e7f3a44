"""All switches of the collector: those that it polls, and those that push to its OTLP receiver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from collector.config import CollectorSettings, OtlpReceiverSettings
from collector.fleet.view_cells import ViewCell
from collector.state.collector_state import CollectorState
from collector.switches import switch_view
from collector.switches.otlp_receiver import OtlpReceiver
from collector.switches.switch_frames import Submit
from collector.switches.switch_polling import SwitchPolling


@dataclass(slots=True)
class AllSwitches:
    """Polling and receiver, as one part of the collector."""

    polling: SwitchPolling = field(default_factory=lambda: SwitchPolling((), time.time_ns))
    receiver: OtlpReceiver = field(
        default_factory=lambda: OtlpReceiver(OtlpReceiverSettings(), {}, time.time_ns)
    )

    @classmethod
    def from_settings(
        cls, settings: CollectorSettings, wall_ns: Callable[[], int], leads: Callable[[], bool]
    ) -> AllSwitches:
        """Return the switches in the settings. Blocking; raises SettingsError."""
        return cls(
            SwitchPolling.from_settings(settings.switches, wall_ns, leads),
            OtlpReceiver.from_settings(settings, wall_ns, leads),
        )

    @property
    def submit(self) -> Submit:
        """Function that stores what is read."""
        return self.polling.submit

    @submit.setter
    def submit(self, submit: Submit) -> None:
        self.polling.submit = self.receiver.submit = submit

    def cells(self) -> Iterator[ViewCell]:
        """Return the state of polls and of the receiver."""
        return chain(self.polling.cells(), self.receiver.cells())

    def problems(self) -> dict[str, str]:
        """Return the reason why each switch is not read, by name; empty for one that is read."""
        return self.polling.problems() | self.receiver.problems()

    def reading_cells(self, core: CollectorState, ends: switch_view.LinkEnds) -> Iterator[ViewCell]:
        """Return the readings and links of all switches that report; iterating over them may block."""
        snapshots = self.polling.snapshots(core) | self.receiver.snapshots(core)
        return chain(
            switch_view.reading_cells(snapshots.values()),
            switch_view.link_cells(ends.take(), snapshots),
        )
