"""All switches of the collector: those that it polls, those that push to it, and their cabling."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import structlog

from railscope.catalog import switches as catalog
from railscope.service import run_in_thread
from railscope_collector.config import CollectorSettings
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.switches import links, switch_view
from railscope_collector.switches.otlp_receiver import OtlpReceiver
from railscope_collector.switches.switch_frames import Submit
from railscope_collector.switches.switch_polling import SwitchPolling

log = structlog.get_logger(__name__)

COMPARE_SECONDS = 60.0
MAX_LOGGED = 32
"""Log lines of one comparison."""


@dataclass(slots=True)
class CablingLog:
    """Logs each cabling fault that appears or disappears."""

    not_logged: int = 0
    faults: frozenset[links.CablingFault] = frozenset()

    def compare(self, joined: links.JoinedLinks) -> None:
        """Log the changes since the last comparison."""
        faults = frozenset(joined.faults)
        changes = [("cabling_fault_found", fault) for fault in sorted(faults - self.faults)]
        changes += [("cabling_fault_resolved", fault) for fault in sorted(self.faults - faults)]
        self.faults = faults
        for event, fault in changes[:MAX_LOGGED]:
            write = log.warning if event == "cabling_fault_found" else log.info
            switch, port = fault.port
            found, stated = map("/".join, (fault.found, fault.stated))
            leaves = ", ".join(fault.expected)
            write(
                event,
                kind=fault.kind,
                switch=switch,
                port=port,
                found=found,
                stated=stated,
                expected_leaves=leaves,
            )
        if more := len(changes[MAX_LOGGED:]):
            self.not_logged += more
            log.warning("cabling_changes_not_logged", count=more, advice="/api/v1/links")


@dataclass(slots=True)
class AllSwitches:
    """Polling, receiver and cabling, as one part of the collector."""

    polling: SwitchPolling = field(default_factory=lambda: SwitchPolling((), time.time_ns))
    receiver: OtlpReceiver = field(default_factory=lambda: OtlpReceiver({}, time.time_ns))
    cabling_log: CablingLog = field(default_factory=CablingLog)
    compare_seconds: float = COMPARE_SECONDS

    @classmethod
    def from_settings(
        cls,
        settings: CollectorSettings,
        wall_ns: Callable[[], int],
        leads: Callable[[], bool],
        submit: Submit,
    ) -> AllSwitches:
        """Return the switches in the settings; `submit` stores what is read. Blocking; raises SettingsError."""
        return cls(
            SwitchPolling.from_settings(settings.switches, wall_ns, leads, submit),
            OtlpReceiver.from_settings(settings, wall_ns, leads, submit),
        )

    async def run(self) -> None:
        """Poll and receive until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.polling.run())
            group.create_task(self.receiver.run())

    async def watch_cabling(self, ends: switch_view.LinkEnds) -> None:
        """Compare the cabling of these ends periodically, until cancelled."""
        while True:
            await asyncio.sleep(self.compare_seconds)
            try:
                if self.polling.may_poll():
                    self.cabling_log.compare(await run_in_thread(ends.take()))
            except OSError as error:
                log.warning("links_not_joined", problem=str(error))

    def cells(self) -> Iterator[ViewCell]:
        """Return the state of polls, of the receiver and of the cabling log."""
        not_logged = ViewCell(catalog.CABLING_NOT_LOGGED, (), self.cabling_log.not_logged)
        return chain(self.polling.cells(), self.receiver.cells(), [not_logged])

    def problems(self) -> dict[str, str]:
        """Return the reason why each switch is not read, by name; empty for one that is read."""
        return self.polling.problems() | self.receiver.problems()

    def reading_cells(self, core: CollectorState, ends: switch_view.LinkEnds) -> Iterator[ViewCell]:
        """Return the readings and links of all switches that report, and cabling faults; iterating over them may block."""
        snapshots = self.polling.snapshots(core) | self.receiver.snapshots(core)
        join = ends.take()
        return chain(
            switch_view.reading_cells(snapshots.values()),
            switch_view.link_cells(join, snapshots),
            switch_view.fault_cells(join) if self.polling.may_poll() else (),
        )
