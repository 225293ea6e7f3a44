"""Panels of the causes that slow down jobs."""

from __future__ import annotations

from collections.abc import Iterator

from dashboards.colours import ALL_IS_GOOD, NONE_IS_GOOD, PAUSE, STALL
from dashboards.health import HEALTH_WORDS, health
from dashboards.held import HELD, ON_ITS_RAILS, of_held
from dashboards.panels import Column, Panel, lines, rows
from dashboards.query import COUNT, SHARE, Query, ask, highest, with_rail

ANY_NODE = '{node!=""}'


def cause_panels() -> Iterator[Panel]:
    """Yield panels of the causes that slow down GPUs and ports of jobs, per device."""
    reasons = '{reason=~".*thermal|.*power.*|sync_boost|reliability"}'
    throttled = f"rate(railscope_gpu_throttle_seconds_total{reasons}[$__rate_interval])"
    held_back = f"sum by (node, gpu, reason) ({throttled} > 0.01)"
    yield rows(
        701,
        "GPUs of jobs held back",
        "Share of time, by reason; the thirty most.",
        {"node": "Node", "gpu": "GPU", "reason": "Reason"},
        Column(
            "Of the time",
            ask(f"topk(30, {of_held(held_back, 'gpu', 'reason')})", SHARE),
            STALL,
            worst="highest",
        ),
        span=8,
    )
    paused = "rate(railscope_nic_{}_pfc_pause_seconds_total[$__rate_interval])"

    def pause(direction: str) -> Query:
        rails = with_rail(f"max by (node, interface) ({paused.format(direction)})")
        return ask(highest(f"{rails} {ON_ITS_RAILS}"), legend="{{node}}, rail {{rail}}")

    yield lines(
        702,
        "Ports of jobs in pause",
        "The ten most now. Received: the fabric is congested. Sent: the server is slow to take data.",
        pause("receive").named("received"),
        pause("transmit").named("sent"),
        steps=PAUSE,
    )
    path = "max by (node, pci_address) (railscope_pcie_path_{}_bytes_per_second)"
    theirs = f"railscope_gpu_info {HELD} or railscope_nic_info {ON_ITS_RAILS}"
    share = f"{path.format('bandwidth')} / ({path.format('limit')} > 0)"
    yield rows(
        703,
        "PCIe bandwidth of jobs' GPUs and cards",
        "Of what the slots allow; the ten worst. Less than all: trained down.",
        {"node": "Node", "pci_address": "PCI address"},
        Column(
            "Of what it could be",
            ask(f"bottomk(10, {share} and on (node, pci_address) ({theirs}))", SHARE),
            ALL_IS_GOOD,
            worst="lowest",
        ),
        span=8,
    )
    errors = 'railscope_gpu_ecc_errors_total{lifetime="volatile"} > 0'
    failed = f"sum by (node, gpu, error) ({errors})"
    yield rows(
        704,
        "Memory errors of jobs' GPUs",
        "Since the driver was loaded, corrected and not; the thirty with most.",
        {"node": "Node", "gpu": "GPU", "error": "Error"},
        Column(
            "Errors", ask(f"topk(30, {of_held(failed, 'gpu', 'error')})", COUNT), worst="highest"
        ),
    )
    against = f"max by (node, gpu, reason) (railscope_gpu_health_reason_active == 1) {HELD}"
    verdict = f"({against}) * on (node, gpu) group_left () {health('node, gpu', ANY_NODE)}"
    yield rows(
        705,
        "Against the jobs' GPUs",
        "What speaks against their health.",
        {"node": "Node", "gpu": "GPU", "reason": "Reason"},
        Column("Health", ask(f"topk(30, {verdict})", COUNT), NONE_IS_GOOD, HEALTH_WORDS, "highest"),
    )
