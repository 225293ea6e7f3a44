"""A simulated fabric with its switches: the collector polls them by gNMI, links their ports, and diagnoses both ends."""

from __future__ import annotations

from pathlib import Path

from support.diagnosed_cluster import diagnose_records, record_cluster
from support.scenarios import UPLINK_DEGRADED

from railscope_collector.diagnosis.incident_report import LeafDocument


async def test_an_uplink_that_has_lost_capacity_is_named(tmp_path: Path) -> None:
    """With the polls of the switches it is one uplink, without them one of the leaves.

    Before the fault, and on the next rail, the uplinks are busy: they mark packets, and pause the leaves.
    """
    (tmp_path / "scenario.toml").write_text(UPLINK_DEGRADED + "pods = [1]\n")
    switches = ("leaf-3", "leaf-4", "leaf-11", "leaf-12", "spine-3", "spine-4")
    records = await record_cluster(tmp_path / "scenario.toml", tmp_path / "captures", switches)
    (document,) = await diagnose_records(records, tmp_path / "with")
    assert document.incident_class == "uplink_congested"
    cause = document.cause
    assert isinstance(cause, LeafDocument)
    assert (cause.switch, cause.alternatives) == ("leaf-12", ())
    assert (cause.port_switch, cause.port, cause.queue) == ("leaf-12", "Ethernet256", "3")
    of_nodes = [record for record in records if not record.node.startswith("switch/")]
    (document,) = await diagnose_records(of_nodes, tmp_path / "without")
    assert document.incident_class == "uplink_congested"
    cause = document.cause
    assert isinstance(cause, LeafDocument)
    assert cause.alternatives
    assert not cause.port
