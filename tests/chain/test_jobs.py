"""A job over two nodes with one overheated GPU: holders, and the device that delays the job."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import aiohttp
from chain_support import ProgramDirectory, wait_until

from railscope_simulator import NodeSpec

CAPTURE_SECONDS = 26
SLOW = -0.05
HOT = "n1"
SPECS = [
    NodeSpec(node=HOT, seed=5, gpus=2, scenario="thermal", scheduler="slurm"),
    NodeSpec(node="n2", seed=5, gpus=2, scenario="training", scheduler="slurm"),
    NodeSpec(node="n3", seed=6, gpus=2, scenario="idle", scheduler="slurm"),
]
"""Nodes of one seed run one job; that of the third has none."""


async def page(site: ProgramDirectory) -> str:
    """Return the collector's metrics."""
    async with aiohttp.ClientSession() as session, session.get(f"{site.url}/metrics") as response:
        return await response.text()


def series(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Return the samples of a metric."""
    lines = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE)
    return [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in lines]


async def test_a_job_over_two_servers_and_the_gpu_it_waits_for(site: ProgramDirectory) -> None:
    site.prepare_all(SPECS, CAPTURE_SECONDS)
    await site.collector(RAILSCOPE_COLLECTOR_STRAGGLER_TIME_CONSTANT_SECONDS="1")
    await asyncio.gather(*(site.agent(spec.node) for spec in SPECS))
    behind: dict[str, Any] = {}

    async def named() -> bool:
        rows = (await site.get("/api/v1/jobs"))["rows"]
        if not rows or rows[0]["nodes"] != 2:
            return False
        (job,) = rows
        found = {s["measure"]: s for s in job["stragglers"]}["sm_clock"]
        behind.update(found, job=job)
        return found.get("deviation_ratio", 0) < SLOW

    await wait_until(named, "the job is there, and a GPU of it behind the others")
    job = behind["job"]
    assert (job["tenant"], job["source"]) == ("slurm:research", "slurm")
    assert (job["gpus"], job["stale_gpus"], job["shared_gpus"]) == (4.0, 0, 0)
    assert behind["node"] == HOT

    whole = await site.get(f"/api/v1/jobs/slurm:research/slurm/{job['workload']}")
    assert sorted((p["node"], p["index"]) for p in whole["places"]) == [
        ("n1", "0"),
        ("n1", "1"),
        ("n2", "0"),
        ("n2", "1"),
    ]
    (hot,) = [place for place in whole["places"] if place["gpu"] == behind["gpu"]]
    assert hot["index"] == str(SPECS[0].affected_index)

    async def is_reported() -> bool:
        text = await page(site)
        found = [
            labels
            for labels, value in series(text, "railscope_job_straggler_deviation_ratio")
            if labels["measure"] == "sm_clock" and value < SLOW
        ]
        return any((one["node"], one["gpu"]) == (HOT, behind["gpu"]) for one in found)

    await wait_until(is_reported, "the metric names the hot GPU")
    text = await page(site)
    holders = [labels for labels, _ in series(text, "railscope_gpu_holder_info")]
    assert {holder["node"] for holder in holders} == {"n1", "n2"}
    assert {holder["workload"] for holder in holders} == {job["workload"]}
    assert {holder["tenant"] for holder in holders} == {"slurm:research"}
    ((labels, value),) = series(text, "railscope_job_mean_gpu_sm_activity_ratio")
    assert labels["workload"] == job["workload"]
    assert 0 < value <= 1
