"""The dashboard of Railscope itself: its cost, the age of its data, and its gaps."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import panels
from dashboards.dashboard_parts import DashboardVariable, assemble
from dashboards.query import COUNT, EVENTS_PER_SECOND, SHARE, Query, ask

UID = "railscope-own"
QUESTION = "What does Railscope cost, how old is its data, and what has it missed?"
NODES = '{node=~"$node"}'
UNHEALTHY_STATES = {1: "starting", 2: "partial", 3: "failed"}
NODE_SOURCE = {"node": "Node", "source": "Source"}
CHOICES = (DashboardVariable("node", "Node", "railscope_node_reporting", several=True),)


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    return assemble("Railscope itself", UID, QUESTION, SECTIONS, choices=CHOICES, tags=("agent",))


def _rate(counter: str, by: str = "", unit: str = EVENTS_PER_SECOND, where: str = NODES) -> Query:
    grouping = f" by ({by}) " if by else ""
    legend = f"{{{{{by}}}}}" if by else ""
    return ask(f"sum{grouping}(rate({counter}{where}[$__rate_interval]))", unit, legend)


def unhealthy_sources(by: str, where: str) -> panels.Column:
    """State of each source that fails, fails in part, or has not begun."""
    parts = (
        f'(max by ({by}) (railscope_source_state{where.removesuffix("}")}, state="{word}"}}) == 1)'
        f" * {value}"
        for value, word in sorted(UNHEALTHY_STATES.items(), reverse=True)
    )
    return panels.Column(
        "Is", ask(" or ".join(parts), COUNT), panels.NONE_IS_GOOD, UNHEALTHY_STATES, "highest"
    )


def _summary() -> Iterator[panels.Panel]:
    up = 'up{job="railscope-agent", node=~"$node"}'
    yield panels.number(
        101,
        "Agents not scraped",
        "Failed scrapes.",
        ask(f"count({up}) - sum({up})", COUNT),
        panels.NONE_IS_GOOD,
    )
    heard = f"railscope_node_reporting{NODES}"
    yield panels.number(
        102,
        "Stale nodes",
        "Nodes without fresh frames at the collector.",
        ask(f"count({heard}) - sum({heard})", COUNT),
        panels.NONE_IS_GOOD,
    )
    yield panels.number(
        103,
        "Oldest frame",
        "Of the node with the oldest newest frame.",
        ask(f"max(railscope_node_last_frame_age_seconds{NODES})"),
        panels.OLD,
    )
    yield panels.number(
        104,
        "Most expensive agent",
        "Share of one CPU.",
        ask(f"max(railscope_agent_cpu_use_ratio{NODES})"),
        ((None, "green"), (0.02, "orange")),
    )
    yield panels.number(
        105,
        "Largest agent",
        "Resident memory.",
        ask(f"max(railscope_agent_resident_memory_bytes{NODES})"),
    )
    limit = 'railscope_governor_state{node=~"$node", state="at_limit"}'
    yield panels.number(
        106,
        "Governors at limit",
        "Agents with the longest permitted periods.",
        ask(f"sum({limit})"),
        panels.NONE_IS_GOOD,
    )
    yield panels.number(
        107,
        "Frames missing",
        "In the sequences of running agents.",
        ask("sum(railscope_collector_missing_frames)"),
        panels.NONE_IS_GOOD,
    )
    yield panels.number(
        108,
        "Sources failed",
        "Their readings are absent.",
        ask('sum(railscope_source_state{node=~"$node", state="failed"})'),
        panels.NONE_IS_GOOD,
    )


def _cost() -> Iterator[panels.Panel]:
    yield panels.lines(
        201,
        "CPU of agents",
        "Share of one CPU: the most expensive agent and the median.",
        ask(f"max(railscope_agent_cpu_use_ratio{NODES})").named("most"),
        ask(f"quantile(0.5, railscope_agent_cpu_use_ratio{NODES})").named("median"),
    )
    yield panels.lines(
        202,
        "Memory of agents",
        "The largest, and the smallest budget.",
        ask(f"max(railscope_agent_resident_memory_bytes{NODES})").named("most"),
        ask(f"min(railscope_agent_memory_budget_bytes{NODES})").named("budget"),
    )
    cpu = f"avg by (source) (rate(railscope_source_cpu_seconds_total{NODES}[$__rate_interval]))"
    yield panels.layers(
        203,
        "CPU by source",
        "Mean of all agents; the ten most expensive.",
        ask(f"topk(10, {cpu})", SHARE, "{{source}}"),
    )
    reads = f"max by (source) (railscope_source_read_duration_seconds{NODES})"
    yield panels.lines(
        204,
        "Longest reads",
        "The ten slowest sources, on the slowest node.",
        ask(f"topk(10, {reads})", legend="{{source}}"),
    )
    yield panels.layers(
        205,
        "Governors",
        "State of the governors that keep agents within their budgets.",
        ask(
            f"sum by (resource, state) (railscope_governor_state{NODES})",
            legend="{{resource}}, {{state}}",
        ),
    )
    stretch = f"max by (source) (railscope_source_stretch_ratio{NODES})"
    yield panels.lines(
        206,
        "Sources read less often",
        "Maximum ratio of the period in force to the configured one.",
        ask(f"{stretch} > 1", "short", "{{source}}"),
    )


def _age() -> Iterator[panels.Panel]:
    ages = f"max by (node, source) (railscope_source_age_seconds{NODES})"
    yield panels.rows(
        301,
        "Oldest sources",
        "Time since their last complete read.",
        NODE_SOURCE,
        panels.Column("Age", ask(f"topk(20, {ages})"), panels.OLD, worst="highest"),
        span=8,
    )
    yield panels.lines(
        302,
        "Oldest frames",
        "The ten nodes with the oldest newest frame.",
        ask(
            f"topk(10, max by (node) (railscope_node_last_frame_age_seconds{NODES}))",
            legend="{{node}}",
        ),
        steps=panels.OLD,
    )
    yield panels.lines(
        303,
        "Clocks",
        "Offset of the nodes' clocks from the collector's.",
        ask(f"max(railscope_node_clock_offset_seconds{NODES})").named("most"),
        ask(f"min(railscope_node_clock_offset_seconds{NODES})").named("least"),
    ).min(-1)


def _gaps() -> Iterator[panels.Panel]:
    yield panels.layers(
        401,
        "Sources by state",
        "States of all sources.",
        ask(f"sum by (state) (railscope:node_source_state:sum{NODES})", legend="{{state}}"),
    )
    yield panels.rows(
        402,
        "Sources with failures",
        "Their readings are absent, not zero.",
        NODE_SOURCE,
        unhealthy_sources("node, source", NODES),
        span=8,
    )
    yield panels.layers(
        403,
        "Absent readings",
        "By reason; `unsupported` does not indicate a fault.",
        ask(
            f"sum by (reason) (railscope:node_source_absent_readings:sum{NODES})",
            legend="{{reason}}",
        ),
    )
    yield panels.lines(
        404,
        "Missed ticks",
        "Reads that took longer than their period.",
        _rate("railscope_source_missed_ticks_total", "source"),
    )
    yield panels.lines(
        405,
        "Dropped by agents",
        "Frames, by reason; these are lost.",
        _rate("railscope_agent_dropped_frames_total", "reason"),
        steps=panels.ANY_IS_BAD,
    )
    yield panels.lines(
        406,
        "Spools",
        "Maximum that waits on the disks of agents.",
        ask(f"max(railscope_spool_size_bytes{NODES})"),
    )
    yield panels.lines(
        407,
        "Failures to ship",
        "By node: the collector was unavailable or busy.",
        ask(
            "topk(10, sum by (node) "
            f"(rate(railscope_agent_ship_failures_total{NODES}[$__rate_interval])))",
            EVENTS_PER_SECOND,
            "{{node}}",
        ),
    )
    lost = (
        "topk(10, sum by (node) "
        f"(rate(railscope_kernel_log_lost_records_total{NODES}[$__rate_interval])))"
    )
    yield panels.lines(
        408,
        "Kernel messages lost",
        "Overwritten before the agent could read them.",
        ask(lost, EVENTS_PER_SECOND, "{{node}}"),
    )
    yield panels.lines(
        409,
        "Missed windows of bursts",
        "Of NICs and GPUs.",
        _rate("railscope_nic_burst_missed_windows_total").named("NICs"),
        _rate("railscope_gpu_burst_missed_windows_total").named("GPUs"),
    )


def _own(name: str, unit: str = "", by: str = "") -> Query:
    return _rate(f"railscope_collector_{name}_total", by, unit, "")


def _collector() -> Iterator[panels.Panel]:
    yield panels.lines(
        501, "Values received", "By all collectors.", _own("received_values", EVENTS_PER_SECOND)
    )
    yield panels.lines(502, "Bytes received", "Before decompression.", _own("received_bytes"))
    yield panels.lines(
        503,
        "Frames",
        "Accepted once each; repeated ones are ignored.",
        _own("received_frames").named("accepted"),
        _own("duplicate_frames").named("again"),
    )
    yield panels.lines(
        504,
        "Rejected envelopes",
        "By reason; unknown_schema is part of the protocol.",
        _own("rejected_envelopes", EVENTS_PER_SECOND, "reason"),
    )
    commits = "sum(rate(railscope_collector_frame_log_commits_total[$__rate_interval]))"
    time = "sum(rate(railscope_collector_frame_log_commit_seconds_total[$__rate_interval]))"
    yield panels.lines(
        505,
        "Time of a commit",
        "Until envelopes are durable, on average.",
        ask(f"{time} / ({commits} > 0)", "s"),
    )
    yield panels.lines(
        506,
        "Refresh of the views",
        "Duration of the last refresh.",
        ask("max(railscope_collector_views_refresh_seconds)"),
    )
    yield panels.lines(
        507, "Frame log", "Size on disk.", ask("sum(railscope_collector_frame_log_size_bytes)")
    )
    yield panels.lines(
        508,
        "Lines to InfluxDB",
        "Written and dropped.",
        _own("influx_written_lines", EVENTS_PER_SECOND).named("written"),
        _own("influx_dropped_lines", EVENTS_PER_SECOND).named("given up"),
    )


SECTIONS = (
    ("", _summary),
    ("What does it cost?", _cost),
    ("How old is its data?", _age),
    ("What has it missed?", _gaps),
    ("Does the collector keep up?", _collector),
)
