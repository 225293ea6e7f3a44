"""Both ends of links in the demo: what is compared, and what the terminal shows."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from railscope.timestamps import SECOND_NS
from railscope_simulator.demo.link_ends import ComparedLinks
from railscope_simulator.demo.report import status_lines, verdict
from tests.test_demo_table import NOTES

ACCOUNT = {"tenants": {}, "states": {"idle": "0", "unknown": "0"}, "gpus": 0, "capacity_ns": "0",
           "balances": True}  # fmt: skip
STARTED_NS = 10**18
TO_SWITCH, TO_HOST = "to_switch_pfc_pause_frames", "to_host_pfc_pause_frames"
VIEWS: dict[str, Any] = {
    "status": {"status": "healthy", "reasons": [], "open_incidents": []}, "cluster": {"rows": []}, "nodes": {"rows": []}, "rails": {"rows": []}, "account": ACCOUNT, "incidents": {"rows": []},
}  # fmt: skip


def at_ns(seconds: float) -> int:
    return STARTED_NS + round(seconds * SECOND_NS)


def switch(
    nic_at: float,
    nic: int | str,
    polled_at: float,
    port: int | str,
    quantity: str = TO_SWITCH,
) -> dict[str, Any]:
    """Answer of the API for a switch with one link."""
    other = {TO_SWITCH: TO_HOST, TO_HOST: TO_SWITCH}[quantity]
    counters = [
        {"quantity": "to_switch_bytes", "switch": 1, "host": 2},
        {"quantity": quantity, "priority": "0", "switch": 1, "host": 2},
        {"quantity": quantity, "priority": "3", "switch": port, "host": nic},
        {"quantity": other, "priority": "3", "switch": 7, "host": 7},
    ]
    link = {
        "node": "gpu-node-3", "interface": "ens4f0np0", "switch_timestamp_ns": at_ns(polled_at),
        "host_timestamp_ns": at_ns(nic_at), "counters": counters,
    }  # fmt: skip
    return {
        "switch": "leaf-4",
        "ports": [{"port": "Ethernet8", "link": link}, {"port": "Ethernet12"}],
    }


def compared(per_second: int, quantity: str = TO_SWITCH, port_per_second: int = 0) -> ComparedLinks:
    """Thirty seconds of a link; the NIC is read every second, and the port every 5 seconds."""
    links = ComparedLinks()
    for second in range(1, 31):
        polled = second // 5 * 5
        links.add(
            [switch(second + 0.4, per_second * second, polled + 0.7, (port_per_second or per_second) * polled, quantity)],
            STARTED_NS,
        )  # fmt: skip
    return links


def shown(links: ComparedLinks) -> tuple[bool, str]:
    counts = {"received_frames_total": 6, "received_switch_frames_total": 5, "missing_frames": 0}
    own = {f"railscope_collector_{name}": count for name, count in counts.items()}
    account = ACCOUNT | {"held_ns": "0", "capacity_ns": "1", "states": {"idle": "1"}}
    sent = [{"shipped": 1, "dropped": 0, "waiting": 0}]
    return verdict([], sent, VIEWS | {"own": own, "account": account}, links)


def test_a_paused_link_is_shown_with_both_ends_over_the_same_time():
    (row,) = compared(4000).rows()
    assert row == [
        "gpu-node-3 ens4f0np0", "leaf-4 Ethernet8", "NIC pauses switch", "5 s", "20,000", "20,000",
    ]  # fmt: skip
    (row,) = compared(4000, TO_HOST).rows()
    assert row[2:] == ["switch pauses NIC", "5 s", "20,000", "20,000"]
    assert not compared(20).rows(), "a healthy link has a few pauses"
    text = "\n".join(status_lines(VIEWS, compared(4000).rows(), NOTES))
    assert "PAUSED LINK" in text
    assert "PAUSED LINK" not in "".join(status_lines(VIEWS, (), NOTES))


def test_ends_that_differ_fail_the_check_of_the_demo():
    good, text = shown(compared(4000))
    assert good
    assert "ok    both ends of 1 links count the same pauses (13 comparisons)" in text
    good, text = shown(compared(4000, port_per_second=3999))
    assert not good
    assert "FAIL  the ends of links differ: gpu-node-3 ens4f0np0 - leaf-4 Ethernet8" in text


@given(st.integers(0, 10**6), st.sets(st.integers(1, 30)), st.floats(0, 0.99), st.floats(0, 0.99))
def test_samples_at_any_times_never_make_equal_ends_differ(
    per_second: int, missing: set[int], nic_phase: float, port_phase: float
):
    links = ComparedLinks()
    for second in range(1, 31):
        if second not in missing:
            polled = second // 5 * 5
            answer = switch(second + nic_phase, per_second * second, polled + port_phase, per_second * polled)  # fmt: skip
            links.add([answer], STARTED_NS)
    assert not links.differences
