"""The part of the jobs dashboard that compares the GPUs and ports of a node, whatever their holders."""

from __future__ import annotations

from collections.abc import Iterator

from dashboards.colours import BELOW_OTHERS, NONE_IS_GOOD
from dashboards.panels import Column, Panel, lines, number, rows
from dashboards.query import COUNT, SHARE, Query, ask, with_port_rail

NODES = '{node=~"$node"}'
ON_RAIL = '{node=~"$node", rail!=""}'
GPU = {"node": "Node", "gpu": "GPU"}


def _of_gpus(name: str, more: str = "") -> str:
    where = f'{{node=~"$node"{more}}}'
    return f"max by (node, gpu) ({name}{where})"


def _behind(value: str, by: str) -> str:
    """Return the relative distance from the median of a group; no result if the median is 0."""
    median = f"quantile by ({by}) (0.5, {value})"
    return f"{value} / on ({by}) group_left () ({median} > 0) - 1"


def _worst(name: str, more: str = "") -> Query:
    return ask(f"bottomk(10, {_behind(_of_gpus(name, more), 'node')})", SHARE)


def stragglers() -> Iterator[Panel]:
    """Yield panels of GPUs and ports that lag behind, whatever their holders."""
    activity = "railscope_gpu_sm_activity_ratio"
    slow = f"count({_behind(_of_gpus(activity), 'node')} < -0.2) or vector(0)"
    yield number(
        105,
        "GPUs behind their server",
        "20 % below the middle GPU of their server.",
        ask(slow, COUNT),
        NONE_IS_GOOD,
    ).span(6)
    yield number(
        106,
        "Busy",
        "Mean share of time in which any kernel ran.",
        ask(f"avg(railscope_gpu_utilization_ratio{NODES})"),
    ).span(6)
    yield number(
        104, "Processes", "On all GPUs.", ask(f"sum(railscope_gpu_processes{NODES})")
    ).span(6)
    yield number(
        108,
        "Least active GPU",
        "Share of cycles of the one that does the least.",
        ask(f"min({activity}{NODES})"),
    ).span(6)
    about = "Against the middle GPU of the same server; the ten furthest behind."
    yield rows(
        201,
        "SM activity behind the others",
        about,
        GPU,
        Column(
            "Against the median",
            _worst("railscope_gpu_sm_activity_ratio"),
            BELOW_OTHERS,
            worst="lowest",
        ),
        span=8,
    )
    yield rows(
        202,
        "SM clock behind the others",
        about,
        GPU,
        Column(
            "Against the median",
            _worst("railscope_gpu_clock_hertz", ', clock="sm"'),
            BELOW_OTHERS,
            worst="lowest",
        ),
        span=8,
    )
    yield rows(
        203,
        "Power behind the others",
        about,
        GPU,
        Column(
            "Against the median", _worst("railscope_gpu_power_watts"), BELOW_OTHERS, worst="lowest"
        ),
        span=8,
    )
    spread = f"max by (node) ({activity}{NODES}) - min by (node) ({activity}{NODES})"
    yield lines(
        204,
        "Spread of SM activity in each server",
        "Between its most and its least active GPU: jobs in step have none.",
        ask(f"topk(10, {spread})", SHARE, "{{node}}"),
        span=12,
    )
    port = f"rate(railscope_rdma_transmit_bytes_total{NODES}[$__rate_interval])"
    ports = f"sum by (node, device, port) ({with_port_rail(port, ON_RAIL)})"
    yield rows(
        205,
        "Ports behind the others",
        "Against the middle port of the same server.",
        {"node": "Node", "device": "RDMA device", "port": "Port"},
        Column(
            "Against the median",
            ask(f"bottomk(10, {_behind(ports, 'node')})", SHARE),
            BELOW_OTHERS,
            worst="lowest",
        ),
    )


def causes() -> Iterator[Panel]:
    """Yield panels of the causes of slow nodes, and of unclaimed use."""
    held = (
        "sum by (node, reason) (railscope:node_gpu_throttle:rate5m"
        '{node=~"$node", reason=~".*thermal|.*power.*|sync_boost|reliability"}) > 0.01'
    )
    yield lines(
        301,
        "GPUs held back",
        "GPUs of each server whose clocks are held down, by reason.",
        ask(held, COUNT, "{{node}}, {{reason}}"),
    )
    paused = (
        "topk(10, max by (node) "
        "(rate(railscope_nic_{}_pfc_pause_seconds_total{}[$__rate_interval])))"
    )
    yield lines(
        302,
        "Ports in pause",
        "The worst port of each server; the ten worst servers.",
        ask(paused.format("receive", NODES), legend="{{node}}").named("received"),
        ask(paused.format("transmit", NODES), legend="{{node}}").named("sent"),
    )
    stalled = (
        "topk(10, max by (node) "
        "(rate(railscope_pressure_stalled_seconds_total{}[$__rate_interval])))"
    )
    yield lines(
        303,
        "Servers under pressure",
        "Share of time in which tasks waited for a resource; the ten worst.",
        ask(stalled.format(NODES), SHARE, "{{node}}"),
    )
    unclaimed = f"{_of_gpus('railscope_gpu_unclaimed_processes')} > 0"
    yield rows(
        403,
        "GPUs used without a claim",
        "Processes that nobody gave the GPU to.",
        GPU,
        Column("Processes", ask(unclaimed, COUNT), worst="highest"),
    )
    memory = f"max by (node, gpu, pid) (railscope_gpu_process_memory_used_bytes{NODES})"
    yield rows(
        404,
        "Largest processes",
        "By frame buffer.",
        {"node": "Node", "gpu": "GPU", "pid": "Process"},
        Column("Memory", ask(f"topk(20, {memory})"), worst="highest"),
    )
