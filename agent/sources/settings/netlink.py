"""Settings read over netlink: data centre bridging, pause, FEC, rings, link modes.

Sources: linux UAPI dcbnl.h and ethtool_netlink.h. The answers are those of the host's seam
"netlink"; an absent key is not reported by the kernel or the driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from agent.host import Json
from agent.sources.settings.card import NONE, PRIORITIES, Card, Told, listed
from railscope.catalog import nic_settings as c
from railscope.reading import Absent

MLX5 = "mlx5_core"
_DIRECTIONS = ("receive", "transmit")
_DSCP = "dscp"
_FEC = {name: code for code, name in c.FEC_ACTIVE.states.items()}
_SPEED = re.compile(r"(\d+)base")


def dcb(card: Card, answer: Json) -> Told:
    """PFC, ETS, applications, trust, buffers and rate limits of a NIC."""
    told = Told(card.interface)
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
        told.say("trust", listed(trust))
    if "dcbx" in answer:
        told.say("dcbx", listed(sorted(answer["dcbx"])))
    if buffer := answer.get("buffer"):
        told.say("buffer_of_priority", listed(buffer["of_priority"]))
        buffers(told, dict(enumerate(buffer["size_bytes"])), buffer.get("total_bytes"))
    if rates := answer.get("maximum_rate_kilobits"):
        told.say("rate_limits", listed(rates) if any(rates) else NONE)
    return told


def _ets(told: Told, ets: Mapping[str, Sequence[int | str]]) -> None:
    told.say("traffic_classes", listed(ets["traffic_class"]))
    for priority, traffic_class in enumerate(ets["traffic_class"]):
        told.put(c.TRAFFIC_CLASS, int(traffic_class), str(priority))
    told.say("bandwidth", listed(ets["bandwidth_percent"]))
    for traffic_class, percent in enumerate(ets["bandwidth_percent"]):
        told.put(c.BANDWIDTH, int(percent), str(traffic_class))
    told.say("scheduling", listed(ets["algorithm"]))


def _applications(told: Told, card: Card, entries: Sequence[Mapping[str, int | str]]) -> None:
    """Add the rules for the priority of a packet.

    mlx5 has no trust table: it has DSCP entries only while the NIC trusts DSCP (Linux
    drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c, mlx5e_trust_initialize).
    """
    dscp: dict[int, list[int]] = {}
    for entry in entries:
        if entry["selector"] == _DSCP:
            dscp.setdefault(int(entry["priority"]), []).append(int(entry["protocol"]))
    dscp_map(told, dscp)
    others = sorted(
        f"{entry['selector']}:{entry['protocol']}>{entry['priority']}"
        for entry in entries
        if entry["selector"] != _DSCP
    )
    told.say("applications", listed(others))
    if card.driver == MLX5:
        told.say("trust", _DSCP if dscp else "pcp")


def dscp_map(told: Told, dscp: Mapping[int, Iterable[int]]) -> None:
    """Add the DSCPs of each priority, as in 3:24-31,6:48."""
    told.say(
        "dscp_map", listed(f"{priority}:{_spans(dscp[priority])}" for priority in sorted(dscp))
    )


def _spans(numbers: Iterable[int]) -> str:
    """Numbers in order, with consecutive ones as a range: 0-7+26."""
    ordered = enumerate(sorted(set(numbers)))
    runs = [[n for _, n in run] for _, run in groupby(ordered, lambda pair: pair[1] - pair[0])]
    return "+".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def buffers(told: Told, sizes: Mapping[int, int], total: int | None) -> None:
    """Add the receive buffers of a port in bytes, and the memory that they are allocated from."""
    told.say("buffer_size", listed(sizes.values()))
    for buffer, size in sizes.items():
        told.put(c.BUFFER, size, str(buffer))
    if total is not None:
        told.number("port_buffer", c.PORT_BUFFER, total)


def pause(card: Card, answer: Json) -> Told:
    """Link-wide pause."""
    told = Told(card.interface)
    for direction in _DIRECTIONS:
        told.put(c.PAUSE_ENABLED, int(answer[direction]), direction)
    on = [direction for direction in _DIRECTIONS if answer[direction]]
    told.say("pause", listed([*(["automatic"] if answer.get("autonegotiation") else []), *on]))
    return told


def fec(card: Card, answer: Json) -> Told:
    """Forward error correction: the configured modes are a setting, the mode in use is a state."""
    told = Told(card.interface)
    modes = sorted(mode.lower() for mode in answer["modes"])
    told.say("fec", listed([*(["automatic"] if answer.get("automatic") else []), *modes]))
    if active := answer.get("active"):
        told.put(c.FEC_ACTIVE, _FEC.get(active.lower(), Absent.ERROR))
    return told


def rings(card: Card, answer: Json) -> Told:
    """Sizes of the rings."""
    told = Told(card.interface)
    for direction in _DIRECTIONS:
        if direction in answer:
            told.number(f"{direction}_ring", c.RING, answer[direction], direction)
        if f"{direction}_limit" in answer:
            told.put(c.RING_LIMIT, answer[f"{direction}_limit"], direction)
    return told


def link_modes(card: Card, answer: Json) -> Told:
    """Autonegotiation, and lanes and expected speed of the link. The current speed is a state."""
    told = Told(card.interface)
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
