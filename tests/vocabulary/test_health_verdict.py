"""The forms of a health verdict, with the exit statuses that their receivers expect."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from railscope.health_verdict import (
    DEGRADED,
    FAILED,
    FORMATS,
    HEALTHY,
    MAX_REASON,
    ORDER,
    UNKNOWN,
    DeviceVerdict,
    HealthState,
    format_verdict,
    node_verdict,
    unknown_verdict,
)

ACTIONS = ("restart_app", "inspect", "drain", "reset_gpu", "reboot", "rma")
ADVICE = {"reset_gpu": "reset the GPU", "reboot": "reboot the node"}


def gpu(index: int, state: HealthState, *reasons: str, action: str = "") -> DeviceVerdict:
    address = f"0000:{index:02x}:00.0"
    return DeviceVerdict(
        kind="GPU", name=f"GPU-{index}", state=state, index=str(index), pci_address=address,
        rail=str(index), reasons=reasons, action=action,
        fault=" ".join(reasons[:1]).replace("_", " "), advice=ADVICE.get(action, ""),
    )  # fmt: skip


def nic(name: str, state: HealthState, *reasons: str) -> DeviceVerdict:
    return DeviceVerdict(
        kind="NIC", name=name, state=state, pci_address="0000:5e:00.0", reasons=reasons,
        fault=" ".join(reasons[:1]).replace("_", " "),
    )  # fmt: skip


NODES = {
    HEALTHY: [gpu(0, HEALTHY), nic("rail0", HEALTHY)],
    DEGRADED: [gpu(0, HEALTHY), gpu(3, DEGRADED, "row_remap_pending", action="reset_gpu")],
    FAILED: [
        nic("rail0", DEGRADED, "link_flap"),
        gpu(3, FAILED, "gpu_lost", "xid_fatal", action="reboot"),
        gpu(0, HEALTHY),
    ],
}
TEXTS = {
    (HEALTHY, "text"): ("healthy: healthy GPUs: 1, healthy NICs: 1", 0),
    (HEALTHY, "nagios"): (
        ("RAILSCOPE OK - railscope: healthy GPUs: 1, healthy NICs: 1"
        " | gpus=1 nics=1 failed=0 unknown=0 degraded=0"), 0,
    ),
    (HEALTHY, "npd"): ("railscope: healthy GPUs: 1, healthy NICs: 1", 0),
    (DEGRADED, "text"): (
        ("degraded: GPU 3: row remap pending; reset the GPU\n"
        "  GPU 3 GPU-3 0000:03:00.0 on rail 3: degraded: row remap pending; reset the GPU"), 1,
    ),
    (DEGRADED, "nagios"): (
        ("RAILSCOPE WARNING - railscope: GPU 3: row remap pending; reset the GPU"
        " | gpus=2 nics=0 failed=0 unknown=0 degraded=1"), 1,
    ),
    (DEGRADED, "npd"): ("railscope: GPU 3: row remap pending; reset the GPU", 0),
    (FAILED, "text"): (
        ("failed: GPU 3: gpu lost +1 more; reboot the node\n"
        "  GPU 3 GPU-3 0000:03:00.0 on rail 3: failed: gpu lost; reboot the node\n"
        "  NIC rail0 0000:5e:00.0: degraded: link flap"), 2,
    ),
    (FAILED, "nagios"): (
        ("RAILSCOPE CRITICAL - railscope: GPU 3: gpu lost +1 more; reboot the node"
        " | gpus=2 nics=1 failed=1 unknown=0 degraded=1"), 2,
    ),
    (FAILED, "npd"): ("railscope: GPU 3: gpu lost +1 more; reboot the node", 1),
    (UNKNOWN, "text"): ("unknown: no answer from the agent within 2 s", 3),
    (UNKNOWN, "nagios"): (
        ("RAILSCOPE UNKNOWN - railscope: unknown: no answer from the agent within 2 s"
        " | gpus=0 nics=0 failed=0 unknown=0 degraded=0"), 3,
    ),
    (UNKNOWN, "npd"): ("railscope: unknown: no answer from the agent within 2 s", 2),
}  # fmt: skip


@pytest.mark.parametrize(("state", "form"), list(TEXTS))
def test_each_form_has_its_text_and_status(state: HealthState, form: str):
    known = node_verdict(NODES[state], ACTIONS) if state in NODES else None
    verdict = known or unknown_verdict("no answer from the agent within 2 s")
    assert verdict.state == state
    assert format_verdict(verdict, form) == TEXTS[state, form]


def test_json_has_all_fields():
    text, status = format_verdict(node_verdict(NODES[FAILED], ACTIONS, "slurm:7"), "json")
    read = json.loads(text)
    assert (status, read["state"], read["action"], read["job"]) == (
        2,
        "failed",
        "reboot",
        "slurm:7",
    )
    assert [device["name"] for device in read["devices"]] == ["GPU-3", "rail0"]
    assert (read["gpus"], read["nics"]) == (2, 1)


def test_a_failed_device_takes_precedence_over_an_unknown_one():
    devices = [gpu(0, UNKNOWN, "driver_unresponsive"), gpu(1, FAILED, "gpu_lost")]
    assert node_verdict(devices, ACTIONS).state == FAILED
    assert node_verdict(devices[:1], ACTIONS).state == UNKNOWN
    without = node_verdict((), ACTIONS)
    assert (without.state, without.reason) == (HEALTHY, "railscope: no GPU and no NIC to judge")


NAMES = st.text(max_size=120)


@given(
    st.lists(st.tuples(st.sampled_from(ORDER), NAMES, NAMES), max_size=4), st.sampled_from(FORMATS)
)
def test_reasons_are_one_short_printable_line(rows: list[tuple[HealthState, str, str]], form: str):
    devices = [
        DeviceVerdict(kind="NIC", name=name, state=state, reasons=(reason,))
        for state, name, reason in rows
    ]
    verdict = node_verdict(devices, ACTIONS)
    assert verdict.state == next((s for s in ORDER if s in {d.state for d in devices}), HEALTHY)
    assert len(verdict.reason) <= MAX_REASON
    assert verdict.reason.startswith("railscope: ")
    assert verdict.reason.isascii()
    assert verdict.reason.isprintable()
    text, status = format_verdict(verdict, form)
    assert 0 <= status <= 3
    if form in {"nagios", "npd"}:
        assert len(text.splitlines()) == 1
    if form == "nagios":
        assert text.count("|") == 1
