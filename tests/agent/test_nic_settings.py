"""Settings of NICs of several vendors, as far as their drivers report them."""

from __future__ import annotations

import errno

import pytest
from support.machine import DENIED, FakeHost
from support.nics import (
    ADDRESS,
    CC_PARAMS,
    DCB,
    DEBUGFS,
    LINK_MODES,
    NET,
    PAUSE,
    QOS,
    RINGS,
    add_netlink,
    add_nic,
    changes,
    events,
    facts,
    mainline,
    ofed,
    settings_hash,
)
from support.reading import ORIGIN, numbers, read_once, readings

from railscope.reading import Absent
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nic_settings import NicSettingsSource
from railscope_agent.topology.network import NetworkScanner
from railscope_agent.topology.rail_rules import RailRules

ETH0 = ("eth0",)
PFC = "railscope_nic_setting_pfc_enabled"
SPEED = "railscope_nic_setting_expected_speed_bytes_per_second"
PARAMETER = "railscope_nic_setting_dcqcn_parameter"
BYTES_OF_A_MEGABIT = 125_000


def test_settings_of_a_nic_with_the_in_tree_driver() -> None:
    outcome = read_once(NicSettingsSource(), mainline())
    assert facts(outcome) == {"eth0": {
        "firmware": "28.39.1002", "mtu": "4200", "autonegotiation": "on", "fec": "rs",
        "pause": "none", "pfc": "3", "trust": "dscp", "dscp_map": "3:24-31,6:48",
        "applications": "ethertype:35093>3", "dcbx": "host,ieee",
        "traffic_classes": "1,0,2,3,4,5,6,7", "bandwidth": "25,0,0,75,0,0,0,0",
        "scheduling": "ets,vendor,vendor,ets,strict,strict,strict,strict", "rate_limits": "none",
        "buffer_of_priority": "0,0,0,1,0,0,0,0", "np_cnp_dscp": "48", "np_cnp_prio": "6",
        "rdma_cm_tos": "106", "rdma_cm_mode": "RoCE v2", "gid_types": "IB/RoCE v1,RoCE v2",
    }}  # fmt: skip
    found = numbers(outcome.frame)
    assert {key[1]: value for (name, key), value in found.items() if name == PFC} == {
        str(priority): float(priority == 3) for priority in range(8)
    }
    expected = {
        ("railscope_nic_setting_mtu_bytes", ETH0): 4200,
        (SPEED, ETH0): 400_000 * BYTES_OF_A_MEGABIT,
        ("railscope_nic_setting_autonegotiation_enabled", ETH0): 1,
        ("railscope_nic_setting_traffic_class", ("eth0", "0")): 1,
        ("railscope_nic_setting_bandwidth_ratio", ("eth0", "3")): 0.75,
        ("railscope_nic_setting_buffer_bytes", ("eth0", "1")): 114_944,
        ("railscope_nic_setting_port_buffer_bytes", ETH0): 262_016,
        ("railscope_nic_setting_rdma_cm_tos", ETH0): 106,
        ("railscope_nic_setting_pause_enabled", ("eth0", "receive")): 0,
        ("railscope_nic_setting_ring_entries", ("eth0", "transmit")): 512,
        ("railscope_nic_setting_ring_limit_entries", ("eth0", "receive")): 8192,
        ("railscope_nic_link_lanes", ETH0): 4,
        ("railscope_nic_fec_active", ETH0): 2,
        **{(PARAMETER, ("eth0", name)): value for name, value in CC_PARAMS.items()},
    }
    assert {label: found[label] for label in expected} == expected
    assert not {name for name, _ in found if "ecn_enabled" in name}
    assert not events(outcome)


def test_additional_settings_of_the_vendor_driver() -> None:
    outcome = read_once(NicSettingsSource(), ofed())
    settings = facts(outcome)["eth0"]
    assert (settings["ecn_notification"], settings["ecn_reaction"]) == ("3", "3")
    assert (settings["np_cnp_dscp"], settings["np_cnp_prio"]) == ("48", "6")
    assert settings["rdma_traffic_class"] == "106"
    found = numbers(outcome.frame)
    for side in ("notification", "reaction"):
        name = "railscope_nic_setting_ecn_enabled"
        states = [found[name, ("eth0", side, str(priority))] for priority in range(8)]
        assert states == [0, 0, 0, 1, 0, 0, 0, 0]
    assert {key[1]: value for (name, key), value in found.items() if name == PARAMETER} == {
        "np_cnp_dscp": 48, "np_cnp_prio": 6, "np_min_time_between_cnps": 4, "rp_ai_rate": 5,
        "rp_clamp_tgt_rate_ati": 1,
    }  # fmt: skip
    threshold = "railscope_nic_setting_buffer_threshold_bytes"
    assert found[threshold, ("eth0", "1", "xoff")] == 91392
    assert found[threshold, ("eth0", "1", "xon")] == 81408
    assert found["railscope_nic_setting_rdma_traffic_class", ETH0] == 106


def test_vendor_files_replace_missing_netlink_settings() -> None:
    outcome = read_once(NicSettingsSource(), ofed(netlink=False))
    settings = facts(outcome)["eth0"]
    assert settings["trust"] == "dscp"
    assert settings["dscp_map"] == ",".join(f"{p}:{8 * p}-{8 * p + 7}" for p in range(8))
    assert settings["buffer_of_priority"] == "0,0,0,1,0,0,0,0"
    found = numbers(outcome.frame)
    assert found["railscope_nic_setting_buffer_bytes", ("eth0", "1")] == 114_944
    assert found["railscope_nic_setting_port_buffer_bytes", ETH0] == 262_016


def test_of_two_sources_of_a_setting_the_first_counts() -> None:
    """Netlink precedes the vendor's files, and these precede debugfs, which is not read."""
    host = ofed()
    host.files[f"{QOS}/trust"] = "pcp\n"
    host.files[f"{DEBUGFS}/rp_gd"] = "11\n"
    host.files[f"{DEBUGFS}/rp_ai_rate"] = lambda: pytest.fail("costs a command for nothing")
    outcome = read_once(NicSettingsSource(), host)
    assert facts(outcome)["eth0"]["trust"] == "dscp"
    assert facts(outcome)["eth0"]["dscp_map"] == "3:24-31,6:48"
    found = numbers(outcome.frame)
    assert found["railscope_nic_setting_buffer_bytes", ("eth0", "0")] == 130_944
    assert found[PARAMETER, ("eth0", "rp_gd")] == 11


def test_a_broadcom_nic_reports_its_trust_mode() -> None:
    host = FakeHost()
    add_nic(host, driver="bnxt_en")
    dcb = {
        "pfc": {"capacity": 8, "enabled": [], "requests": [0] * 8, "indications": [0] * 8},
        "applications": [], "trust": ["dscp", "pcp"], "dcbx": ["ieee"],
        "maximum_rate_kilobits": [0, 0, 0, 50_000_000, 0, 0, 0, 0],
    }  # fmt: skip
    fec = {"modes": [], "automatic": True, "active": "None"}
    add_netlink(host, dcb=dcb, fec=fec, pause={**PAUSE, "receive": True, "transmit": True})
    outcome = read_once(NicSettingsSource(), host)
    assert facts(outcome) == {"eth0": {
        "firmware": "28.39.1002", "mtu": "4200", "fec": "automatic", "pause": "receive,transmit",
        "pfc": "none", "trust": "dscp,pcp", "dscp_map": "none", "applications": "none",
        "dcbx": "ieee", "rate_limits": "0,0,0,50000000,0,0,0,0",
    }}  # fmt: skip
    found = readings(outcome.frame)
    assert [found[PFC, ("eth0", str(priority))] for priority in range(8)] == [0] * 8
    assert found["railscope_nic_fec_active", ETH0] == 0


def test_congestion_control_of_a_broadcom_nic() -> None:
    """In configfs with the vendor's driver, in hexadecimal; in debugfs with the kernel's own."""
    host = FakeHost()
    add_nic(host, driver="bnxt_en", rdma_device="bnxt_re0")
    directory = "/sys/kernel/config/bnxt_re/bnxt_re0/ports/1/cc"
    host.files |= {
        f"{directory}/ecn_enable": "0x1\n", f"{directory}/cnp_dscp": "48\n", f"{directory}/apply": "",
        f"{directory}/advanced": IsADirectoryError(errno.EISDIR, "Is a directory"),
    }  # fmt: skip
    reader = SourceReader(NicSettingsSource(), host, ORIGIN)
    outcome = reader.run()
    found = {key[1]: value for (n, key), value in readings(outcome.frame).items() if n == PARAMETER}
    assert found == {"ecn_enable": 1, "cnp_dscp": 48}
    debugfs = f"/sys/kernel/debug/bnxt_re/{ADDRESS}/cc_config"
    host.files |= {
        f"{debugfs}/enable_cc": "1\n", f"{debugfs}/tos_dscp": "26\n",
        f"{debugfs}/tx_queue": OSError(errno.EOPNOTSUPP, "Operation not supported"),
        f"{directory}/ecn_enable": "0x0\n",
    }  # fmt: skip
    host.clock.advance(60)
    outcome = reader.run()
    found = {key[1]: value for (n, key), value in readings(outcome.frame).items() if n == PARAMETER}
    assert found == {"ecn_enable": 0, "cnp_dscp": 48, "enable_cc": 1, "tos_dscp": 26}
    assert changes(outcome) == [("eth0", "ecn_enable", "1", "0")]


def test_an_intel_nic_with_its_rdma_port() -> None:
    host = FakeHost()
    add_nic(host, driver="ice", rdma_device="rocep59s0")
    add_netlink(host, rings=RINGS, pause={**PAUSE, "autonegotiation": True}, link_modes=LINK_MODES)
    add_netlink(host, dcb={key: DCB[key] for key in ("pfc", "ets", "applications", "dcbx")})
    path = "/sys/kernel/config/rdma_cm/rocep59s0/ports/1/default_roce_tos"
    host.files[path] = "0\n"
    outcome = read_once(NicSettingsSource(), host)
    settings = facts(outcome)["eth0"]
    assert (settings["pfc"], settings["pause"], settings["rdma_cm_tos"]) == ("3", "automatic", "0")
    assert "trust" not in settings, "only of mlx5 is it known without a trust table"
    assert not {"fec", "buffer_of_priority", "ecn_notification"} & set(settings)
    (finding,) = outcome.findings
    assert finding.detail.endswith("driver ice does not report fec")


def test_a_virtual_nic_reports_only_its_mtu() -> None:
    host = FakeHost()
    add_nic(host, driver="virtio_net")
    host.calls["ethtool.driver(eth0)"]["firmware"] = ""
    outcome = read_once(NicSettingsSource(), host)
    assert readings(outcome.frame) == {("railscope_nic_setting_mtu_bytes", ETH0): 4200}
    (finding,) = outcome.findings
    assert finding.verdict is ProbeVerdict.SUPPORTED
    assert finding.detail == (
        "1 setting; driver virtio_net does not report dcb, pause, fec, rings, link_modes"
    )


def test_bonds_and_bridges_are_not_nics() -> None:
    host = FakeHost()
    host.files |= {f"{NET}/bond0/mtu": "9000", f"{NET}/bonding_masters": "bond0"}
    outcome = read_once(NicSettingsSource(), host)
    assert outcome.frame is None
    (finding,) = outcome.findings
    assert finding.verdict is ProbeVerdict.ABSENT


def test_virtual_functions_and_their_representors_are_not_nics() -> None:
    host = FakeHost()
    add_nic(host, "eth0")
    host.files[f"{NET}/eth0/phys_port_name"] = "p0"
    add_nic(host, "eth1", address="0000:3b:00.2")
    host.links["/sys/devices/pci0000:3a/0000:3b:00.2/physfn"] = f"/sys/devices/pci0000:3a/{ADDRESS}"
    add_nic(host, "eth2")
    host.files[f"{NET}/eth2/phys_port_name"] = "pf0vf3"
    assert set(facts(read_once(NicSettingsSource(), host))) == {"eth0"}


def test_two_ports_of_one_function_have_each_their_own_type_of_service() -> None:
    host = FakeHost()
    for port, interface in enumerate(("eth0", "eth1")):
        add_nic(host, interface, "mlx4_en", rdma_device="mlx4_0")
        host.files[f"{NET}/{interface}/dev_port"] = f"{port}\n"
        ports = "/sys/kernel/config/rdma_cm/mlx4_0/ports"
        host.files[f"{ports}/{port + 1}/default_roce_tos"] = str(port + 100)
        host.files[f"/sys/class/infiniband/mlx4_0/ports/{port + 1}/state"] = "4: ACTIVE"
    found = facts(read_once(NicSettingsSource(), host))
    assert {name: settings["rdma_cm_tos"] for name, settings in found.items()} == {
        "eth0": "100",
        "eth1": "101",
    }


@pytest.mark.parametrize(
    ("question", "metric", "columns"),
    [
        ("dcb", PFC, 8),
        ("rings", "railscope_nic_setting_ring_entries", 2),
        ("fec", "railscope_nic_fec_active", 1),
    ],
)
def test_a_denied_setting_is_reported_as_denied(question: str, metric: str, columns: int) -> None:
    host = mainline()
    add_netlink(host, **{question: DENIED})
    outcome = read_once(NicSettingsSource(), host)
    found = [reading for (name, _), reading in readings(outcome.frame).items() if name == metric]
    assert found == [Absent.DENIED] * columns
    (finding,) = [f for f in outcome.findings if f.verdict is ProbeVerdict.DENIED]
    assert finding.detail == f"{question}: Permission denied"
    assert "AF_NETLINK" in finding.remedy


def test_the_hash_covers_all_settings() -> None:
    usual = settings_hash(read_once(NicSettingsSource(), mainline()))
    assert len(usual) == 12
    host = mainline()
    host.calls["ethtool.driver(eth0)"] |= {"firmware": "28.40.1000"}
    assert settings_hash(read_once(NicSettingsSource(), host)) == usual, "firmware is no setting"
    add_netlink(host, rings=RINGS | {"transmit": 64})
    changed = settings_hash(read_once(NicSettingsSource(), host))
    assert changed not in {usual, ""}


@pytest.mark.parametrize("hides", ["denied", "denied file", "down"])
def test_settings_that_are_not_all_known_have_no_hash(hides: str) -> None:
    host = mainline()
    if hides == "denied":
        add_netlink(host, rings=DENIED)
    elif hides == "denied file":
        host.files[f"{NET}/eth0/mtu"] = DENIED
    else:
        host.files[f"{NET}/eth0/carrier"] = "0\n"
    assert not settings_hash(read_once(NicSettingsSource(), host))


def test_debugfs_is_for_root() -> None:
    """The list of parameters cannot be read: a finding and no column."""
    host = mainline()
    host.files = {path: text for path, text in host.files.items() if not path.startswith(DEBUGFS)}
    refused = DENIED

    class DebugfsDeniedHost(FakeHost):
        def names(self, path: str) -> list[str]:
            if path.startswith("/sys/kernel/debug"):
                raise refused
            return super().names(path)

    closed = DebugfsDeniedHost()
    closed.files, closed.links, closed.calls = host.files, host.links, host.calls
    outcome = read_once(NicSettingsSource(), closed)
    (finding,) = [f for f in outcome.findings if f.verdict is not ProbeVerdict.SUPPORTED]
    assert (finding.verdict, finding.detail) == (
        ProbeVerdict.DENIED,
        "cc_params: Permission denied",
    )
    assert "root" in finding.remedy
    assert not {label for label in readings(outcome.frame) if label[0] == PARAMETER}


def test_an_answer_of_another_form_harms_nothing_else() -> None:
    host = mainline()
    add_netlink(host, dcb={"pfc": {"enabled": None}}, rings=["receive"])
    outcome = read_once(NicSettingsSource(), host)
    broken = [f.detail.split(":")[0] for f in outcome.findings if f.verdict is ProbeVerdict.BROKEN]
    assert broken == ["dcb", "rings"]
    found = readings(outcome.frame)
    assert found[PFC, ("eth0", "0")] is Absent.ERROR
    assert found["railscope_nic_setting_mtu_bytes", ETH0] == 4200


@pytest.mark.parametrize(
    ("supported", "peer", "expected"),
    [
        (["100000baseCR4/Full", "200000baseCR4/Full"], [], 200_000),
        (["200000baseCR4/Full", "400000baseCR4/Full"], ["200000baseCR4/Full"], 200_000),
        (["200000baseCR4/Full"], ["400000baseCR4/Full", "100000baseCR4/Full"], 200_000),
        (["10000baseT/Full", "2500baseX/Full", "FIBRE", "Autoneg", "RS"], ["Autoneg"], 10_000),
        (["800000baseDR8/Full", "400000baseLR4_ER4_FR4/Full"], [], 800_000),
    ],
)
def test_the_expected_speed_is_the_highest_both_sides_can(
    supported: list[str], peer: list[str], expected: int
) -> None:
    host = FakeHost()
    add_nic(host)
    add_netlink(host, link_modes={"supported": supported, "peer": peer})
    found = numbers(read_once(NicSettingsSource(), host).frame)
    assert found[SPEED, ETH0] == expected * BYTES_OF_A_MEGABIT


def test_a_configured_speed_is_the_expected_speed() -> None:
    host = mainline()
    add_nic(host, "eth1")
    rules = RailRules(expected_megabits_per_second={"eth0": 200_000, "eth1": 25_000})
    source = NicSettingsSource(wiring=NetworkScanner(rules))
    found = numbers(read_once(source, host).frame)
    assert found[SPEED, ("eth0",)] == 200_000 * BYTES_OF_A_MEGABIT
    assert found[SPEED, ("eth1",)] == 25_000 * BYTES_OF_A_MEGABIT, (
        "though the driver reports nothing"
    )
