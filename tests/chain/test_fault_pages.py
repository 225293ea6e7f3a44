"""From simulated faults to pages: a cluster, a collector with its diagnosis, real Prometheus and Alertmanager.

A fault is one notification: a page or a ticket, as the severity of its incident states; advice has none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from alerting_support import AlertingServers, RuleTimes, run_alerting
from chain_support import ProgramDirectory
from support.forked_program import ForkedProgram
from support.waiting import wait_until

from railscope_collector.access.credentials import digest_token
from railscope_simulator.cluster.cluster_model import ClusterModel
from railscope_simulator.cluster.scenario import FAULT_KINDS, ClusterScenario, read_scenario
from railscope_simulator.cluster.topology import ClusterTopology
from railscope_simulator.lldp_neighbours import leaf_name
from railscope_simulator.nfs_mounts import server_name
from railscope_simulator.node_hardware import build_node_hardware
from railscope_simulator.owners import slurm_job_number

NODES_PER_POD, RAIL = 3, 3
TIMES = RuleTimes(scrape_seconds=2, agent_scrapes=3, short=True, holds=True)
EVALUATIONS = 20
"""Evaluations after which alerts on symptoms fire too: their `for` of up to 15 minutes is up to 15 evaluations here."""
CLUSTER_PATIENCE_SECONDS = 600.0
"""Several clusters run at the same time, each with a Prometheus that scrapes all nodes every six seconds."""
UNRELATED = ("RailscopeDeadMansSwitch", "RailscopeAudit", "RailscopeMetering")
"""Begin of the names of alerts that are not about nodes: audit log and metering are behind the shortened rules."""


class Fault(NamedTuple):
    """A fault of the simulator, and the severity of its incident: advice (`info`) has no notification."""

    name: str
    severity: str
    rails: tuple[int, ...] = (RAIL,)
    """Rails of its NICs or of its leaf, and indices of its GPUs."""
    entity: str = ""
    """Kind of the cause, if it is not that of the fault."""
    earlier: tuple[tuple[str, str], ...] = ()
    """Severity and class of incidents of the same device that it explains: what is known of it before."""
    symptoms: tuple[str, ...] = ()
    """Alerts on symptoms of the same node, which its incident inhibits."""
    length_seconds: int = 0
    """Duration; 0 if it does not end. Faults of several stages go through them in this time."""


class FaultCluster(NamedTuple):
    """A cluster with a pod and a job for each fault."""

    faults: Sequence[Fault]
    step_seconds: int = 5
    begin_seconds: int = 40
    """Onset of the faults: what changes a job or its storage is compared with minutes of past."""
    model: str = "gb200"
    """GPU model: nodes with four GPUs are cheaper to simulate and to scrape."""

    @property
    def topology(self) -> ClusterTopology:
        """Return the topology."""
        return ClusterTopology(len(self.faults), NODES_PER_POD)

    def nodes_of(self, pod: int) -> list[int]:
        """Return the nodes of a pod."""
        return list(range(pod * NODES_PER_POD, (pod + 1) * NODES_PER_POD))

    def scenario(self) -> str:
        """Return the scenario file. The faults of storage are those of a server that only one job uses."""
        lines = [
            "seconds = 1800", f"step_seconds = {self.step_seconds}", "seed = 3",
            "[cluster]", f"pods = {self.topology.pods}", f"nodes_per_pod = {NODES_PER_POD}",
            "uplinks = 0.5", "filers = 2", f"model = {json.dumps(self.model)}",
        ]  # fmt: skip
        for pod, fault in enumerate(self.faults):
            kind, nodes = FAULT_KINDS[fault.name], self.nodes_of(pod)
            job: dict[str, Any] = {"name": f"job-{pod}", "checkpoint_period_seconds": 0}
            devices: dict[str, Any] = {"nodes": [nodes[1]]}
            if kind.entity in {"nic", "gpu"}:
                devices["indices"] = fault.rails
            elif kind.entity == "leaf":
                devices = {"pods": [pod], "indices": fault.rails}
            elif kind.entity == "job":
                devices = {"job": job["name"]}
            elif kind.entity == "storage":
                devices, job["filer"] = {"filers": [1]}, 1
            if "incast" in kind.effects:
                devices["senders"] = nodes[:1] + nodes[2:]
            if fault.name == "noisy_neighbour":
                del nodes[1]
            job["nodes"] = nodes
            devices |= {"fault": fault.name, "begin_seconds": self.begin_seconds, "strength": 0.9}
            devices["length_seconds"] = fault.length_seconds
            for table, keys in (("jobs", job), ("faults", devices)):
                lines += [
                    f"[[{table}]]",
                    *(f"{key} = {json.dumps(value)}" for key, value in keys.items()),
                ]
        return "\n".join([*lines, ""])

    def pages(self, scenario: ClusterScenario) -> Iterator[dict[str, str]]:
        """Yield the labels of the alert on the incident of each fault."""
        specs = ClusterModel(scenario).specs
        interfaces = {port.rail: port.interface for port in build_node_hardware(specs[0]).ports}
        for pod, fault in enumerate(self.faults):
            kind, nodes = FAULT_KINDS[fault.name], self.nodes_of(pod)
            entity, (rail, *_) = fault.entity or kind.entity, fault.rails
            node = self.topology.node_name(nodes[1])
            cause = {
                "nic": {"node": node, "device": interfaces[rail], "rail": str(rail)},
                "gpu": {"node": node, "device": str(rail)},
                "node": {"node": node},
                "leaf": {"rail": str(rail), "device": leaf_name(pod, rail)},
                "job": {"device": str(slurm_job_number(specs[nodes[0]]))},
                "storage": {"device": server_name(1).partition(":")[0]},
            }[entity]
            yield {
                "alertname": "RailscopeIncident", "class": kind.incident_class, "severity": fault.severity,
                "kind": entity, **cause,
            }  # fmt: skip


WITH_SYMPTOMS = FaultCluster((
    Fault("gpu_lost", "critical", symptoms=("RailscopeGpuXid", "RailscopeGpuLost")),
    Fault("pfc_storm", "critical", earlier=(("warning", "slow_receiver"),), symptoms=("RailscopePfcStorm", "RailscopePfcPauseShare")),
    Fault("transceiver", "critical", symptoms=("RailscopeFecErrors",)),
), model="h100")  # fmt: skip
RECEIVERS = FaultCluster((
    Fault("host_bound_receiver", "warning", (0, 1), "node"),
    Fault("pause_storm_prevention", "critical", (0,), earlier=(("warning", "pcie_bound_receiver"),)),
    Fault("notifications_off", "warning", (1,)),
    Fault("rate_control_off", "warning", (2,)),
    Fault("retransmission_storm", "warning", (3,)),
    Fault("link_flap", "warning", (0,)),
    Fault("pcie_degraded", "warning", (1,)),
), step_seconds=10)  # fmt: skip
LEAVES = FaultCluster((
    Fault("leaf_drops", "warning"),
    Fault("pfc_off", "warning", (1,), earlier=(("warning", "leaf_loss"),)),
    Fault("ecn_off", "warning", (2,)),
), begin_seconds=120)  # fmt: skip
SHARED = FaultCluster((
    Fault("node_partition", "warning"),
    Fault("incast", "warning", (0,)),
    Fault("noisy_neighbour", "warning", (1,)),
    Fault("link_speed", "warning", (2,), earlier=(("critical", "transceiver_degraded"),), length_seconds=150),
    Fault("storage_slow", "warning"),
), begin_seconds=200)  # fmt: skip
JOBS = FaultCluster((
    Fault("node_down", "critical"),
    Fault("slow_gpu", "warning"),
    Fault("late_host", "warning"),
    Fault("slow_input", "warning"),
    Fault("busy_loader", "warning"),
    Fault("missing_rank", "critical", entity="job"),
    Fault("hung_collective", "critical"),
    Fault("mount_slow", "warning"),
), step_seconds=10, begin_seconds=240)  # fmt: skip
CLUSTERS = {
    "leaves": LEAVES,
    "shared": SHARED,
    "jobs": JOBS,
    "receivers": RECEIVERS,
    "with-symptoms": WITH_SYMPTOMS,
}


async def start_cluster(site: ProgramDirectory, cluster: FaultCluster) -> dict[str, str]:
    """Start a collector and a simulated cluster; return the metrics endpoints of the nodes."""
    (site.directory / "scenario.toml").write_text(cluster.scenario())
    names = map(cluster.topology.node_name, range(cluster.topology.nodes))
    lines = [f'"{name}" = "{digest_token(f"token-{name}")}"\n' for name in names]
    (site.directory / "tokens.toml").write_text("[nodes]\n" + "".join(lines))
    await site.collector(RAILSCOPE_COLLECTOR_VIEW_REFRESH_SECONDS="2")
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

    await wait_until(
        are_inhibited,
        f"Alertmanager inhibits {wanted}",
        every=0.5,
        patience=CLUSTER_PATIENCE_SECONDS,
    )


async def wait_for_incident(site: ProgramDirectory) -> None:
    """Wait for the first incident: the time before needs no Prometheus, which takes processor time."""

    async def is_open() -> bool:
        path = "/api/v1/incidents?state=open"
        return await site.answers(path) and bool((await site.get(path))["rows"])

    await wait_until(
        is_open, "the collector reports an incident", every=1, patience=CLUSTER_PATIENCE_SECONDS
    )


@pytest.mark.thorough  # each takes minutes in real time
@pytest.mark.timeout(4 * CLUSTER_PATIENCE_SECONDS)
@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
async def test_each_fault_is_one_page(site: ProgramDirectory, cluster: FaultCluster) -> None:
    endpoints = await start_cluster(site, cluster)
    pages = list(cluster.pages(read_scenario(site.directory / "scenario.toml")))
    earlier = {
        summary(page | {"severity": severity, "class": name})
        for fault, page in zip(cluster.faults, pages, strict=True)
        for severity, name in fault.earlier
    }
    symptoms = {
        (symptom, page["node"])
        for fault, page in zip(cluster.faults, pages, strict=True)
        for symptom in fault.symptoms
    }
    await wait_for_incident(site)
    async with run_alerting(site, endpoints, TIMES) as watch:
        notified = [page for page in pages if page["severity"] != "info"]
        await watch.wait_for_alerts(notified, CLUSTER_PATIENCE_SECONDS)
        await watch.alertmanager_has("active", [page for page in pages if page not in notified])
        if symptoms:
            await wait_for_symptoms(watch, symptoms)
        await watch.wait_for_evaluations(EVALUATIONS, CLUSTER_PATIENCE_SECONDS)
        active = [labels for state, labels in await watch.alerts() if state == "active"]
        found = list(filter(is_about_fault, (*watch.hook.received, *active)))
        wanted = set(map(summary, notified))
        summaries = set(map(summary, found))
        assert wanted <= summaries
        # An incident is one notification. Its class may change, of the same device.
        incidents = {each["incident"]: summary(each) for each in found if "incident" in each}
        assert set(incidents.values()) - earlier == wanted
        assert len(incidents) == len(set(incidents.values()))
        assert set(filter(is_critical, summaries)) - earlier == set(filter(is_critical, wanted))
        # Health is a fact: tickets about the same node.
        nodes = {page.get("node", "") for page in pages}
        assert [labels for labels in sorted(summaries) if labels[-2] not in nodes] == []


def summary(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Labels of an alert that a page must have."""
    names = ("severity", "class", "alertname", "node", "device")
    return tuple(labels.get(name, "") for name in names)


def is_about_fault(labels: Mapping[str, str]) -> bool:
    """True for alerts with a notification; a busy machine may not answer the scrapes of Prometheus in time."""
    if labels["severity"] == "info" or labels["alertname"].startswith(UNRELATED):
        return False
    return labels.get("reported_by") != "prometheus"


def is_critical(labels: tuple[str, ...]) -> bool:
    """True for the labels of a page."""
    return labels[0] == "critical"
