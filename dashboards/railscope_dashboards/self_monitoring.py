"""The self-monitoring dashboard: cost of Railscope, the age of its data, and its gaps."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from railscope_dashboards import dashboard_parts, panels, query

UNHEALTHY_STATES = {1: "starting", 2: "partial", 3: "failed"}
NODE_SOURCE = {"node": "Node", "source": "Source"}


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    question = "What does Railscope cost, how old is its data, and what has it missed?"
    choices = (
        dashboard_parts.DashboardVariable(
            "node", "Node", "railscope_node_reporting", allows_several=True
        ),
    )
    return dashboard_parts.assemble(
        "Self-monitoring",
        "railscope-self-monitoring",
        question,
        SECTIONS,
        console="/railscope",
        choices=choices,
        tags=("agent",),
    )


def unhealthy_sources(by: str, selector: str) -> panels.Column:
    """State of each source that fails, fails in part, or has not begun."""
    state = query.build_query(
        query.state_number("railscope_source_state", UNHEALTHY_STATES, by, selector), query.COUNT
    )
    return panels.Column("State", state, panels.NONE_IS_GOOD, UNHEALTHY_STATES, "highest")


FRAME_AGE = f"min by (node) (railscope_node_last_frame_age_seconds{query.NODES})"
"""Of several collectors, one may have received frames of a node in the past."""


def _of_nodes(aggregation: str, name: str) -> query.Query:
    return query.build_query(f"{aggregation}(railscope_{name}{query.NODES})")


def _cpu_of_agents(aggregation: str, parameter: str = "") -> query.Query:
    used = f"rate(railscope_agent_cpu_seconds_total{query.NODES}[$__rate_interval])"
    return query.build_query(f"{aggregation}({parameter}{used})", query.SHARE)


def _memory_of_agents() -> query.Query:
    used = f"railscope_agent_resident_memory_bytes{query.NODES}"
    return query.build_query(f"max({used})")


def _rate(counter: str, by: str = "") -> query.Query:
    grouping, legend = (f" by ({by}) ", f"{{{{{by}}}}}") if by else ("", "")
    rate = f"rate(railscope_{counter}_total{query.NODES}[$__rate_interval])"
    return query.build_query(f"sum{grouping}({rate})", query.EVENTS_PER_SECOND, legend)


def _summary() -> Iterator[panels.Panel]:
    up = 'up{job="railscope-agent", node=~"$node"}'
    reporting = f"max by (node) (railscope_node_reporting{query.NODES})"
    limit = query.in_state("railscope_governor_state", query.NODES, 'state="at_limit"')
    failed = query.in_state("railscope_source_state", query.NODES, 'state="failed"')
    expensive: panels.Steps = ((None, "green"), (0.02, "orange"))
    yield from (
        panels.number(101, "Agents with failed scrapes", "Failed scrapes.", query.build_query(f"count({up}) - sum({up})", query.COUNT), panels.NONE_IS_GOOD),
        panels.number(102, "Stale nodes", "Nodes without fresh frames at the collector.", query.build_query(f"count({reporting}) - sum({reporting})", query.COUNT), panels.NONE_IS_GOOD),
        panels.number(103, "Oldest frame", "Of the node with the oldest newest frame.", query.build_query(f"max({FRAME_AGE})"), panels.OLD),
        panels.number(104, "Most expensive agent", "Share of one CPU.", _cpu_of_agents("max"), expensive),
        panels.number(105, "Largest agent", "Resident memory.", _memory_of_agents()),
        panels.number(106, "Governors at limit", "Agents with the longest permitted periods.", limit, panels.NONE_IS_GOOD),
        panels.number(107, "Frames missing", "In the sequences of running agents.", query.build_query("sum(railscope_collector_missing_frames)"), panels.NONE_IS_GOOD),
        panels.number(108, "Sources failed", "Their readings are absent.", failed, panels.NONE_IS_GOOD),
    )  # fmt: skip


def _cost() -> Iterator[panels.Panel]:
    used = f"rate(railscope_source_cpu_seconds_total{query.NODES}[$__rate_interval])"
    cpu = f"avg by (source) ({used})"
    reads = f"max by (source) (railscope_source_read_duration_seconds{query.NODES})"
    governors = f"sum by (resource, state) (railscope_governor_state{query.NODES})"
    stretched = f"topk(10, max by (node) (railscope_agent_stretched_sources{query.NODES}) > 0)"
    yield from (
        panels.lines(201, "CPU of agents", "Share of one CPU: the most expensive agent and the median.",
                     _cpu_of_agents("max").with_name("highest"), _cpu_of_agents("quantile", "0.5, ").with_name("median")),
        panels.lines(202, "Memory of agents", "The largest, and the smallest budget.",
                     _memory_of_agents().with_name("highest"), _of_nodes("min", "agent_memory_budget_bytes").with_name("budget")),
        panels.layers(203, "CPU by source", "Mean of all agents without simulated ones; the ten most expensive.", query.build_query(f"topk(10, {cpu})", query.SHARE, "{{source}}")),
        panels.lines(204, "Longest reads", "The ten slowest sources, on the slowest node.", query.build_query(f"topk(10, {reads})", legend="{{source}}")),
        panels.layers(205, "Governors", "State of the governors that keep agents within their budgets.", query.build_query(governors, legend="{{resource}}, {{state}}")),
        panels.lines(206, "Sources read less often", "Sources with a longer period than configured, on the ten nodes with the most.", query.build_query(stretched, query.COUNT, "{{node}}")),
    )  # fmt: skip


def _age() -> Iterator[panels.Panel]:
    ages = f"topk(20, max by (node, source) (railscope_source_age_seconds{query.NODES}))"
    column = panels.Column("Age", query.build_query(ages), panels.OLD, worst="highest")
    frames = f"topk(10, {FRAME_AGE})"
    offset = f"railscope_node_clock_offset_seconds{query.NODES} unless on (instance, node) railscope_node_reporting == 0"
    clocks = (
        query.build_query(f"{aggregation}({offset})").with_name(name)
        for aggregation, name in (("max", "highest"), ("min", "lowest"))
    )
    yield from (
        panels.rows(301, "Oldest sources", "Time since their last complete read.", NODE_SOURCE, column, span=8),
        panels.lines(302, "Oldest frames", "The ten nodes with the oldest newest frame.", query.build_query(frames, legend="{{node}}"), steps=panels.OLD),
        panels.lines(303, "Clocks", "Offset of the nodes' clocks from the collector's; a slow network or collector makes all appear behind.", *clocks).min(-1),
    )  # fmt: skip


def _gaps() -> Iterator[panels.Panel]:
    sources = f"sum by (state) (railscope:node_source_state:sum{query.NODES})"
    absent = f"sum by (reason) (railscope:node_source_absent_readings:sum{query.NODES})"
    unhealthy = unhealthy_sources("node, source", query.NODES)
    yield from (
        panels.layers(401, "Sources by state", "States of all sources.", query.build_query(sources, legend="{{state}}")),
        panels.rows(402, "Sources with failures", "Their readings are absent, not zero.", NODE_SOURCE, unhealthy, span=8),
        panels.layers(403, "Absent readings", "By reason; `unsupported` does not indicate a fault.", query.build_query(absent, legend="{{reason}}")),
        panels.lines(404, "Missed ticks", "Reads of any source that took longer than its period, by node.", query.highest_rates("agent_missed_ticks")),
        panels.lines(405, "Dropped by agents", "Frames, by reason; these are lost.", _rate("agent_dropped_frames", "reason"), steps=panels.ANY_IS_BAD),
        panels.lines(406, "Spools", "Maximum that waits on the disks of agents.", _of_nodes("max", "spool_size_bytes")),
        panels.lines(407, "Failures to ship", "By node: the collector was unavailable or busy.", query.highest_rates("agent_ship_failures")),
        panels.lines(408, "Kernel messages lost", "Overwritten before the agent could read them.", query.highest_rates("kernel_log_lost_records")),
        panels.lines(409, "Missed windows of bursts", "Of NICs and GPUs.",
                     _rate("nic_burst_missed_windows").with_name("NICs"), _rate("gpu_burst_missed_windows").with_name("GPUs")),
    )  # fmt: skip


def _receive_rate(name: str, unit: str = "", by: str = "") -> query.Query:
    """Return the rate of a counter of all collectors."""
    grouping, legend = (f" by ({by}) ", f"{{{{{by}}}}}") if by else ("", "")
    rate = f"rate(railscope_collector_{name}_total[$__rate_interval])"
    return query.build_query(f"sum{grouping}({rate})", unit, legend)


def _collector() -> Iterator[panels.Panel]:
    seconds, commits = (
        _receive_rate(f"frame_log_{name}").expression for name in ("commit_seconds", "commits")
    )
    refresh = query.build_query("max(railscope_collector_views_refresh_seconds)")
    written, dropped = (
        _receive_rate(f"influx_{name}_lines", query.EVENTS_PER_SECOND)
        for name in ("written", "dropped")
    )
    yield from (
        panels.lines(501, "Values received", "By all collectors.", _receive_rate("received_values", query.EVENTS_PER_SECOND)),
        panels.lines(502, "Bytes received", "Before decompression.", _receive_rate("received_bytes")),
        panels.lines(503, "Frames", "Accepted once each; repeated ones are ignored.",
                     _receive_rate("received_frames").with_name("accepted"), _receive_rate("duplicate_frames").with_name("repeated")),
        panels.lines(504, "Rejected envelopes", "By reason.", _receive_rate("rejected_envelopes", query.EVENTS_PER_SECOND, "reason")),
        panels.lines(505, "Time of a commit", "Until envelopes are durable, on average.", query.build_query(f"{seconds} / ({commits} > 0)", "s")),
        panels.lines(506, "Refresh of the views", "Duration of the last refresh.", refresh),
        panels.lines(507, "Frame log", "Size on disk.", query.build_query("sum(railscope_collector_frame_log_size_bytes)")),
        panels.lines(508, "Lines to InfluxDB", "Written and dropped.", written.with_name("written"), dropped.with_name("dropped")),
    )  # fmt: skip


SECTIONS = (
    ("", _summary),
    ("What does it cost?", _cost),
    ("How old is its data?", _age),
    ("What has it missed?", _gaps),
    ("Does the collector keep up?", _collector),
)
