"""Third-party servers: Prometheus scrapes our metrics, VictoriaMetrics ingests our lines."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest
import yaml
from chain_support import ProgramDirectory, debian_server, wait_until

from railscope_simulator.demo.process import free_port

RULES = Path(__file__).parents[2] / "alerts" / "rules"

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
async def test_prometheus_scrapes_agent_and_collector(site: ProgramDirectory, tmp_path: Path):
    site.prepare({"n1": "training"})
    await site.collector()
    agent = await site.agent("n1")
    page = await agent.find_logged(r"agent_started .*address=(\S+:\d+)")
    config = {
        "global": {"scrape_interval": "500ms"},
        "rule_files": [str(RULES / "*.yml")],
        "scrape_configs": [
            {
                "job_name": "railscope-agent",
                "static_configs": [{"targets": [page[1]], "labels": {"node": "n1"}}],
            },
            {
                "job_name": "railscope-collector",
                "honor_labels": True,
                "static_configs": [{"targets": [f"127.0.0.1:{site.port}"]}],
            },
        ],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    async with debian_server("prometheus", *command, directory=tmp_path):

        async def scraped() -> bool:
            power = await query(port, "railscope_gpu_power_watts")
            total = await query(port, CLUSTER_POWER)
            return len(power) == 2 and len(total) == 1

        await wait_until(scraped, "Prometheus has both the agent's and the collector's GPU power")
        assert len(await query(port, "up == 1")) == 2
        joined = await query(
            port, "railscope_gpu_power_watts * on (gpu) group_left (index) railscope_gpu_info"
        )
        assert {json.loads(labels)["index"] for labels in joined} == {"0", "1"}
        reporting = await query(port, 'railscope_node_reporting{node="n1"}')
        assert list(reporting.values()) == [1.0]
        counters = await query(port, "railscope_rdma_transmit_bytes_total")
        assert counters
        assert all(value > 0 for value in counters.values())


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
