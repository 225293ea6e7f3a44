"""The views as tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

GIGA = 1e9
HOURS_NS = 3_600_000_000_000
_RAIL = (
    ("GPU busy", "railscope_rail_mean_gpu_utilization_ratio", 100, "{:.0f} %"),
    ("power", "railscope_rail_sum_gpu_power_watts", 1, "{:.0f} W"),
    ("hottest", "railscope_rail_max_gpu_temperature_celsius", 1, "{:.0f} C"),
    ("in", "railscope_rail_sum_nic_receive_bytes_per_second", 8 / GIGA, "{:.0f} Gb/s"),
    ("out", "railscope_rail_sum_nic_transmit_bytes_per_second", 8 / GIGA, "{:.0f} Gb/s"),
    ("paused", "railscope_rail_max_nic_receive_pfc_pause_ratio", 100, "{:.2f} %"),
    ("pausing", "railscope_rail_max_nic_transmit_pfc_pause_ratio", 100, "{:.2f} %"),
    ("marked/s", "railscope_rail_sum_rdma_ecn_marked_packets_per_second", 1, "{:.0f}"),
    ("CNP/s", "railscope_rail_sum_rdma_congestion_notifications_handled_per_second", 1, "{:.0f}"),
)


def tables(views: dict[str, Any]) -> str:
    """Cluster, nodes, rails and tenants."""
    parts = [_cluster(views), _nodes(views["nodes"]["rows"]), _rails(views["rails"]["rows"])]
    return "\n\n".join([*parts, account_table(views["account"])])


def _cluster(views: dict[str, Any]) -> str:
    values = {row["metric"]: row["value"] for row in views["cluster"]["rows"]}
    nodes = values.get("railscope_cluster_nodes_reporting", 0)
    gpus = values.get("railscope_cluster_gpus", 0)
    watts = values.get("railscope_cluster_sum_gpu_power_watts", 0)
    return f"CLUSTER  {nodes:.0f} nodes reporting, {gpus:.0f} GPUs, {watts / 1000:.1f} kW in GPUs"


def _nodes(rows: Sequence[dict[str, Any]]) -> str:
    worst_first = sorted(
        rows, key=lambda row: (bool(row.get("railscope_node_reporting")), row["node"])
    )
    body = [
        [
            row["node"],
            "reporting" if row.get("railscope_node_reporting") else "SILENT",
            f"{row.get('railscope_node_last_frame_age_seconds', 0):.1f} s",
            str(row["gpus"]),
            str(len(row["streams"])),
        ]
        for row in worst_first
    ]
    return _table(["NODE", "state", "age", "GPUs", "sources"], body)


def _rails(rows: Iterable[dict[str, Any]]) -> str:
    by_rail: dict[int, dict[str, float]] = {}
    for row in rows:
        values = by_rail.setdefault(int(row["labels"]["rail"]), {})
        values[row["metric"]] = max(row["value"], values.get(row["metric"], row["value"]))
    body = []
    for rail, values in sorted(by_rail.items(), key=lambda item: (-_pause(item[1]), item[0])):
        shown = [
            form.format(values[metric] * factor) if metric in values else "-"
            for _, metric, factor, form in _RAIL
        ]
        body.append([str(rail), *shown])
    return _table(["RAIL", *(head for head, *_ in _RAIL)], body)


def _pause(values: dict[str, float]) -> float:
    """Largest percentage of a rail's time lost to pauses, rounded to suppress noise."""
    names = (metric for head, metric, *_ in _RAIL if head in {"paused", "pausing"})
    return round(100 * max(values.get(metric, 0.0) for metric in names))


_NOT_HELD = {"unclaimed": "used without a claim"}
_HELD = {"observed", "inferred"}


def not_held(account: dict[str, Any]) -> dict[str, int]:
    """Nanoseconds that no tenant holds, by state; empty states except idle and unknown are omitted."""
    always = {"idle", "unknown"}
    return {
        _NOT_HELD.get(state, state): int(ns)
        for state, ns in account["states"].items()
        if state not in _HELD and (int(ns) or state in always)
    }


def account_table(account: dict[str, Any]) -> str:
    """Return the GPU-time account, in GPU-hours for readers and in nanoseconds for exact sums."""
    body = [
        [
            "held by " + name,
            *_time(tenant["held_ns"]),
            f"unseen {_hours(tenant['held_unknown_ns'])}",
        ]
        for name, tenant in account["tenants"].items()
        if int(tenant["held_ns"])
    ]
    body += [[words, *_time(str(ns)), ""] for words, ns in not_held(account).items()]
    body += [
        [f"{account['gpus']} GPUs x time", *_time(account["capacity_ns"]),
         "adds up" if account["balances"] else "DOES NOT ADD UP"],
    ]  # fmt: skip
    return _table(["GPU TIME", "GPU-hours", "nanoseconds", ""], body)


def _time(ns: str) -> list[str]:
    return [_hours(ns), f"{int(ns):,}"]


def _hours(ns: str) -> str:
    return f"{int(ns) / HOURS_NS:.4f}"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if position == 0 else cell.rjust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *body)
    ]
    return "\n".join(lines)
