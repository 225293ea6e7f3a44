"""Polling: one switch that fails concerns no other, failures lengthen the period, only one collector polls."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, strategies as st

from railscope import envelopes, wire
from railscope.catalog import entities, switches as catalog
from railscope.frame import Entity
from railscope_collector.switches.switch_frames import UNKNOWN_SCHEMA
from railscope_collector.switches.switch_polling import (
    MAX_BACK_OFF_SECONDS,
    PolledSwitch,
    SwitchPolling,
)
from railscope_collector.switches.switch_reading import PORTS, SwitchReadError, SwitchReading
from railscope_collector.switches.switch_settings import ConfiguredSwitch, SnmpCredential


def configured(name: str = "leaf-07", period_seconds: float = 30.0) -> ConfiguredSwitch:
    return ConfiguredSwitch(
        name=name,
        address="192.0.2.7",
        host="192.0.2.7",
        port=161,
        credential=SnmpCredential(community="c"),
        tables="standard",
        period_seconds=period_seconds,
        timeout_seconds=1.0,
    )


class ScriptedReader:
    """Returns readings, or raises the next of the scripted errors."""

    def __init__(self, name: str, *errors: BaseException) -> None:
        self.name, self.errors, self.reads = name, list(errors), 0

    async def read(self) -> SwitchReading:
        self.reads += 1
        if self.errors:
            raise self.errors.pop(0)
        port = Entity(entities.SWITCH_PORT, (self.name, "Ethernet0"))
        return SwitchReading({PORTS: [((catalog.RECEIVED, port), 7)]})


class Site:
    """Polling with scripted readers and a scripted store, which waits for nothing."""

    def __init__(
        self,
        *answers: str,
        errors: dict[str, tuple[BaseException, ...]],
        period_seconds: float = 30,
    ) -> None:
        self.answers, self.bodies = list(answers), list[bytes]()
        self.readers = {name: ScriptedReader(name, *failing) for name, failing in errors.items()}
        self.is_head = True
        self.polling = SwitchPolling(
            [configured(name, period_seconds) for name in errors],
            lambda: 10**18,
            lambda: self.is_head,
            submit=self.store,
            make_reader=lambda switch: self.readers[switch.name],
            random_share=lambda: 0.5,
        )

    async def store(self, _: str, body: bytes, __: wire.SentAt) -> str:
        self.bodies.append(body)
        return self.answers.pop(0) if self.answers else ""

    async def run_until(self, condition: asyncio.Event) -> None:
        task = asyncio.create_task(self.polling.run())
        waiting = asyncio.create_task(condition.wait())
        await asyncio.wait({task, waiting}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert condition.is_set()
        task.cancel()
        await asyncio.wait({task})

    async def polled(self) -> PolledSwitch:
        """Start without a poll, and return the only switch."""
        task = asyncio.create_task(self.polling.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        (switch,) = self.polling.polled.values()
        return switch


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SwitchReadError("no answer", "timeout"), "timeout"),
        (SwitchReadError("rows do not ascend", "limit"), "limit"),
        (SwitchReadError("malformed"), "error"),
        (ZeroDivisionError("defect"), "fault"),
    ],
)
async def test_failures_are_counted_by_reason_and_end_with_a_success(error, reason):
    site = Site(errors={"leaf-07": (error,)})
    switch = await site.polled()
    await site.polling.poll(switch)
    assert dict(switch.failures) == {reason: 1}
    cells = {(cell.metric, cell.labels): cell.value for cell in site.polling.cells()}
    assert cells[catalog.UP, ("leaf-07",)] == 0
    assert cells[catalog.POLL_FAILURES, ("leaf-07", reason)] == 1
    await site.polling.poll(switch)
    assert switch.problem == ""
    assert switch.consecutive_failures == 0
    cells = {(cell.metric, cell.labels): cell.value for cell in site.polling.cells()}
    assert cells[catalog.UP, ("leaf-07",)] == 1


async def test_shapes_are_sent_when_the_store_lacks_them():
    site = Site(UNKNOWN_SCHEMA, errors={"leaf-07": ()})
    switch = await site.polled()
    await site.polling.poll(switch)
    assert switch.problem == ""
    first, second = (envelopes.unpack(body, 1 << 20) for body in site.bodies)
    assert (len(first.shapes), len(second.shapes)) == (0, 1)
    assert first.batches == second.batches, "the same frame"


async def test_rejected_frames_are_a_failure():
    site = Site("no space left", errors={"leaf-07": ()})
    switch = await site.polled()
    await site.polling.poll(switch)
    assert dict(switch.failures) == {"rejected": 1}
    assert switch.problem == "no space left"


async def test_defect_of_one_reader_leaves_other_switches_polled():
    defects = tuple(ZeroDivisionError("defect") for _ in range(100))
    site = Site(errors={"bad": defects, "good": ()}, period_seconds=0.01)
    done = asyncio.Event()
    good = site.readers["good"].read

    async def read() -> SwitchReading:
        if site.readers["good"].reads >= 3 and site.readers["bad"].reads >= 2:
            done.set()
        return await good()

    site.readers["good"].read = read  # type: ignore[method-assign]
    await site.run_until(done)


async def test_collector_that_is_not_the_head_polls_nothing_and_states_nothing():
    site = Site(errors={"leaf-07": ()})
    switch = await site.polled()
    await site.polling.poll(switch)
    assert list(site.polling.cells())
    site.is_head = False
    assert list(site.polling.cells()) == []
    reads = site.readers["leaf-07"].reads
    asked = asyncio.Event()

    def may_poll() -> bool:
        asked.set()
        return False

    site.polling.may_poll = may_poll
    site.polling.random_share = lambda: 0.0
    await site.run_until(asked)
    assert site.readers["leaf-07"].reads == reads


@given(st.floats(5, 3600), st.integers(0, 10_000), st.floats(0, 1))
def test_delay_grows_with_failures_within_bounds(period_seconds, failures, share):
    switch = PolledSwitch(configured(period_seconds=period_seconds), None, None)  # type: ignore[arg-type]
    switch.consecutive_failures = failures
    delay = switch.next_delay(share)
    assert 0.9 * period_seconds <= delay <= 1.1 * max(period_seconds, MAX_BACK_OFF_SECONDS)
    if failures <= 1:
        assert delay <= 1.1 * period_seconds
