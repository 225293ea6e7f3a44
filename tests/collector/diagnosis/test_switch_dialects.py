"""One simulated leaf that is read in each dialect: the same faults have the same incidents and views.

A NIC behind the leaf is a slow receiver, and a link to a spine corrupts packets. A dialect that lacks a fact has the
reason in place of it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import pytest
from support.arriving_frames import DELAY_NS, STEP_NS, ArrivingFrames
from support.switch_dialects import DIALECTS, PolledSwitch

from railscope.envelopes import unpack
from railscope.timestamps import SECOND_NS
from railscope.wire import WireSchema, schema_hash
from railscope_collector.diagnosis.incident_report import (
    IncidentDocument,
    LeafDocument,
    NicDocument,
)
from railscope_collector.diagnosis.switch_evidence import LinkedPort
from railscope_collector.fleet.fleet import SWITCH_PREFIX
from railscope_collector.live_diagnosis.diagnosis_engine import DiagnosisEngine, ReceivedBatches
from railscope_simulator.cluster.cluster_model import ClusterModel
from railscope_simulator.cluster.cluster_switches import ClusterSwitches
from railscope_simulator.cluster.scenario import read_scenario
from railscope_simulator.spec import TimeSpan
from railscope_simulator.switch_ports import LldpNeighbour, SwitchPort

LEAF, PORT, UPLINK = "leaf-4", "Ethernet1/2", "Ethernet33/1"
"""The leaf, its port to the slow receiver, and its port to a spine."""
COUNTING = {"sonic", "openconfig", "snmp", "dialout"}
"""Dialects with counts of pauses, by priority or of all priorities."""
CONFIRMED = 0.8
"""Confidence of a slow receiver whose pauses the switch counts as well."""
FAULT_SECONDS, END_SECONDS = 300, 400
ERRORS_PER_STEP = 400
_MAX_BYTES = 64 << 20


class ReadLeaf(NamedTuple):
    """Frames of the leaf in one dialect."""

    polls: list[ReceivedBatches]
    schemas: dict[bytes, WireSchema]
    names: dict[str, str]
    """Name of each port in the dialect, by the name that the leaf announces."""


@pytest.fixture(scope="module")
def frames(frame_log: Path) -> ArrivingFrames:
    found = ArrivingFrames()
    found.read(frame_log)
    return found


@pytest.fixture(scope="module")
def leaves(captures: Path, frames: ArrivingFrames) -> dict[str, ReadLeaf]:
    """The leaf of the slow receiver in each dialect, with the same counts at the same times."""
    model = ClusterModel(read_scenario(captures.parent / "scenario.toml"))
    fabric = ClusterSwitches(model)
    spine = LldpNeighbour("spine-4", "9c:05:91:ff:03:00", "Ethernet1/1", f"to {LEAF}")
    uplink = SwitchPort(64, UPLINK, "to spine-4", spine, 400_000)
    fabric.switches[LEAF].add(uplink)

    async def read() -> dict[str, ReadLeaf]:
        polled = {name: PolledSwitch(fabric.switches[LEAF], name) for name in DIALECTS}
        found = {name: ReadLeaf([], {}, _names(name, fabric)) for name in DIALECTS}
        for offset_ns in range(0, END_SECONDS * SECOND_NS, STEP_NS):
            if offset_ns:
                span = TimeSpan(model.offset_ns, offset_ns)
                model.advance(offset_ns)
                fabric.count(span)
                if offset_ns > FAULT_SECONDS * SECOND_NS:
                    uplink.counters.received_errors += ERRORS_PER_STEP
            # Before the frames of the same time arrive, which are late.
            wall_ns = frames.start_ns - DELAY_NS + offset_ns
            for name, leaf in polled.items():
                body = (await leaf.poll(wall_ns, offset_ns)).body
                envelope = unpack(body, _MAX_BYTES)
                found[name].schemas.update(
                    {schema_hash(schema): schema for schema in envelope.schemas}
                )
                found[name].polls.append(
                    ReceivedBatches(
                        SWITCH_PREFIX + LEAF,
                        envelope.run,
                        wall_ns,
                        0,
                        envelope.batches,
                        envelope.boot_id,
                    )
                )
        return found

    return asyncio.run(read())


def _names(dialect: str, fabric: ClusterSwitches) -> dict[str, str]:
    ports = fabric.switches[LEAF].ports.values()
    return {port.alias: port.name if dialect == "sonic" else port.alias for port in ports}


def links(frames: ArrivingFrames, leaf: ReadLeaf) -> list[LinkedPort]:
    """Return the links of the leaf, as its nodes receive them by LLDP."""
    found = {}
    for _, envelope in frames.envelopes:
        for batch in envelope.batches:
            for entity in frames.schemas[batch.schema].entities:
                if entity.kind == "nic_neighbour" and entity.facts.get("switch") == LEAF:
                    port = leaf.names[entity.facts["switch_port"]]
                    link = LinkedPort(LEAF, port, envelope.node, entity.key[0], is_certain=True)
                    found[port] = link
    return list(found.values())


def diagnose(
    frames: ArrivingFrames, leaf: ReadLeaf, directory: Path
) -> dict[str, IncidentDocument]:
    """Return the incidents by class."""
    engine = DiagnosisEngine(directory, (frames.schemas | leaf.schemas).__getitem__)
    engine.open(frames.start_ns)
    known = links(frames, leaf)
    for now_ns in range(
        frames.start_ns + STEP_NS, frames.start_ns + END_SECONDS * SECOND_NS, STEP_NS
    ):
        arrived = frames.between(now_ns - STEP_NS, now_ns)
        arrived += [each for each in leaf.polls if now_ns - STEP_NS <= each.received_ns < now_ns]
        engine.process(arrived, frames.jobs, now_ns, known)
    assert engine.failures == 0
    documents = [each.document for each in engine.table.incidents]
    found = {each.incident_class: each for each in documents}
    assert len(found) == len(documents)
    return found


def test_each_dialect_has_the_same_incidents(
    frames: ArrivingFrames, leaves: dict[str, ReadLeaf], tmp_path: Path
) -> None:
    times, rates = set(), set()
    for dialect, leaf in leaves.items():
        found = diagnose(frames, leaf, tmp_path / dialect)
        assert set(found) == {"slow_receiver", "switch_link_errors"}, dialect
        times.add(tuple(sorted((each.onset, each.detected) for each in found.values())))
        receiver, corrupted = found["slow_receiver"], found["switch_link_errors"]
        assert isinstance(receiver.cause, NicDocument)
        assert (receiver.cause.node, receiver.cause.rail) == ("gpu-node-2", 3)
        (row,) = (each for each in receiver.evidence if each.signal == "switch_pauses_received")
        assert row.device.startswith(f"{LEAF} {leaf.names[PORT]}")
        if dialect in COUNTING:
            counted = "all priorities" if dialect == "snmp" else "priority 3"
            assert row.device == f"{LEAF} {leaf.names[PORT]} {counted}"
            assert row.value is not None
            assert row.value > 100_000
            assert receiver.confidence == pytest.approx(CONFIRMED)
        else:
            assert row.value is None
            assert row.text.endswith("received: no value (the switch does not provide it)")
            assert receiver.confidence < CONFIRMED
        assert isinstance(corrupted.cause, LeafDocument)
        place = corrupted.cause.switch, corrupted.cause.port_switch, corrupted.cause.port
        assert place == (LEAF, LEAF, leaf.names[UPLINK])
        (row,) = corrupted.evidence
        rates.add(row.value)
    assert len(times) == 1, "onset and detection do not depend on the dialect"
    assert len(rates) == 1, "nor does the rate of errors"
