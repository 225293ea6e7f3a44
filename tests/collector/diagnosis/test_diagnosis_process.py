"""The process of the diagnosis: killed, stopped, missing; nothing else of the collector depends on it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from makers import FrameSender
from running_collector import RunningCollector, logged_envelopes, run_collector, settings_in
from support.waiting import wait_until

from railscope.audit.record import decode_audit_record
from railscope.catalog import gpu
from railscope.catalog.entities import GPU, XID
from railscope.catalog.kernel import XID_EVENT
from railscope.frame import Entity, Event, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.wire import SentAt
from railscope_collector.config import DiagnosisSettings

NODES = ("n1", "n2", "n3")
PERIOD_SECONDS = 0.2
MAX_ACKNOWLEDGEMENT_SECONDS = 5.0


def node_schema(node: str) -> Schema:
    facts = {"rail": "0", "pci_address": f"0000:{node}:00.0"}
    return Schema("gpu", ((gpu.GPU_UTILIZATION, Entity(GPU, (f"GPU-{node}",), facts)),))


@dataclass
class SendingNodes:
    """Nodes that send a frame every 0.2 seconds, each until it is acknowledged."""

    one: RunningCollector
    acknowledged: int = 0
    longest_seconds: float = 0.0
    failed: list[str] = field(default_factory=list)
    xids: list[str] = field(default_factory=list)
    """Nodes whose next frame has an Xid 79."""

    async def run(self, node: str) -> None:
        sender, schema = FrameSender(node), node_schema(node)
        while True:
            frame = self._frame(sender, schema)
            body = sender.body([frame], schemas=sender.sequences["gpu"] == 1)
            sent = SentAt(frame.timestamp.wall_ns, frame.timestamp.boot_ns, sender.boot_id)
            started = time.monotonic()
            status, _ = await self.one.post(body, node=node, headers=sent.to_headers())
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - started)
            if status != 200:
                self.failed.append(f"{node}: status {status}")
            self.acknowledged += 1
            await asyncio.sleep(PERIOD_SECONDS)

    def _frame(self, sender: FrameSender, schema: Schema) -> Frame:
        number = sender.sequences["gpu"] = sender.sequences.get("gpu", 0) + 1
        instant = NodeTimestamp(time.time_ns(), time.monotonic_ns())
        origin = FrameOrigin(sender.node, sender.run, sender.boot_id)
        frame = Frame(origin, schema, number, instant, array("q", [50]))
        if sender.node in self.xids:
            self.xids.remove(sender.node)
            address = schema.columns[0][1].facts["pci_address"]
            entity = Entity(XID, (address, "79"))
            event = Event(XID_EVENT, entity, instant.wall_ns, instant.boot_ns)
            frame = replace(frame, events=(event,))
        return frame


@asynccontextmanager
async def sending(one: RunningCollector) -> AsyncIterator[SendingNodes]:
    nodes = SendingNodes(one)
    tasks = [asyncio.create_task(nodes.run(name)) for name in NODES]
    try:
        yield nodes
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def opened(one: RunningCollector, node: str) -> None:
    def is_open() -> bool:
        incidents = one.collector.diagnosis.table.incidents
        return any(getattr(each.document.cause, "node", "") == node for each in incidents)

    await wait_until(is_open, f"an incident of {node}")


def recorded_changes(one: RunningCollector) -> Counter[tuple[object, ...]]:
    records = map(decode_audit_record, one.collector.trail.log.records(0))
    return Counter(
        (each.data["incident"], each.data["change"], each.obj.node)
        for each in records
        if each.type.startswith("evidence.incident")
    )


async def metric(one: RunningCollector, name: str) -> float:
    _, text = await one.get("/metrics")
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


@pytest.mark.journey
async def test_a_killed_diagnosis_returns_and_no_acknowledgement_waits_for_it(
    tmp_path: Path,
) -> None:
    async with (
        run_collector(settings_in(tmp_path, diagnosis=DiagnosisSettings())) as one,
        sending(one) as nodes,
    ):
        diagnosis = one.collector.diagnosis
        await wait_until(lambda: diagnosis.table.timestamp_ns, "an evaluation")
        nodes.xids.append("n1")
        await opened(one, "n1")
        first = diagnosis.pid
        os.kill(first, signal.SIGKILL)
        nodes.xids.append("n2")
        await wait_until(lambda: diagnosis.pid not in {0, first}, "another process")
        await opened(one, "n2")
        assert diagnosis.restarts == 1
        assert diagnosis.problem == "ended with SIGKILL"
        assert await metric(one, "railscope_diagnosis_restarts_total") == 1
        await wait_until(lambda: len(recorded_changes(one)) >= 2, "two records")
        # Its changes are saved as acknowledged, and are not sent again as new ones.
        os.kill(diagnosis.pid, signal.SIGKILL)
        await wait_until(lambda: diagnosis.restarts == 2 and diagnosis.pid, "a third process")
        await opened(one, "n1")
        evaluated_ns = diagnosis.table.timestamp_ns
        await wait_until(lambda: diagnosis.table.timestamp_ns > evaluated_ns, "an evaluation")
        assert nodes.failed == []
        assert nodes.longest_seconds < MAX_ACKNOWLEDGEMENT_SECONDS
        changes = recorded_changes(one)
    assert {node for _, _, node in changes} == {"n1", "n2"}
    assert set(changes.values()) == {1}, "each change is recorded once"
    assert logged_envelopes(tmp_path) >= nodes.acknowledged
    assert diagnosis.pid == 0
