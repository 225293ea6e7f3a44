"""The dashboard of faults: every GPU's health, with unknown as a separate state."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from railscope.catalog import gpu_health
from railscope_dashboards import dashboard_parts, panels, query

HEALTH_TEXTS = {value: text for value, (text, _) in panels.HEALTH.items()}
ACTIONS = {value: text for value, text in gpu_health.GPU_ACTION.states.items() if text != "none"}
NODE_GPU = {"node": "Node", "gpu": "GPU"}


def health(by: str, selector: str) -> str:
    """Return the number in `HEALTH` of the worst state of each group of GPUs.

    Groups are made before they are compared: that is cheap for many GPUs.
    """
    return f"({query.state_number('railscope_gpu_health', HEALTH_TEXTS, by, selector)})"


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    return dashboard_parts.assemble(
        "Faults and health matrix",
        "railscope-health",
        "Which GPUs are faulty, and which are unknown?",
        SECTIONS,
        console="/nodes",
        choices=(
            dashboard_parts.DashboardVariable(
                "node", "Node", "railscope_node_reporting", allows_several=True
            ),
        ),
        marks=(dashboard_parts.xid_marks(query.NODES),),
        tags=("gpu", "health"),
    )


def _in_state(state: str, metric: str = "gpu_health", matcher: str = "=") -> query.Query:
    return query.in_state(f"railscope_{metric}", query.NODES, f'state{matcher}"{state}"')


def _count_by(label: str, metric: str, unit: str = "") -> query.Query:
    return query.build_query(f"sum by ({label}) ({metric})", unit, f"{{{{{label}}}}}")


def _summary() -> Iterator[panels.Panel]:
    unknown = "GPUs with missing readings; those of stale nodes are not included."
    reporting = f"max by (node) (railscope_node_reporting{query.NODES})"
    stale = query.build_query(f"count({reporting}) - sum({reporting})", query.COUNT)
    action = _in_state("none|ignore", "gpu_recommended_action", "!~")
    yield from (
        panels.number(101, "Healthy", "GPUs without a detected fault.", _in_state("healthy")),
        panels.number(102, "Degraded", "GPUs that are usable and need attention.", _in_state("degraded"), panels.NONE_IS_GOOD),
        panels.number(103, "Failed", "GPUs that are not usable now.", _in_state("failed"), panels.NONE_IS_GOOD),
        panels.number(104, "Unknown", unknown, _in_state("unknown"), panels.NONE_IS_GOOD),
        panels.number(105, "Stale nodes", "The state of their GPUs is unknown.", stale, panels.NONE_IS_GOOD),
        panels.number(106, "Devices missing", "GPUs that a node had and that left its bus.", _in_state("missing", "gpu_device_state"), panels.NONE_IS_GOOD),
        panels.number(107, "Xids in the last hour", "Driver errors.", query.count_increase(f"railscope_kernel_xids_total{query.NODES}"), panels.NONE_IS_GOOD),
        panels.number(108, "GPUs with a recommended action", "GPUs whose health recommends an action.", action, panels.NONE_IS_GOOD),
    )  # fmt: skip


def _matrix() -> Iterator[panels.Panel]:
    by_gpu = query.build_query(
        query.with_index(health("node, gpu", query.NODES), query.NODES), query.COUNT
    )
    missing = f"max by (node) (railscope_node_reporting{query.NODES}) == 0"
    not_healthy = f"{health('node', query.NODES)} > 0 or ({missing}) + 2"
    by_health = panels.layers(
        203,
        "GPUs by health",
        "Number of GPUs in each state.",
        _count_by("state", f"railscope_gpu_health{query.NODES}"),
        span=12,
    )
    yield from (
        panels.grid(201, "Health now, node by GPU", "An empty cell: no such GPU is reported.", "index", by_gpu, texts=panels.HEALTH),
        panels.states(202, "Unhealthy nodes", "The worst GPU of each; healthy nodes are omitted, and stale ones are unknown.",
                      query.build_query(not_healthy, query.COUNT, "{{node}}"), panels.HEALTH, span=12),
        panels.in_colours(by_health, dict(panels.HEALTH.values())),
    )  # fmt: skip
    reasons = f"max by (node, gpu, reason) (railscope_gpu_health_reason_active{query.NODES} == 1)"
    verdict = f"{reasons} * on (node, gpu) group_left () {health('node, gpu', query.NODES)}"
    action = query.state_number(
        "railscope_gpu_recommended_action", ACTIONS, "node, gpu", query.NODES
    )
    last = f"min by (node) (railscope_node_last_frame_age_seconds{query.NODES}) and ({missing})"
    active, worst = query.build_query(reasons, query.COUNT), query.build_query(verdict, query.COUNT)
    yield panels.rows(
        204,
        "Reasons",
        "Detected faults of each GPU.",
        NODE_GPU | {"reason": "Reason"},
        panels.Column("Active", active, panels.NONE_IS_GOOD, {1: "yes"}),
        panels.Column("Health", worst, panels.NONE_IS_GOOD, HEALTH_TEXTS, "highest"),
    )
    yield panels.rows(
        205,
        "Recommended actions",
        "The recommended action; Railscope does not take it.",
        NODE_GPU,
        panels.Column(
            "Action",
            query.build_query(action, query.COUNT),
            panels.NONE_IS_GOOD,
            ACTIONS,
            "highest",
        ),
    )
    yield panels.rows(
        206,
        "Stale nodes",
        "Nodes without fresh frames.",
        {"node": "Node"},
        panels.Column(
            "State", query.build_query(missing, query.COUNT), panels.ALL_IS_GOOD, {0: "unknown"}
        ),
        panels.Column("Last frame", query.build_query(last), panels.OLD, worst="highest"),
    )


def _errors() -> Iterator[panels.Panel]:
    xids = f"sum by (node) (rate(railscope_kernel_xids_total{query.NODES}[$__rate_interval])) > 0"
    in_log = f"sum by (node, pci_address, xid) (railscope_gpu_xid_errors_total{query.NODES})"
    ecc = 'railscope_gpu_ecc_errors_total{node=~"$node", lifetime="volatile"}'
    pending, failed = (
        query.build_query(f"sum(railscope_gpu_row_remap_{state}{query.NODES})")
        for state in ("pending", "failure")
    )
    nvlink = _count_by(
        "error", f"railscope:node_nvlink_errors:rate5m{query.NODES}", query.EVENTS_PER_SECOND
    )
    all_nvlink = query.build_query(
        f"sum(rate(railscope_gpu_nvlink_errors_total{query.NODES}[$__rate_interval]))",
        query.EVENTS_PER_SECOND,
    )
    by_reason = '{node=~"$node", reason=~".*thermal|.*power_brake"}'
    throttled = _count_by("reason", f"railscope:node_gpu_throttle:rate5m{by_reason}", query.COUNT)
    switches = (
        f"sum by (node) (increase(railscope_kernel_sxids_total{query.NODES}[$__rate_interval]))"
    )
    xid_keys = {"node": "Node", "pci_address": "PCI address", "xid": "Xid"}
    yield from (
        panels.bars(301, "Xids", "Driver errors of each node.", query.build_query(xids, query.EVENTS_PER_SECOND, "{{node}}")),
        panels.rows(302, "Xids in the kernel logs", "Reports of each GPU's driver.", xid_keys, panels.Column("Messages", query.build_query(in_log, query.COUNT), worst="highest"), span=16),
        panels.lines(303, "Memory errors", "ECC errors since the driver was loaded, by kind.", _count_by("error", ecc, query.COUNT)),
        panels.lines(304, "Remapped rows", "Rows of GPU memory that were replaced, by cause.", _count_by("cause", f"railscope_gpu_remapped_rows{query.NODES}")),
        panels.lines(305, "Pending or failed repairs", "GPUs with rows that need a reset, or have no spare.",
                     pending.with_name("wait for a reset"), failed.with_name("failed"), steps=panels.NONE_IS_GOOD),
        panels.lines(306, "NVLink errors", "Errors of all links, by kind; kinds appear with their first error.", all_nvlink.with_name("all kinds"), nvlink, steps=panels.ANY_IS_BAD),
        panels.lines(307, "Throttled by temperature or power brake", "GPUs, by reason.", throttled),
        panels.bars(308, "NVSwitch errors", "Errors of each node, from the kernel log.", query.build_query(f"topk(10, {switches})", query.COUNT, "{{node}}")),
    )  # fmt: skip


def _links() -> Iterator[panels.Panel]:
    active, present = (
        f"railscope_gpu_nvlinks_active{query.NODES}",
        f"railscope_gpu_nvlinks{query.NODES}",
    )
    down = query.build_query(f"max by (node) ({present} - {active})", query.COUNT)
    yield panels.rows(
        401,
        "NVLinks",
        "The GPU of each node with the fewest links up.",
        {"node": "Node"},
        panels.Column("Active", query.build_query(f"min by (node) ({active})")),
        panels.Column("Present", query.build_query(f"max by (node) ({present})")),
        panels.Column("Down", down, panels.NONE_IS_GOOD, worst="highest"),
    )
    changes = f"sum by (node) (changes(railscope_network_link_up{query.NODES}[$__rate_interval]))"
    yield panels.bars(
        402,
        "Link changes of NICs",
        "Of each node.",
        query.build_query(f"topk(10, {changes})", query.COUNT, "{{node}}"),
        span=12,
    )


SECTIONS = (
    ("", _summary),
    ("Which GPU, since when, and why?", _matrix),
    ("What do drivers and memory report?", _errors),
    ("Are all links up?", _links),
)
