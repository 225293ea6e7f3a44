"""The dashboard of the cluster: GPUs that are present, busy, and well connected."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from railscope.catalog import (
    Metric,
    Rollup,
    account,
    agent,
    collector,
    gpu,
    gpu_health,
    kernel,
    rdma,
)
from railscope_dashboards import cluster_panels, dashboard_parts, panels, query

SUM, MEAN, MAX = Rollup.SUM, Rollup.MEAN, Rollup.MAX

AGENTS = 'up{job="railscope-agent"}'


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    question = "Is every GPU of the cluster present, busy, and well connected?"
    marks, tags = (dashboard_parts.xid_marks(), dashboard_parts.claim_marks()), ("gpu", "rdma")
    return dashboard_parts.assemble(
        "Cluster overview",
        "railscope-cluster",
        question,
        SECTIONS,
        console="/",
        marks=marks,
        tags=tags,
    )


def _summary() -> Iterator[panels.Panel]:
    yield from (
        panels.number(101, "Nodes reporting", "Nodes with fresh frames at the collector.", query.now(collector.NODES_UP, SUM)),
        panels.number(102, "Stale nodes", "Nodes without fresh frames at the collector.", _missing(collector.NODE_UP, "node"), panels.NONE_IS_GOOD),
        panels.number(103, "GPUs", "GPUs of all nodes, those of stale nodes too.", query.now(collector.CLUSTER_GPUS, SUM)),
        panels.number(104, "GPU utilization", "Mean of all GPUs.", query.rollup("cluster", gpu.GPU_UTILIZATION, MEAN)),
        panels.number(105, "GPU power", "Total of all GPUs.", query.rollup("cluster", gpu.GPU_POWER, SUM)),
        panels.number(106, "Hottest GPU", "The highest die temperature.", query.rollup("cluster", gpu.GPU_TEMPERATURE, MAX), panels.HOT),
        panels.number(107, "RDMA ports down", "Ports that are not active; unused ports count as well.", _missing(rdma.RDMA_UP, "node", "device", "port"), panels.NONE_IS_GOOD),
        panels.number(108, "Xids in the last hour", "Driver errors on all nodes; those of an agent that has just started do not count.", query.count_increase(kernel.XIDS.name), panels.NONE_IS_GOOD),
    )  # fmt: skip


def _gpus() -> Iterator[panels.Panel]:
    throttled = query.rollup(
        "cluster", gpu.GPU_THROTTLE_ACTIVE, SUM, "reason", selector='{reason!="gpu_idle"}'
    )
    xids = query.now(gpu_health.GPU_XID_ERRORS, SUM, "node", "pci_address", "xid")
    yield from (
        panels.lines(201, "GPU utilization by rail", "GPUs of one job work in step: a rail below the others is waiting.", query.rollup("rail", gpu.GPU_UTILIZATION, MEAN)),
        panels.layers(202, "GPU power by rail", "Sum of the GPUs of each rail.", query.rollup("rail", gpu.GPU_POWER, SUM)),
        panels.lines(203, "Hottest GPU by rail", "The hottest die of each rail; slots differ in airflow.", query.rollup("rail", gpu.GPU_TEMPERATURE, MAX), steps=panels.HOT),
        panels.layers(204, "Throttled GPUs by reason", "GPUs with limited clocks, without idle ones. A GPU may have several reasons.", throttled),
        panels.bars(205, "Xids", "Driver errors on each node, per second; nodes without any are omitted.", query.present(query.per_second(kernel.XIDS, "node"))),
    )  # fmt: skip
    yield panels.rows(
        206,
        "Xids in the kernel logs",
        "Driver reports for each GPU since the start of the readable log.",
        {"node": "Node", "pci_address": "PCI address", "xid": "Xid"},
        panels.Column("Messages", xids, worst="highest"),
        span=8,
    )


def _tenants() -> Iterator[panels.Panel]:
    yield panels.layers(
        401,
        "GPUs held by tenants",
        "GPU time per second equals GPUs. Unknown: held without frames of the GPU; late frames turn it into observed time.",
        query.slope(account.TENANT_GPU_TIME, "tenant", "state").in_unit(query.COUNT),
        span=12,
    )
    counted = panels.layers(
        402,
        "GPUs by state",
        "Held, idle and unknown add up to all GPUs of the cluster.",
        query.slope(account.GPU_TIME, "state").in_unit(query.COUNT),
        span=12,
    )
    colours = {f"state {state}": colour for state, colour in panels.COUNTED_AS.items()}
    yield panels.in_colours(counted, colours)


def _trust() -> Iterator[panels.Panel]:
    sources = "sum by (state) (railscope:node_source_state:sum)"
    unsigned = query.now(collector.AUDIT_UNSIGNED, SUM).with_name("records not signed yet")
    conflicts = query.in_state(agent.WITNESS_STATE.name, "", 'state="conflict"').with_name(
        "conflicts"
    )
    node_source = {"node": "Node", "source": "Source"}
    failed = panels.Column("State", _failed_sources(), panels.NONE_IS_GOOD, {1: "failed"})
    last_read = panels.Column("Last read", _age_of_failed(), panels.OLD, worst="highest")
    last_frame = panels.Column("Last frame", _age_of_stale(), panels.OLD, worst="highest")
    yield from (
        panels.lines(501, "Agents with failed scrapes", "Failed scrapes; the collector may still receive frames of the agent.",
                     query.Query(f"count({AGENTS}) - sum({AGENTS})", query.COUNT, "agents"), span=6),
        panels.layers(502, "Sources by state", "States of the sources of all agents.", query.build_query(sources, query.COUNT, "{{state}}"), span=6),
        panels.lines(503, "Missed ticks", "Reads of any source that took longer than its period.", query.per_second(agent.AGENT_MISSED).with_name("ticks"), span=6),
        panels.lines(504, "Collector: values received", "Values that the collectors accept.", query.per_second(collector.VALUES).with_name("values"), span=6),
        panels.rows(505, "Failed sources", "Readings of these sources are absent, not zero.", node_source, failed, last_read, span=6),
        panels.rows(506, "Age of stale nodes", "Age of the newest frame of each stale node.", {"node": "Node"}, last_frame, span=6),
        panels.lines(507, "Collector: frames", "Accepted frames, counted once each; duplicates are discarded.",
                     query.per_second(collector.FRAMES).with_name("accepted"), query.per_second(collector.DUPLICATES).with_name("repeated"), span=6),
        panels.lines(510, "Audit log", "Conflicts: agents with a checkpoint that the log lacks; nothing is signed then.", unsigned, conflicts, span=6),
    )  # fmt: skip
    yield panels.lines(
        508,
        "Collector: rejected envelopes",
        "By reason; other panels do not include rejected data.",
        query.per_second(collector.REJECTED, "reason"),
        span=6,
    )


SECTIONS = (
    ("", _summary),
    ("Are the GPUs busy, cool and healthy?", _gpus),
    ("Does every rail carry its share, without pauses and losses?", cluster_panels.rail_panels),
    ("Does the cluster match the inventory?", cluster_panels.inventory_panels),
    ("Which tenants hold the GPUs, and which GPU time is unaccounted?", _tenants),
    ("Can these numbers be trusted?", _trust),
)


def _missing(up: Metric, *by: str) -> query.Query:
    """Count the zeros; the result is 0, and not empty, when all are 1."""
    up_by_entity = f"max by ({', '.join(by)}) ({up.name})"
    return query.Query(f"count({up_by_entity}) - sum({up_by_entity})", query.COUNT, metrics=(up,))


def _failed_sources() -> query.Query:
    state = agent.SOURCE_STATE
    expression = f'max by (node, source) ({state.name}{{state="failed"}}) == 1'
    return query.Query(expression, query.COUNT, metrics=(state,))


def _age_of_failed() -> query.Query:
    age, failed = agent.SOURCE_AGE, _failed_sources()
    expression = f"max by (node, source) ({age.name}) and ({failed.expression})"
    return query.Query(expression, query.unit_of(age), metrics=(age,))


def _age_of_stale() -> query.Query:
    age, reporting = collector.NODE_AGE, collector.NODE_UP
    stale = f"max by (node) ({reporting.name}) == 0"
    expression = f"min by (node) ({age.name}) and ({stale})"
    return query.Query(expression, query.unit_of(age), metrics=(age, reporting))
