"""NICs of several vendors, as sysfs and netlink expose them."""

from __future__ import annotations

import errno
from typing import Any

from support.machine import FakeHost

from railscope.frame import Event
from railscope_agent.sampling.source_reader import ReadOutcome

NET = "/sys/class/net"
ADDRESS = "0000:3b:00.0"
SETTINGS, EVENT = "nic_settings", "nic_setting_changed"

DCB: dict[str, Any] = {
    "pfc": {
        "capacity": 8, "enabled": [3], "delay_bits": 7, "requests": [0] * 8, "indications": [0] * 8,
    },
    "ets": {
        "traffic_class": [1, 0, 2, 3, 4, 5, 6, 7],
        "bandwidth_percent": [25, 0, 0, 75, 0, 0, 0, 0],
        "algorithm": ["ets", "vendor", "vendor", "ets", "strict", "strict", "strict", "strict"],
    },
    "applications": [
        *({"selector": "dscp", "protocol": dscp, "priority": 3} for dscp in range(24, 32)),
        {"selector": "dscp", "protocol": 48, "priority": 6},
        {"selector": "ethertype", "protocol": 35093, "priority": 3},
    ],
    "buffer": {
        "of_priority": [0, 0, 0, 1, 0, 0, 0, 0],
        "size_bytes": [130_944, 114_944, 0, 0, 0, 0, 0, 0],
        "total_bytes": 262_016,
    },
    "maximum_rate_kilobits": [0] * 8,
    "dcbx": ["ieee", "host"],
}  # fmt: skip
PAUSE = {"autonegotiation": False, "receive": False, "transmit": False}
FEC = {"modes": ["RS"], "automatic": False, "active": "RS"}
RINGS = {
    "receive": 1024, "receive_limit": 8192, "transmit": 512, "transmit_limit": 8192,
}  # fmt: skip
LINK_MODES = {
    "speed_megabits": 400_000, "duplex": "full", "lanes": 4, "autonegotiation": True,
    "supported": ["100000baseCR4/Full", "400000baseCR4/Full", "Autoneg", "FIBRE", "RS"],
    "advertised": ["400000baseCR4/Full"], "peer": [],
}  # fmt: skip
CC_PARAMS = {"rp_ai_rate": 5, "rp_gd": 11, "np_cnp_dscp": 48, "np_cnp_prio": 6, "rp_max_rate": 0}

DEBUGFS = f"/sys/kernel/debug/mlx5/{ADDRESS}/cc_params"
ECN = f"{NET}/eth0/ecn"
QOS = f"{NET}/eth0/qos"
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


def add_nic(
    host: FakeHost,
    interface: str = "eth0",
    driver: str = "mlx5_core",
    address: str = ADDRESS,
    rdma_device: str = "",
) -> None:
    """Add a NIC that has an MTU and a firmware and reports nothing else to a host."""
    place = f"/sys/devices/pci0000:3a/{address}"
    host.links[f"{NET}/{interface}/device"] = place
    host.links[f"{place}/driver"] = f"/sys/bus/pci/drivers/{driver}"
    host.files[f"/sys/bus/pci/drivers/{driver}/module"] = ""
    host.files |= {f"{NET}/{interface}/mtu": "4200\n", f"{NET}/{interface}/carrier": "1\n"}
    host.calls[f"ethtool.driver({interface})"] = {
        "driver": driver, "version": "", "firmware": "28.39.1002", "bus": address,
    }  # fmt: skip
    if rdma_device:
        host.links[f"/sys/class/infiniband/{rdma_device}/device"] = place
        host.files[f"/sys/class/infiniband/{rdma_device}/ports/1/state"] = "4: ACTIVE"


def add_netlink(host: FakeHost, interface: str = "eth0", **answers: Any) -> None:
    """Make a NIC answer these requests."""
    for question, answer in answers.items():
        host.calls[f"netlink.{question}({interface})"] = answer


def add_everything(host: FakeHost, interface: str = "eth0") -> None:
    """Make a NIC answer all netlink requests for settings."""
    add_netlink(host, interface, dcb=DCB, pause=PAUSE, fec=FEC, rings=RINGS, link_modes=LINK_MODES)


def mainline() -> FakeHost:
    """Return a ConnectX NIC with the kernel's own driver, read by root."""
    host = FakeHost()
    add_nic(host, rdma_device="mlx5_0")
    add_everything(host)
    host.files |= {f"{DEBUGFS}/{name}": f"{value}\n" for name, value in CC_PARAMS.items()}
    host.files |= {
        "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos": "106\n",
        "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode": "RoCE v2\n",
    }
    for index, type_ in enumerate(("IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2")):
        directory = "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types"
        host.files[f"{directory}/{index}"] = type_
        host.files[f"{directory}/{index + 4}"] = OSError(errno.EINVAL, "Invalid argument")
    return host


def ofed() -> FakeHost:
    """Return a ConnectX NIC with the vendor's driver, read by a user other than root."""
    host = FakeHost()
    add_nic(host, rdma_device="mlx5_0")
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


def facts(outcome: ReadOutcome, kind: str = SETTINGS) -> dict[str, dict[str, str]]:
    """Return the facts of the entities of a kind, by interface."""
    assert outcome.frame is not None, outcome.problem
    entities = [e for e in outcome.frame.schema.entities if e.kind.name == kind]
    return {e.key[0]: dict(e.facts) for e in entities}


def events(outcome: ReadOutcome) -> list[Event]:
    """Return the events."""
    return list(outcome.frame.events) if outcome.frame else []


def changes(outcome: ReadOutcome) -> list[tuple[str, str, str, str]]:
    """Return interface, setting, before and after of every reported change."""
    return [
        (e.entity.key[0], e.facts["setting"], e.facts["before"], e.facts["after"])
        for e in events(outcome)
        if e.event_class.name == EVENT
    ]


def set_statistics(host: FakeHost, driver: str, statistics: dict[str, int]) -> None:
    """Set the ethtool statistics of eth0."""
    host.links[f"{NET}/eth0/device"] = f"/sys/devices/pci0000:3a/{ADDRESS}"
    host.files |= {f"{NET}/eth0/mtu": "9000", f"{NET}/eth0/phys_port_name": "p0"}
    host.files[f"/sys/devices/pci0000:3a/{ADDRESS}/vendor"] = "0x15b3"
    host.calls["ethtool.driver(eth0)"] = {
        "driver": driver, "version": "", "firmware": "", "bus": "",
    }  # fmt: skip
    host.calls["ethtool.statistics(eth0)"] = {
        "names": list(statistics),
        "values": list(statistics.values()),
    }
