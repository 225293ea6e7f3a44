"""Parsers of the settings of a NIC: those in files, and those read over netlink.

Files: MTU, congestion control, trust, buffers, RDMA. The files below /sys/class/net/*/ecn and qos
and /sys/class/infiniband/*/tc exist only with the vendor's driver (OFED, mlx5/core/en_sysfs.c and
mlx5/tc.c). The kernel's own driver has congestion control in debugfs, which only root may read
(Linux drivers/infiniband/hw/mlx5/cong.c and bnxt_re/debugfs.c), Broadcom's in configfs
(bnxt_re/configfs.c). A device is in configfs once an administrator has created its directory there;
this also applies to rdma_cm (Linux drivers/infiniband/core/cma_configfs.c).

Netlink: data centre bridging, pause, FEC, rings, link modes. Sources: linux UAPI dcbnl.h and
ethtool_netlink.h. The answers are those of the host's seam "netlink"; an absent key is not reported
by the kernel or the driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from agent.host import Host, Json
from agent.sources.nic_interfaces import (
    NET,
    NO_VALUE,
    PRIORITIES,
    PhysicalInterface,
    SettingAnswers,
    join_items,
)
from railscope.catalog import nic_settings as c
from railscope.reading import Absent, Reading, parse_integer, reason_of

MLX5 = "mlx5_core"
_DIRECTIONS = ("receive", "transmit")
_DSCP = "dscp"
_FEC = {name: code for code, name in c.FEC_ACTIVE.states.items()}
_SPEED = re.compile(r"(\d+)base")


def parse_dcb(card: PhysicalInterface, answer: Json) -> SettingAnswers:
    """PFC, ETS, applications, trust, buffers and rate limits of a NIC."""
    told = SettingAnswers(card.interface)
    if pfc := answer.get("pfc"):
        on = set(pfc["enabled"])
        told.switches(
            "pfc", c.PFC_ENABLED, {priority: int(priority in on) for priority in range(PRIORITIES)}
        )
        if "delay_bits" in pfc:
            told.say("pfc_delay_bits", str(pfc["delay_bits"]))
    if ets := answer.get("ets"):
        _ets(told, ets)
    if "applications" in answer:
        _applications(told, card, answer["applications"])
    if trust := answer.get("trust"):
        told.say("trust", join_items(trust))
    if "dcbx" in answer:
        told.say("dcbx", join_items(sorted(answer["dcbx"])))
    if buffer := answer.get("buffer"):
        told.say("buffer_of_priority", join_items(buffer["of_priority"]))
        add_buffers(told, dict(enumerate(buffer["size_bytes"])), buffer.get("total_bytes"))
    if rates := answer.get("maximum_rate_kilobits"):
        told.say("rate_limits", join_items(rates) if any(rates) else NO_VALUE)
    return told


def _ets(told: SettingAnswers, ets: Mapping[str, Sequence[int | str]]) -> None:
    told.say("traffic_classes", join_items(ets["traffic_class"]))
    for priority, traffic_class in enumerate(ets["traffic_class"]):
        told.put(c.TRAFFIC_CLASS, int(traffic_class), str(priority))
    told.say("bandwidth", join_items(ets["bandwidth_percent"]))
    for traffic_class, percent in enumerate(ets["bandwidth_percent"]):
        told.put(c.BANDWIDTH, int(percent), str(traffic_class))
    told.say("scheduling", join_items(ets["algorithm"]))


def _applications(
    told: SettingAnswers, card: PhysicalInterface, entries: Sequence[Mapping[str, int | str]]
) -> None:
    """Add the rules for the priority of a packet.

    mlx5 has no trust table: it has DSCP entries only while the NIC trusts DSCP (Linux
    drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c, mlx5e_trust_initialize).
    """
    dscp: dict[int, list[int]] = {}
    for entry in entries:
        if entry["selector"] == _DSCP:
            dscp.setdefault(int(entry["priority"]), []).append(int(entry["protocol"]))
    add_dscp_map(told, dscp)
    others = sorted(
        f"{entry['selector']}:{entry['protocol']}>{entry['priority']}"
        for entry in entries
        if entry["selector"] != _DSCP
    )
    told.say("applications", join_items(others))
    if card.driver == MLX5:
        told.say("trust", _DSCP if dscp else "pcp")


def add_dscp_map(told: SettingAnswers, dscp: Mapping[int, Iterable[int]]) -> None:
    """Add the DSCPs of each priority, as in 3:24-31,6:48."""
    told.say(
        "dscp_map", join_items(f"{priority}:{_spans(dscp[priority])}" for priority in sorted(dscp))
    )


def _spans(numbers: Iterable[int]) -> str:
    """Numbers in order, with consecutive ones as a range: 0-7+26."""
    ordered = enumerate(sorted(set(numbers)))
    runs = [[n for _, n in run] for _, run in groupby(ordered, lambda pair: pair[1] - pair[0])]
    return "+".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def add_buffers(told: SettingAnswers, sizes: Mapping[int, int], total: int | None) -> None:
    """Add the receive buffers of a port in bytes, and the memory that they are allocated from."""
    told.say("buffer_size", join_items(sizes.values()))
    for buffer, size in sizes.items():
        told.put(c.BUFFER, size, str(buffer))
    if total is not None:
        told.number("port_buffer", c.PORT_BUFFER, total)


def parse_pause(card: PhysicalInterface, answer: Json) -> SettingAnswers:
    """Link-wide pause."""
    told = SettingAnswers(card.interface)
    for direction in _DIRECTIONS:
        told.put(c.PAUSE_ENABLED, int(answer[direction]), direction)
    on = [direction for direction in _DIRECTIONS if answer[direction]]
    told.say("pause", join_items([*(["automatic"] if answer.get("autonegotiation") else []), *on]))
    return told


def parse_fec(card: PhysicalInterface, answer: Json) -> SettingAnswers:
    """Forward error correction: the configured modes are a setting, the mode in use is a state."""
    told = SettingAnswers(card.interface)
    modes = sorted(mode.lower() for mode in answer["modes"])
    told.say("fec", join_items([*(["automatic"] if answer.get("automatic") else []), *modes]))
    if active := answer.get("active"):
        told.put(c.FEC_ACTIVE, _FEC.get(active.lower(), Absent.ERROR))
    return told


def parse_rings(card: PhysicalInterface, answer: Json) -> SettingAnswers:
    """Sizes of the rings."""
    told = SettingAnswers(card.interface)
    for direction in _DIRECTIONS:
        if direction in answer:
            told.number(f"{direction}_ring", c.RING, answer[direction], direction)
        if f"{direction}_limit" in answer:
            told.put(c.RING_LIMIT, answer[f"{direction}_limit"], direction)
    return told


def parse_link_modes(card: PhysicalInterface, answer: Json) -> SettingAnswers:
    """Autonegotiation, and lanes and expected speed of the link. The current speed is a state."""
    told = SettingAnswers(card.interface)
    if "autonegotiation" in answer:
        on = bool(answer["autonegotiation"])
        told.put(c.AUTONEGOTIATION, int(on))
        told.say("autonegotiation", "on" if on else "off")
    if "lanes" in answer:
        told.put(c.LINK_LANES, answer["lanes"])
    speed = expected_megabits(answer.get("supported", ()), answer.get("peer", ()))
    if speed is not None:
        told.put(c.EXPECTED_SPEED, speed)
    return told


def expected_megabits(supported: Iterable[str], peer: Iterable[str]) -> int | None:
    """Highest speed of the modes that both ends support; without modes of the peer, of this end.

    `supported` are the modes that the driver reports for its port with the plugged module. The type
    of the module is not a bound: 0x11 of SFF-8024 stands for QSFP28 as well as for QSFP56.
    """
    own, other = set(supported), set(peer)
    return _highest(own & other) or _highest(own)


def _highest(modes: Iterable[str]) -> int | None:
    """Speed of the fastest of modes like 400000baseCR4/Full; other names are features."""
    return max((int(m[1]) for m in map(_SPEED.match, modes) if m), default=None)


BNXT = "bnxt_en"
_INFINIBAND = "/sys/class/infiniband"
_SIDES = {"np": "notification", "rp": "reaction"}
_ENABLE = "enable"
_IRREGULAR = {
    "clamp_tgt_rate_after_time_inc": "rp_clamp_tgt_rate_ati",
    "cnp_802p_prio": "np_cnp_prio",
}
"""OFED's file names that differ from those of cc_params in more than the prefix."""
_GIDS = 16
"""Number of GID table entries that are read: default GIDs and the first addresses come first."""
_DECIMAL_OR_HEXADECIMAL = re.compile(rb"0x[0-9a-fA-F]+|0|[1-9]\d*")
_GLOBAL_CLASS = re.compile(r"Global tclass=(\d+)")
_DSCPS = re.compile(r"prio:(\d+)\s+dscp:([\d,\s]+)")
_BUFFER = re.compile(r"^(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s*$", re.MULTILINE)
_BUFFER_OF = re.compile(r"^(\d+)\s+(\d+)\s*$", re.MULTILINE)
_PORT_BUFFER = re.compile(r"^Port buffer size = (\d+)", re.MULTILINE)


def _number(host: Host, path: str) -> Reading:
    try:
        return parse_integer(host.read(path))
    except OSError as error:
        return reason_of(error)


def _text(host: Host, path: str) -> str | None:
    """Content of a file; None if it does not exist. Raises OSError if it cannot be read."""
    try:
        return host.read(path).decode(errors="replace").strip()
    except OSError as error:
        if reason_of(error) in {Absent.UNSUPPORTED, Absent.GONE}:
            return None
        raise


def _names(host: Host, path: str) -> list[str]:
    """Entries of a directory; empty if it does not exist. Raises OSError if it cannot be read."""
    try:
        return host.names(path)
    except FileNotFoundError:
        return []


def read_mtu(host: Host, card: PhysicalInterface) -> SettingAnswers:
    """The MTU."""
    told = SettingAnswers(card.interface)
    told.number("mtu", c.MTU, _number(host, f"{NET}/{card.interface}/mtu"))
    return told


def read_ecn(host: Host, card: PhysicalInterface) -> SettingAnswers:
    """OFED's congestion control: on or off for each priority and side, and its parameters."""
    told = SettingAnswers(card.interface)
    for side, word in _SIDES.items():
        directory = f"{NET}/{card.interface}/ecn/roce_{side}"
        found = _names(host, directory)
        if _ENABLE in found:
            priorities = filter(str.isdecimal, _names(host, f"{directory}/{_ENABLE}"))
            states = {int(p): _number(host, f"{directory}/{_ENABLE}/{p}") for p in priorities}
            told.switches(f"ecn_{word}", c.ECN_ENABLED, states, word)
        for name in found:
            if name != _ENABLE:
                _parameter(told, parameter_name(side, name), _number(host, f"{directory}/{name}"))
    return told


def parameter_name(side: str, name: str) -> str:
    """Name in cc_params of a file of OFED: rpg_ai_rate of the reaction side is rp_ai_rate."""
    return _IRREGULAR.get(name) or f"{side}_{name.removeprefix('rpg_')}"


def _parameter(told: SettingAnswers, name: str, reading: Reading) -> None:
    told.number(name, c.DCQCN_PARAMETER, reading, name)


def congestion_directories(card: PhysicalInterface) -> Mapping[str, str]:
    """Other directories in which the driver of a NIC has parameters of congestion control."""
    if card.driver == MLX5 and card.pci_address:
        return {"cc_params": f"/sys/kernel/debug/mlx5/{card.pci_address}/cc_params"}
    if card.driver == BNXT and card.rdma_port:
        port = f"/sys/kernel/config/bnxt_re/{card.rdma_device}/ports/{card.rdma_port}"
        return {
            "cc": f"{port}/cc",
            "cc_config": f"/sys/kernel/debug/bnxt_re/{card.pci_address}/cc_config",
        }
    return {}


def read_congestion(
    host: Host, card: PhysicalInterface, directory: str, told_before: Iterable[str]
) -> SettingAnswers:
    """Parameters of congestion control; reading each costs a firmware command.

    Parameters in `told_before` are not read again, and values that are not numbers are skipped.
    """
    told = SettingAnswers(card.interface)
    for name in sorted(set(_names(host, directory)).difference(told_before)):
        _parameter(told, name, _value(host, f"{directory}/{name}"))
    return told


def _value(host: Host, path: str) -> Reading:
    try:
        found = _DECIMAL_OR_HEXADECIMAL.fullmatch(host.read(path).strip())
    except IsADirectoryError:
        return Absent.UNSUPPORTED
    except OSError as error:
        return reason_of(error)
    return int(found[0], 0) if found else Absent.UNSUPPORTED


def read_qos(host: Host, card: PhysicalInterface) -> SettingAnswers:
    """OFED's trust, DSCP map and buffers with their thresholds."""
    told = SettingAnswers(card.interface)
    directory = f"{NET}/{card.interface}/qos"
    if trust := _text(host, f"{directory}/trust"):
        told.say("trust", trust)
    if mapped := _text(host, f"{directory}/dscp2prio"):
        dscp: dict[int, list[int]] = {}
        for priority, codes in _DSCPS.findall(mapped):
            dscp.setdefault(int(priority), []).extend(map(int, re.findall(r"\d+", codes)))
        add_dscp_map(told, dscp)
    if of_priority := _text(host, f"{directory}/prio2buffer"):
        pairs = {int(p): int(b) for p, b in _BUFFER_OF.findall(of_priority)}
        told.say("buffer_of_priority", join_items(pairs[p] for p in sorted(pairs)))
    if sizes := _text(host, f"{directory}/buffer_size"):
        _buffers(told, sizes)
    return told


def _buffers(told: SettingAnswers, text: str) -> None:
    """Parse a line with the port's memory, then a line for each buffer: size, xoff and xon threshold."""
    port = _PORT_BUFFER.search(text)
    rows = [tuple(map(int, row)) for row in _BUFFER.findall(text)]
    add_buffers(told, {row[0]: row[1] for row in rows}, int(port[1]) if port else None)
    for buffer, _, xoff, xon in rows:
        told.number(f"buffer_{buffer}_xoff", c.BUFFER_THRESHOLD, xoff, str(buffer), "xoff")
        told.number(f"buffer_{buffer}_xon", c.BUFFER_THRESHOLD, xon, str(buffer), "xon")


def read_rdma(host: Host, card: PhysicalInterface) -> SettingAnswers:
    """Defaults for connections over the NIC's RDMA port: type of service, RoCE mode, traffic class."""
    told = SettingAnswers(card.interface)
    if not card.rdma_port:
        return told
    device, port = card.rdma_device, card.rdma_port
    directory = f"/sys/kernel/config/rdma_cm/{device}/ports/{port}"
    told.number("rdma_cm_tos", c.RDMA_CM_TOS, _number(host, f"{directory}/default_roce_tos"))
    if mode := _text(host, f"{directory}/default_roce_mode"):
        told.say("rdma_cm_mode", mode)
    class_ = _text(host, f"{_INFINIBAND}/{device}/tc/{port}/traffic_class")
    if class_ is not None:
        found = _GLOBAL_CLASS.search(class_)
        told.say("rdma_traffic_class", found[1] if found else NO_VALUE)
        if found:
            told.put(c.RDMA_TRAFFIC_CLASS, int(found[1]))
    return told


def read_gids(host: Host, card: PhysicalInterface) -> SettingAnswers:
    """GID types of the NIC's RDMA port; reading an empty entry of the table fails with EINVAL."""
    told = SettingAnswers(card.interface)
    directory = f"{_INFINIBAND}/{card.rdma_device}/ports/{card.rdma_port}/gid_attrs/types"
    entries = range(_GIDS) if card.rdma_port else ()
    if known := sorted(filter(None, {_text(host, f"{directory}/{entry}") for entry in entries})):
        told.say("gid_types", join_items(known))
    return told
