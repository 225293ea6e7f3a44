"""Files that NVIDIA's own driver package adds to sysfs: trust, and ECN of RoCE by priority.

Paths: Mellanox/mlnx-tools, python/mlnx_qos and ofed_scripts; the two ends of congestion notification are
the notification point, which receives (roce_np), and the reaction point, which sends (roce_rp).
"""

from __future__ import annotations

from railscope.capture import Moment
from simulator.fabric import Cable
from simulator.model import NodeModel
from simulator.port_settings import DSCP_OF_DATA, DSCP_OF_NOTIFICATIONS, NOTIFICATION, PRIORITIES

_ECN_CAPABLE = 2
"""ECT(0), the low bits of the traffic class (RFC 3168)."""
_MICROSECONDS_BETWEEN_NOTIFICATIONS = 4
_DIRECTORIES = (
    "qos", "ecn", "ecn/roce_np", "ecn/roce_rp", "ecn/roce_np/enable", "ecn/roce_rp/enable",
)  # fmt: skip


def show(model: NodeModel, into: Moment) -> None:
    """Add the files of all ConnectX ports to a `Moment`."""
    for cable in model.present_cables:
        if cable.port.nic.driver != "mlx5_core":
            continue
        net = f"/sys/class/net/{cable.port.interface}"
        files = _files(cable)
        for directory in _DIRECTORIES:
            into.names[f"{net}/{directory}"] = sorted(
                {
                    path[len(directory) + 1 :].split("/")[0]
                    for path in files
                    if path.startswith(f"{directory}/")
                }
            )
        for path, text in files.items():
            into.files[f"{net}/{path}"] = f"{text}\n"
        place = f"/sys/class/infiniband/{cable.port.rdma_device}/tc/1/traffic_class"
        into.files[place] = f"Global tclass={DSCP_OF_DATA << 2 | _ECN_CAPABLE}\n"


def _files(cable: Cable) -> dict[str, str]:
    enabled = int(cable.settings.notifying)
    return {
        "qos/trust": cable.settings.trust,
        **{
            f"ecn/{end}/enable/{priority}": str(enabled)
            for end in ("roce_np", "roce_rp")
            for priority in PRIORITIES
        },
        "ecn/roce_np/cnp_dscp": str(DSCP_OF_NOTIFICATIONS),
        "ecn/roce_np/cnp_802p_prio": str(NOTIFICATION),
        "ecn/roce_np/min_time_between_cnps": str(_MICROSECONDS_BETWEEN_NOTIFICATIONS),
    }
