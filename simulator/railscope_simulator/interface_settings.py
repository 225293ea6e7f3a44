"""Settings of the simulated interfaces, as in the kernel's ethtool and dcb interfaces and in sysfs.

The parts that each driver supports follow linux, drivers/net/ethernet: mlx5 en_dcbnl.c,
en_ethtool.c and en_stats.c, bnxt_dcb.c and bnxt_ethtool.c, ice_dcb_nl.c and ice_ethtool.c;
virtio_net and the loopback support next to nothing.

NVIDIA's own driver package adds files to sysfs: trust, and ECN of RoCE by priority. Paths:
Mellanox/mlnx-tools, python/mlnx_qos and ofed_scripts; the two ends of congestion notification are
the notification point, which receives (roce_np), and the reaction point, which sends (roce_rp).
"""

from __future__ import annotations

import errno
from functools import cache

from railscope.capture import CaptureMoment, Json, failure
from railscope_simulator import (
    driver_counters,
    fabric,
    host_files,
    network_interfaces,
    node_hardware,
    node_model,
    port,
)

_BUFFERS_BYTES = 262_016
_LOSSY_BUFFER_BYTES = 105_856
_LINK_DOWN_STATES = {
    "flapping": ("No cable", ""),
    "speed_down": ("Bad signal integrity", "Large number of physical errors"),
}


def show_settings(model: node_model.NodeModel, into: CaptureMoment) -> None:
    """Add the settings of all interfaces to a `CaptureMoment`."""
    for cable in model.present_cables:
        answers = {
            "dcb": _dcb(cable),
            "pause": _pause(cable),
            "fec": _fec(cable),
            "standard_statistics": _standard_statistics(cable),
            "rings": network_interfaces.INTERFACES.rings[cable.port.nic.driver],
            "link_modes": _link_modes(cable),
            "link_state": _link_state(cable, model.spec.scenario),
        }
        _add_answers(into, cable.port.interface, answers)
    unsupported = failure(OSError(errno.EOPNOTSUPP, ""))
    nothing: dict[str, Json] = dict.fromkeys(
        ("dcb", "pause", "fec", "rings", "link_modes", "module"), unsupported
    ) | {"standard_statistics": {"statistics": {}}}
    _add_answers(into, node_hardware.LOOPBACK, nothing | {"link_state": {"up": True}})
    virtual = {
        "rings": network_interfaces.INTERFACES.rings["virtio_net"],
        "link_modes": network_interfaces.INTERFACES.unknown_link_mode,
        "link_state": {"up": True},
    }
    _add_answers(into, node_hardware.ETHERNET, nothing | virtual)


def _add_answers(into: CaptureMoment, interface: str, answers: dict[str, Json]) -> None:
    for function, answer in answers.items():
        into.calls[f"netlink.{function}({interface})"] = answer


def _dcb(cable: fabric.Cable) -> dict[str, Json]:
    """PFC, bandwidth, and the DSCP mapping: of the 64 that a driver may list, those in use.

    No driver reports a port's trust mode; one that does not trust DSCP has no DSCP table.
    """
    settings, driver = cable.settings, cable.port.nic.driver
    trusting = settings.trust == "dscp"
    applications = (
        (port.DSCP_OF_DATA, port.LOSSLESS),
        (port.DSCP_OF_NOTIFICATIONS, port.NOTIFICATION),
    )
    shared = [p in {port.BEST_EFFORT, port.LOSSLESS} for p in port.PRIORITIES]
    attributes: dict[str, Json] = {
        "pfc": {
            "capacity": 8,
            "enabled": [port.LOSSLESS] if settings.pausing else [],
            "delay_bits": 0,
            **_pause_frames(cable),
        },
        "ets": {
            "traffic_class": list(port.PRIORITIES),
            "bandwidth_percent": [50 * is_shared for is_shared in shared],
            "algorithm": ["ets" if is_shared else "strict" for is_shared in shared],
        },
        "applications": [
            {"selector": "dscp", "protocol": dscp, "priority": priority}
            for dscp, priority in applications
            if trusting
        ],
        "dcbx": ["host", "ieee"],
    }
    if driver == "mlx5_core":
        attributes["buffer"] = _buffers(pausing=settings.pausing)
        attributes["maximum_rate_kilobits"] = [0] * len(port.PRIORITIES)
    return attributes


def _pause_frames(cable: fabric.Cable) -> dict[str, list[int]]:
    """Pause frames sent and received by priority; ice counts those that start a pause."""
    sent, received = cable.counters.pause_frames_sent, cable.counters.pause_frames_received
    if cable.port.nic.driver == "ice":
        sent, received = (driver_counters.xon_and_xoff(n)[1] for n in (sent, received))
    return {
        "requests": [sent if p == port.LOSSLESS else 0 for p in port.PRIORITIES],
        "indications": [received if p == port.LOSSLESS else 0 for p in port.PRIORITIES],
    }


def _buffers(*, pausing: bool) -> dict[str, Json]:
    """Return the buffers: a lossless priority has its own, with space for data in flight."""
    split = (_LOSSY_BUFFER_BYTES, _BUFFERS_BYTES - _LOSSY_BUFFER_BYTES)
    sizes = split if pausing else (_BUFFERS_BYTES, 0)
    return {
        "of_priority": [int(pausing and p == port.LOSSLESS) for p in port.PRIORITIES],
        "size_bytes": [*sizes, *[0] * (len(port.PRIORITIES) - len(sizes))],
        "total_bytes": _BUFFERS_BYTES,
    }


def _pause(cable: fabric.Cable) -> dict[str, Json]:
    """Return global pause: off; mlx5 counts the frames of priorities here as well."""
    counters, counting = cable.counters, cable.port.nic.driver == "mlx5_core"
    return {
        "autonegotiation": False,
        "receive": False,
        "transmit": False,
        "statistics": {
            "receive_frames": counters.pause_frames_received if counting else 0,
            "transmit_frames": counters.pause_frames_sent if counting else 0,
        },
    }


def _fec(cable: fabric.Cable) -> dict[str, Json]:
    counters = cable.counters
    statistics = {
        "corrected_blocks": [counters.corrected_blocks],
        "uncorrectable_blocks": [counters.broken_blocks],
    }
    if cable.port.nic.driver != "ice":
        statistics["corrected_bits"] = [sum(counters.corrected_bits)]
    if cable.port.nic.driver == "mlx5_core":
        statistics["corrected_bits"] += counters.corrected_bits
    return {
        "modes": ["RS"],
        "automatic": False,
        "active": "RS" if cable.up else "None",
        "statistics": statistics,
    }


def _standard_statistics(cable: fabric.Cable) -> dict[str, Json]:
    counted = driver_counters.ethtool_statistics(cable)
    names = network_interfaces.INTERFACES.standard_statistics[cable.port.nic.driver]
    return {"statistics": {name: counted[driver_name] for name, driver_name in names.items()}}


def _link_modes(cable: fabric.Cable) -> dict[str, Json]:
    modes = network_interfaces.INTERFACES.link_modes[
        "copper" if cable.port.rail is None else "optical"
    ]
    supported = modes[str(cable.port.gigabits)]
    attributes: dict[str, Json] = {
        "duplex": "full" if cable.up else "unknown",
        "autonegotiation": False,
        "supported": supported,
        "advertised": supported,
        "peer": [],
    }
    if cable.up:
        attributes |= {"speed_megabits": cable.gigabits * 1000, "lanes": cable.lanes}
    return attributes


def _link_state(cable: fabric.Cable, scenario: str) -> dict[str, Json]:
    """Return the link state; mlx5 adds the reason for a down link and the number of its losses."""
    attributes: dict[str, Json] = {"up": cable.up}
    driver = cable.port.nic.driver
    if driver == "mlx5_core" and not cable.up:
        state, substate = _LINK_DOWN_STATES.get(scenario, ("Link training failure", ""))
        attributes["extended_state"] = state
        if substate:
            attributes["extended_substate"] = substate
    if driver in {"mlx5_core", "bnxt_en"}:
        attributes["down_events"] = cable.counters.link_downs
    return attributes


_ECN_CAPABLE = 2
"""ECT(0), the low bits of the traffic class (RFC 3168)."""
_MICROSECONDS_BETWEEN_NOTIFICATIONS = 4
_DIRECTORIES = (
    "qos",
    "ecn",
    "ecn/roce_np",
    "ecn/roce_rp",
    "ecn/roce_np/enable",
    "ecn/roce_rp/enable",
)


def show_ofed_files(model: node_model.NodeModel, into: CaptureMoment) -> None:
    """Add the files of all ConnectX ports to a `CaptureMoment`."""
    for cable in model.present_cables:
        if cable.port.nic.driver != "mlx5_core":
            continue
        net = f"/sys/class/net/{cable.port.interface}"
        names, files = _ofed_files(cable.settings.trust, notifying=cable.settings.notifying)
        for directory, entries in names.items():
            into.names[f"{net}/{directory}"] = entries
        host_files.show_files(into, net, files)
        place = f"/sys/class/infiniband/{cable.port.rdma_device}/tc/1/traffic_class"
        into.files[place] = f"Global tclass={port.DSCP_OF_DATA << 2 | _ECN_CAPABLE}\n"


@cache
def _ofed_files(trust: str, *, notifying: bool) -> tuple[dict[str, Json], dict[str, str]]:
    """Return the entries of the directories below a network interface, and the files in them."""
    files = _files(trust, int(notifying))
    entries: dict[str, Json] = {
        directory: sorted(
            {
                path[len(directory) + 1 :].split("/")[0]
                for path in files
                if path.startswith(f"{directory}/")
            }
        )
        for directory in _DIRECTORIES
    }
    return entries, files


def _files(trust: str, enabled: int) -> dict[str, str]:
    return {
        "qos/trust": trust,
        **{
            f"ecn/{end}/enable/{priority}": str(enabled)
            for end in ("roce_np", "roce_rp")
            for priority in port.PRIORITIES
        },
        "ecn/roce_np/cnp_dscp": str(port.DSCP_OF_NOTIFICATIONS),
        "ecn/roce_np/cnp_802p_prio": str(port.NOTIFICATION),
        "ecn/roce_np/min_time_between_cnps": str(_MICROSECONDS_BETWEEN_NOTIFICATIONS),
    }
