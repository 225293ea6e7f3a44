"""Faults of links, NICs and settings: each shows in all views that it touches, and only there."""

from __future__ import annotations

import pytest
from support.simulated_ports import ONSET, SECONDS, CaptureAtOffset, run

from railscope_simulator import NodeSpec, simulate

AFFECTED, OTHER = "ens4f0np0", "ens3f0np0"
PORT = "/sys/class/infiniband/mlx5_5/ports/1"
NIC, ABOVE = "0000:5e:00.0", "0000:5d:00.0"
PCI = "/sys/bus/pci/devices"


def at(scenario: str, second: int = SECONDS, nic: str = "cx7") -> CaptureAtOffset:
    return CaptureAtOffset(run(scenario, nic), second)


def grown(scenario: str, name: str, interface: str = AFFECTED) -> int:
    before, after = (at(scenario, s).statistics(interface)[name] for s in (ONSET, SECONDS))
    return after - before


def log(scenario: str, nic: str = "cx7") -> list[str]:
    return [record for moment in run(scenario, nic).moments[1:] for record in moment.log]


@pytest.mark.parametrize("nic", ["cx7", "bnxt", "irdma"])
def test_a_flapping_link_goes_down_many_times(nic: str) -> None:
    interface = "ens4np0" if nic == "bnxt" else AFFECTED
    before, after = (at("flapping", s, nic) for s in (ONSET - 1, SECONDS))
    directory = f"/sys/class/net/{interface}"
    assert (before.file(f"{directory}/carrier_changes"), before.file(f"{directory}/carrier")) == (
        "1",
        "1",
    )
    assert (after.file(f"{directory}/carrier_changes"), after.file(f"{directory}/carrier")) == (
        "13",
        "1",
    )
    if nic == "irdma":
        assert "down_events" not in after.netlink("link_state", interface)
    else:
        assert after.netlink("link_state", interface)["down_events"] == 6
    downs = [line for line in log("flapping", nic) if "own" in line]
    ups = [line for line in log("flapping", nic) if "ink up" in line or "ink is " in line]
    assert len(downs) == 6
    assert len(set(ups) - set(downs)) == 6
    assert all(f" {interface}: " in line for line in downs)


def test_a_flapping_link_is_down_in_all_views_at_once() -> None:
    fine = simulate(NodeSpec("gpu-001", gpus=4, scenario="flapping"), 120, 0.5)
    directory, states = f"/sys/class/net/{AFFECTED}", set()
    for moment in fine.moments:
        seen = CaptureAtOffset(fine, moment.offset_ns / 1e9)
        (link,) = [one for one in seen.call("netlink.links()") if one["name"] == AFFECTED]
        up = seen.netlink("link_state", AFFECTED)["up"]
        assert (link["carrier"] == 1) == up == (seen.file(f"{directory}/carrier") == "1")
        assert (seen.file(f"{PORT}/state") == "4: ACTIVE") == up
        assert ("speed_megabits" in seen.netlink("link_modes", AFFECTED)) == up
        assert (seen.netlink("link_state", AFFECTED).get("extended_state") is None) == up
        states.add((up, link["carrier_down_count"]))
    assert states == {(True, n) for n in range(7)} | {(False, n) for n in range(1, 7)}


def test_a_failing_cable_ends_as_a_slower_link() -> None:
    early, broken, late = (at("speed_down", second) for second in (ONSET - 5, 85, SECONDS))
    for seen, speed, lanes, rate in (
        (early, 400_000, 4, "400 Gb/sec (4X NDR)"),
        (broken, 400_000, 4, "400 Gb/sec (4X NDR)"),
        (late, 200_000, 2, "200 Gb/sec (2X NDR)"),
    ):
        modes = seen.netlink("link_modes", AFFECTED)
        assert (modes["speed_megabits"], modes["lanes"]) == (speed, lanes)
        assert seen.ofed(AFFECTED, "speed") == str(speed)
        assert seen.file(f"{PORT}/rate") == rate
    names = ("rx_corrected_bits_phy", "rx_pcs_symbol_err_phy", "link_down_events_phy")
    before, after = ([seen.statistics(AFFECTED)[n] for n in names] for seen in (early, broken))
    assert after[0] - before[0] > 10**9
    assert after[1] > 1000
    assert before[1:] == [0, 0]
    assert after[2] == 0
    assert late.statistics(AFFECTED)["link_down_events_phy"] == 1
    lost = [f"rx_err_lane_{lane}_phy" for lane in (2, 3)]
    resting, end = (at("speed_down", second).statistics(AFFECTED) for second in (115, SECONDS))
    assert [end[name] for name in lost] == [resting[name] for name in lost]
    assert sum("Link down" in line for line in log("speed_down")) == 1
    assert at("speed_down").ofed(OTHER, "speed") == "400000"


def test_a_slower_link_slows_all_rails_down() -> None:
    capture = simulate(NodeSpec("gpu-001", scenario="speed_down"), 600, 10)
    name = "tx_vport_rdma_unicast_bytes"
    values = [
        CaptureAtOffset(capture, second).statistics(OTHER)[name] for second in (0, 140, 470, 600)
    ]
    healthy, slow = (values[1] - values[0]) / 140, (values[3] - values[2]) / 130
    assert 0.5 < slow / healthy < 0.95


def test_optics_lose_light_before_errors_get_through() -> None:
    def light(second: int) -> list[int]:
        lanes = at("optics", second).netlink("module", AFFECTED)["lanes"]
        return [lane["receive_power_nanowatts"] for lane in lanes]

    ratios = sorted(
        after / before for before, after in zip(light(ONSET), light(SECONDS), strict=True)
    )
    assert ratios[0] < 0.35
    assert ratios[1] > 0.7
    warning = at("optics").netlink("module", AFFECTED)["thresholds"]
    assert min(light(SECONDS)) < warning["receive_power_low_warning_nanowatts"]
    half = at("optics", 85).statistics(AFFECTED)
    start, end = at("optics", ONSET).statistics(AFFECTED), at("optics").statistics(AFFECTED)
    assert half["rx_corrected_bits_phy"] > start["rx_corrected_bits_phy"] + 10**6
    assert half["rx_pcs_symbol_err_phy"] == 0
    assert end["rx_pcs_symbol_err_phy"] > 1000
    assert end["rx_crc_errors_phy"] > 0
    blocks = at("optics").netlink("fec", AFFECTED)["statistics"]["uncorrectable_blocks"][0]
    assert end["rx_pcs_symbol_err_phy"] == 17 * blocks
    assert end["rx_crc_errors_phy"] <= blocks
    (link,) = [link for link in at("optics").call("netlink.links()") if link["name"] == AFFECTED]
    assert link["statistics"]["rx_crc_errors"] == end["rx_crc_errors_phy"]
    out_of_sequence = int(at("optics").file(f"{PORT}/hw_counters/out_of_sequence"))
    assert out_of_sequence >= end["rx_crc_errors_phy"]
    assert at("optics").statistics(OTHER)["rx_pcs_symbol_err_phy"] == 0
    assert end["link_down_events_phy"] == 0


@pytest.mark.parametrize("nic", ["cx7", "bnxt"])
def test_a_lost_nic_has_no_entries_any_more(nic: str) -> None:
    capture = run("nic_lost", nic)
    start = capture.moments[0]
    interface, device = (AFFECTED, "mlx5_5") if nic == "cx7" else ("ens4np0", "bnxt_re4")
    last = {
        section: {key: value for m in capture.moments for key, value in getattr(m, section).items()}
        for section in ("files", "names", "links", "calls")
    }
    for directory, entry in (
        ("/sys/class/infiniband", device),
        ("/sys/class/net", interface),
        (PCI, NIC),
    ):
        assert entry in start.names[directory]
        assert entry not in last["names"][directory]
        below = [path for path in last["files"] if path.startswith(f"{directory}/{entry}/")]
        assert len(below) > 5
        assert all(last["files"][path] == {"error": ["os", 2]} for path in below)
    asked = [key for key in last["calls"] if f"({interface}" in key or f"({device}," in key]
    assert len(asked) == 2 + 7 + 2
    assert all(last["calls"][key] == {"error": ["os", 19]} for key in asked)
    assert interface not in {link["name"] for link in last["calls"]["netlink.links()"]}
    assert interface not in last["calls"]["lldp.neighbours()"]
    assert interface not in last["calls"]["psutil.net_io_counters()"]
    assert "SDES 1\n" in last["files"][f"{PCI}/{ABOVE}/aer_dev_fatal"]
    assert last["files"][f"{PCI}/{ABOVE}/current_link_width"] == "0\n"
    assert any(f"pcieport {ABOVE}: pciehp: Slot(4): Card not present" in x for x in log("nic_lost"))
    assert any("severity=Uncorrectable (Fatal)" in line for line in log("nic_lost"))


def test_the_job_waits_for_a_lost_nic() -> None:
    assert grown("nic_lost", "tx_vport_rdma_unicast_bytes", OTHER) == 0
    assert grown("training", "tx_vport_rdma_unicast_bytes", OTHER) > 10**11


def test_a_nic_with_half_its_pcie_bandwidth_pauses_the_switch() -> None:
    before, after = at("pcie_degraded", ONSET - 5), at("pcie_degraded")
    for end in (NIC, ABOVE):
        links = [
            [seen.file(f"{PCI}/{end}/current_link_{what}") for what in ("speed", "width")]
            for seen in (before, after)
        ]
        assert links[0] == ["32.0 GT/s PCIe", "16"]
        assert links[1] in (["16.0 GT/s PCIe", "16"], ["32.0 GT/s PCIe", "8"])
        assert after.file(f"{PCI}/{end}/max_link_width") == "16"
        assert after.file(f"{PCI}/{end}/max_link_speed") == "32.0 GT/s PCIe"
    assert "BadTLP 40\n" in after.file(f"{PCI}/{NIC}/aer_dev_correctable") + "\n"
    assert grown("pcie_degraded", "tx_prio3_pause_duration") > 0.05 * 1e6 * (SECONDS - ONSET)
    assert grown("pcie_degraded", "outbound_pci_stalled_wr_events") > 10
    assert grown("pcie_degraded", "rx_pci_signal_integrity") == 0
    assert after.statistics(AFFECTED)["rx_pci_signal_integrity"] == 40
    assert grown("pcie_degraded", "tx_prio3_pause_duration", OTHER) < 10_000
    assert any(
        f"mlx5_core {NIC}: PCIe Bus Error: severity=Correctable" in x for x in log("pcie_degraded")
    )


def test_half_the_pcie_bandwidth_is_enough_for_a_slow_nic() -> None:
    capture = simulate(NodeSpec("gpu-001", scenario="pcie_degraded", nic="irdma"), 60, 5)
    end = CaptureAtOffset(capture, 60)
    width, speed = (end.file(f"{PCI}/{NIC}/current_link_{what}") for what in ("width", "speed"))
    assert (width, speed) in {("8", "16.0 GT/s PCIe"), ("16", "8.0 GT/s PCIe")}
    xoffs = [
        CaptureAtOffset(capture, s).statistics(AFFECTED)["tx_priority_3_xoff.nic"] for s in (30, 60)
    ]
    assert xoffs[1] - xoffs[0] < 100


DRIFTED = ["ens1f0np0", "ens2f0np0", "ens3f0np0", "ens4f0np0"]
"""Rails that lose pause, congestion notification, trust and MTU."""


def test_settings_drift_apart_on_each_rail() -> None:
    before, after = at("settings_drift", ONSET - 5), at("settings_drift")

    def setup(seen: CaptureAtOffset, interface: str) -> tuple[list[int], str, str, str, int]:
        dcb = seen.netlink("dcb", interface)
        return (
            dcb["pfc"]["enabled"],
            seen.ofed(interface, "ecn/roce_np/enable/3"),
            seen.ofed(interface, "qos/trust"),
            seen.ofed(interface, "mtu"),
            len(dcb["applications"]),
        )

    assert {str(setup(before, name)) for name in DRIFTED} == {str(([3], "1", "dscp", "4200", 2))}
    assert [setup(after, name) for name in DRIFTED] == [
        ([], "1", "dscp", "4200", 2),
        ([3], "0", "dscp", "4200", 2),
        ([3], "1", "pcp", "4200", 0),
        ([3], "1", "dscp", "1500", 2),
    ]
    assert setup(after, "ens21f0np0") == setup(before, "ens21f0np0")


def test_without_protection_packets_without_a_buffer_are_lost() -> None:
    unpaused, unnotified, untrusting, _ = DRIFTED
    assert grown("settings_drift", "rx_prio3_discards", unpaused) > 1000
    assert "tx_prio3_pause" not in at("settings_drift").statistics(unpaused)
    assert grown("settings_drift", "tx_pause_ctrl_phy", unpaused) == 0
    assert grown("settings_drift", "rx_prio0_discards", untrusting) > 1000
    assert grown("settings_drift", "rx_prio3_packets", untrusting) == 0
    assert grown("settings_drift", "rx_prio0_bytes", untrusting) > 10**11
    assert grown("settings_drift", "tx_prio3_pause", untrusting) == 0
    assert grown("settings_drift", "rx_discards_phy", unnotified) == 0
    assert grown("settings_drift", "tx_prio3_pause", unnotified) > 1000
    assert grown("settings_drift", "tx_prio6_packets", unnotified) == 0
    assert grown("settings_drift", "tx_prio6_packets", untrusting) > 1000


def test_a_small_mtu_means_more_packets() -> None:
    sizes = [
        grown("settings_drift", "rx_vport_rdma_unicast_bytes", name)
        / grown("settings_drift", "rx_vport_rdma_unicast_packets", name)
        for name in (DRIFTED[1], DRIFTED[3])
    ]
    assert sizes == [4156, 1084]
