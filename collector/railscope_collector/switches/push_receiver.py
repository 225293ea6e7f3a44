"""Receiver of pushes: the switches that push to it, by their address, the limits of each, and the state of their readings.

A sender is identified by its connection, never by what it states about itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import structlog

from railscope import otlp_receiving, service
from railscope.catalog import switches as catalog
from railscope.frame import NodeTimestamp
from railscope.otlp_metrics import OtlpRejectedError
from railscope.timestamps import SECOND_NS
from railscope_collector.fleet.fleet import SWITCH_PREFIX
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.switches import (
    switch_frames,
    switch_pushes,
    switch_settings,
    switch_view,
)

log = structlog.get_logger(__name__)

MAX_CONNECTIONS = 1024
"""Several for each of the switches that the file may have."""
MAX_DECODED = 2
"""Requests that are decoded concurrently, as each takes many times its size meanwhile."""
MAX_SHARE = 0.25
"""Largest share of a core for the pushes of a switch: one of 512 ports takes a quarter of a second."""
_MISSED_PERIODS = 3


@dataclass(slots=True)
class PushingSwitch:
    """A switch that pushes, and the limit of its requests."""

    settings: switch_settings.ConfiguredSwitch
    pushes: switch_pushes.SwitchPushes
    limit: otlp_receiving.SenderLimit = field(default_factory=otlp_receiving.SenderLimit)

    @classmethod
    def from_settings(cls, settings: switch_settings.ConfiguredSwitch, run: str) -> PushingSwitch:
        """Return a switch that has not pushed; all of its counters have 64 bits."""
        frames = switch_frames.SwitchFrames(settings.name, run, has_narrow_counters=False)
        return cls(settings, switch_pushes.SwitchPushes(settings.name, frames))

    def is_recent(self, timestamp_ns: int, now_ns: int) -> bool:
        """True if a push of this time may still be the last one."""
        return now_ns - timestamp_ns <= _MISSED_PERIODS * self.settings.period_seconds * SECOND_NS

    def take_snapshot(self, core: CollectorState, now_ns: int) -> switch_view.SwitchSnapshot:
        """Return the last frames of the streams that are still pushed."""
        node = core.fleet.switches.get(SWITCH_PREFIX + self.settings.name)
        streams = switch_view.take_snapshot(core, node)
        return {
            name: stream
            for name, stream in streams.items()
            if self.is_recent(stream.timestamp_ns, now_ns)
        }


@dataclass(slots=True)
class PushReceiver:
    """Stores the pushes of all configured switches of a protocol."""

    switches: Mapping[str, PushingSwitch]
    """By address."""
    wall_ns: Callable[[], int]
    may_receive: Callable[[], bool] = lambda: True
    """True if this collector receives, and not another one."""
    requests_per_second: float = 10.0
    unmapped_event: str = "otlp_metric_not_stored"
    """Log event for what has no use here, once for each name."""
    submit: switch_frames.Submit = switch_frames.reject_envelope
    monotonic: Callable[[], float] = time.monotonic
    started_ns: int = 0
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_DECODED))

    def find_switch(self, peer: str) -> PushingSwitch:
        """Return the switch with an address. Raises OtlpRejectedError if there is none."""
        switch = self.switches.get(switch_settings.canonical_address(peer))
        if switch is None:
            message = f"unknown sender {peer}: expected the address of a switch in switches.file with this protocol"
            raise OtlpRejectedError(message, HTTPStatus.FORBIDDEN, "unknown_sender")
        return switch

    def check_receiving(self) -> None:
        """Raise OtlpRejectedError if another collector receives."""
        if not self.may_receive():
            message = "another collector receives"
            raise OtlpRejectedError(message, HTTPStatus.SERVICE_UNAVAILABLE, "storage")

    def count_request(self, switch: PushingSwitch) -> None:
        """Count a request of a switch. Raises OtlpRejectedError for one above the rate."""
        switch.limit.count_request(self.monotonic(), self.requests_per_second)

    async def store(
        self,
        switch: PushingSwitch,
        decode: Callable[[NodeTimestamp], switch_pushes.DecodedPush],
        *,
        is_small: bool,
    ) -> switch_pushes.DecodedPush:
        """Decode a request in its turn, and store it. Raises OtlpRejectedError if it is not stored."""
        async with switch.limit.turn(self._turns):
            now, pushes = self._now(), switch.pushes

            def decode_charged() -> switch_pushes.DecodedPush:
                # Of this thread: a switch is not charged for the time of others.
                began_seconds = time.thread_time()
                try:
                    return decode(now)
                finally:
                    spent_seconds = time.thread_time() - began_seconds
                    switch.limit.charge(spent_seconds * self.requests_per_second / MAX_SHARE)

            push = decode_charged() if is_small else await service.run_in_thread(decode_charged)
            if push.reading.streams:
                frames = await service.run_in_thread(pushes.frames.frames, push.reading, now)
                problem = await switch_frames.submit_frames(self.submit, frames, self._now)
                if problem:
                    message = f"not stored: {problem}"
                    raise OtlpRejectedError(message, HTTPStatus.SERVICE_UNAVAILABLE, "storage")
            # Only once it is stored: the sender repeats a push that is not.
            for name in pushes.keep(push, now):
                log.info(self.unmapped_event, switch=pushes.name, metric=name)
        return push

    def _now(self) -> NodeTimestamp:
        return NodeTimestamp(self.wall_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def switch_cells(self) -> Iterator[ViewCell]:
        """Yield the state of each switch that pushes."""
        now_ns = self.wall_ns()
        for switch in self.switches.values() if self.may_receive() else ():
            pushes, key = switch.pushes, (switch.settings.name,)
            is_awaited = not pushes.last_ns and switch.is_recent(self.started_ns, now_ns)
            if not is_awaited:
                is_up = switch.is_recent(pushes.last_ns, now_ns)
                yield ViewCell(catalog.UP, key, int(is_up))
            if pushes.last_ns:
                yield ViewCell(catalog.LAST_POLL, key, pushes.last_ns / SECOND_NS)
                yield ViewCell(catalog.COUNTER_RESETS, key, pushes.resets)
                yield ViewCell(catalog.NAME_MISMATCHES, key, pushes.name_mismatches)
            if pushes.offset_ns is not None:
                is_off = abs(pushes.offset_ns) > switch_pushes.MAX_OFFSET_NS
                yield ViewCell(catalog.CLOCK_OFF, key, int(is_off))
            for result, count in pushes.results.items():
                yield ViewCell(catalog.PUSHED_POINTS, (*key, result.value), count)

    def problems(self) -> dict[str, str]:
        """Return the reason why each switch is not read; empty for one that is read."""
        now_ns, receives = self.wall_ns(), self.may_receive()
        return {
            each.settings.name: switch_view.ELSEWHERE
            if not receives
            else ""
            if each.is_recent(each.pushes.last_ns, now_ns)
            else f"no push for {_MISSED_PERIODS} periods"
            for each in self.switches.values()
        }

    def snapshots(self, core: CollectorState) -> dict[str, switch_view.SwitchSnapshot]:
        """Return the readings that are still pushed, of all switches."""
        now_ns, switches = self.wall_ns(), self.switches.values() if self.may_receive() else ()
        return {each.settings.name: each.take_snapshot(core, now_ns) for each in switches}
