"""Parsers of the settings of a NIC: those in files, and those read over netlink.

Files: MTU, congestion control, trust, buffers, RDMA. The files below /sys/class/net/*/ecn and qos
and /sys/class/infiniband/*/tc exist only with the vendor's driver (OFED, mlx5/core/en_sysfs.c and
mlx5/tc.c).

Netlink: data centre bridging, pause, FEC, rings, link modes. Sources: linux UAPI dcbnl.h and
ethtool_netlink.h. The answers are from the host interface "netlink"; an absent key is not reported by the
kernel or the driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from railscope.catalog import nic_settings as c
from railscope.reading import Absent, Reading, reason_of
from railscope_agent.host import Host, Json
from railscope_agent.sampling.answer_readings import parsed_reading
from railscope_agent.sources import nic_interfaces
from railscope_agent.topology.network_interface import NetworkInterface

MLX5 = "mlx5_core"
_DIRECTIONS = ("receive", "transmit")
_DSCP = "dscp"
_FEC = {name: code for code, name in c.FEC_ACTIVE.states.items()}
_SPEED = re.compile(r"(\d+)base")


def parse_dcb(answers: nic_interfaces.SettingAnswers, answer: Json) -> None:
    """PFC, ETS, applications, trust, buffers and rate limits of a NIC."""
    if pfc := answer.get("pfc"):
        on = set(pfc["enabled"])
        states: dict[int, Reading] = {
            number: int(number in on) for number in range(nic_interfaces.PRIORITIES)
        }
        answers.switches("pfc", c.PFC_ENABLED, states)
        if "delay_bits" in pfc:
            answers.set("pfc_delay_bits", str(pfc["delay_bits"]))
    if ets := answer.get("ets"):
        _ets(answers, ets)
    if "applications" in answer:
        _applications(answers, answer["applications"])
    if trust := answer.get("trust"):
        answers.set("trust", nic_interfaces.join_items(trust))
    if "dcbx" in answer:
        # In a fixed order: settings of NICs are compared as texts.
        answers.set("dcbx", nic_interfaces.join_items(sorted(answer["dcbx"])))
    if buffer := answer.get("buffer"):
        answers.set("buffer_of_priority", nic_interfaces.join_items(buffer["of_priority"]))
        add_buffers(answers, dict(enumerate(buffer["size_bytes"])), buffer.get("total_bytes"))
    if rates := answer.get("maximum_rate_kilobits"):
        answers.set(
            "rate_limits",
            nic_interfaces.join_items(rates) if any(rates) else nic_interfaces.NO_VALUE,
        )


def _ets(answers: nic_interfaces.SettingAnswers, ets: Mapping[str, Sequence[int | str]]) -> None:
    answers.set("traffic_classes", nic_interfaces.join_items(ets["traffic_class"]))
    for priority, traffic_class in enumerate(ets["traffic_class"]):
        answers.put(c.TRAFFIC_CLASS, int(traffic_class), str(priority))
    answers.set("bandwidth", nic_interfaces.join_items(ets["bandwidth_percent"]))
    for traffic_class, percent in enumerate(ets["bandwidth_percent"]):
        answers.put(c.BANDWIDTH, int(percent), str(traffic_class))
    answers.set("scheduling", nic_interfaces.join_items(ets["algorithm"]))


def _applications(
    answers: nic_interfaces.SettingAnswers, entries: Sequence[Mapping[str, int | str]]
) -> None:
    """Add the rules for the priority of a packet.

    mlx5 has no trust table: it has DSCP entries only while the NIC trusts DSCP (Linux
    drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c, mlx5e_trust_initialize).
    """
    dscp: dict[int, list[int]] = {}
    for entry in entries:
        if entry["selector"] == _DSCP:
            dscp.setdefault(int(entry["priority"]), []).append(int(entry["protocol"]))
    add_dscp_map(answers, dscp)
    applications = sorted(
        f"{entry['selector']}:{entry['protocol']}>{entry['priority']}"
        for entry in entries
        if entry["selector"] != _DSCP
    )
    answers.set("applications", nic_interfaces.join_items(applications))
    if answers.nic.driver == MLX5:
        answers.set("trust", _DSCP if dscp else "pcp")


def add_dscp_map(answers: nic_interfaces.SettingAnswers, dscp: Mapping[int, Iterable[int]]) -> None:
    """Add the DSCPs of each priority, as in 3:24-31,6:48."""
    answers.set("dscp_map", dscp_map(dscp))


def dscp_map(dscp: Mapping[int, Iterable[int]]) -> str:
    """Return the DSCPs of each priority, as in 3:24-31,6:48."""
    entries = (f"{priority}:{_spans(dscp[priority])}" for priority in sorted(dscp))
    return nic_interfaces.join_items(entries)


def _spans(numbers: Iterable[int]) -> str:
    """Numbers in order, with consecutive ones as a range: 0-7+26."""
    ordered = enumerate(sorted(set(numbers)))
    runs = [[n for _, n in run] for _, run in groupby(ordered, lambda pair: pair[1] - pair[0])]
    return "+".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def add_buffers(
    answers: nic_interfaces.SettingAnswers, sizes: Mapping[int, int], total: int | None
) -> None:
    """Add the receive buffers of a port in bytes, and the memory that they are allocated from."""
    answers.set("buffer_size", nic_interfaces.join_items(sizes.values()))
    for buffer, size in sizes.items():
        answers.put(c.BUFFER, size, str(buffer))
    if total is not None:
        answers.number("port_buffer", c.PORT_BUFFER, total)


def parse_pause(answers: nic_interfaces.SettingAnswers, answer: Json) -> None:
    """Link-wide pause."""
    for direction in _DIRECTIONS:
        answers.put(c.PAUSE_ENABLED, int(answer[direction]), direction)
    modes = ["automatic"] if answer.get("autonegotiation") else []
    modes += [direction for direction in _DIRECTIONS if answer[direction]]
    answers.set("pause", nic_interfaces.join_items(modes))


def parse_fec(answers: nic_interfaces.SettingAnswers, answer: Json) -> None:
    """Forward error correction: the configured modes are a setting, the mode in use is a state."""
    modes = ["automatic"] if answer.get("automatic") else []
    modes += sorted(mode.lower() for mode in answer["modes"])
    answers.set("fec", nic_interfaces.join_items(modes))
    if active := answer.get("active"):
        answers.put(c.FEC_ACTIVE, _FEC.get(active.lower(), Absent.ERROR))


def parse_rings(answers: nic_interfaces.SettingAnswers, answer: Json) -> None:
    """Sizes of the rings."""
    for direction in _DIRECTIONS:
        if direction in answer:
            answers.number(f"{direction}_ring", c.RING, answer[direction], direction)
        if f"{direction}_limit" in answer:
            answers.put(c.RING_LIMIT, answer[f"{direction}_limit"], direction)


def parse_link_modes(answers: nic_interfaces.SettingAnswers, answer: Json) -> None:
    """Autonegotiation, and lanes and expected speed of the link. The current speed is a state."""
    if "autonegotiation" in answer:
        on = bool(answer["autonegotiation"])
        answers.put(c.AUTONEGOTIATION, int(on))
        answers.set("autonegotiation", "on" if on else "off")
    if "lanes" in answer:
        answers.put(c.LINK_LANES, answer["lanes"])
    speed = expected_megabits(answer.get("supported", ()), answer.get("peer", ()))
    if speed is not None:
        answers.put(c.EXPECTED_SPEED, speed)


def expected_megabits(supported: Iterable[str], peer: Iterable[str]) -> int | None:
    """Highest speed of the modes that both ends support; without modes of the peer, of this end.

    `supported` are the modes that the driver reports for its port with the plugged module. The type
    of the module is not a bound: 0x11 of SFF-8024 stands for QSFP28 as well as for QSFP56.
    """
    supported_modes, other = set(supported), set(peer)
    return _highest(supported_modes & other) or _highest(supported_modes)


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


def read_mtu(answers: nic_interfaces.SettingAnswers, host: Host) -> None:
    """The MTU."""
    answers.number(
        "mtu", c.MTU, parsed_reading(host.read, f"{nic_interfaces.NET}/{answers.nic.name}/mtu")
    )


def read_ecn(answers: nic_interfaces.SettingAnswers, host: Host) -> None:
    """OFED's congestion control: on or off for each priority and side, and its parameters."""
    for side, point in _SIDES.items():
        directory = f"{nic_interfaces.NET}/{answers.nic.name}/ecn/roce_{side}"
        names = _names(host, directory)
        if _ENABLE in names:
            priorities = filter(str.isdecimal, _names(host, f"{directory}/{_ENABLE}"))
            states = {
                int(p): parsed_reading(host.read, f"{directory}/{_ENABLE}/{p}") for p in priorities
            }
            answers.switches(f"ecn_{point}", c.ECN_ENABLED, states, point)
        for name in names:
            if name != _ENABLE:
                reading = parsed_reading(host.read, f"{directory}/{name}")
                _parameter(answers, parameter_name(side, name), reading)


def parameter_name(side: str, name: str) -> str:
    """Name in cc_params of a file of OFED: rpg_ai_rate of the reaction side is rp_ai_rate."""
    return _IRREGULAR.get(name) or f"{side}_{name.removeprefix('rpg_')}"


def _parameter(answers: nic_interfaces.SettingAnswers, name: str, reading: Reading) -> None:
    answers.number(name, c.DCQCN_PARAMETER, reading, name)


def congestion_directories(nic: NetworkInterface) -> Mapping[str, str]:
    """Other directories in which the driver of a NIC has parameters of congestion control.

    The kernel's own driver has them in debugfs, which only root may read (Linux
    drivers/infiniband/hw/mlx5/cong.c and bnxt_re/debugfs.c), Broadcom's in configfs (bnxt_re/configfs.c),
    once an administrator has created the directory of the device there.
    """
    if nic.driver == MLX5 and nic.function:
        return {"cc_params": f"/sys/kernel/debug/mlx5/{nic.function}/cc_params"}
    if nic.driver == BNXT and nic.rdma_port:
        port = f"/sys/kernel/config/bnxt_re/{nic.rdma_device}/ports/{nic.rdma_port}"
        return {
            "cc": f"{port}/cc",
            "cc_config": f"/sys/kernel/debug/bnxt_re/{nic.function}/cc_config",
        }
    return {}


def read_congestion(
    answers: nic_interfaces.SettingAnswers,
    host: Host,
    directory: str,
    settings_before: Iterable[str],
) -> None:
    """Parameters of congestion control; reading each costs a firmware command.

    Parameters in `settings_before` are not read again, and values that are not numbers are skipped.
    """
    for name in sorted(set(_names(host, directory)).difference(settings_before)):
        try:
            reading = _parse_parameter(host.read(f"{directory}/{name}"))
        except IsADirectoryError:
            continue
        except OSError as error:
            reading = reason_of(error)
        _parameter(answers, name, reading)


def _parse_parameter(content: bytes) -> Reading:
    match = _DECIMAL_OR_HEXADECIMAL.fullmatch(content.strip())
    return int(match[0], 0) if match else Absent.UNSUPPORTED


def read_qos(answers: nic_interfaces.SettingAnswers, host: Host) -> None:
    """OFED's trust, DSCP map and buffers with their thresholds."""
    directory = f"{nic_interfaces.NET}/{answers.nic.name}/qos"
    if trust := _text(host, f"{directory}/trust"):
        answers.set("trust", trust)
    if mapped := _text(host, f"{directory}/dscp2prio"):
        dscp: dict[int, list[int]] = {}
        for priority, codes in _DSCPS.findall(mapped):
            dscp.setdefault(int(priority), []).extend(map(int, re.findall(r"\d+", codes)))
        add_dscp_map(answers, dscp)
    if of_priority := _text(host, f"{directory}/prio2buffer"):
        pairs = {int(p): int(b) for p, b in _BUFFER_OF.findall(of_priority)}
        answers.set(
            "buffer_of_priority", nic_interfaces.join_items(pairs[p] for p in sorted(pairs))
        )
    if sizes := _text(host, f"{directory}/buffer_size"):
        _buffers(answers, sizes)


def _buffers(answers: nic_interfaces.SettingAnswers, text: str) -> None:
    """Parse a line with the port's memory, then a line for each buffer: size, xoff and xon threshold."""
    port = _PORT_BUFFER.search(text)
    rows = [tuple(map(int, row)) for row in _BUFFER.findall(text)]
    add_buffers(answers, {row[0]: row[1] for row in rows}, int(port[1]) if port else None)
    for buffer, _, xoff, xon in rows:
        answers.number(f"buffer_{buffer}_xoff", c.BUFFER_THRESHOLD, xoff, str(buffer), "xoff")
        answers.number(f"buffer_{buffer}_xon", c.BUFFER_THRESHOLD, xon, str(buffer), "xon")


def read_rdma(answers: nic_interfaces.SettingAnswers, host: Host) -> None:
    """Defaults for connections over the NIC's RDMA port: type of service, RoCE mode, traffic class.

    rdma_cm has a device in configfs once an administrator has created its directory there (Linux
    drivers/infiniband/core/cma_configfs.c).
    """
    nic = answers.nic
    if not nic.rdma_port:
        return
    device, port = nic.rdma_device, nic.rdma_port
    directory = f"/sys/kernel/config/rdma_cm/{device}/ports/{port}"
    answers.number(
        "rdma_cm_tos", c.RDMA_CM_TOS, parsed_reading(host.read, f"{directory}/default_roce_tos")
    )
    if mode := _text(host, f"{directory}/default_roce_mode"):
        answers.set("rdma_cm_mode", mode)
    class_ = _text(host, f"{_INFINIBAND}/{device}/tc/{port}/traffic_class")
    if class_ is not None:
        match = _GLOBAL_CLASS.search(class_)
        answers.set("rdma_traffic_class", match[1] if match else nic_interfaces.NO_VALUE)
        if match:
            answers.put(c.RDMA_TRAFFIC_CLASS, int(match[1]))


def read_gids(answers: nic_interfaces.SettingAnswers, host: Host) -> None:
    """GID types of the NIC's RDMA port; reading an empty entry of the table fails with EINVAL."""
    nic = answers.nic
    directory = f"{_INFINIBAND}/{nic.rdma_device}/ports/{nic.rdma_port}/gid_attrs/types"
    entries = range(_GIDS) if nic.rdma_port else ()
    if types := sorted(filter(None, {_text(host, f"{directory}/{entry}") for entry in entries})):
        answers.set("gid_types", nic_interfaces.join_items(types))
