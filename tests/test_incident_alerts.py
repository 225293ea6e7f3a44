"""Alerts that an incident or another alert inhibits: its symptoms, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from support.alert_rules import ROOT, rules_of
from support.evaluated_alerts import inhibitions, notified_alerts
from support.incidents import NIC, incident

from railscope.catalog import incidents as catalog
from railscope_collector.diagnosis.incident_classes import CLASSES
from railscope_collector.diagnosis.incident_table import IncidentTable

GPU = {"kind": "gpu", "node": "n1", "index": 4, "uuid": "GPU-4", "pci_address": "0000:43:00.0"}
NIC_AT = {**NIC, "pci_address": "0000:5e:00.0"}
NODE = {"kind": "node", "node": "n1"}
PORT = {"scope": "port", "node": "n2", "interface": "eth3", "device": "mlx5_3"}
RAIL = {"scope": "rail", "class": "pfc_storm", "area": "network", "rail": "3"}
CLIENT = {"scope": "client", "class": "storage_bound", "area": "job", "node": "n2"}
JOB = {"tenant": "physics", "source": "slurm", "workload": "7"}


def carrier(name: str, cause: Mapping[str, object]) -> dict[str, str]:
    """The alert on the cause of an incident, with the labels that the collector exposes."""
    table = IncidentTable(1, (incident("a1", cause=cause, **{"class": name}),))
    (cell,) = [cell for cell in table.cells() if cell.metric is catalog.CAUSE]
    labels = dict(zip(cell.metric.about.labels, cell.labels, strict=True))
    return reach({"scope": "cause"} | {key: text for key, text in labels.items() if text})


def reach(labels: Mapping[str, str]) -> dict[str, str]:
    return {"alertname": "RailscopeIncidentReach", "severity": "info", **labels}


def alert(text: str) -> dict[str, str]:
    """Parse a name, a severity and labels: "PfcStorm critical node=n1"."""
    name, severity, *labels = text.split()
    return {
        "alertname": f"Railscope{name}", "severity": severity, **dict(label.split("=") for label in labels),
    }  # fmt: skip


def is_sent(text: str, by: Mapping[str, str]) -> bool:
    firing = [each | {"alertstate": "firing"} for each in (alert(text), dict(by))]
    return any(each["alertname"] == firing[0]["alertname"] for each in notified_alerts([firing]))


@pytest.mark.parametrize(
    ("by", "texts"),
    [
        (carrier("gpu_lost", GPU), [
            "GpuLost critical node=n1 pci_address=0000:43:00.0", "GpuLost critical node=n1 gpu=GPU-4",
            "GpuXid critical node=n1 pci_address=0000:43:00.0 xid=79", "GpuMissing critical node=n1",
            "GpuLost warning node=n1 problem=fewer", "PcieAer critical node=n1 pci_address=0000:43:00.0",
            "SourcePartial warning node=n1 source=gpu_health", "GpuHealth warning node=n1 gpu=GPU-5 problem=unknown",
        ]),
        (carrier("row_remap", GPU), ["GpuHealth critical node=n1 gpu=GPU-4", "GpuRowRemapPending warning node=n1 gpu=GPU-4"]),
        (carrier("gpu_memory_failed", GPU), [
            "GpuHealth critical node=n1 gpu=GPU-4", "GpuMemoryFailed critical node=n1 gpu=GPU-4 problem=row_remap",
            "GpuMemoryFailed critical node=n1 gpu=GPU-4 problem=sram",
        ]),
        (carrier("xid_event", GPU), ["GpuXid critical node=n1 pci_address=0000:43:00.0 xid=62"]),
        (carrier("thermal_straggler", GPU), ["GpuThermalThrottle critical node=n1 gpu=GPU-4"]),
        (carrier("nvlink_errors", GPU), ["GpuXid critical node=n1 pci_address=0000:43:00.0 xid=74", "NvlinkErrors critical node=n1 gpu=GPU-4 link=7"]),
        (carrier("hw_slowdown", NODE), ["GpuPowerBrake critical node=n1 gpu=GPU-4", "GpuHealth warning node=n1 gpu=GPU-4 problem=degraded"]),
        (carrier("hw_slowdown", {"kind": "rack", "rack": "", "nodes": ["n1"]}), ["GpuPowerBrake critical node=n1 gpu=GPU-4"]),
        (carrier("pcie_degraded", NIC_AT), ["PcieDegraded warning node=n1 pci_address=0000:5e:00.0"]),
        (carrier("nic_lost", NIC_AT), ["PcieDeviceGone critical node=n1 pci_address=0000:5e:00.0", "RdmaPortMissing critical node=n1", "LinkDown critical node=n1 device=mlx5_3 port=1"]),
        (carrier("link_down", NIC), ["LinkDown critical node=n1 device=mlx5_3 port=1", "RdmaRetransmission critical node=n1 device=mlx5_3 port=1"]),
        (carrier("transceiver_degraded", NIC), ["FecErrors critical node=n1 interface=eth3", "LinkDown warning node=n1 interface=eth3 problem=flapping"]),
        (carrier("pfc_storm", NIC), ["PfcStorm critical node=n1 interface=eth3", "LosslessDiscards critical node=n1 interface=eth3 priority=3"]),
        (carrier("host_bound_receiver", NODE), ["PfcPauseShare critical node=n1 interface=eth4 direction=transmit"]),
        (carrier("node_down", NODE), ["NodeStale critical node=n1 reported_by=collector"]),
        (reach(PORT), [
            "PfcPauseShare critical node=n2 interface=eth3 direction=receive", "PauseWithoutMarks warning node=n2 interface=eth3",
            "RdmaRetransmission critical node=n2 device=mlx5_3 port=1", "RailOfNodeImbalance warning node=n2 device=mlx5_3 port=1",
        ]),
        (reach(RAIL), ["RailImbalance warning rail=3 direction=transmit"]),
        (reach(CLIENT), ["NfsTimeouts warning node=n2 export=filer:/a mount_point=/a", "HostPressure warning node=n2 resource=io"]),
        (reach({"scope": "job", "class": "gpu_straggler", "area": "gpu", **JOB}), ["JobStraggler warning node=n3 gpu=GPU-1 tenant=physics source=slurm workload=7"]),
    ],
)  # fmt: skip
def test_an_incident_inhibits_its_symptoms(by: dict[str, str], texts: list[str]) -> None:
    assert [text for text in texts if is_sent(text, by)] == []


@pytest.mark.parametrize(
    ("by", "texts"),
    [
        (carrier("gpu_lost", GPU), [
            "GpuLost critical node=n1 gpu=GPU-5", "GpuXid critical node=n1 pci_address=0000:44:00.0 xid=48",
            "GpuEccUncorrected critical node=n1 gpu=GPU-5", "GpuHealth critical node=n1 gpu=GPU-5 problem=failed",
            "GpuLost critical node=n2 gpu=GPU-4", "GpuMissing critical node=n2", "GpuDriverStuck critical node=n1",
            "LinkDown critical node=n1 device=mlx5_3 port=1", "PcieDeviceGone critical node=n1 pci_address=0000:5e:00.0",
            "HostMemoryErrors critical node=n1", "SourcePartial warning node=n1 source=rdma",
        ]),
        (carrier("row_remap", GPU), [
            "GpuMemoryFailed critical node=n1 gpu=GPU-4 problem=sram", "GpuLost critical node=n1 gpu=GPU-4",
            "GpuXid critical node=n1 pci_address=0000:43:00.0 xid=79", "GpuHealth critical node=n1 gpu=GPU-5",
        ]),
        (carrier("xid_event", GPU), ["GpuXid critical node=n1 pci_address=0000:43:00.0 xid=79", "GpuHealth critical node=n1 gpu=GPU-4"]),
        (carrier("slow_receiver", NIC), [
            "PfcStorm critical node=n1 interface=eth3", "LinkDown critical node=n1 device=mlx5_3 port=1",
            "PfcPauseShare critical node=n1 interface=eth4 direction=transmit", "FecErrors critical node=n1 interface=eth3",
            "LosslessDiscards critical node=n2 interface=eth3", "PcieDeviceGone critical node=n1 pci_address=0000:5e:00.0",
        ]),
        (carrier("link_flap", NIC), ["LinkDown critical node=n1 device=mlx5_3 port=1 problem=down"]),
        (carrier("link_down", NIC), ["LinkDown critical node=n1 device=mlx5_4 port=1", "LinkDown critical node=n2 device=mlx5_3 port=1", "GpuLost critical node=n1 gpu=GPU-4"]),
        (carrier("nic_lost", NIC_AT), ["PcieDeviceGone critical node=n1 pci_address=0000:43:00.0"]),
        (carrier("hw_slowdown", NODE), ["GpuPowerBrake critical node=n2 gpu=GPU-4", "GpuLost critical node=n1 gpu=GPU-4", "GpuHealth critical node=n1 gpu=GPU-4 problem=failed"]),
        (reach(PORT), [
            "PfcPauseShare critical node=n2 interface=eth3 direction=transmit", "PfcPauseShare critical node=n2 interface=eth4 direction=receive",
            "PfcPauseShare critical node=n3 interface=eth3 direction=receive", "LosslessDiscards critical node=n2 interface=eth3",
            "LinkDown critical node=n2 device=mlx5_3 port=1", "PfcStorm critical node=n2 interface=eth3",
        ]),
        (reach(RAIL), ["RailImbalance warning rail=4 direction=transmit"]),
        (reach(CLIENT), ["LustreUnhealthy critical node=n2 problem=health", "DriveFailing critical node=n2 drive=nvme0", "HostPressure warning node=n2 resource=memory"]),
        (reach({"scope": "job", "class": "gpu_straggler", "area": "gpu", **JOB}), [
            "JobStraggler warning node=n3 gpu=GPU-1 tenant=physics source=slurm workload=8", "GpuLost critical node=n3 gpu=GPU-1",
        ]),
    ],
)  # fmt: skip
def test_an_incident_does_not_inhibit_what_it_does_not_explain(
    by: dict[str, str], texts: list[str]
) -> None:
    assert [text for text in texts if not is_sent(text, by)] == []


BY_INCIDENTS = [
    rule for rule in inhibitions() if 'alertname="RailscopeIncidentReach"' in rule.source
]


def matched(matchers: tuple[str, ...], label: str) -> list[str]:
    """Values that the matcher of a label names."""
    (text,) = [text for text in matchers if re.match(rf"{label}=~?", text)]
    return text.partition('"')[2].rstrip('"').split("|")


def test_no_incident_inhibits_alerts_on_audit_billing_collector_and_host() -> None:
    files = ("audit", "collector", "metering", "incidents", "host")
    rules = [rule for name in files for rule in rules_of(ROOT / f"alerts/rules/{name}.yml")]
    never = {rule["alert"] for rule in rules if "alert" in rule} - {"RailscopeHostPressure"}
    for rule in BY_INCIDENTS:
        for pattern in matched(rule.target, "alertname"):
            assert not [name for name in never if re.fullmatch(pattern, name)]


def test_a_label_that_both_alerts_lack_is_not_equal() -> None:
    """Alertmanager regards it as equal: both alerts must have each label that identifies a device or job."""
    assert len(BY_INCIDENTS) > 30
    for rule in BY_INCIDENTS:
        for label in set(rule.equal) - {"cluster", "tenant", "source"}:
            assert f'{label}!=""' in rule.source
            assert f'{label}!=""' in rule.target


def test_no_alert_is_inhibited_by_one_of_another_cluster() -> None:
    """The Prometheus of several clusters may share an Alertmanager, and their nodes may have the same names."""
    assert [rule for rule in inhibitions() if "cluster" not in rule.equal] == []
    conflict = alert("AuditCheckpointConflict critical cluster=a instance=head:9470")
    assert is_sent("AuditUnsigned critical cluster=b instance=head:9470", conflict)
    assert not is_sent("AuditUnsigned critical cluster=a instance=head:9470", conflict)


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("GpuHealth warning node=n1 gpu=GPU-1 problem=unknown", "SourceFailing warning node=n1 source=SOURCE"),
        ("SourceFailing warning node=n1 source=SOURCE", "GpuLost critical node=n1 gpu=GPU-1"),
    ],
)  # fmt: skip
def test_a_source_that_no_gpu_depends_on_explains_nothing_of_gpus(text: str, by: str) -> None:
    for source in ("gpu_health", "nvlink"):
        assert not is_sent(text.replace("SOURCE", source), alert(by.replace("SOURCE", source)))
    for source in ("lldp", "nfs"):
        assert is_sent(text.replace("SOURCE", source), alert(by.replace("SOURCE", source)))


def test_alerts_of_others_inhibit_nothing() -> None:
    """Rules of others know other labels: an alert on one file system inhibits none on another server."""
    by = {"alertname": "NodeFilesystemAlmostOutOfSpace", "severity": "critical", "instance": "a"}
    other = {**by, "severity": "warning", "instance": "b"}
    assert not [rule for rule in inhibitions() if rule.silences(other, by)]


def test_each_matcher_of_a_class_names_a_class() -> None:
    classes = [rule.source for rule in BY_INCIDENTS if any("class" in text for text in rule.source)]
    named = {name for source in classes for name in matched(source, "class")}
    prefixes = {name.removesuffix(".*") for name in named if name.endswith(".*")}
    assert {name for name in named if not name.endswith(".*")} <= set(CLASSES)
    assert all(any(kind.startswith(prefix) for kind in CLASSES) for prefix in prefixes)
