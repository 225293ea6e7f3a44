"""Longer history from a real Prometheus: values, hostile names, gaps, failures with their reasons."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
from aiohttp import web
from prometheus_support import running_prometheus

from railscope_collector.config import ConsoleSettings
from railscope_collector.console import group_curves
from railscope_collector.console.curves import HistoryCurve, TimeRange
from railscope_collector.console.device_figures import (
    GPU_FIGURES,
    NIC_FIGURES,
    node_figures,
)
from railscope_collector.console.history_server import HistoryServer, device_queries, quoted
from railscope_collector.http import ResourceError
from railscope_collector.workloads.job_roster import JobKey

HOSTILE = 'n"1\\}) or vector(7) #'
LABELS = {
    "gpu": {"gpu": ["GPU-1"]},
    "nic": {"interface": ["eth0"], "device": ["mlx5.0"]},
    "rail 0": {"device": ["mlx5.0"]},
    "rail 1": {"device": ["mlx5x0"]},
}
FIGURES = [*GPU_FIGURES, *NIC_FIGURES, *node_figures([0, 1])]
JOB = JobKey("red", "slurm", 'j"}) or vector(8) #')
QUERIES = device_queries(GPU_FIGURES, "n1", LABELS)
SECOND_NS, HOUR = 1_000_000_000, 3600
END = int(time.time()) // HOUR * HOUR - HOUR
START = END - 10 * HOUR


def utilization(minute: int) -> float:
    """Return half, and nine tenths in one minute."""
    return 0.9 if minute == 77 else 0.5


def samples() -> str:
    """Ten hours in OpenMetrics: a burst of one minute, an hour without samples, and other nodes, devices, jobs and rails."""
    gpu, sent = "gauge railscope_gpu_utilization_ratio", "counter railscope_rdma_transmit_bytes"
    busy, step = "counter railscope_cpu_seconds", "gauge railscope_job_step_seconds"
    paused = "gauge railscope_rail_max_nic_receive_pfc_pause_ratio"
    eth = f'node={quoted(HOSTILE)},interface="eth0"'
    node, job = quoted(HOSTILE), f'source="slurm",workload={quoted(JOB.workload)}'
    series: list[tuple[str, str, Callable[[int], float]]] = [
        (gpu, f'node={node},gpu="GPU-1"', utilization),
        (gpu, 'node="n2",gpu="GPU-1"', lambda _: 50),
        (gpu, f'node={node},gpu="GPU-2"', lambda _: 60),
        (sent, f'node={node},device="mlx5.0",port="1"', lambda minute: minute * 6e9),
        (sent, f'node={node},device="mlx5x0",port="1"', lambda minute: minute * 12e9),
        (sent, 'node="n2",device="mlx5.0",port="1"', lambda minute: minute * 6e11),
        (busy, f'node={node},mode="user"', lambda minute: minute * 120),
        (busy, f'node={node},mode="system"', lambda minute: minute * 60),
        (busy, f'node={node},mode="idle"', lambda minute: minute * 600),
        (step, f'tenant="red",{job}', lambda _: 2.5),
        (step, f'tenant="blue",{job}', lambda _: 9),
        ("counter railscope_nic_receive_pfc_pause_seconds", f'{eth},priority="3"', lambda _: 0),
        (
            "counter railscope_nic_transmit_pfc_pause_seconds",
            f'{eth},priority="3"',
            lambda minute: minute * 15,
        ),
        (
            "counter railscope_nic_transmit_pfc_pause_seconds",
            f'{eth},priority="4"',
            lambda minute: minute * 15,
        ),
        ("counter railscope_nic_receive_global_pause_seconds", eth, lambda minute: minute * 61),
        ("counter railscope_nic_transmit_global_pause_seconds", eth, lambda _: 0),
        ("counter railscope_nic_receive_pfc_pause_frames", f'{eth},priority="3"', lambda _: 0),
        ("counter railscope_nic_receive_global_pause_frames", eth, lambda minute: minute * 600),
        (paused, 'rail="3",priority="3"', lambda _: 0.25),
        (paused, 'rail="3",priority="4"', lambda _: 0.5),
        (paused, 'rail="4",priority="3"', lambda _: 0.75),
    ]
    lines, before = [], ""
    for family, labels, value in series:
        kind, name = family.split()
        if name != before:
            lines.append(f"# TYPE {name} {kind}")
        before, suffix = name, "_total" if kind == "counter" else ""
        lines += [
            f"{name}{suffix}{{{labels}}} {value(minute)} {START + minute * 60}"
            for minute in (*range(300), *range(360, 600))
        ]
    return "\n".join([*lines, "# EOF", ""])


@asynccontextmanager
async def prometheus(directory: Path) -> AsyncIterator[str]:
    (directory / "samples.txt").write_text(samples())
    blocks = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "samples.txt", "tsdb"]
    made = await asyncio.create_subprocess_exec(
        *blocks, cwd=directory, stdout=asyncio.subprocess.DEVNULL
    )
    assert await made.wait() == 0
    options = "--storage.tsdb.path=tsdb", "--storage.tsdb.retention.time=10y"
    async with running_prometheus(directory, {}, *options) as running:
        yield running.url


def points(curve: HistoryCurve) -> set[float]:
    return {round(value, 6) for value in curve.values.tolist() if value == value}  # noqa: PLR0124 - NaN


async def test_the_curves_of_hours_have_their_extremes_and_gaps(tmp_path: Path) -> None:
    async with prometheus(tmp_path) as url:
        client = HistoryServer(ConsoleSettings(history_url=url, history_timeout_seconds=60))
        period = TimeRange(START * SECOND_NS, END * SECOND_NS)
        queries = device_queries(FIGURES, HOSTILE, LABELS)
        found = await client.read(queries, period)
        part = TimeRange((START + HOUR) * SECOND_NS, (START + 2 * HOUR) * SECOND_NS)
        short = await client.read(queries, part)
        other = await client.read(device_queries(FIGURES, "unknown", LABELS), part)
        job = await client.read(group_curves.queries(JOB, group_curves.JOB_FIGURES), part)
        rail = await client.read(group_curves.queries("3", group_curves.RAIL_FIGURES), part)
    used = found["utilization"]
    assert points(used) == {0.5, 0.9}, "the burst of a minute is in ten hours"
    reasons = {gap.reason for gap in used.gaps}
    assert reasons == {"the server with history has no value"}
    assert any(gap.to_ns - gap.from_ns > 40 * 60 * SECOND_NS for gap in used.gaps)
    assert max(points(found["nic_sent"])) == 1e8, "less at the edges, where the server extrapolates"
    assert points(short["utilization"]) == {0.5, 0.9}
    assert points(short["nic_sent"]) == {1e8}
    assert [points(short[name]) for name in ("paused", "pausing", "pause_received")] == [
        {1},
        {0.25},
        {10},
    ]
    assert points(found["power"]) == set()
    assert points(short["cpu_busy"]) == {3}
    assert [points(short[f"nic_sent_{rail}"]) for rail in (0, 1)] == [{1e8}, {2e8}]
    assert points(short["gpu_mean"]) == {0.5, 0.9}
    assert points(other["utilization"]) == set()
    assert [(gap.from_ns, gap.to_ns) for gap in other["utilization"].gaps] == [tuple(part)]
    assert points(job["step_period"]) == {2.5}
    assert points(rail["max_paused"]) == {0.5}
    assert points(rail["sent"]) == set()


async def respond(request: web.Request) -> web.Response:
    kind = request.match_info["kind"]
    texts = {
        "html": "<html>",
        "large": "[" * (5 << 20),
        "error": '{"status":"error","error":"too many samples\\u0007"}',
    }
    status = HTTPStatus.OK if kind == "large" else HTTPStatus.UNPROCESSABLE_ENTITY
    return web.Response(text=texts.get(kind, ""), status=status)


@pytest.mark.parametrize(("kind", "problem"), [
    ("html", "expected the JSON of Prometheus's API"),
    ("large", "failed: "),
    ("error", "status 422: too many samples"),
    ("nothing", "expected the JSON"),
])  # fmt: skip
async def test_a_failure_is_a_reason(kind: str, problem: str) -> None:
    application = web.Application()
    application.router.add_post("/{kind}/api/v1/query_range", respond)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/{kind}"
        client = HistoryServer(ConsoleSettings(history_url=url))
        with pytest.raises(ResourceError) as raised:
            await client.read(QUERIES, TimeRange(0, 900 * SECOND_NS))
    finally:
        await runner.cleanup()
    assert problem in raised.value.text
    assert raised.value.text.isprintable()
    assert len(raised.value.text) < 300
    with pytest.raises(ResourceError, match="failed"):  # nothing listens any more
        await client.read(QUERIES, TimeRange(0, 900 * SECOND_NS))
