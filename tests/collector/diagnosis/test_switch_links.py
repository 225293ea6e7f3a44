"""Faults that only switches see: links between them with errors or down, storms at spines, and drops of lossless queues."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.arriving_frames import STEP_NS, ArrivingFrames
from support.drawn_cluster import START_NS, DrawnCluster, Row, node_name
from support.drawn_readings import ONSET, SLOTS, healthy_feed, run
from support.mirrored_switches import PRIORITY, Amount, Amounts, MirroredSwitches, Port
from test_switch_evidence import counted, diagnose, end_ns, leaf_of, mirror, pods

from railscope.catalog import switches as catalog
from railscope.catalog.declare import Metric
from railscope.reading import Absent
from railscope.timestamps import SECOND_NS
from railscope_collector.diagnosis.findings import NOT_PROVIDED, SLOT_NS
from railscope_collector.diagnosis.incident_report import IncidentDocument, LeafDocument
from railscope_collector.diagnosis.incidents import Incident
from railscope_collector.diagnosis.switch_evidence import LinkedPort
from railscope_collector.live_diagnosis.diagnosis_engine import DiagnosisEngine

__all__ = ["pods"]

LEAVES, SPINES = ("leaf-4", "leaf-12"), ("spine-1", "spine-2")
READ = [*LEAVES, *SPINES]
ONSET_SECONDS, SECONDS = 120, 290
"""Before the fault of the hosts."""


def uplink(leaf: str, spine: str) -> tuple[Port, Port]:
    """Return the ports at both ends of a link."""
    return (leaf, f"Ethernet9/{spine[6:]}"), (spine, f"Ethernet{leaf[5:]}")


def step(before: int, after: int, at_seconds: float = ONSET_SECONDS) -> Amount:
    return lambda seconds: after if seconds >= at_seconds else before


def rising(rate: float) -> Amount:
    return lambda seconds: int(rate * max(seconds - ONSET_SECONDS, 0.0))


def fabric(frames: ArrivingFrames, amounts: Amounts) -> MirroredSwitches:
    """Return two leaves with two spines, all links up and without errors, and what changes that."""
    switches = mirror(frames)
    for leaf in LEAVES:
        for spine in SPINES:
            near, far = uplink(leaf, spine)
            switches.uplinks |= {near: spine, far: leaf}
            for port in (near, far):
                switches.amounts |= {
                    (catalog.PORT_UP, port, ""): step(1, 1),
                    (catalog.PORT_ENABLED, port, ""): step(1, 1),
                    (catalog.RECEIVED_ERRORS, port, ""): step(0, 0),
                }
    switches.amounts |= amounts
    return switches


def of_ports(metric: Metric, ports: Iterable[Port], amount: Amount, number: str = "") -> Amounts:
    return {(metric, port, number): amount for port in ports}


def found_by(
    frames: ArrivingFrames, switches: MirroredSwitches, directory: Path, read: Iterable[str] = READ
) -> list[IncidentDocument]:
    polls = switches.polls(read, end_ns(frames, SECONDS), 10)
    return diagnose(frames, switches, polls, directory, SECONDS)


ONE = uplink("leaf-12", "spine-2")
OF_SPINE = [uplink(leaf, "spine-2") for leaf in LEAVES]
FAULTS: dict[str, tuple[Amounts, str, tuple[str, list[str], object]]] = {
    "errors at the leaf": (of_ports(catalog.RECEIVED_ERRORS, ONE[:1], rising(5)), "switch_link_errors", ("leaf-12", [], (*ONE[0], ""))),
    "errors at the spine": (of_ports(catalog.FCS_ERRORS, ONE[1:], rising(5)), "switch_link_errors", ("leaf-12", [], (*ONE[1], ""))),
    "errors at both ends": (of_ports(catalog.RECEIVED_ERRORS, ONE[:1], rising(9)) | of_ports(catalog.RECEIVED_ERRORS, ONE[1:], rising(5)), "switch_link_errors", ("leaf-12", [], (*ONE[0], ""))),
    "uncorrectable symbols": (of_ports(catalog.UNCORRECTED_SYMBOLS, ONE[:1], rising(2)), "switch_link_errors", ("leaf-12", [], (*ONE[0], ""))),
    "uncorrectable frames": (of_ports(catalog.FEC_UNCORRECTABLE, ONE[:1], rising(2)), "switch_link_errors", ("leaf-12", [], (*ONE[0], ""))),
    "errors to a device without an agent": (of_ports(catalog.RECEIVED_ERRORS, [("leaf-4", "Ethernet7/1")], rising(5)), "switch_link_errors", ("leaf-4", [], ("leaf-4", "Ethernet7/1", ""))),
    "a link is down": (of_ports(catalog.PORT_UP, ONE, step(1, 0)), "switch_link_down", ("leaf-12", [], (*ONE[0], ""))),
    "a spine is down": (of_ports(catalog.PORT_UP, [port for ends in OF_SPINE for port in ends], step(1, 0)), "switch_link_down", ("leaf-12", [], (*ONE[0], ""))),
    "a storm at a spine": (of_ports(catalog.WATCHDOG_DETECTED, ONE[1:], step(0, 1, 250), PRIORITY), "pfc_storm", ("leaf-12", [], (*ONE[1], PRIORITY))),
    "a lossless queue drops": (of_ports(catalog.QUEUE_DROPPED_PACKETS, ONE[:1], rising(20), PRIORITY) | of_ports(catalog.PFC_SENT, ONE[:1], partial(counted, 1), PRIORITY), "leaf_loss", ("leaf-12", [], (*ONE[0], PRIORITY))),
}  # fmt: skip
"""Values from the fault on; class, leaf, alternatives and port or queue of the only incident."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_only_switches_see_is_one_incident_of_the_leaf(
    pods: ArrivingFrames, tmp_path: Path, name: str
) -> None:
    amounts, incident_class, expected = FAULTS[name]
    (document,) = found_by(pods, fabric(pods, amounts), tmp_path)
    assert document.incident_class == incident_class
    assert leaf_of(document) == expected
    assert document.evidence[0].device.startswith(" ".join(expected[2][:2]))  # type: ignore[index]


def test_all_leaves_of_a_spine_that_is_down_are_affected(
    pods: ArrivingFrames, tmp_path: Path
) -> None:
    (document,) = found_by(pods, fabric(pods, FAULTS["a spine is down"][0]), tmp_path)
    others = [each.switch for each in document.victims if isinstance(each, LeafDocument)]
    assert others == ["leaf-4"]
    assert document.detail.startswith("all links of spine-2 are down: leaf-12 Ethernet9/2, leaf-4")


HARMLESS: dict[str, Amounts] = {
    "healthy": {},
    "a burst of errors": of_ports(catalog.RECEIVED_ERRORS, ONE, step(0, 5000)),
    "few errors": of_ports(catalog.RECEIVED_ERRORS, ONE, rising(0.1)),
    "all ports count": of_ports(catalog.RECEIVED_ERRORS, [port for leaf in LEAVES for spine in SPINES for port in uplink(leaf, spine)], rising(5)),
    "errors at the port of a NIC": of_ports(catalog.RECEIVED_ERRORS, [("leaf-4", "Ethernet1/1")], rising(5)),
    "the port is disabled": of_ports(catalog.PORT_UP, ONE, step(1, 0)) | of_ports(catalog.PORT_ENABLED, ONE[:1], step(1, 0)),
    "the other port is disabled": of_ports(catalog.PORT_UP, ONE, step(1, 0)) | of_ports(catalog.PORT_ENABLED, ONE[1:], step(1, 0)),
    "a short interruption": of_ports(catalog.PORT_UP, ONE, lambda seconds: int(not 120 <= seconds < 150)),
    "a port without a neighbour": of_ports(catalog.PORT_UP, [("leaf-4", "Ethernet7/1")], step(0, 0)),
    "a lossy queue drops": of_ports(catalog.QUEUE_DROPPED_PACKETS, ONE[:1], rising(20), "0"),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_healthy_links_and_harmless_values_raise_no_incident(
    pods: ArrivingFrames, tmp_path: Path, name: str
) -> None:
    assert found_by(pods, fabric(pods, HARMLESS[name]), tmp_path) == []


def test_links_that_forward_packets_corrupted_elsewhere_raise_no_incident(
    pods: ArrivingFrames, tmp_path: Path
) -> None:
    """A cable of a NIC corrupts packets that the leaf and the spine forward."""
    ports = [("leaf-4", "Ethernet1/1"), uplink("leaf-4", "spine-2")[1], ONE[0]]
    amounts = of_ports(catalog.RECEIVED_ERRORS, ports, rising(5))
    assert found_by(pods, fabric(pods, amounts), tmp_path) == []


def test_a_switch_that_does_not_answer_has_no_links_that_are_down(
    pods: ArrivingFrames, tmp_path: Path
) -> None:
    """Only the spine shows that the link is down; the leaf may have been switched off."""
    switches = fabric(pods, of_ports(catalog.PORT_UP, ONE, step(1, 0)))
    polls = [
        each
        for each in switches.polls(READ, end_ns(pods, SECONDS), 10)
        if each.node != "switch/leaf-12" or each.received_ns < end_ns(pods, ONSET_SECONDS)
    ]
    assert diagnose(pods, switches, polls, tmp_path, SECONDS) == []


def test_a_link_that_is_down_stays_an_incident_over_a_restart(
    pods: ArrivingFrames, tmp_path: Path
) -> None:
    """The LLDP entries have expired meanwhile."""
    switches = fabric(pods, of_ports(catalog.PORT_UP, ONE, step(1, 0)))
    polls = list(switches.polls(READ, end_ns(pods, 200), 10))
    for port in ONE:
        del switches.uplinks[port]
    polls += switches.polls(READ, end_ns(pods, 400), 10, 201.0)
    polls.sort(key=lambda each: each.received_ns)
    engine = None
    for begin, end in ((0, 240), (250, 400)):
        schemas = pods.schemas | switches.schemas
        engine = DiagnosisEngine(tmp_path, schemas.__getitem__)
        engine.open(pods.start_ns + begin * SECOND_NS)
        for seconds in range(begin + 10, end, 10):
            now_ns = pods.start_ns + seconds * SECOND_NS
            arrived = pods.between(now_ns - STEP_NS, now_ns)
            arrived += [each for each in polls if now_ns - STEP_NS <= each.received_ns < now_ns]
            engine.process(arrived, pods.jobs, now_ns, list(switches.links.values()))
        engine.save_all()
    assert engine is not None
    found = [each.document for each in engine.table.incidents]
    (document,) = [each for each in found if each.incident_class == "switch_link_down"]
    assert document.ended is None


PORT = ("leaf-3", "Ethernet1/1")
"""Switch port of the NIC of the first node of a drawn job."""


def lost_data(errors: Amounts) -> Incident:
    """Return the incident of a NIC that corrupts what it sends, and whose switch port has these values."""
    feed = healthy_feed()
    sender = feed.cluster.jobs[0].nodes[0]
    switches = MirroredSwitches(START_NS, 0)
    switches.amounts |= errors | of_ports(catalog.PORT_UP, [PORT], step(1, 1))
    link = LinkedPort(*PORT, node_name(sender), "eth2", is_certain=True)
    evidence = feed.diagnosis.switches
    evidence.set_links([link], START_NS)

    def losses(cluster: DrawnCluster, row: Row, since: int) -> None:
        now_ns = START_NS + (ONSET + since + 1) * SLOT_NS
        batches = switches.poll(PORT[0], now_ns - SECOND_NS)
        evidence.readings.add(
            PORT[0], "run", batches.batches, switches.schemas.__getitem__, lambda at_ns: at_ns
        )
        row.nic["naks"][cluster.jobs[0].nodes[2], 2] = 0.2
        if since >= 0:
            row.nic["naks"][sender, 2] = 20.0
            row.nic["order"][cluster.jobs[0].nodes[1:], 2] = 4.0

    (found,) = run(feed, losses, SLOTS)
    assert (found.class_name, found.cause.kind) == ("link_transmit_errors", "nic")
    return found


def test_errors_of_the_switch_port_confirm_data_lost_on_a_link() -> None:
    found = lost_data(of_ports(catalog.FCS_ERRORS, [PORT], rising(20)))
    silent = lost_data(of_ports(catalog.FCS_ERRORS, [PORT], step(0, 0)))
    unsupported = lost_data(of_ports(catalog.FCS_ERRORS, [PORT], lambda _: Absent.UNSUPPORTED))
    (row,) = (each for each in found.evidence if each.signal.startswith("port_"))
    assert (row.signal, row.device) == ("port_fcs_errors", " ".join(PORT))
    assert row.value > 0.5
    assert (found.queue, silent.queue) == ((*PORT, ""), None)
    assert [each.signal for each in silent.evidence] == ["naks"]
    for without in (unsupported, lost_data({})):
        (row,) = (each for each in without.evidence if each.signal.startswith("port_"))
        assert (row.comparison, np.isnan(row.value)) == (NOT_PROVIDED, True)
