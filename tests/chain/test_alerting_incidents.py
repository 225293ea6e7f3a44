"""One page per fault: an incident of a collector, its symptoms on agents, and both without the collector."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from alerting_support import SHORT, run_alerting
from chain_support import ProgramDirectory
from support.incidents import NIC, incident

from railscope_collector.diagnosis.incident_table import IncidentTable
from railscope_collector.diagnosis.ranking import Reach
from railscope_simulator.demo.process import free_port

REACH = Reach(("nic", 0, ""), frozenset({"n1", "n2"}), frozenset({"3"}), frozenset())
STORM = incident("storm", REACH, severity="critical", **{"class": "pfc_storm"})
PAGE = {"alertname": "RailscopeIncident", "incident": "storm", "class": "pfc_storm", "node": "n1"}
ETH3 = {"interface": "eth3"}
SYMPTOMS = [
    {"alertname": "RailscopePfcStorm", "severity": "critical", "node": "n1", **ETH3},
    {"alertname": "RailscopePfcPauseShare", "severity": "critical", "node": "n1", **ETH3},
    {"alertname": "RailscopeLosslessDiscards", "severity": "critical", "node": "n1", **ETH3},
    {"alertname": "RailscopePfcPauseShare", "severity": "critical", "node": "n2", **ETH3},
]
"""The storm on the port that is its cause, and received pause on a port of its rail."""
OTHERS = [
    {"alertname": "RailscopePfcStorm", "severity": "critical", "node": "n1", "interface": "eth4"},
    {"alertname": "RailscopePfcPauseShare", "node": "n2", "interface": "eth4"},
    {"alertname": "RailscopeGpuMemoryFailed", "severity": "critical", "node": "n1"},
    {"alertname": "RailscopeAuditRecordsLost", "severity": "critical"},
]
"""Facts about other devices of the same nodes, another rail, and the audit log."""


@dataclass
class MetricsPages:
    """Metrics endpoints on loopback, with the text of each at the time of the scrape."""

    symptoms_since: float = 0.0
    others_since: float = 0.0
    runners: list[web.AppRunner] = field(default_factory=list)

    async def serve(self, port: int, lines: Callable[[], Iterator[str]]) -> web.AppRunner:
        """Start an endpoint."""

        async def answer(_: web.Request) -> web.Response:
            return web.Response(text="".join(f"{line}\n" for line in lines()))

        app = web.Application()
        app.router.add_get("/metrics", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.runners.append(runner)
        return runner

    def collector(self) -> Iterator[str]:
        """Yield the metrics of the diagnosis, and a counter of the audit log."""
        for cell in IncidentTable(1, (STORM,)).cells():
            labels = zip(cell.metric.about.labels, cell.labels, strict=True)
            text = ",".join(f'{name}="{value}"' for name, value in labels)
            yield f"{cell.metric.name}{{{text}}} {cell.value}"
        yield "railscope_diagnosis_age_seconds 9"
        yield f"railscope_audit_lost_records_total {_count(self.others_since)}"

    def cause(self) -> Iterator[str]:
        """Yield the metrics of the node with the storm; another port and a GPU fail later."""
        for interface, since in (("eth3", self.symptoms_since), ("eth4", self.others_since)):
            port, seconds = f'interface="{interface}"', _count(since)
            yield _nic(interface)
            yield f'railscope_nic_setting_pfc_enabled{{{port},priority="3"}} 1'
            yield f"railscope_nic_transmit_pause_storm_errors_total{{{port}}} {seconds:.0f}"
            if interface == "eth3":
                yield f'railscope_nic_transmit_pfc_pause_seconds_total{{{port},priority="3"}} {0.9 * seconds}'
                yield f'railscope_nic_priority_receive_discarded_packets_total{{{port},priority="3"}} {seconds}'
        yield f'railscope_gpu_row_remap_failure{{gpu="GPU-1"}} {bool(self.others_since):d}'

    def victim(self) -> Iterator[str]:
        """Yield the metrics of a node whose port on the same rail is paused; another one is later."""
        for interface, since in (("eth3", self.symptoms_since), ("eth4", self.others_since)):
            yield _nic(interface)
            pause = 0.8 * _count(since)
            yield f'railscope_nic_receive_pfc_pause_seconds_total{{interface="{interface}",priority="3"}} {pause}'


def _nic(interface: str) -> str:
    rail = interface[-1]
    return (
        f'railscope_nic_info{{interface="{interface}",rdma_device="mlx5_{rail}",rail="{rail}"}} 1'
    )


def _count(since: float) -> float:
    return time.monotonic() - since if since else 0.0


@asynccontextmanager
async def pages() -> AsyncIterator[MetricsPages]:
    served = MetricsPages()
    try:
        yield served
    finally:
        for runner in served.runners:
            await runner.cleanup()


async def test_a_fault_is_one_page_and_without_a_collector_its_symptoms_are(
    site: ProgramDirectory,
) -> None:
    ports = {"n1": free_port(), "n2": free_port()}
    addresses = {node: f"127.0.0.1:{port}" for node, port in ports.items()}
    async with pages() as served, run_alerting(site, addresses, SHORT) as watch:

        def notified() -> set[tuple[str, str]]:
            ignored = {"RailscopeDeadMansSwitch", "RailscopeCollectorDown"}
            return {
                (labels["alertname"], labels.get("node", ""))
                for labels in watch.hook.received
                if labels["alertname"] not in ignored
            }

        collector = await served.serve(site.port, served.collector)
        await served.serve(ports["n1"], served.cause)
        await served.serve(ports["n2"], served.victim)
        await watch.wait_for_alerts([PAGE])
        port = {"alertname": "RailscopeIncidentReach", "scope": "port", "node": "n2", **ETH3}
        await watch.alertmanager_has("active", [port])
        served.symptoms_since = time.monotonic()
        await watch.alertmanager_has("suppressed", SYMPTOMS)
        assert notified() == {("RailscopeIncident", NIC["node"])}
        served.others_since = time.monotonic()
        await watch.wait_for_alerts(OTHERS)
        assert [labels for labels in SYMPTOMS if watch.hook.has(labels)] == []
        await collector.cleanup()
        await watch.wait_for_alerts(SYMPTOMS)
