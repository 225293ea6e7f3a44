"""Settings read from files: MTU, congestion control, trust, buffers, RDMA.

The files below /sys/class/net/*/ecn and qos and /sys/class/infiniband/*/tc exist only with the
vendor's driver (OFED, mlx5/core/en_sysfs.c and mlx5/tc.c). The kernel's own driver has congestion
control in debugfs, which only root may read (Linux drivers/infiniband/hw/mlx5/cong.c and
bnxt_re/debugfs.c), Broadcom's in configfs (bnxt_re/configfs.c). A device is in configfs once an
administrator has created its directory there; this also applies to rdma_cm (Linux
drivers/infiniband/core/cma_configfs.c).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from agent.host import Host
from agent.sources.settings.card import NET, NONE, Card, Told, listed
from agent.sources.settings.netlink import MLX5, buffers, dscp_map
from railscope.catalog import nic_settings as c
from railscope.reading import Absent, Reading, parse_integer, reason_of

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


def mtu(host: Host, card: Card) -> Told:
    """The MTU."""
    told = Told(card.interface)
    told.number("mtu", c.MTU, _number(host, f"{NET}/{card.interface}/mtu"))
    return told


def ecn(host: Host, card: Card) -> Told:
    """OFED's congestion control: on or off for each priority and side, and its parameters."""
    told = Told(card.interface)
    for side, word in _SIDES.items():
        directory = f"{NET}/{card.interface}/ecn/roce_{side}"
        found = _names(host, directory)
        if _ENABLE in found:
            priorities = filter(str.isdecimal, _names(host, f"{directory}/{_ENABLE}"))
            states = {int(p): _number(host, f"{directory}/{_ENABLE}/{p}") for p in priorities}
            told.switches(f"ecn_{word}", c.ECN_ENABLED, states, word)
        for name in found:
            if name != _ENABLE:
                _parameter(told, parameter(side, name), _number(host, f"{directory}/{name}"))
    return told


def parameter(side: str, name: str) -> str:
    """Name in cc_params of a file of OFED: rpg_ai_rate of the reaction side is rp_ai_rate."""
    return _IRREGULAR.get(name) or f"{side}_{name.removeprefix('rpg_')}"


def _parameter(told: Told, name: str, reading: Reading) -> None:
    told.number(name, c.DCQCN_PARAMETER, reading, name)


def congestion_directories(card: Card) -> Mapping[str, str]:
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


def congestion(host: Host, card: Card, directory: str, told_before: Iterable[str]) -> Told:
    """Parameters of congestion control; reading each costs a firmware command.

    Parameters in `told_before` are not read again, and values that are not numbers are skipped.
    """
    told = Told(card.interface)
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


def qos(host: Host, card: Card) -> Told:
    """OFED's trust, DSCP map and buffers with their thresholds."""
    told = Told(card.interface)
    directory = f"{NET}/{card.interface}/qos"
    if trust := _text(host, f"{directory}/trust"):
        told.say("trust", trust)
    if mapped := _text(host, f"{directory}/dscp2prio"):
        dscp: dict[int, list[int]] = {}
        for priority, codes in _DSCPS.findall(mapped):
            dscp.setdefault(int(priority), []).extend(map(int, re.findall(r"\d+", codes)))
        dscp_map(told, dscp)
    if of_priority := _text(host, f"{directory}/prio2buffer"):
        pairs = {int(p): int(b) for p, b in _BUFFER_OF.findall(of_priority)}
        told.say("buffer_of_priority", listed(pairs[p] for p in sorted(pairs)))
    if sizes := _text(host, f"{directory}/buffer_size"):
        _buffers(told, sizes)
    return told


def _buffers(told: Told, text: str) -> None:
    """Parse a line with the port's memory, then a line for each buffer: size, xoff and xon threshold."""
    port = _PORT_BUFFER.search(text)
    rows = [tuple(map(int, row)) for row in _BUFFER.findall(text)]
    buffers(told, {row[0]: row[1] for row in rows}, int(port[1]) if port else None)
    for buffer, _, xoff, xon in rows:
        told.number(f"buffer_{buffer}_xoff", c.BUFFER_THRESHOLD, xoff, str(buffer), "xoff")
        told.number(f"buffer_{buffer}_xon", c.BUFFER_THRESHOLD, xon, str(buffer), "xon")


def rdma(host: Host, card: Card) -> Told:
    """Defaults for connections over the NIC's RDMA port: type of service, RoCE mode, traffic class."""
    told = Told(card.interface)
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
        told.say("rdma_traffic_class", found[1] if found else NONE)
        if found:
            told.put(c.RDMA_TRAFFIC_CLASS, int(found[1]))
    return told


def gids(host: Host, card: Card) -> Told:
    """GID types of the NIC's RDMA port; reading an empty entry of the table fails with EINVAL."""
    told = Told(card.interface)
    directory = f"{_INFINIBAND}/{card.rdma_device}/ports/{card.rdma_port}/gid_attrs/types"
    entries = range(_GIDS) if card.rdma_port else ()
    if known := sorted(filter(None, {_text(host, f"{directory}/{entry}") for entry in entries})):
        told.say("gid_types", listed(known))
    return told
