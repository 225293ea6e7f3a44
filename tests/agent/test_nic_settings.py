"""What cards of several makers are set to, as far as their drivers tell."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from support.machine import DENIED, FakeHost
from support.nics import (
    ADDRESS,
    CC_PARAMS,
    DCB,
    FEC,
    LINK_MODES,
    NET,
    PAUSE,
    RINGS,
    add_everything,
    add_netlink,
    add_nic,
    changes,
    events,
    facts,
)
from support.reading import ORIGIN, numbers, read_once, readings
from support.sampling import sampling

from agent.reader import Reader
from agent.source import Finding, Verdict
from agent.sources.look import MOST_EVENTS
from agent.sources.nic_settings import NicSettings
from agent.status import OK
from railscope.exposition import Exposition, Format
from railscope.reading import Absent

DEBUGFS = f"/sys/kernel/debug/mlx5/{ADDRESS}/cc_params"
ECN = f"{NET}/eth0/ecn"
QOS = f"{NET}/eth0/qos"
ETH0 = ("eth0",)
PFC = "railscope_nic_setting_pfc_enabled"
SPEED = "railscope_nic_setting_expected_speed_bytes_per_second"
PARAMETER = "railscope_nic_setting_dcqcn_parameter"
BYTES_OF_A_MEGABIT = 125_000
BUFFER_SIZE = """Port buffer size = 262016
Spare buffer size = 147072
Buffer\tSize\txoff_threshold\txon_threshold
0\t0\t0\t\t524160
1\t114944\t91392\t\t81408
"""
PRIO2BUFFER = "Priority\tBuffer\n" + "".join(f"{p}\t\t{int(p == 3)}\n" for p in range(8))
DSCP2PRIO = "".join(
    f"prio:{p} dscp:{','.join(f'{d:02}' for d in range(8 * p + 7, 8 * p - 1, -1))},\n"
    for p in range(8)
)


def mainline() -> FakeHost:
    """A ConnectX card with the kernel's own driver, read by root."""
    host = FakeHost()
    add_nic(host, rdma_device="mlx5_0")
    add_everything(host)
    host.files |= {f"{DEBUGFS}/{name}": f"{value}\n" for name, value in CC_PARAMS.items()}
    host.files |= {
        "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos": "106\n",
        "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode": "RoCE v2\n",
    }
    for index, type_ in enumerate(("IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2")):
        folder = "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types"
        host.files[f"{folder}/{index}"] = type_
        host.files[f"{folder}/{index + 4}"] = OSError(errno.EINVAL, "Invalid argument")
    return host


def ofed(*, netlink: bool = True) -> FakeHost:
    """A ConnectX card with the vendor's driver, read by a user who is not root."""
    host = FakeHost()
    add_nic(host, rdma_device="mlx5_0")
    if netlink:
        add_everything(host)
    for side in ("np", "rp"):
        host.files |= {f"{ECN}/roce_{side}/enable/{p}": f"{int(p == 3)}\n" for p in range(8)}
    host.files |= {
        f"{ECN}/roce_np/cnp_dscp": "48\n",
        f"{ECN}/roce_np/cnp_802p_prio": "6\n",
        f"{ECN}/roce_np/min_time_between_cnps": "4\n",
        f"{ECN}/roce_rp/rpg_ai_rate": "5\n",
        f"{ECN}/roce_rp/clamp_tgt_rate_after_time_inc": "1\n",
        f"{QOS}/trust": "dscp\n",
        f"{QOS}/dscp2prio": DSCP2PRIO,
        f"{QOS}/prio2buffer": PRIO2BUFFER,
        f"{QOS}/buffer_size": BUFFER_SIZE,
        "/sys/class/infiniband/mlx5_0/tc/1/traffic_class": "Global tclass=106\n",
    }
    return host


def findings(host: FakeHost) -> list[Finding]:
    return list(read_once(NicSettings(), host).findings)


def test_what_a_card_with_the_kernels_own_driver_is_set_to() -> None:
    outcome = read_once(NicSettings(), mainline())
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


def test_what_the_vendors_driver_tells_besides() -> None:
    outcome = read_once(NicSettings(), ofed())
    told = facts(outcome)["eth0"]
    assert (told["ecn_notification"], told["ecn_reaction"]) == ("3", "3")
    assert (told["np_cnp_dscp"], told["np_cnp_prio"]) == ("48", "6")
    assert told["rdma_traffic_class"] == "106"
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


def test_the_vendors_files_stand_in_where_netlink_does_not_tell() -> None:
    outcome = read_once(NicSettings(), ofed(netlink=False))
    told = facts(outcome)["eth0"]
    assert told["trust"] == "dscp"
    assert told["dscp_map"] == ",".join(f"{p}:{8 * p}-{8 * p + 7}" for p in range(8))
    assert told["buffer_of_priority"] == "0,0,0,1,0,0,0,0"
    found = numbers(outcome.frame)
    assert found["railscope_nic_setting_buffer_bytes", ("eth0", "1")] == 114_944
    assert found["railscope_nic_setting_port_buffer_bytes", ETH0] == 262_016


def test_of_two_that_tell_the_same_the_first_counts() -> None:
    """Netlink before the vendor's files, and these before debugfs, which is not even asked."""
    host = ofed()
    host.files[f"{QOS}/trust"] = "pcp\n"
    host.files[f"{DEBUGFS}/rp_gd"] = "11\n"
    host.files[f"{DEBUGFS}/rp_ai_rate"] = lambda: pytest.fail("costs a command for nothing")
    outcome = read_once(NicSettings(), host)
    assert facts(outcome)["eth0"]["trust"] == "dscp"
    assert facts(outcome)["eth0"]["dscp_map"] == "3:24-31,6:48"
    found = numbers(outcome.frame)
    assert found["railscope_nic_setting_buffer_bytes", ("eth0", "0")] == 130_944
    assert found[PARAMETER, ("eth0", "rp_gd")] == 11


def test_a_broadcom_card_tells_its_trust_itself() -> None:
    host = FakeHost()
    add_nic(host, driver="bnxt_en")
    dcb = {
        "pfc": {"capacity": 8, "enabled": [], "requests": [0] * 8, "indications": [0] * 8},
        "applications": [], "trust": ["dscp", "pcp"], "dcbx": ["ieee"],
        "maximum_rate_kilobits": [0, 0, 0, 50_000_000, 0, 0, 0, 0],
    }  # fmt: skip
    fec = {"modes": [], "automatic": True, "active": "None"}
    add_netlink(host, dcb=dcb, fec=fec, pause={**PAUSE, "receive": True, "transmit": True})
    outcome = read_once(NicSettings(), host)
    assert facts(outcome) == {"eth0": {
        "firmware": "28.39.1002", "mtu": "4200", "fec": "automatic", "pause": "receive,transmit",
        "pfc": "none", "trust": "dscp,pcp", "dscp_map": "none", "applications": "none",
        "dcbx": "ieee", "rate_limits": "0,0,0,50000000,0,0,0,0",
    }}  # fmt: skip
    found = readings(outcome.frame)
    assert [found[PFC, ("eth0", str(priority))] for priority in range(8)] == [0] * 8
    assert found["railscope_nic_fec_active", ETH0] == 0


def test_congestion_control_of_a_broadcom_card() -> None:
    """In configfs with the vendor's driver, in hexadecimal; in debugfs with the kernel's own."""
    host = FakeHost()
    add_nic(host, driver="bnxt_en", rdma_device="bnxt_re0")
    folder = "/sys/kernel/config/bnxt_re/bnxt_re0/ports/1/cc"
    host.files |= {
        f"{folder}/ecn_enable": "0x1\n", f"{folder}/cnp_dscp": "48\n", f"{folder}/apply": "",
        f"{folder}/advanced": IsADirectoryError(errno.EISDIR, "Is a directory"),
    }  # fmt: skip
    reader = Reader(NicSettings(), host, ORIGIN)
    outcome = reader.run()
    found = {key[1]: value for (n, key), value in readings(outcome.frame).items() if n == PARAMETER}
    assert found == {"ecn_enable": 1, "cnp_dscp": 48}
    debugfs = f"/sys/kernel/debug/bnxt_re/{ADDRESS}/cc_config"
    host.files |= {
        f"{debugfs}/enable_cc": "1\n", f"{debugfs}/tos_dscp": "26\n",
        f"{debugfs}/tx_queue": OSError(errno.EOPNOTSUPP, "Operation not supported"),
        f"{folder}/ecn_enable": "0x0\n",
    }  # fmt: skip
    host.clock.advance(60)
    outcome = reader.run()
    found = {key[1]: value for (n, key), value in readings(outcome.frame).items() if n == PARAMETER}
    assert found == {"ecn_enable": 0, "cnp_dscp": 48, "enable_cc": 1, "tos_dscp": 26}
    assert changes(outcome) == [("eth0", "ecn_enable", "1", "0")]


def test_an_intel_card_with_its_rdma_port() -> None:
    host = FakeHost()
    add_nic(host, driver="ice", rdma_device="rocep59s0")
    add_netlink(host, rings=RINGS, pause={**PAUSE, "autonegotiation": True}, link_modes=LINK_MODES)
    add_netlink(host, dcb={key: DCB[key] for key in ("pfc", "ets", "applications", "dcbx")})
    path = "/sys/kernel/config/rdma_cm/rocep59s0/ports/1/default_roce_tos"
    host.files[path] = "0\n"
    outcome = read_once(NicSettings(), host)
    told = facts(outcome)["eth0"]
    assert (told["pfc"], told["pause"], told["rdma_cm_tos"]) == ("3", "automatic", "0")
    assert "trust" not in told, "only of mlx5 is it known without a trust table"
    assert not {"fec", "buffer_of_priority", "ecn_notification"} & set(told)
    (finding,) = outcome.findings
    assert finding.detail.endswith("driver ice does not tell fec")


def test_a_virtual_card_tells_its_mtu_and_no_more() -> None:
    host = FakeHost()
    add_nic(host, driver="virtio_net")
    host.calls["ethtool.driver(eth0)"]["firmware"] = ""
    outcome = read_once(NicSettings(), host)
    assert readings(outcome.frame) == {("railscope_nic_setting_mtu_bytes", ETH0): 4200}
    (finding,) = outcome.findings
    assert finding.verdict is Verdict.SUPPORTED
    assert finding.detail == (
        "1 setting; driver virtio_net does not tell dcb, pause, fec, rings, link_modes"
    )


def test_bonds_and_bridges_are_no_cards() -> None:
    host = FakeHost()
    host.files |= {f"{NET}/bond0/mtu": "9000", f"{NET}/bonding_masters": "bond0"}
    outcome = read_once(NicSettings(), host)
    assert outcome.frame is None
    (finding,) = outcome.findings
    assert finding.verdict is Verdict.ABSENT


def test_virtual_functions_and_their_representors_are_no_cards() -> None:
    host = FakeHost()
    add_nic(host, "eth0")
    host.files[f"{NET}/eth0/phys_port_name"] = "p0"
    add_nic(host, "eth1", address="0000:3b:00.2")
    host.links["/sys/devices/pci0000:3a/0000:3b:00.2/physfn"] = f"/sys/devices/pci0000:3a/{ADDRESS}"
    add_nic(host, "eth2")
    host.files[f"{NET}/eth2/phys_port_name"] = "pf0vf3"
    assert set(facts(read_once(NicSettings(), host))) == {"eth0"}


def test_two_ports_of_one_function_have_each_their_own_type_of_service() -> None:
    host = FakeHost()
    for port, interface in enumerate(("eth0", "eth1")):
        add_nic(host, interface, "mlx4_en", rdma_device="mlx4_0")
        host.files[f"{NET}/{interface}/dev_port"] = f"{port}\n"
        ports = "/sys/kernel/config/rdma_cm/mlx4_0/ports"
        host.files[f"{ports}/{port + 1}/default_roce_tos"] = str(port + 100)
        host.files[f"/sys/class/infiniband/mlx4_0/ports/{port + 1}/state"] = "4: ACTIVE"
    found = facts(read_once(NicSettings(), host))
    assert {name: told["rdma_cm_tos"] for name, told in found.items()} == {
        "eth0": "100", "eth1": "101",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("question", "metric", "columns"),
    [("dcb", PFC, 8), ("rings", "railscope_nic_setting_ring_entries", 2), ("fec", "railscope_nic_fec_active", 1)],
)  # fmt: skip
def test_what_may_not_be_read_says_so(question: str, metric: str, columns: int) -> None:
    host = mainline()
    add_netlink(host, **{question: DENIED})
    outcome = read_once(NicSettings(), host)
    found = [reading for (name, _), reading in readings(outcome.frame).items() if name == metric]
    assert found == [Absent.DENIED] * columns
    (finding,) = [f for f in outcome.findings if f.verdict is Verdict.DENIED]
    assert finding.detail == f"{question}: Permission denied"
    assert "AF_NETLINK" in finding.remedy


def test_what_could_be_read_before_keeps_its_columns_while_it_cannot() -> None:
    host = mainline()
    reader = Reader(NicSettings(), host, ORIGIN)
    before = readings(reader.run().frame)
    add_netlink(host, dcb=OSError(errno.EIO, "Input/output error"))
    for _ in range(3):
        host.clock.advance(60)
        after = readings(reader.run().frame)
        assert after.keys() == before.keys()
        assert after["railscope_nic_setting_port_buffer_bytes", ETH0] is Absent.ERROR
        assert after["railscope_nic_setting_ring_entries", ("eth0", "receive")] == 1024


def test_what_stands_in_for_an_answer_is_not_compared_with_it() -> None:
    """The vendor's files may tell a setting in other words than netlink; a change is told once."""
    host = ofed()
    reader = Reader(NicSettings(), host, ORIGIN)
    reader.run()

    def read(dcb: Any, trust: str) -> list[tuple[str, str, str, str]]:
        add_netlink(host, dcb=dcb)
        host.files[f"{QOS}/trust"] = f"{trust}\n"
        host.clock.advance(60)
        outcome = reader.run()
        expected = trust if isinstance(dcb, OSError) else dcb["trust"][0]
        assert facts(outcome)["eth0"]["trust"] == expected
        return [change for change in changes(outcome) if change[1] == "trust"]

    fails, gone = OSError(errno.EIO, "I/O error"), OSError(errno.EOPNOTSUPP, "Not supported")
    by_dscp, by_pcp = {**DCB, "trust": ["dscp"]}, {**DCB, "trust": ["pcp"]}
    assert read(by_dscp, "both") == []
    assert read(fails, "both") == []
    assert read(by_pcp, "one") == [("eth0", "trust", "dscp", "pcp")]
    assert read(fails, "one") == []
    assert read(fails, "other") == []
    assert read(by_dscp, "other") == [("eth0", "trust", "pcp", "dscp")]
    assert read(gone, "other") == [], "from now on the file is what counts"
    assert read(gone, "none") == [("eth0", "trust", "other", "none")]


def test_a_link_that_goes_down_while_it_is_asked_changes_no_setting() -> None:
    host = mainline()
    host.files[f"{NET}/eth0/carrier_changes"] = "2\n"
    reader = Reader(NicSettings(), host, ORIGIN)
    reader.run()

    def goes_down_and_comes_up() -> dict[str, Any]:
        host.files[f"{NET}/eth0/carrier_changes"] = "4\n"
        return {**DCB, "pfc": {**DCB["pfc"], "enabled": []}}

    add_netlink(host, dcb=goes_down_and_comes_up)
    host.clock.advance(60)
    assert not events(reader.run())


def test_a_slow_look_is_not_repeated_by_the_read() -> None:
    host = mainline()

    def slow() -> dict[str, Any]:
        host.clock.advance(5)
        return RINGS

    add_netlink(host, rings=slow)
    read_once(NicSettings(), host)
    assert host.asked["netlink.rings(eth0)"] == 1


def test_debugfs_is_for_root() -> None:
    """Which parameters there are cannot be known: a finding, and no column."""
    host = mainline()
    host.files = {path: text for path, text in host.files.items() if not path.startswith(DEBUGFS)}
    refused = DENIED

    class Closed(FakeHost):
        def names(self, path: str) -> list[str]:
            if path.startswith("/sys/kernel/debug"):
                raise refused
            return super().names(path)

    closed = Closed()
    closed.files, closed.links, closed.calls = host.files, host.links, host.calls
    outcome = read_once(NicSettings(), closed)
    (finding,) = [f for f in outcome.findings if f.verdict is not Verdict.SUPPORTED]
    assert (finding.verdict, finding.detail) == (Verdict.DENIED, "cc_params: Permission denied")
    assert "root" in finding.remedy
    assert not {label for label in readings(outcome.frame) if label[0] == PARAMETER}


def test_an_answer_of_another_form_harms_nothing_else() -> None:
    host = mainline()
    add_netlink(host, dcb={"pfc": {"enabled": None}}, rings=["receive"])
    outcome = read_once(NicSettings(), host)
    broken = [f.detail.split(":")[0] for f in outcome.findings if f.verdict is Verdict.BROKEN]
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
    found = numbers(read_once(NicSettings(), host).frame)
    assert found[SPEED, ETH0] == expected * BYTES_OF_A_MEGABIT


def test_a_speed_that_is_known_better_is_what_is_expected() -> None:
    host = mainline()
    add_nic(host, "eth1")
    source = NicSettings(expected_megabits={"eth0": 200_000, "eth1": 25_000}.get)
    found = numbers(read_once(source, host).frame)
    assert found[SPEED, ("eth0",)] == 200_000 * BYTES_OF_A_MEGABIT
    assert found[SPEED, ("eth1",)] == 25_000 * BYTES_OF_A_MEGABIT, "though the driver tells nothing"


def test_a_change_is_one_event_with_before_and_after() -> None:
    host = mainline()
    reader = Reader(NicSettings(), host, ORIGIN)
    reader.run()
    host.clock.advance(60)
    add_netlink(host, dcb={**DCB, "pfc": {**DCB["pfc"], "enabled": [3, 4]}})
    host.files[f"{NET}/eth0/mtu"] = "1500\n"
    outcome = reader.run()
    assert sorted(changes(outcome)) == [
        ("eth0", "mtu", "4200", "1500"),
        ("eth0", "pfc", "3", "3,4"),
    ]
    now = host.clock.now()
    assert {(e.wall_ns, e.boot_ns) for e in events(outcome)} == {(now.wall_ns, now.boot_ns)}
    assert facts(outcome)["eth0"]["pfc"] == "3,4", "the facts are those of the same instant"
    host.clock.advance(60)
    assert not events(reader.run())


def test_a_flapping_link_changes_no_setting() -> None:
    """Not even where the driver says what the ends agreed on, in place of what is set."""
    host = mainline()
    reader = Reader(NicSettings(), host, ORIGIN)
    reader.run()
    down: dict[str, Any] = {"autonegotiation": False, "supported": LINK_MODES["supported"]}
    for number in range(4):
        host.clock.advance(60)
        up = bool(number % 2)
        host.files[f"{NET}/eth0/carrier"] = str(int(up))
        add_everything(host)
        if not up:
            no_pfc = {**DCB, "pfc": {**DCB["pfc"], "enabled": []}}
            add_netlink(host, link_modes=down, fec={**FEC, "active": ""}, dcb=no_pfc)
        outcome = reader.run()
        assert not events(outcome)
        assert not outcome.broken, "a link that is down is not a source that fails"
        found = readings(outcome.frame)
        assert found["railscope_nic_link_lanes", ETH0] == (4 if up else Absent.UNSUPPORTED)
        assert found[PFC, ("eth0", "3")] == int(up), "the page has what the driver says"


def test_what_was_set_while_the_link_was_down_is_told_when_it_is_up() -> None:
    host = mainline()
    reader = Reader(NicSettings(), host, ORIGIN)
    reader.run()
    for carrier, expected in ((0, []), (1, [("eth0", "pause", "none", "transmit")])):
        host.clock.advance(60)
        host.files[f"{NET}/eth0/carrier"] = str(carrier)
        add_netlink(host, pause={**PAUSE, "transmit": True})
        assert changes(reader.run()) == expected


def test_a_card_that_is_gone_says_so_once_and_is_compared_when_it_is_back() -> None:
    host = mainline()
    add_nic(host, "eth1", "bnxt_en", "0000:5e:00.0")
    reader = Reader(NicSettings(), host, ORIGIN)
    first = readings(reader.run().frame)
    files, links = dict(host.files), dict(host.links)
    host.files = {path: text for path, text in files.items() if "/eth1/" not in path}
    host.links = {path: text for path, text in links.items() if "/eth1/" not in path}
    label = ("railscope_nic_setting_mtu_bytes", ("eth1",))
    assert first[label] == 4200
    assert readings(reader.run().frame)[label] is Absent.GONE
    outcome = reader.run()
    assert label not in readings(outcome.frame)
    assert not events(outcome)
    host.files, host.links = files | {f"{NET}/eth1/mtu": "9000"}, links
    assert changes(reader.run()) == [("eth1", "mtu", "4200", "9000")]


def test_more_changes_than_are_told_are_counted() -> None:
    host = FakeHost()
    cards = MOST_EVENTS + 7
    for number in range(cards):
        add_nic(host, f"eth{number}", "ice", f"0000:{number:02x}:00.0")
    reader = Reader(NicSettings(), host, ORIGIN)
    reader.run()
    host.clock.advance(60)
    for number in range(cards):
        host.files[f"{NET}/eth{number}/mtu"] = "1500"
    outcome = reader.run()
    assert len(changes(outcome)) == MOST_EVENTS
    (more,) = [e for e in events(outcome) if e.event_class.name == "nic_changes_untold"]
    assert more.facts == {"event": "nic_setting_changed", "changes": "7"}
    assert more.entity.kind.name == "node"


def test_a_long_setting_is_cut_and_its_change_is_still_seen() -> None:
    host = FakeHost()
    add_nic(host)
    entries = [
        {"selector": "stream", "protocol": port, "priority": 1} for port in range(5000, 5100)
    ]
    add_netlink(host, dcb={"applications": entries})
    reader = Reader(NicSettings(), host, ORIGIN)
    text = facts(reader.run())["eth0"]["applications"]
    assert len(text) < 250
    entries[-1] = {"selector": "stream", "protocol": 5099, "priority": 2}
    host.clock.advance(60)
    ((_, setting, before, after),) = changes(reader.run())
    assert (setting, before) == ("applications", text)
    assert before != after


def test_a_look_costs_each_card_one_question_of_a_kind() -> None:
    """The probe looks and the read tells what it saw: firmware is not asked twice."""
    host = mainline()
    reader = Reader(NicSettings(), host, ORIGIN)
    for _ in range(3):
        reader.run()
        host.clock.advance(60)
    asked = {key: count for key, count in host.asked.items() if key.startswith("netlink.")}
    assert set(asked.values()) == {3}
    assert len(asked) == 5


async def test_the_page_has_the_facts_of_the_last_read() -> None:
    """A probe comes before every read, and the schema changes only where a fact does."""
    host = mainline()
    async with sampling(host, [NicSettings()]) as run:
        await run.step(60)
        host.files[f"{NET}/eth0/mtu"] = "9000\n"
        await run.step(60)
        await run.step(60)
        first, second, third, fourth = run.frames
        assert first.schema is second.schema
        assert third.schema is fourth.schema
        assert run.sampler.statuses["nic_settings"].state == OK
        page = Exposition().render([third], Format.PROMETHEUS)
    assert 'settings_info{interface="eth0",firmware="28.39.1002",mtu="9000",' in page
    assert 'railscope_nic_setting_mtu_bytes{interface="eth0"} 9000' in page
    assert 'railscope_nic_fec_active{interface="eth0",state="rs"} 1' in page
    assert 'ecn_notification=""' in page
