"""Third-party servers: Prometheus scrapes our metrics, VictoriaMetrics ingests our lines."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest
from chain_support import ProgramDirectory, debian_server, wait_until

from railscope_simulator.demo.process import free_port

CLUSTER_POWER = "railscope_cluster_sum_gpu_power_watts"


async def query(port: int, expression: str) -> dict[str, float]:
    """Run an instant query; return label sets (without the name) with values."""
    url = f"http://127.0.0.1:{port}/api/v1/query"
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, params={"query": expression}) as response,
        ):
            answer = await response.json()
    except (aiohttp.ClientError, json.JSONDecodeError):
        return {}
    found = {}
    for series in answer.get("data", {}).get("result", []):
        labels = {k: v for k, v in series["metric"].items() if k not in {"__name__", "db"}}
        found[json.dumps(labels, sort_keys=True)] = float(series["value"][1])
    return found


@pytest.mark.thorough
async def test_victoria_metrics_takes_the_views_as_line_protocol(
    site: ProgramDirectory, tmp_path: Path
):
    site.prepare({"n1": "training"})
    port = free_port()
    environment = {
        "RAILSCOPE_COLLECTOR_INFLUX__URL": f"http://127.0.0.1:{port}",
        "RAILSCOPE_COLLECTOR_INFLUX__PERIOD_SECONDS": "0.5",
    }
    collector = await site.collector(**environment)
    await site.agent("n1")
    await collector.find_logged("sink_connection_failed")
    command = [
        "victoria-metrics",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-storageDataPath=vm",
        "-influxSkipSingleField",
        "-search.latencyOffset=0s",
    ]
    async with debian_server("victoria-metrics", *command, directory=tmp_path):
        await collector.find_logged("sink_connected")

        async def written() -> bool:
            rails = await query(port, "railscope_rail_sum_gpu_power_watts")
            return len(rails) == 2 and bool(await query(port, CLUSTER_POWER))

        await wait_until(written, "VictoriaMetrics shows the power of the rails and the cluster")
        rails = await query(port, "railscope_rail_sum_gpu_power_watts")
        assert {json.loads(labels)["rail"] for labels in rails} == {"0", "1"}
        cluster = await query(port, CLUSTER_POWER)
        assert list(cluster) == ["{}"]
        assert sum(rails.values()) > 0
