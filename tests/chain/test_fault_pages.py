"""From simulated faults to pages: a cluster, a collector with its diagnosis, real Prometheus and Alertmanager."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from alerting_support import AlertingServers, run_alerting
from chain_support import ProgramDirectory, wait_until
from support.forked_program import ForkedProgram

from collector.access.credentials import digest_token
from simulator import NodeSpec
from simulator.cluster.scenario import FAULT_KINDS
from simulator.cluster.topology import ClusterTopology
from simulator.node_hardware import build_node_hardware

NODES_PER_POD = 3
BEGIN_SECONDS = 40
RAIL = 3
EVALUATIONS = 50
"""Evaluations, one per second, after which alerts on symptoms fire too: their `for` of up to 15 minutes is up to 45 s here."""
INTERFACE = next(
    port.interface for port in build_node_hardware(NodeSpec("n")).ports if port.rail == RAIL
)
UNRELATED = ("RailscopeDeadMansSwitch", "RailscopeAudit", "RailscopeMetering")
"""Begin of the names of alerts that are not about nodes: audit log and metering are behind the shortened rules."""


class Fault(NamedTuple):
    """A fault of the simulator, severity and class of its incident, and alerts on symptoms of the same node."""

    name: str
    severity: str
    symptoms: tuple[str, ...] = ()

    @property
    def page(self) -> dict[str, str]:
        """Labels of the alert on its incident, without the node."""
        kind = FAULT_KINDS[self.name]
        devices = {"nic": INTERFACE, "gpu": str(RAIL), "node": ""}
        device = {"device": devices[kind.entity]} if devices[kind.entity] else {}
        return {
            "alertname": "RailscopeIncident", "class": kind.incident_class, "severity": self.severity,
            "kind": kind.entity, **device,
        }  # fmt: skip


QUICK = (
    Fault("gpu_lost", "critical", ("RailscopeGpuXid", "RailscopeGpuLost")),
    Fault("pfc_storm", "critical", ("RailscopePfcStorm", "RailscopePfcPauseShare")),
    Fault("transceiver", "critical", ("RailscopeFecErrors",)),
)
OTHERS = [
    {"hot_gpu": "warning", "pcie_bound_receiver": "warning", "unprotected": "warning", "slow_receiver": "warning"},
    {"gpu_hung": "critical", "clock_skew": "critical", "power_brake": "warning", "transmit_errors": "warning"},
    {"link_down": "critical", "row_remap": "warning", "nvlink_errors": "critical", "ecc_uncorrected": "critical"},
    {"driver_stuck": "critical", "nic_lost": "critical"},
]  # fmt: skip
FAULTS = [
    pytest.param(QUICK, id="with-symptoms"),
    *(pytest.param([Fault(*pair) for pair in names.items()], id="-".join(names)) for names in OTHERS),
]  # fmt: skip
"""Faults of one cluster, each in a pod and a job of its own."""


def scenario(faults: Sequence[Fault], topology: ClusterTopology) -> str:
    """Return a cluster with a pod, a job and a fault for each of these faults."""
    lines = [
        "seconds = 900", "step_seconds = 5", "seed = 3",
        "[cluster]", f"pods = {topology.pods}", f"nodes_per_pod = {NODES_PER_POD}",
    ]  # fmt: skip
    for pod, fault in enumerate(faults):
        nodes = [pod * NODES_PER_POD + place for place in range(NODES_PER_POD)]
        devices: dict[str, Any] = {"nodes": [nodes[1]]}
        if FAULT_KINDS[fault.name].entity != "node":
            devices["indices"] = [RAIL]
        lines += [
            "[[jobs]]", f'name = "job-{pod}"', f"nodes = {nodes}", "checkpoint_period_seconds = 0",
            "[[faults]]", f'fault = "{fault.name}"', f"begin_seconds = {BEGIN_SECONDS}", "strength = 0.9",
            *(f"{key} = {json.dumps(value)}" for key, value in devices.items()),
        ]  # fmt: skip
    return "\n".join([*lines, ""])


async def start_cluster(site: ProgramDirectory, faults: Sequence[Fault]) -> dict[str, str]:
    """Start a collector and a simulated cluster; return the metrics endpoints of the nodes."""
    topology = ClusterTopology(len(faults), NODES_PER_POD)
    (site.directory / "scenario.toml").write_text(scenario(faults, topology))
    names = map(topology.node_name, range(topology.nodes))
    lines = [f'"{name}" = "{digest_token(f"token-{name}")}"\n' for name in names]
    (site.directory / "tokens.toml").write_text("[nodes]\n" + "".join(lines))
    await site.collector()
    simulator = ForkedProgram(
        "simulator",
        ["simulate", "cluster", "scenario.toml", "simulated", "--collector", site.url, "--listen", "127.0.0.1:0"],
        {**os.environ, "RAILSCOPE_AGENT_COLLECTOR__TOKEN": "token-{node}"},
    )  # fmt: skip
    site.programs.append(simulator)
    await simulator.start(site.directory)
    targets = site.directory / "simulated" / "targets.json"

    async def listens() -> bool:
        simulator.check_alive()
        return targets.exists()

    await wait_until(listens, "the simulated nodes serve their metrics")
    served = json.loads(targets.read_text())
    return {target["labels"]["node"]: target["targets"][0] for target in served}


async def wait_for_symptoms(watch: AlertingServers, wanted: set[tuple[str, str]]) -> None:
    """Wait until Alertmanager has had each of these alerts of these nodes, and inhibited it."""
    found = set[tuple[str, str]]()

    async def are_inhibited() -> bool:
        found.update(
            (labels["alertname"], labels.get("node", ""))
            for state, labels in await watch.alerts()
            if state == "suppressed"
        )
        return wanted <= found

    await wait_until(are_inhibited, f"Alertmanager inhibits {wanted}", every=0.5)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("faults", FAULTS)
async def test_each_fault_is_one_page(site: ProgramDirectory, faults: Sequence[Fault]) -> None:
    topology = ClusterTopology(len(faults), NODES_PER_POD)
    nodes = [topology.node_name(pod * NODES_PER_POD + 1) for pod in range(len(faults))]
    pages = [fault.page | {"node": node} for fault, node in zip(faults, nodes, strict=True)]
    symptoms = {
        (symptom, node)
        for fault, node in zip(faults, nodes, strict=True)
        for symptom in fault.symptoms
    }
    endpoints = await start_cluster(site, faults)
    async with run_alerting(site, endpoints, short=True, holds=True) as watch:
        await watch.wait_for_alerts(pages)
        if symptoms:
            await wait_for_symptoms(watch, symptoms)
        await watch.wait_for_evaluations(EVALUATIONS)
        active = [labels for state, labels in await watch.alerts() if state == "active"]
        found = [
            summary(each)
            for each in (*watch.hook.received, *active)
            if not each["alertname"].startswith(UNRELATED) and each["severity"] != "info"
        ]
        wanted = {summary(page) for page in pages}
        assert set(filter(is_critical, found)) == set(filter(is_critical, wanted))
        assert wanted <= set(found)
        # The class of an incident may change, and health is a fact: tickets about the same node.
        assert {labels[-2] for labels in found} == set(nodes)


def summary(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Labels of an alert that a page must have."""
    names = ("severity", "class", "alertname", "node", "device")
    return tuple(labels.get(name, "") for name in names)


def is_critical(labels: tuple[str, ...]) -> bool:
    """True for the labels of a page."""
    return labels[0] == "critical"
