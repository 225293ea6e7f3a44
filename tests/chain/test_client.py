"""The terminal client with a real collector and real agents of simulated nodes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from chain_support import ProgramDirectory
from support.command_line import run, run_process
from support.waiting import wait_until

from railscope.service import run_in_thread
from railscope_simulator import NodeSpec

SPECS = [
    NodeSpec(node="n1", seed=5, gpus=2, scenario="training", scheduler="slurm"),
    NodeSpec(node="n2", seed=5, gpus=2, scenario="training", scheduler="slurm"),
]
TABLES = ("nodes", "jobs", "incidents", "tenants")


async def command(*arguments: str) -> tuple[int, str]:
    """Run a command, without a process of its own; return its exit status and its output."""
    outcome = await run_in_thread(run, *arguments)
    return outcome.exit_code, outcome.stdout


async def test_an_operator_reads_a_cluster_and_a_node(site: ProgramDirectory) -> None:
    site.prepare_all(SPECS, 40)
    await site.collector()
    first, _ = await asyncio.gather(*(site.agent(spec.node) for spec in SPECS))
    status: dict[str, Any] = {}

    async def is_known() -> bool:
        code, output = await command("status", "--json", "--collector", site.url)
        status.update(json.loads(output))
        assert status["exit_status"] == code
        return (
            status["status"] != "unknown"
            and bool(status["jobs"])
            and sum((status["gpus"] or {}).values()) == 4
        )

    await wait_until(is_known, "the cluster has been diagnosed", every=0.5)
    assert sum(status["nodes"].values()) == 2
    for name in TABLES:
        code, output = await command(name, "--collector", site.url)
        assert code == 0
        assert max(map(len, output.splitlines())) <= 80
    assert "slurm:research" in (await command("tenants", "--collector", site.url))[1]
    assert [line.split()[0] for line in output.splitlines()] == ["TENANT", "slurm:research"]

    listed: list[dict[str, Any]] = []

    async def are_read() -> bool:
        code, output = await command("gpus", "--json", "--collector", site.url)
        assert code == 0
        listed[:] = json.loads(output)["gpus"]
        known = (row for row in listed if row["health"] != "unknown")
        return len(listed) == sum(row["utilization_ratio"] is not None for row in known) == 4

    await wait_until(are_read, "the GPUs of all nodes have readings and verdicts", every=0.5)
    assert {(row["node"], row["rail"]) for row in listed} == {
        ("n1", 0),
        ("n1", 1),
        ("n2", 0),
        ("n2", 1),
    }
    assert all(len(row["nics"]) == 1 and row["link_up"] for row in listed)
    assert {row["health"] for row in listed} <= {"healthy", "degraded", "failed"}
    assert sum(row["receive_bytes_per_second"] is not None for row in listed) == 4
    code, output = await command("gpus", "--rail", "1", "--collector", site.url)
    assert (code, len(output.splitlines())) == (0, 3)

    code, output = await command("nodes", "--json", "--collector", site.url)
    assert (code, len(json.loads(output)["nodes"])) == (0, 2)

    match = first.find(r"agent_started .*address=(\S+:\d+)")
    assert match
    agent = f"http://{match[1]}"
    code, output = await command("status", "--json", "--agent", agent)
    assert sum(json.loads(output)["gpus"].values()) == 2
    code, output = await command("nodes", "--agent", agent)
    assert (code, len(output.splitlines())) == (0, 3)
    await first.stop()

    async def is_stale() -> bool:
        _, output = await command("nodes", "--state", "unknown", "--collector", site.url)
        return any(line.startswith("n1 ") for line in output.splitlines())

    await wait_until(is_stale, "the node is stale", every=1)
    _, output = await command("status", "--json", "--collector", site.url)
    gpus = json.loads(output)["gpus"]
    assert (sum(gpus.values()), gpus["unknown"]) == (4, 2), "a stale node stays in the sums"
    outcome = await run_in_thread(run_process, "status", "--agent", agent)
    assert outcome.returncode == 3
    assert "Traceback" not in outcome.stderr
