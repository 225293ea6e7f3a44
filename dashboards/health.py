"""The dashboard of faults: every GPU's health, with unknown as a separate state."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import panels
from dashboards.dashboard_parts import DashboardVariable, assemble, xid_marks
from dashboards.query import COUNT, EVENTS_PER_SECOND, Query, ask, grown, with_index
from railscope.catalog import gpu_health

UID = "railscope-health"
QUESTION = "Which GPUs are faulty, and which are unknown?"
NODES = '{node=~"$node"}'
CHOICES = (DashboardVariable("node", "Node", "railscope_node_reporting", several=True),)
HEALTH_WORDS = {value: word for value, (word, _) in panels.HEALTH.items()}
ACTIONS = {value: word for value, word in gpu_health.GPU_ACTION.states.items() if word != "none"}
NODE_GPU = {"node": "Node", "gpu": "GPU"}


def health(by: str, where: str) -> str:
    """Return the number in `HEALTH` of the worst state of each group of GPUs.

    Groups are made before they are compared: that is cheap for many GPUs.
    """
    matchers = where.removesuffix("}") + ', state="'
    parts = (
        f'(max by ({by}) (railscope_gpu_health{matchers}{word}"}}) == 1) * {value}'
        for value, (word, _) in sorted(panels.HEALTH.items(), reverse=True)
    )
    return f"({' or '.join(parts)})"


def _actions() -> str:
    """Return the recommended action of the verdict as a number: larger is more intrusive."""
    parts = (
        f'(max by (node, gpu) (railscope_gpu_recommended_action{{node=~"$node", state="{word}"}}) == 1)'
        f" * {value}"
        for value, word in sorted(ACTIONS.items(), reverse=True)
    )
    return " or ".join(parts)


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    return assemble(
        "Faults and health matrix",
        UID,
        QUESTION,
        SECTIONS,
        choices=CHOICES,
        marks=(xid_marks(NODES),),
        tags=("gpu", "health"),
    )


def _in_state(state: str) -> Query:
    return ask(f'sum(railscope_gpu_health{{node=~"$node", state="{state}"}})')


def _summary() -> Iterator[panels.Panel]:
    unknown = "GPUs with missing readings; those of stale nodes are not included."
    yield panels.number(101, "Healthy", "GPUs without a detected fault.", _in_state("healthy"))
    yield panels.number(
        102,
        "Degraded",
        "GPUs that are usable and need attention.",
        _in_state("degraded"),
        panels.NONE_IS_GOOD,
    )
    yield panels.number(
        103, "Failed", "GPUs that are not usable now.", _in_state("failed"), panels.NONE_IS_GOOD
    )
    yield panels.number(104, "Unknown", unknown, _in_state("unknown"), panels.NONE_IS_GOOD)
    yield panels.number(
        105,
        "Stale nodes",
        "The state of their GPUs is unknown.",
        ask(
            f"count(railscope_node_reporting{NODES}) - sum(railscope_node_reporting{NODES})", COUNT
        ),
        panels.NONE_IS_GOOD,
    )
    yield panels.number(
        106,
        "Devices missing",
        "GPUs that a node had and that left its bus.",
        ask('sum(railscope_gpu_device_state{node=~"$node", state="missing"})'),
        panels.NONE_IS_GOOD,
    )
    yield panels.number(
        107,
        "Xids in the last hour",
        "Driver errors.",
        grown(f"railscope_kernel_xids_total{NODES}"),
        panels.NONE_IS_GOOD,
    )
    yield panels.number(
        108,
        "GPUs with a recommended action",
        "GPUs whose health recommends an action.",
        ask('sum(railscope_gpu_recommended_action{node=~"$node", state!~"none|ignore"})'),
        panels.NONE_IS_GOOD,
    )


def _matrix() -> Iterator[panels.Panel]:
    by_gpu = with_index(health("node, gpu", NODES), NODES)
    yield panels.grid(
        201,
        "Health now, node by GPU",
        "An empty cell: no such GPU is reported.",
        "node",
        "index",
        ask(by_gpu, COUNT),
        words=panels.HEALTH,
    )
    stale = f"(max by (node) (railscope_node_reporting{NODES}) == 0) + 2"
    yield panels.states(
        202,
        "Nodes that are not healthy",
        "The worst GPU of each; healthy nodes are omitted, and stale ones are unknown.",
        ask(f"{health('node', NODES)} > 0 or {stale}", COUNT, "{{node}}"),
        panels.HEALTH,
        span=12,
    )
    by_health = panels.layers(
        203,
        "GPUs by health",
        "Number of GPUs in each state.",
        ask(f"sum by (state) (railscope_gpu_health{NODES})", legend="{{state}}"),
        span=12,
    )
    yield panels.in_colours(by_health, dict(panels.HEALTH.values()))
    reasons = f"max by (node, gpu, reason) (railscope_gpu_health_reason_active{NODES} == 1)"
    verdict = f"{reasons} * on (node, gpu) group_left () {health('node, gpu', NODES)}"
    yield panels.rows(
        204,
        "Reasons",
        "Detected faults of each GPU.",
        NODE_GPU | {"reason": "Reason"},
        panels.Column("Holds", ask(reasons, COUNT), panels.NONE_IS_GOOD, {1: "yes"}),
        panels.Column("Health", ask(verdict, COUNT), panels.NONE_IS_GOOD, HEALTH_WORDS, "highest"),
    )
    yield panels.rows(
        205,
        "Recommended actions",
        "The recommended action; Railscope does not take it.",
        NODE_GPU,
        panels.Column("Action", ask(_actions(), COUNT), panels.NONE_IS_GOOD, ACTIONS, "highest"),
    )
    missing = f"max by (node) (railscope_node_reporting{NODES}) == 0"
    last = f"min by (node) (railscope_node_last_frame_age_seconds{NODES}) and ({missing})"
    yield panels.rows(
        206,
        "Stale nodes",
        "Nodes without fresh frames.",
        {"node": "Node"},
        panels.Column("State", ask(missing, COUNT), panels.ALL_IS_GOOD, {0: "unknown"}),
        panels.Column("Last frame", ask(last), panels.OLD, worst="highest"),
    )


def _errors() -> Iterator[panels.Panel]:
    yield panels.bars(
        301,
        "Xids",
        "Driver errors of each node.",
        ask(
            f"sum by (node) (rate(railscope_kernel_xids_total{NODES}[$__rate_interval])) > 0",
            EVENTS_PER_SECOND,
            "{{node}}",
        ),
    )
    yield panels.rows(
        302,
        "Xids in the kernel logs",
        "Reports of each GPU's driver.",
        {"node": "Node", "pci_address": "PCI address", "xid": "Xid"},
        panels.Column(
            "Messages",
            ask(f"sum by (node, pci_address, xid) (railscope_gpu_xid_errors_total{NODES})", COUNT),
            worst="highest",
        ),
        span=16,
    )
    ecc = 'railscope_gpu_ecc_errors_total{node=~"$node", lifetime="volatile"}'
    yield panels.lines(
        303,
        "Memory errors",
        "ECC errors since the driver was loaded, by kind.",
        ask(f"sum by (error) ({ecc})", COUNT, "{{error}}"),
    )
    yield panels.lines(
        304,
        "Remapped rows",
        "Rows of GPU memory that were replaced, by cause.",
        ask(f"sum by (cause) (railscope_gpu_remapped_rows{NODES})", legend="{{cause}}"),
    )
    pending = "railscope_gpu_row_remap_pending", "railscope_gpu_row_remap_failure"
    yield panels.lines(
        305,
        "Pending or failed repairs",
        "GPUs with rows that need a reset, or have no spare.",
        ask(f"sum({pending[0]}{NODES})").named("wait for a reset"),
        ask(f"sum({pending[1]}{NODES})").named("failed"),
        steps=panels.NONE_IS_GOOD,
    )
    yield panels.lines(
        306,
        "NVLink errors",
        "By kind, of all links.",
        ask(
            f"sum by (error) (railscope:node_nvlink_errors:rate5m{NODES})",
            EVENTS_PER_SECOND,
            "{{error}}",
        ),
        steps=panels.ANY_IS_BAD,
    )
    held = (
        "sum by (reason) (railscope:node_gpu_throttle:rate5m"
        '{node=~"$node", reason=~".*thermal|.*power_brake"})'
    )
    yield panels.lines(
        307,
        "Throttled by temperature or power brake",
        "GPUs, by reason.",
        ask(held, COUNT, "{{reason}}"),
    )
    switches = (
        f"topk(10, sum by (node) (increase(railscope_kernel_sxids_total{NODES}[$__rate_interval])))"
    )
    yield panels.bars(
        308,
        "NVSwitch errors",
        "Of each node, from the kernel log.",
        ask(switches, COUNT, "{{node}}"),
    )


def _links() -> Iterator[panels.Panel]:
    least = f"min by (node) (railscope_gpu_nvlinks_active{NODES})"
    most = f"max by (node) (railscope_gpu_nvlinks{NODES})"
    down = f"max by (node) (railscope_gpu_nvlinks{NODES} - railscope_gpu_nvlinks_active{NODES})"
    yield panels.rows(
        401,
        "NVLinks",
        "The GPU of each node with the fewest links up.",
        {"node": "Node"},
        panels.Column("Active", ask(least)),
        panels.Column("There are", ask(most)),
        panels.Column("Down", ask(down, COUNT), panels.NONE_IS_GOOD, worst="highest"),
    )
    up = f"railscope_network_link_up{NODES}"
    changes = f"topk(10, sum by (node) (changes({up}[$__rate_interval])))"
    yield panels.bars(
        402,
        "Link changes of NICs",
        "Of each node.",
        ask(changes, COUNT, "{{node}}"),
        span=12,
    )


SECTIONS = (
    ("", _summary),
    ("Which GPU, since when, and why?", _matrix),
    ("What do drivers and memory report?", _errors),
    ("Are all links up?", _links),
)
