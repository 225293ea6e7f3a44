"""Readings of interfaces beside their counters: links, settings, transceivers, neighbours."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st
from support.examples import fewer_examples
from support.simulated_ports import SECONDS, CaptureAtOffset, run

from railscope_simulator import NICS

SHORT = settings(fewer_examples(25), deadline=None)
REFUSED = {"error": ["os", 95]}
FUNCTIONS = ("dcb", "pause", "fec", "rings", "link_modes", "link_state", "module")
LINK_STATISTICS = 25


@SHORT
@given(
    st.sampled_from(("training", "flapping", "optics", "nic_lost", "counter_reset")),
    st.sampled_from(list(NICS)),
    st.integers(0, SECONDS),
)
def test_links_agree_with_files_and_psutil(scenario: str, nic: str, second: int) -> None:
    seen = CaptureAtOffset(run(scenario, nic), second)
    links = seen.call("netlink.links()")
    totals = seen.call("psutil.net_io_counters()")
    assert {link["name"] for link in links} == set(totals)
    assert len({link["index"] for link in links}) == len(links)
    for link in links:
        name, counted = link["name"], link["statistics"]
        assert len(counted) == LINK_STATISTICS
        assert counted["rx_bytes"] == totals[name]["bytes_recv"]
        assert counted["tx_packets"] == totals[name]["packets_sent"]
        assert counted["rx_errors"] == totals[name]["errin"]
        assert str(link["carrier"]) == seen.ofed(name, "carrier")
        assert str(link["mtu"]) == seen.ofed(name, "mtu")
        assert link["address"] == seen.ofed(name, "address")
        assert link["operational_state"] == seen.ofed(name, "operstate")
        assert str(link["carrier_changes"]) == seen.ofed(name, "carrier_changes")
        ups, downs = link["carrier_up_count"], link["carrier_down_count"]
        assert ups + downs == link["carrier_changes"]
        if link["index"] > 2:
            assert link["carrier"] == ups - downs


@pytest.mark.parametrize("nic", NICS)
def test_ports_are_lossless_for_rdma_and_for_nothing_else(nic: str) -> None:
    seen = CaptureAtOffset(run(nic=nic), 0)
    for interface in seen.nic_interfaces():
        dcb = seen.netlink("dcb", interface)
        assert dcb["pfc"]["enabled"] == [3]
        assert {a["protocol"]: a["priority"] for a in dcb["applications"]} == {26: 3, 48: 6}
        assert sum(dcb["ets"]["bandwidth_percent"]) == 100
        pause = seen.netlink("pause", interface)
        assert not pause["receive"]
        assert not pause["transmit"]
        assert seen.netlink("fec", interface)["active"] == "RS"
        rings = seen.netlink("rings", interface)
        assert 0 < rings["receive"] <= rings["receive_limit"]
        modes = seen.netlink("link_modes", interface)
        assert str(modes["speed_megabits"]) == seen.ofed(interface, "speed")
        assert modes["supported"][0].startswith(f"{modes['speed_megabits']}base")
        if "buffer" in dcb:
            of_priority = dcb["buffer"]["of_priority"]
            assert of_priority[3] not in of_priority[:3]
            assert sum(dcb["buffer"]["size_bytes"]) == dcb["buffer"]["total_bytes"]


def test_what_a_driver_does_not_do_is_rejected() -> None:
    seen = CaptureAtOffset(run(), 0)
    for function in FUNCTIONS:
        answers = [seen.netlink(function, name) for name in ("lo", "eth0")]
        expected = {
            "link_state": [{"up": True}] * 2,
            "rings": [REFUSED, seen.netlink("rings", "eth0")],
            "link_modes": [REFUSED, seen.netlink("link_modes", "eth0")],
        }.get(function, [REFUSED] * 2)
        assert answers == expected
    assert seen.netlink("rings", "eth0")["receive"] == 256
    assert "speed_megabits" not in seen.netlink("link_modes", "eth0")


@pytest.mark.parametrize(
    ("scenario", "nic"),
    [("pause_storm", "cx7"), ("optics", "cx7"), ("pfc_victim", "bnxt"), ("pause_storm", "irdma")],
)
def test_pause_and_correction_are_counted_as_in_the_statistics(scenario: str, nic: str) -> None:
    for second in (0, SECONDS):
        seen = CaptureAtOffset(run(scenario, nic), second)
        for interface in seen.nic_interfaces():
            found = seen.statistics(interface)
            pfc = seen.netlink("dcb", interface)["pfc"]
            names = {
                "cx7": ("tx_prio3_pause", "rx_prio3_pause"),
                "bnxt": ("tx_pfc_ena_frames_pri3", "rx_pfc_ena_frames_pri3"),
                "irdma": ("tx_priority_3_xoff.nic", "rx_priority_3_xoff.nic"),
            }[nic]
            assert pfc["requests"] == [0, 0, 0, found[names[0]], 0, 0, 0, 0]
            assert pfc["indications"] == [0, 0, 0, found[names[1]], 0, 0, 0, 0]
            frames = seen.netlink("pause", interface)["statistics"]
            assert frames["transmit_frames"] == (found[names[0]] if nic == "cx7" else 0)
            fec = seen.netlink("fec", interface)["statistics"]
            if nic == "cx7":
                lanes = [found[f"rx_err_lane_{lane}_phy"] for lane in range(4)]
                assert fec["corrected_bits"] == [found["rx_corrected_bits_phy"], *lanes]
            if nic == "bnxt":
                assert fec["corrected_bits"] == [found["rx_corrected_bits"]]
                assert fec["corrected_blocks"] == [found["rx_fec_corrected_blocks"]]
                assert fec["uncorrectable_blocks"] == [found["rx_fec_uncorrectable_blocks"]]


@pytest.mark.parametrize("nic", NICS)
def test_optics_have_measurements_and_copper_has_none(nic: str) -> None:
    capture = run(nic=nic)
    for second in (0, SECONDS):
        seen = CaptureAtOffset(capture, second)
        modules = {name: seen.netlink("module", name) for name in seen.nic_interfaces()}
        assert len({module["serial"] for module in modules.values()}) == 10
        copper = [module for module in modules.values() if module["media"] == "passive copper"]
        assert len(copper) == 2
        for module in modules.values():
            if module in copper:
                assert module["length_metres"] == 2
                assert not {"lanes", "temperature_millicelsius"} & set(module)
                continue
            thresholds = module["thresholds"]
            warm = module["temperature_millicelsius"]
            assert 25_000 < warm < thresholds["temperature_high_warning_millicelsius"]
            assert 3_200_000 < module["voltage_microvolts"] < 3_400_000
            assert len(module["lanes"]) == 4
            for lane in module["lanes"]:
                low = thresholds["receive_power_low_warning_nanowatts"]
                assert low < lane["receive_power_nanowatts"] < 2_500_000
                assert (
                    thresholds["transmit_power_low_alarm_nanowatts"]
                    < lane["transmit_power_nanowatts"]
                )
                assert 60_000 < lane["bias_microamperes"] < 130_000


def test_rails_are_wired_to_leaves_of_their_own_and_nodes_to_ports() -> None:
    one, other, far = (
        CaptureAtOffset(run(node=node), 0).call("lldp.neighbours()")
        for node in ("gpu-001", "gpu-002", "gpu-033")
    )
    rails = [f"ens{rail + 1}f0np0" for rail in range(8)]
    assert [one[name]["system"] for name in rails] == [f"leaf-{n}" for n in range(1, 9)]
    assert [far[name]["system"] for name in rails] == [f"leaf-{n}" for n in range(9, 17)]
    for name in one:
        assert one[name]["chassis"] == other[name]["chassis"]
        assert one[name]["port"] != other[name]["port"]
    assert len({leaf["chassis"] for leaf in one.values()}) == len(one) == 10
    assert set(one[rails[0]]) == {
        "chassis", "port", "port_description", "system", "system_description",
        "management_address", "capabilities", "ttl_seconds", "maximum_frame_bytes", "port_vlan",
    }  # fmt: skip
    assert "eth0" not in one


def test_the_vendors_own_files_exist_for_its_own_nics_only() -> None:
    mixed = CaptureAtOffset(run(nic="mixed"), 0)
    assert mixed.ofed("ens1f0np0", "qos/trust") == "dscp"
    assert mixed.ofed("ens1f0np0", "ecn/roce_np/enable/3") == "1"
    assert mixed.ofed("ens1f0np0", "ecn/roce_np/cnp_dscp") == "48"
    names = run(nic="mixed").moments[0].names
    assert names["/sys/class/net/ens1f0np0/ecn/roce_rp/enable"] == [str(p) for p in range(8)]
    assert names["/sys/class/net/ens1f0np0/ecn"] == ["roce_np", "roce_rp"]
    assert "/sys/class/net/ens5np0/ecn" not in names
    assert mixed.file("/sys/class/infiniband/mlx5_0/tc/1/traffic_class") == "Global tclass=106"


def test_rdma_statistics_hold_the_files_and_what_no_file_has() -> None:
    for nic, device, extra in (("cx7", "mlx5_0", 7), ("bnxt", "bnxt_re0", 0)):
        seen = CaptureAtOffset(run(nic=nic), SECONDS)
        reported = seen.call(f"netlink.rdma_statistics({device},1)")
        directory = f"/sys/class/infiniband/{device}/ports/1"
        files = set(run(nic=nic).moments[0].names[f"{directory}/hw_counters"]) - {"lifespan"}
        assert files <= set(reported)
        assert len(reported) == len(files) + extra
        for name in files:
            assert str(reported[name]) == seen.file(f"{directory}/hw_counters/{name}")
        if extra:
            data = int(seen.file(f"{directory}/counters/port_xmit_data"))
            assert reported["rdma_tx_bytes"] == 4 * data


def test_the_default_route_is_that_of_the_management_interface() -> None:
    head, *rows = CaptureAtOffset(run(), 0).file("/proc/net/route").splitlines()
    columns = [name.strip() for name in head.split("\t") if name.strip()]
    routes = [dict(zip(columns, row.split("\t"), strict=True)) for row in rows]
    (default,) = [route for route in routes if route["Destination"] == route["Mask"] == "00000000"]
    assert default["Iface"] == "eth0"


def test_gids_name_the_interface_and_their_type() -> None:
    seen, directory = CaptureAtOffset(run(), 0), "/sys/class/infiniband/mlx5_5/ports/1"
    assert seen.file(f"{directory}/gid_attrs/ndevs/0") == "ens4f0np0"
    assert seen.file(f"{directory}/gid_attrs/types/3") == "RoCE v2"
    local = seen.file(f"{directory}/gids/1")
    mac = seen.ofed("ens4f0np0", "address").replace(":", "")
    assert len(local) == 39
    assert local.replace(":", "")[-6:] == mac[-6:]


@pytest.mark.parametrize("nic", NICS)
def test_directories_of_interfaces_lead_to_the_device_and_back(nic: str) -> None:
    capture = run(nic=nic)
    start, seen = capture.moments[0], CaptureAtOffset(capture, 0)
    for interface in seen.nic_interfaces():
        directory = f"/sys/class/net/{interface}"
        assert {"device", "carrier", "mtu", "phys_port_name"} <= set(start.names[directory])
        (device,) = start.names[f"{directory}/device/infiniband"]
        assert start.names[f"/sys/class/infiniband/{device}/device/net"] == [interface]
        address = start.links[f"{directory}/device"].rpartition("/")[2]
        driver = start.links[f"{directory}/device/driver"]
        assert driver == start.links[f"/sys/bus/pci/devices/{address}/driver"]
        files = {
            path.rpartition("/")[2]
            for path, text in start.files.items()
            if path.startswith(f"/sys/bus/pci/devices/{address}/") and not isinstance(text, dict)
        }
        assert files | {"driver", "net", "infiniband"} <= set(start.names[f"{directory}/device"])
    assert "device" not in start.names["/sys/class/net/lo"]
    reported = {
        name for name in seen.nic_interfaces() if "ecn" in start.names[f"/sys/class/net/{name}"]
    }
    assert len(reported) == {"cx7": 10, "mixed": 6}.get(nic, 0)
