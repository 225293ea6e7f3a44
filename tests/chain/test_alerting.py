"""From a fault to a message: agents, collector, a real Prometheus, a real Alertmanager, a webhook."""

from __future__ import annotations

import asyncio

import pytest
from alerting_support import errors_of_rules, metrics_addresses, run_alerting
from chain_support import ProgramDirectory

from railscope_simulator import NodeSpec
from railscope_simulator.node_hardware import build_node_hardware

CAPTURE_SECONDS = 24
"""Faults start at half of it; the replay starts again at its end."""
FALLS_SILENT = "n1"
FAULTS = {
    "n1": "ecc_uncorrected",
    "n2": "xid79",
    "n3": "thermal",
    "n4": "nvlink_errors",
    "n5": "pcie_degraded",
    "n6": "flapping",
    "n7": "pause_storm",
    "n8": "gpu_hung",
    "n9": "speed_down",
}
SPECS = {
    node: NodeSpec(node=node, seed=seed, gpus=2, scenario=scenario, scheduler="slurm")
    for seed, (node, scenario) in enumerate(FAULTS.items())
}
GPUS = {node: build_node_hardware(spec).gpus[spec.affected_index] for node, spec in SPECS.items()}
PORT = next(
    port
    for port in build_node_hardware(SPECS["n7"]).ports
    if port.rail == SPECS["n7"].affected_index
)
"""Location of the faults: a GPU of each node, and the NIC of the same rail, with one name on all nodes."""
WANTED: list[dict[str, str]] = [
    {
        "alertname": "RailscopeGpuEccUncorrected", "node": "n1", "severity": "critical",
        "gpu": GPUS["n1"].uuid, "error": "uncorrected",
    },
    {
        "alertname": "RailscopeGpuXid", "node": "n2", "severity": "critical", "xid": "79",
        "pci_address": GPUS["n2"].pci_address,
    },
    {"alertname": "RailscopeGpuMissing", "node": "n2", "severity": "critical"},
    {"alertname": "RailscopeNodeMissing", "node": "never-installed"},
    # The capture is too short for a share of throttled time.
    {"alertname": "RailscopeGpuHealth", "node": "n3", "severity": "warning", "gpu": GPUS["n3"].uuid},
    {
        "alertname": "RailscopeNvlinkErrors", "node": "n4", "severity": "critical",
        "gpu": GPUS["n4"].uuid, "link": "7", "problem": "recovering",
    },
    {
        "alertname": "RailscopePcieDegraded", "node": "n5", "severity": "warning", "role": "nic",
        "pci_address": PORT.pci_address,
    },
    {
        "alertname": "RailscopeLinkDown", "node": "n6", "severity": "warning",
        "interface": PORT.interface, "problem": "flapping",
    },
    {
        "alertname": "RailscopePfcStorm", "node": "n7", "severity": "critical",
        "interface": PORT.interface, "problem": "error",
    },
    {
        "alertname": "RailscopeLosslessDiscards", "node": "n7", "severity": "critical",
        "interface": PORT.interface, "priority": "3", "problem": "buffer",
    },
    {
        "alertname": "RailscopeLinkSpeed", "node": "n9", "severity": "warning",
        "interface": PORT.interface,
    },
    {"alertname": "RailscopeDeadMansSwitch", "severity": "info"},
]  # fmt: skip
INVENTORY = """node,gpus,rdma_ports,from,to
n2,2,,2020-01-01T00:00:00Z,
n3,2,,2020-01-01T00:00:00Z,
never-installed,8,,2020-01-01T00:00:00Z,
"""
SILENT = {"alertname": "RailscopeNodeStale", "node": FALLS_SILENT, "reported_by": "collector"}
SOURCE_PARTIAL = {"alertname": "RailscopeSourcePartial", "node": "n8", "source": "gpu"}
"""Inhibited if the hung GPU has an alert of its own first."""
NOT_REPORTED = [
    {"alertname": "RailscopeGpuHealth", "node": "n3", "severity": "critical"},
    {"alertname": "RailscopeGpuEccUncorrected", "node": "n2"},
    {"alertname": "RailscopePcieDegraded", "node": "n4"},
    {"alertname": "RailscopeSourceFailing"},
    {"alertname": "RailscopeGpuMissing", "node": "n3"},
]
"""Alerts that would be wrong."""


@pytest.mark.journey
async def test_a_fault_reaches_its_receiver(site: ProgramDirectory) -> None:
    """Each fault is reported with the right labels, and no rule fails on the metrics of real agents."""
    site.prepare_all(SPECS.values(), CAPTURE_SECONDS)
    (site.directory / "inventory.csv").write_text(INVENTORY)
    await site.collector(
        RAILSCOPE_COLLECTOR_DIAGNOSIS__ENABLED="false",  # its incidents would inhibit symptoms
        RAILSCOPE_COLLECTOR_STALE_SECONDS="4",
        RAILSCOPE_COLLECTOR_INVENTORY_FILE="inventory.csv",
    )
    settings = {
        "RAILSCOPE_AGENT_BUDGET__CPU_RATIO": "0",
        "RAILSCOPE_AGENT_READ_TIMEOUT_SECONDS": "30",  # reads may wait for the processor
        "RAILSCOPE_AGENT_PERIOD_SECONDS": "{ nic_settings = 2, nvlink = 1, link = 1 }",
    }
    started = await asyncio.gather(*(site.agent(node, **settings) for node in FAULTS))
    agents = dict(zip(FAULTS, started, strict=True))
    async with run_alerting(site, await metrics_addresses(agents)) as watch:
        await watch.wait_for_alerts(WANTED)
        await watch.evaluates_to([SOURCE_PARTIAL])
        assert await errors_of_rules(watch.prometheus) == []
        wrong = [
            labels
            for labels in watch.hook.received
            if any(each.items() <= labels.items() for each in NOT_REPORTED)
        ]
        assert wrong == []
        await agents[FALLS_SILENT].stop()
        await watch.wait_for_alerts([SILENT])
