"""Single faults: a server with one fault raises exactly the alerts that this fault explains.

Real pages of the agent, all real rules with their times, and the inhibition of the example for
Alertmanager.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.agent_hours import RARELY_NS, node_of_1970, scraped_series
from support.alert_rules import RULES, rules_of
from support.evaluated_alerts import (
    Labels,
    alerts,
    inhibitions,
    metrics_of_rules,
    notified_alerts,
)

from railscope_agent.sampling.source_reader import REPROBE_NS
from railscope_simulator import SCENARIOS

MINUTES, SLOW_MINUTES = 28, 44
"""Faults begin at half time, and no rule that they concern waits for longer than the rest."""
BEFORE_MINUTES = 8
"""The agent starts so long before the fault."""
SLOW = {"settings_drift"}
"""Faults with a rule that waits longer."""
METRICS = metrics_of_rules()
FOUND_BY_PROBES = {"nic_lost"}
"""Faults that an agent finds with its next probe, before another alert of theirs fires."""
HEALTHY = {"idle", "training", "counter_reset", "link_flap"}
AFFECTED_PORT = {"device": "mlx5_3", "port": "1"}
AFFECTED_INTERFACE = {"interface": "ens2f0np0"}

SENT_BY_FAULT: dict[str, dict[str, Labels]] = {
    "xid79": {
        "RailscopeGpuLost": {"severity": "critical", "reason": "gpu_lost"},
        "RailscopeGpuXid": {"severity": "critical", "xid": "79", "pci_address": "0000:43:00.0"},
        "RailscopePcieAer": {"severity": "critical"},
    },
    "row_remap": {
        "RailscopeGpuRecovery": {"state": "drain_and_reset"},
        "RailscopeGpuRowRemapPending": {"severity": "warning"},
    },
    "ecc_uncorrected": {
        "RailscopeGpuEccUncorrected": {"severity": "critical"},
        "RailscopeGpuHealth": {"severity": "critical"},
        "RailscopeGpuRecovery": {"state": "drain_and_reset"},
        "RailscopeGpuRowRemapPending": {"severity": "warning"},
        "RailscopeGpuXid": {"severity": "critical", "xid": "48"},
    },
    "nvlink_errors": {
        "RailscopeGpuHealth": {"severity": "critical"},
        "RailscopeGpuRecovery": {"state": "gpu_reset"},
        "RailscopeGpuXid": {"severity": "critical", "xid": "74"},
        "RailscopeNvlinkErrors": {"severity": "critical", "link": "7"},
        "RailscopeNvswitchSxid": {"severity": "warning"},
    },
    "gpu_hung": {
        "RailscopeGpuHealth": {"severity": "critical"},
        "RailscopeGpuDriverStuck": {"severity": "critical"},
        "RailscopeGpuXid": {"severity": "critical", "xid": "119"},
    },
    # Sources still read the other GPUs: they are partial, and do not fail.
    "driver_stuck": {"RailscopeGpuDriverStuck": {"severity": "critical"}},
    "nvml_denied": {"RailscopeSourcePartial": {"source": "gpu_activity"}},
    "thermal": {"RailscopeGpuThermalThrottle": {"severity": "critical", "problem": "hardware"}},
    "incast": {"RailscopeIncast": {"severity": "warning", **AFFECTED_PORT}},
    "pause_storm": {
        "RailscopeLosslessDiscards": {"problem": "buffer", "priority": "3", **AFFECTED_INTERFACE},
        "RailscopePfcPauseShare": {"severity": "critical", "direction": "transmit"},
        "RailscopePfcStorm": {"severity": "critical", **AFFECTED_INTERFACE},
    },
    "slow_receiver": {"RailscopePfcPauseShare": {"direction": "transmit", **AFFECTED_INTERFACE}},
    "stalled_receiver": {"RailscopePfcPauseShare": {"direction": "transmit", **AFFECTED_INTERFACE}},
    "link_down": {"RailscopeLinkDown": {"problem": "down", **AFFECTED_PORT}},
    "unclaimed": {"RailscopeUnclaimedUse": {"reported_by": "agent"}},
    "pfc_victim": {"RailscopePfcPauseShare": {"direction": "receive", **AFFECTED_INTERFACE}},
    "flapping": {"RailscopeLinkDown": {"problem": "flapping", **AFFECTED_INTERFACE}},
    "speed_down": {
        "RailscopeFecErrors": {"severity": "critical", **AFFECTED_INTERFACE},
        "RailscopeLinkSpeed": AFFECTED_INTERFACE,
    },
    "optics": {"RailscopeFecErrors": {"severity": "critical", **AFFECTED_INTERFACE}},
    "nic_lost": {"RailscopePcieDeviceGone": {"severity": "critical", "problem": "gone"}},
    "pcie_degraded": {"RailscopePcieDegraded": {"role": "nic", "pci_address": "0000:40:00.0"}},
    "settings_drift": {
        "RailscopeMarksWithoutNotifications": AFFECTED_PORT,
        "RailscopeRailSettingsDiffer": {"driver": "mlx5_core"},
    },
}
"""For each fault, every alert that is sent, and labels that one of its name bears."""


def test_every_fault_has_a_case() -> None:
    assert set(SENT_BY_FAULT) == set(SCENARIOS) - HEALTHY


@pytest.mark.thorough  # minutes of an agent and of all rules for each
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", SENT_BY_FAULT)
async def test_a_fault_is_reported_by_what_it_explains(tmp_path: Path, fault: str) -> None:
    minutes = SLOW_MINUTES if fault in SLOW else MINUTES
    scheduler = "kubernetes" if fault == "unclaimed" else "slurm"  # whose jobs have all GPUs
    spec = node_of_1970("n1", fault, gpus=2, scheduler=scheduler)
    reprobe_ns = REPROBE_NS if fault in FOUND_BY_PROBES else RARELY_NS
    series = await scraped_series(spec, minutes, METRICS, minutes // 2 - BEFORE_MINUTES, reprobe_ns)
    found = alerts(series, minutes, tmp_path)
    early = [alert for now in found[: minutes // 2] for alert in now if "node" in alert]
    assert early == [] or fault == "nvml_denied", "it is well until the fault begins"
    sent = notified_alerts(found)
    assert {alert["alertname"] for alert in sent} == set(SENT_BY_FAULT[fault]), sent
    for name, labels in SENT_BY_FAULT[fault].items():
        wanted = {"alertname": name, "node": "n1", **labels}
        assert any(wanted.items() <= alert.items() for alert in sent), wanted


# How Alertmanager inhibits ------------------------------------------------------------------------


def test_a_critical_alert_is_not_inhibited_by_a_less_urgent_one() -> None:
    urgent = {
        rule["alert"]
        for path in RULES
        for rule in rules_of(path)
        if rule.get("labels", {}).get("severity") == "critical"
    }
    for rule in inhibitions():
        for name in urgent:
            target = {"alertname": name, "severity": "critical"}
            for by in ("RailscopeGpuPowerLimitLowered", "RailscopeSourceFailing"):
                assert not rule.silences(target, {"alertname": by, "severity": "warning"})
