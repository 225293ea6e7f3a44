"""Network case directories: the expected symptoms of each and their start.

The growth of a counter is the metrics text of the end compared with that of the start.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from support.cases import CASES
from support.network_cases import (
    AFFECTED,
    DRIFTED,
    ONSET,
    OTHER,
    SECONDS,
    end,
    final_content,
    gpus_by_case,
    series,
    start,
    total_growth,
    value,
)

from railscope.capture import Json
from railscope_agent.commands import agent

GPUS = gpus_by_case()
AFFECTED_DEVICE, OTHER_DEVICE = "mlx5_5", "mlx5_4"
NIC, ABOVE = "0000:5e:00.0", "0000:5d:00.0"
LINE_BYTES_PER_SECOND = 50_000_000_000

PFC_SENT_SECONDS = "railscope_nic_transmit_pfc_pause_seconds_total"
PFC_RECEIVED_SECONDS = "railscope_nic_receive_pfc_pause_seconds_total"
MARKED = "railscope_rdma_ecn_marked_packets_total"
NOTIFIED = "railscope_rdma_congestion_notifications_sent_total"
RECEIVED = "railscope_nic_receive_rdma_bytes_total"
DISCARDED = "railscope_nic_priority_receive_discarded_packets_total"


def rail_of(case: str, device: str) -> str:
    """Return the rail of an RDMA device from its facts; empty if it has none."""
    shown = series(end(case), "railscope_rdma_port_info", device=device)
    rails = [label for labels in shown for label in labels if label.startswith("rail=")]
    return "".join(rails).removeprefix("rail=")


@pytest.mark.parametrize("case", GPUS)
def test_every_port_is_on_the_page_and_counts(case: str) -> None:
    ports = final_content(case, "names", "/sys/class/infiniband")
    bridges = 4 if case == "hgx-b200-bridges" else 0
    lost = 1 if case == "nic-lost" else 0
    assert len(ports) == GPUS[case] + 2 + bridges - lost
    shown = series(end(case), "railscope_rdma_port_up")
    assert len(ports) - bridges <= len(shown) <= len(ports)
    assert set(shown.values()) == {1}
    rails = sorted(rail_of(case, device) for device in ports)
    expected = {str(rail) for rail in range(GPUS[case])} - ({"3"} if lost else set())
    assert [rail for rail in rails if rail] == sorted(expected)


@pytest.mark.parametrize("case", GPUS)
def test_the_whole_path_of_every_nic_and_gpu_is_in_the_tree(case: str) -> None:
    outcome = CliRunner().invoke(
        agent, ["topology", "--replay", str(CASES / case), "--format", "json"]
    )
    devices = {device["address"]: device for device in json.loads(outcome.stdout)["devices"]}
    assert sum(device["role"] == "gpu" for device in devices.values()) == GPUS[case]
    for device in devices.values():
        assert set(device["path"]) <= set(devices)
        assert None not in device["link"].values() or device["names"] == ["eth0"]


def test_an_incast_is_marked_and_notified_and_pauses_no_port() -> None:
    case = "hgx-h100-roce-incast"
    assert total_growth(case, RECEIVED, interface=AFFECTED) > 0.5 * LINE_BYTES_PER_SECOND * (
        SECONDS - ONSET
    )
    assert total_growth(case, MARKED, device=AFFECTED_DEVICE) > 100 * total_growth(
        case, MARKED, device=OTHER_DEVICE
    )
    assert total_growth(case, NOTIFIED, device=AFFECTED_DEVICE) > 10**6
    assert total_growth(case, PFC_SENT_SECONDS, interface=AFFECTED) < 0.01 * SECONDS
    assert total_growth(case, DISCARDED) == 0


def test_a_pause_storm_is_a_port_that_pauses_nearly_all_the_time() -> None:
    case = "hgx-h100-roce-pause-storm"
    share = total_growth(case, PFC_SENT_SECONDS, interface=AFFECTED) / (SECONDS - ONSET)
    assert 0.5 < share <= 1
    assert total_growth(case, PFC_SENT_SECONDS, interface=OTHER) < 0.01 * SECONDS
    assert (
        total_growth(case, "railscope_nic_transmit_pause_storm_errors_total", interface=AFFECTED)
        > 5
    )
    assert total_growth(case, DISCARDED, interface=AFFECTED, priority="3") > 0
    assert total_growth(case, DISCARDED, interface=OTHER) == 0


def test_idle_rails_move_nothing() -> None:
    case = "hgx-h100-roce-idle"
    for name in (RECEIVED, MARKED, NOTIFIED, PFC_SENT_SECONDS, PFC_RECEIVED_SECONDS, DISCARDED):
        assert total_growth(case, name) == 0
    assert total_growth(case, "railscope_nic_receive_packets_total") > 0


def test_the_number_of_a_device_is_not_its_rail() -> None:
    for case in ("index-is-not-rail", "hgx-h100-roce-idle"):
        devices = [f"mlx5_{n}" for n in (0, 3, 4, 5, 6, 9, 10, 11)][: GPUS[case]]
        rails = [rail_of(case, device) for device in devices]
        assert rails == [str(rail) for rail in range(len(devices))]
    assert {rail_of("index-is-not-rail", device) for device in ("mlx5_1", "mlx5_7")} == {""}


def test_functions_that_manage_nvswitches_are_not_rails() -> None:
    case = "hgx-b200-bridges"
    bridges = [
        device
        for device in final_content(case, "names", "/sys/class/infiniband")
        if "SW_MNG" in final_content(case, "files", f"/sys/class/infiniband/{device}/device/vpd")
    ]
    assert bridges == ["mlx5_12", "mlx5_13", "mlx5_2", "mlx5_8"]
    assert {rail_of(case, device) for device in bridges} == {""}
    assert not series(end(case), "railscope_nic_info", rdma_device=bridges[0])


def test_broadcom_nics_report_a_victim_like_mellanox_nics() -> None:
    case, affected, other = "bnxt-node", "ens4np0", "ens3np0"
    facts = {"driver": "bnxt_en", "rdma_device": "bnxt_re4", "rail": "3"}
    assert series(end(case), "railscope_nic_info", interface=affected, **facts)
    assert total_growth(case, PFC_RECEIVED_SECONDS, interface=affected, priority="3") > 0.5
    assert total_growth(case, PFC_RECEIVED_SECONDS, interface=other) < 0.05
    assert total_growth(case, PFC_SENT_SECONDS, interface=affected) < 0.05
    assert total_growth(case, "railscope_rdma_transmit_bytes_total", device="bnxt_re4") > 10**11
    assert total_growth(case, NOTIFIED, device="bnxt_re4") > 0


def test_intel_nics_report_pause_frames_without_durations() -> None:
    case = "irdma-node"
    facts = {"driver": "ice", "rdma_device": "rocep94s0", "rail": "3"}
    assert series(end(case), "railscope_nic_info", interface=AFFECTED, **facts)
    frames = "railscope_nic_transmit_pfc_pause_frames_total"
    assert total_growth(case, frames, interface=AFFECTED, priority="3") > 1000
    assert total_growth(case, frames, interface=OTHER) < 100
    assert not series(end(case), PFC_SENT_SECONDS)
    assert (
        total_growth(case, "railscope_nic_receive_discarded_packets_total", interface=AFFECTED) > 0
    )
    assert total_growth(case, NOTIFIED, device="rocep79s0") >= 0


def test_nics_of_two_vendors_share_a_node() -> None:
    nics = [f"ens{slot}f0np0" for slot in range(1, 5)] + ["ens5np0", "ens6np0"]
    for rail, interface in enumerate(nics):
        driver = "mlx5_core" if rail < 4 else "bnxt_en"
        facts = {"interface": interface, "rail": str(rail), "driver": driver}
        assert series(end("mixed-node"), "railscope_nic_info", **facts)
        assert (
            total_growth("mixed-node", "railscope_nic_receive_bytes_total", interface=interface)
            > 10**11
        )


def test_a_flapping_link_is_up_now_and_was_down_often() -> None:
    case = "flapping-link"
    assert total_growth(case, "railscope_nic_link_downs_total", interface=AFFECTED) == 6
    assert total_growth(case, "railscope_network_link_changes_total", interface=AFFECTED) == 12
    assert value(case, "railscope_network_link_up", interface=AFFECTED) == 1
    assert total_growth(case, "railscope_rdma_link_downs_total", device=AFFECTED_DEVICE) == 6
    assert total_growth(case, "railscope_rdma_ack_timeouts_total", device=AFFECTED_DEVICE) > 0
    for name in ("railscope_nic_link_downs_total", "railscope_network_link_changes_total"):
        assert total_growth(case, name, interface=OTHER) == 0


def test_a_port_that_trained_down_has_half_its_speed_and_had_errors_before() -> None:
    case = "port-trained-down"
    speed = "railscope_network_link_speed_bytes_per_second"
    rate = "railscope_rdma_port_rate_bytes_per_second"
    halves = [
        value(case, name, **labels) / value(case, name, **others)
        for name, labels, others in (
            (speed, {"interface": AFFECTED}, {"interface": OTHER}),
            (rate, {"device": AFFECTED_DEVICE}, {"device": OTHER_DEVICE}),
        )
    ]
    assert halves == [0.5, 0.5]
    assert total_growth(case, "railscope_nic_link_downs_total", interface=AFFECTED) == 1
    corrected = "railscope_nic_receive_corrected_errors_total"
    assert total_growth(case, corrected, interface=AFFECTED) > 10**6
    assert total_growth(case, corrected, interface=OTHER) < 10**6
    uncorrected = "railscope_nic_receive_uncorrected_symbol_errors_total"
    assert total_growth(case, uncorrected, interface=AFFECTED) > 0
    assert total_growth(case, uncorrected, interface=OTHER) == 0


def test_a_lost_nic_was_present_and_is_missing() -> None:
    case = "nic-lost"
    for name, labels in (
        ("railscope_rdma_port_info", {"device": AFFECTED_DEVICE, "rail": "3"}),
        ("railscope_nic_info", {"interface": AFFECTED}),
        ("railscope_pcie_link_width_lanes", {"pci_address": NIC}),
        ("railscope_network_link_up", {"interface": AFFECTED}),
    ):
        assert series(start(case), name, **labels)
        assert not series(end(case), name, **labels)
    assert value(case, "railscope_kernel_link_changes_total", interface=AFFECTED, state="down") == 1
    assert NIC not in final_content(case, "names", "/sys/bus/pci/devices")
    assert value(case, "railscope_pcie_device_gone", pci_address=NIC) == 1
    assert series(end(case), "railscope_pcie_info", pci_address=NIC, role="nic")
    directory = f"/sys/bus/pci/devices/{ABOVE}"
    assert "SDES 1\n" in final_content(case, "files", f"{directory}/aer_dev_fatal")
    assert final_content(case, "files", f"{directory}/current_link_width") == "0\n"
    assert final_content(case, "calls", f"ethtool.statistics({AFFECTED})") == {"error": ["os", 19]}


def test_a_nic_on_half_its_lanes_or_speed_is_a_slow_receiver() -> None:
    case = "pcie-degraded"
    shares = [
        value(case, f"railscope_pcie_link_{what}", pci_address=NIC)
        / value(case, f"railscope_pcie_link_{limit}", pci_address=NIC)
        for what, limit in (
            ("width_lanes", "width_limit_lanes"),
            ("speed_transfers_per_second", "speed_limit_transfers_per_second"),
        )
    ]
    assert sorted(shares) == [0.5, 1.0]
    assert value(case, "railscope_pcie_path_state", pci_address=NIC, state="degraded") == 1
    errors = {"pci_address": NIC, "severity": "correctable", "error": "BadTLP"}
    assert value(case, "railscope_pcie_aer_errors_total", **errors) == 40
    assert total_growth(case, PFC_SENT_SECONDS, interface=AFFECTED) > 0.05 * (SECONDS - ONSET)
    assert total_growth(case, PFC_SENT_SECONDS, interface=OTHER) < 0.05
    assert (
        total_growth(case, "railscope_nic_pcie_write_stalled_seconds_total", interface=AFFECTED) > 5
    )


@pytest.mark.parametrize(
    ("question", "drifted", "as_set_up", "affected"),
    [
        ("pfc", [], [3], 0),
        ("ecn/roce_np/enable/3", "0", "1", 1),
        ("qos/trust", "pcp", "dscp", 2),
        ("mtu", "1500", "4200", 3),
    ],
)
def test_one_of_two_nodes_has_other_settings(
    question: str, drifted: Json, as_set_up: Json, affected: int
) -> None:
    for case in ("settings-drift-a", "settings-drift-b"):
        for rail, interface in enumerate(DRIFTED):
            if question == "pfc":
                setting = final_content(case, "calls", f"netlink.dcb({interface})")["pfc"][
                    "enabled"
                ]
            else:
                setting = final_content(
                    case, "files", f"/sys/class/net/{interface}/{question}"
                ).strip()
            wrong = case.endswith("b") and rail == affected
            assert setting == (drifted if wrong else as_set_up)


def test_the_node_whose_settings_drifted_loses_packets_without_pause() -> None:
    good, bad = "settings-drift-a", "settings-drift-b"
    unpaused, unnotified, untrusting, _ = DRIFTED
    assert total_growth(good, DISCARDED) == 0
    assert total_growth(bad, DISCARDED, interface=unpaused, priority="3") > 1000
    assert total_growth(bad, DISCARDED, interface=untrusting, priority="0") > 1000
    assert total_growth(bad, DISCARDED, interface=unnotified) == 0
    paused = series(end(bad), "railscope_nic_transmit_pfc_pause_frames_total", interface=unpaused)
    assert not paused
    assert total_growth(bad, "railscope_nic_transmit_pause_frames_total", interface=untrusting) == 0
    assert total_growth(bad, PFC_SENT_SECONDS, interface=unnotified) > 0.3
    assert (
        total_growth(bad, NOTIFIED, device="mlx5_3")
        < total_growth(good, NOTIFIED, device="mlx5_3") + 10**4
    )
    names = ("railscope_rdma_receive_bytes_total", "railscope_rdma_receive_packets_total")
    sizes = [
        total_growth(case, names[0], device=AFFECTED_DEVICE)
        / total_growth(case, names[1], device=AFFECTED_DEVICE)
        for case in (good, bad)
    ]
    assert sizes[0] == 4156
    assert 1084 < sizes[1] < 2000
