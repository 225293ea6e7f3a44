"""An hour of real RoCE traffic as the capture of a node with four NICs.

The switch recorded the packets and octets of each port since the previous record, at times of its
own: about every half second, with a gap of some 250 s. Input of the switch port is output of the
node's NIC.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from support.shared import capture_path

from railscope.capture import Capture, CaptureMetadata, CaptureMoment

SERVERS = ("F06-12U-GPU-162", "G10-28U-GPU-196", "I10-28U-GPU-256")
BASE_BYTES = 2**53 + 4
"""Initial counter values: beyond the precision of a float, and a multiple of four bytes."""
BASE_PACKETS = 2**40
_UNIT_BYTES = 4
_NS_PER_MS = 1_000_000


@dataclass
class CapturedPort:
    """A NIC: its counters so far, and their increments in the rows."""

    interface: str
    rdma_device: str
    address: str
    rows: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """Milliseconds since 1970: packets and bytes sent, then received."""
    sent_packets: int = BASE_PACKETS
    sent_bytes: int = BASE_BYTES
    received_packets: int = BASE_PACKETS
    received_bytes: int = BASE_BYTES

    def count(self, row: tuple[int, int, int, int]) -> None:
        """Advance by a row."""
        self.sent_packets += row[0]
        self.sent_bytes += row[1]
        self.received_packets += row[2]
        self.received_bytes += row[3]

    def totals(self) -> tuple[int, int, int, int]:
        """Return the sums of all rows."""
        sent_packets, sent_bytes, received_packets, received_bytes = map(
            sum, zip(*self.rows.values(), strict=True)
        )
        return sent_packets, sent_bytes, received_packets, received_bytes

    def show(self, into: CaptureMoment) -> None:
        """Write the counters into a moment, as ethtool and sysfs have them."""
        into.calls[f"ethtool.statistics({self.interface})"] = {
            "names": ["rx_packets_phy", "tx_packets_phy", "rx_bytes_phy", "tx_bytes_phy"],
            "values": [
                self.received_packets,
                self.sent_packets,
                self.received_bytes,
                self.sent_bytes,
            ],
        }
        directory = f"/sys/class/infiniband/{self.rdma_device}/ports/1/counters"
        for name, value in (
            ("port_rcv_packets", self.received_packets),
            ("port_xmit_packets", self.sent_packets),
            ("port_rcv_data", self.received_bytes // _UNIT_BYTES),
            ("port_xmit_data", self.sent_bytes // _UNIT_BYTES),
        ):
            into.files[f"{directory}/{name}"] = f"{value}\n"

    def introduce(self, into: CaptureMoment) -> None:
        """Write constant values into a moment."""
        root = f"/sys/class/infiniband/{self.rdma_device}"
        into.links[f"{root}/device"] = f"/sys/devices/pci0000:00/{self.address}"
        into.links[f"/sys/class/net/{self.interface}/device"] = into.links[f"{root}/device"]
        into.names[f"{root}/ports"] = ["1"]
        into.names[f"{root}/ports/1/counters"] = [
            "port_rcv_data",
            "port_rcv_packets",
            "port_xmit_data",
            "port_xmit_packets",
        ]
        for name, text in (
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("rate", "200 Gb/sec (4X HDR)"),
        ):
            into.files[f"{root}/ports/1/{name}"] = f"{text}\n"
        into.calls[f"ethtool.driver({self.interface})"] = {
            "driver": "mlx5_core", "version": "", "firmware": "", "bus": self.address,
        }  # fmt: skip


def ports(server: str) -> list[CapturedPort]:
    """Return the ports of a node, by interface; skips the test if the captures are missing."""
    files = sorted(capture_path(f"roce-cluster/{server}").glob("ens*.csv.gz"))
    found = []
    for number, file in enumerate(files):
        interface = file.name.partition("__")[0]
        port = CapturedPort(interface, f"mlx5_{number}", f"0000:{number + 1:02x}:00.0")
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                port.rows[int(row["SaveTimeUTC"])] = (
                    int(row["InPkts"]),
                    int(row["InOctets"]),
                    int(row["OutPkts"]),
                    int(row["OutOctets"]),
                )
        found.append(port)
    return found


def traffic_capture(server: str, nics: list[CapturedPort]) -> Capture:
    """Return a capture that begins a second before the first row."""
    by_time: dict[int, list[CapturedPort]] = defaultdict(list)
    for port in nics:
        for at_ms in port.rows:
            by_time[at_ms].append(port)
    start_ms, end_ms = min(by_time) - 1000, max(by_time)
    about = CaptureMetadata(
        node=server,
        boot_id="11111111-2222-3333-4444-555555555555",
        started_wall_ns=start_ms * _NS_PER_MS,
        started_boot_ns=0,
        duration_ns=(end_ms - start_ms) * _NS_PER_MS,
        origin="traffic at the ports of a real leaf switch",
    )
    return Capture(about, (_first(nics), *_moments(by_time, start_ms)))


def _first(nics: list[CapturedPort]) -> CaptureMoment:
    first = CaptureMoment(0)
    first.names["/sys/class/net"] = [port.interface for port in nics]
    first.names["/sys/class/infiniband"] = [port.rdma_device for port in nics]
    for port in nics:
        port.introduce(first)
        port.show(first)
    return first


def _moments(by_time: dict[int, list[CapturedPort]], start_ms: int) -> Iterator[CaptureMoment]:
    for at_ms in sorted(by_time):
        moment = CaptureMoment((at_ms - start_ms) * _NS_PER_MS)
        for port in by_time[at_ms]:
            port.count(port.rows[at_ms])
            port.show(moment)
        yield moment
