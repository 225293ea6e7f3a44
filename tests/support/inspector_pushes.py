"""Pushes of NCCL Inspector as the plugin writes them (inspector_otel.cc), and an agent's receiver for them."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from support.clock import ManualClock
from support.inspector_logs import COMMUNICATOR, gpu_uuid
from support.reading import ORIGIN

from railscope.catalog import declare
from railscope.frame import Frame
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.endpoint.inspector_receiver import InspectorReceiver
from railscope_agent.gpus import inventory, process_lists
from railscope_agent.host.job_files import RankProcess
from railscope_agent.host.live_host import LiveHost
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources import nccl_inspector, nccl_metrics, source_bases
from railscope_agent.sources.inspector_pushes import InspectorPushes
from railscope_agent.sources.rank_places import RankPlaces, SeenProcess
from railscope_agent.topology.network import NetworkScanner

Point = tuple[str, dict[str, str], float]
"""Name, attributes and value."""
RESOURCE = {"service.name": "nccl-inspector", "slurm.job.id": "60937"}


def report_points(**values: float) -> list[Point]:
    """Return the points of one combination, as of `inspector_logs.metrics`."""
    attributes = {
        "gpu": "GPU0",
        "comm_name": "DP Group 0",
        "version": "v5.1",
        "node": "gpu-node-1",
        "n_nodes": "1",
        "nranks": "4",
        "message_size": "4-5MB",
        "collective": "AllReduce",
        "algo_proto": "Ring_ll",
    }
    names = {
        "bandwidth": "nccl_bus_bandwidth_gbs",
        "time": "nccl_collective_exec_time_microseconds",
    }
    return [(names[key], attributes, value) for key, value in values.items()]


def call_points(body: dict[str, Any], communicator: str = COMMUNICATOR) -> list[Point]:
    """Return the points of a call that a log has as `body`."""
    is_collective = "coll" in body
    prefix = "coll" if is_collective else "p2p"
    attributes = {
        "version": "v5.2",
        "node": "gpu-node-1",
        "gpu": "GPU0",
        "comm_name": "unknown",
        "comm_id": communicator,
        "n_nodes": "1",
        "nranks": "4",
        f"{prefix}_msg_size_bytes": str(body[f"{prefix}_msg_size_bytes"]),
        "collective" if is_collective else "p2p_operation": body[prefix],
        f"{prefix}_sn": str(body[f"{prefix}_sn"]),
    }
    attributes |= (
        {"algo_proto": "Ring_ll"} if is_collective else {"p2p_peer": str(body["p2p_peer"])}
    )
    operation = "collective" if is_collective else "p2p"
    return [
        (f"nccl_{'' if is_collective else 'p2p_'}bus_bandwidth_gbs", attributes, body[f"{prefix}_busbw_gbs"]),
        (f"nccl_{operation}_exec_time_microseconds", attributes, body[f"{prefix}_exec_time_us"]),
        (f"nccl_{operation}_algobw_gbs", attributes, body[f"{prefix}_algobw_gbs"]),
    ]  # fmt: skip


def attribute_list(attributes: dict[str, str]) -> list[dict[str, Any]]:
    """Return attributes as the plugin writes them."""
    return [{"key": key, "value": {"stringValue": text}} for key, text in attributes.items()]


def push_body(points: Sequence[Point]) -> bytes:
    """Return the body of a request."""
    metrics: dict[str, list[dict[str, Any]]] = {}
    for name, attributes, value in points:
        point = {
            "attributes": attribute_list(attributes),
            "timeUnixNano": "1795000000000000000",
            "asDouble": value,
        }
        metrics.setdefault(name, []).append(point)
    scope = {
        "scope": {"name": "nccl-inspector"},
        "metrics": [
            {"name": name, "description": "", "unit": "GB/s", "gauge": {"dataPoints": found}}
            for name, found in sorted(metrics.items())
        ],
    }
    resource = {"attributes": attribute_list(RESOURCE)}
    whole = {"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}
    return json.dumps(whole, separators=(",", ":")).encode()


class PushedNode:
    """An agent's receiver, and the sources that read its pushes; this process is on a GPU."""

    def __init__(self, directory: str = "") -> None:
        self.clock = ManualClock()
        self.host = LiveHost(Path("/"), self.clock)
        self.places = RankPlaces(
            inventory.GpuInventory(NetworkScanner()), process_lists.ProcessLists(), lambda _: ()
        )
        self.add_process(os.getpid())
        self.pushes = InspectorPushes(self.places)
        results, listen = source_bases.ReportedReadings(), "127.0.0.1:0"
        settings = CollectiveSettings(
            nccl_inspector_directory=directory, nccl_inspector_listen=listen
        )
        inspector = nccl_inspector.NcclInspectorSource(settings, self.places, results, self.pushes)
        metrics = nccl_metrics.NcclMetricsSource(settings, self.places, self.pushes)
        self.totals = results
        self.inspector = inspector
        self._inspector = SourceReader(inspector, self.host, ORIGIN)
        self._metrics = SourceReader(metrics, self.host, ORIGIN)
        self.receiver = InspectorReceiver(listen, self.pushes, self.host, lambda: 0.0, lambda: 0.0)

    def add_process(self, pid: int, gpus: Sequence[int] = (0,), **facts: str) -> None:
        """Add a process of this user on GPUs."""
        process = RankProcess(int(facts.pop("user", os.geteuid())), None, [], pid)
        uuids = frozenset(map(gpu_uuid, gpus))
        seen_ns = self.clock.now().boot_ns
        self.places.processes[pid] = SeenProcess(process, facts | {"pid": str(pid)}, seen_ns, uuids)

    def read(self) -> Frame:
        """Return a frame of the source of logs."""
        return self._read(self._inspector)

    def read_metrics(self) -> Frame:
        """Return a frame of the source of metrics files, in which no column is missing."""
        self._read(self._metrics)
        return self._read(self._metrics)

    @staticmethod
    def _read(reader: SourceReader) -> Frame:
        outcome = reader.run()
        assert not outcome.problem, outcome.problem
        assert outcome.frame
        return outcome.frame

    def counts(self, metric: declare.Metric) -> dict[str, int]:
        """Return counts by result, without those of none."""
        readings = self.read().readings()
        return {e.key[0]: int(n) for found, e, n in readings if found is metric and n}  # type: ignore[arg-type]

    async def post(
        self, body: bytes, path: str = "/v1/metrics", host: str = "127.0.0.1", **headers: str
    ) -> tuple[int, bytes]:
        """Send a request of this process; return status and body of the response."""
        given = {"Content-Type": "application/json"}
        given |= {name.replace("_", "-"): text for name, text in headers.items()}
        _, port = self.receiver.address
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"http://{host}:{port}{path}", data=io.BytesIO(body), headers=given
            ) as response,
        ):
            return response.status, await response.read()


@asynccontextmanager
async def receiving_node(given: PushedNode | None = None) -> AsyncIterator[PushedNode]:
    """Run the receiver of a node, by default a new one."""

    node = given or PushedNode()
    task = asyncio.create_task(node.receiver.run())
    try:
        await node.receiver.is_listening.wait()
        yield node
    finally:
        task.cancel()
        await asyncio.wait({task})
