"""Files of a bench host: a generated sysfs tree of RDMA devices, and recorded answers of drivers.

The tree is as the mlx5 driver exposes it. Every file keeps its width permanently, so that a counter
can be rewritten in place while a reader has it open, as the kernel does.

The answers of NVML and of the ethtool interface are recorded from a simulated node with 8 GPUs and
10 NICs.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from railscope_simulator import NodeSpec, moments
from railscope_simulator.driver_counters import RDMA

_DRIVERS = ("nvml.", "ethtool.")
_MEMORY = "/dev/shm"  # noqa: S108 - the directory in it is private


@contextmanager
def memory_directory() -> Iterator[Path]:
    """Yield a temporary directory in memory, as sysfs is: from a disk, reads wait once its pages were dropped."""
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as directory:
        yield Path(directory)


def write_answers(path: Path, seconds: int) -> None:
    """Write one dictionary per second: every call, by its key, with its answer."""
    state: dict[str, Any] = {}
    answers = []
    for moment in moments(NodeSpec(node="bench-node", seed=7, scenario="training"), seconds):
        state.update(moment.calls)
        answers.append({key: state[key] for key in state if key.startswith(_DRIVERS)})
    path.write_bytes(msgspec.msgpack.encode(answers))


COUNTERS = [*sorted(RDMA.counters.zeros), "vendor_port_events"]
HW_COUNTERS = sorted(set(RDMA.hw_counters["mlx5_core"].zeros) - {"lifespan"})
HW_COUNTERS_PER_PORT = 50

_MOVING = {
    "port_rcv_data": 1_310_720_003, "port_xmit_data": 1_308_622_851, "port_rcv_packets": 1_280_017,
    "port_xmit_packets": 1_278_009, "unicast_rcv_packets": 1_280_011, "port_xmit_wait": 40_961,
    "unicast_xmit_packets": 1_278_001, "multicast_rcv_packets": 1, "np_cnp_sent": 211,
    "np_ecn_marked_roce_packets": 219, "rp_cnp_handled": 187, "rx_write_requests": 1_203,
    "rx_read_requests": 311, "out_of_sequence": 1, "roce_adp_retrans": 1,
    "roce_slow_restart": 3, "roce_slow_restart_cnps": 7, "vendor_extra_01": 997,
}  # fmt: skip
"""Growth of these files per second under load; all others are constant."""

_WIDTH = 18
_PLAIN = {
    "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "Ethernet", "lid": "0x0", "sm_lid": "0x0", "sm_sl": "0", "cap_mask": "0x04010000",
}  # fmt: skip
_DEVICE = {
    "fw_ver": "28.39.1002", "board_id": "MT_0000000838", "hca_type": "MT4129",
    "node_guid": "0000:0000:0000:0001", "sys_image_guid": "0000:0000:0000:0001",
    "node_type": "1: CA", "node_desc": "bench", "hw_rev": "0",
}  # fmt: skip


def write_tree(root: Path, devices: int) -> list[Path]:
    """Write the tree below a directory; return the files that change under load."""
    moving = []
    extra = HW_COUNTERS_PER_PORT - len(HW_COUNTERS)
    hw_counters = [*HW_COUNTERS, *(f"vendor_extra_{number:02}" for number in range(extra))]
    for device in range(devices):
        base = root / "sys/class/infiniband" / f"mlx5_{device}"
        port = base / "ports/1"
        for name, text in _DEVICE.items():
            _write(base / name, text)
        for name, text in _PLAIN.items():
            _write(port / name, text)
        for directory, names in (("counters", COUNTERS), ("hw_counters", hw_counters)):
            for position, name in enumerate(names):
                start = 10**9 * (device + 1) + position * 7919 if name in _MOVING else 0
                _write(port / directory / name, f"{start:<{_WIDTH}}" if start else "0")
                if start:
                    moving.append(port / directory / name)
        _write(port / "hw_counters/lifespan", "10")
    _write(root / "proc/sys/kernel/hostname", "bench-node")
    _write(root / "proc/sys/kernel/random/boot_id", "0b1e55ed-0000-4000-8000-000000000000")
    return moving


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="ascii")


@dataclass
class FileMover:
    """Makes files grow at a period, in place, until stopped."""

    files: list[Path]
    period_seconds: float
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        """Start the growth."""
        self._thread = threading.Thread(target=self._run, name="mover", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the growth."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        open_files = [(os.open(file, os.O_RDWR), _MOVING[file.name]) for file in self.files]
        values = [int(os.pread(descriptor, _WIDTH, 0)) for descriptor, _ in open_files]
        turn = 0
        while not self._stop.wait(self.period_seconds):
            turn += 1
            for position, (descriptor, rate) in enumerate(open_files):
                wobble = 1 + ((turn * 31 + position * 17) % 13 - 6) / 100
                values[position] += round(rate * wobble * self.period_seconds)
                os.pwrite(descriptor, f"{values[position]:<{_WIDTH}}".encode(), 0)
        for descriptor, _ in open_files:
            os.close(descriptor)
