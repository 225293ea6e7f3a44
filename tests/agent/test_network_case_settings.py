"""Network case directories: settings, transceivers, neighbours and paths."""

from __future__ import annotations

import pytest
from support.network_cases import AFFECTED, DRIFTED, OTHER, end, series, total_growth, value

SETTING = "railscope_nic_setting"
ROLE = "railscope_nic_info"


def facts(case: str, name: str, interface: str) -> dict[str, str]:
    """The facts of an interface in an info metric."""
    (labels,) = series(end(case), name, interface=interface)
    return dict(label.split("=", 1) for label in labels)


@pytest.mark.parametrize(
    ("setting", "labels", "drifted", "as_set_up", "affected"),
    [
        ("pfc_enabled", {"priority": "3"}, 0, 1, 0),
        ("ecn_enabled", {"priority": "3", "side": "notification"}, 0, 1, 1),
        ("ecn_enabled", {"priority": "3", "side": "reaction"}, 0, 1, 1),
        ("mtu_bytes", {}, 1500, 4200, 3),
    ],
)
def test_settings_that_drifted_are_on_the_page(
    setting: str, labels: dict[str, str], drifted: float, as_set_up: float, affected: int
) -> None:
    for case in ("settings-drift-a", "settings-drift-b"):
        for rail, interface in enumerate(DRIFTED):
            wrong = case.endswith("b") and rail == affected
            reported = value(case, f"{SETTING}_{setting}", interface=interface, **labels)
            assert reported == (drifted if wrong else as_set_up)


def test_trust_mode_and_dscp_map_of_a_port_are_facts() -> None:
    for case in ("settings-drift-a", "settings-drift-b"):
        for rail, interface in enumerate(DRIFTED):
            reported = facts(case, f"{SETTING}s_info", interface)
            wrong = case.endswith("b") and rail == 2
            assert reported["trust"] == ("pcp" if wrong else "dscp")
            assert reported["dscp_map"] == ("none" if wrong else "3:26,6:48")


def test_a_port_that_trained_down_is_slower_than_it_should_be() -> None:
    case = "port-trained-down"
    for interface, share, lanes in ((AFFECTED, 0.5, 2), (OTHER, 1.0, 4)):
        speed = value(case, "railscope_network_link_speed_bytes_per_second", interface=interface)
        expected = value(case, f"{SETTING}_expected_speed_bytes_per_second", interface=interface)
        assert speed / expected == share
        assert value(case, "railscope_nic_link_lanes", interface=interface) == lanes
    blocks = "railscope_nic_receive_fec_uncorrectable_blocks_total"
    assert total_growth(case, blocks, interface=AFFECTED) > 0
    assert total_growth(case, blocks, interface=OTHER) == 0


@pytest.mark.parametrize(
    ("case", "optics"),
    [("hgx-h100-roce-idle", "OSFP"), ("bnxt-node", "QSFP-DD"), ("irdma-node", "QSFP28")],
)
def test_rails_have_optics_and_storage_has_copper(case: str, optics: str) -> None:
    modules = series(end(case), "railscope_nic_transceiver_info")
    kinds = {
        label.partition("=")[2]
        for labels in modules
        if "media=optical single-mode" in labels
        for label in labels
        if label.startswith("type=")
    }
    assert kinds == {optics}
    copper = [labels for labels in modules if "media=passive copper" in labels]
    assert len(copper) == 2
    warm = series(end(case), "railscope_nic_transceiver_temperature_celsius")
    assert len(warm) == len(modules) - len(copper)
    assert all(30 < celsius < 70 for celsius in warm.values())
    light = series(end(case), "railscope_nic_transceiver_receive_power_watts")
    assert len(light) == 4 * len(warm)
    assert all(0.0003 < watts < 0.003 for watts in light.values())


def test_switches_announce_the_rail_of_a_port() -> None:
    for case, count in (("hgx-h100-roce-idle", 8), ("settings-drift-a", 4)):
        for rail in range(count):
            reported = facts(case, "railscope_nic_neighbour_info", f"ens{rail + 1}f0np0")
            assert reported["switch"] == f"leaf-{rail + 1}"
    ports = {
        facts(case, "railscope_nic_neighbour_info", AFFECTED)["switch_port"]
        for case in ("settings-drift-a", "settings-drift-b")
    }
    assert len(ports) == 2


def test_a_lost_nic_takes_its_transceiver_and_its_neighbour_with_it() -> None:
    for name in ("transceiver", "neighbour", "settings"):
        assert not series(end("nic-lost"), f"railscope_nic_{name}_info", interface=AFFECTED)
        assert series(end("nic-lost"), f"railscope_nic_{name}_info", interface=OTHER)
    fatal = {"pci_address": "0000:5d:00.0", "severity": "fatal"}
    assert value("nic-lost", "railscope_kernel_aer_messages_total", **fatal) == 1


def test_nics_have_roles() -> None:
    roles = {"ens1f0np0": "compute", "ens21f0np0": "storage", "eth0": "management"}
    for interface, role in roles.items():
        assert facts("hgx-h100-roce-idle", ROLE, interface)["role"] == role
    bridges = series(end("hgx-b200-bridges"), "railscope_rdma_port_info", role="bridge")
    assert len(bridges) == 4
