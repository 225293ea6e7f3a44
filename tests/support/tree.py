"""A small server as a tree of files, whose driver answers come from a dictionary."""

from __future__ import annotations

from pathlib import Path

from support.cards import add_card
from support.clock import ManualClock
from support.gpus import add_gpus
from support.machine import FakeHost

from agent.host import Clock, Json
from agent.host.real import RealHost

HOSTNAME = "secret-node-17"
PROC = {
    "stat": "cpu  100 0 50 9000 10 0 5 0 0 0\ncpu0 100 0 50 9000 10 0 5 0 0 0\nbtime 1700000000\n",
    "meminfo": "MemTotal: 1000 kB\nMemFree: 500 kB\nMemAvailable: 700 kB\nBuffers: 1 kB\n"
    "Cached: 200 kB\nShmem: 1 kB\nActive: 1 kB\nInactive: 1 kB\nSlab: 1 kB\nSReclaimable: 1 kB\n"
    "SwapTotal: 10 kB\nSwapFree: 4 kB\n",
    "vmstat": "pswpin 0\npswpout 0\n",
    "loadavg": "0.50 0.25 0.10 1/100 4711\n",
    "diskstats": "259 0 nvme0n1 10 0 80 5 20 0 160 9 0 7 14 0 0 0 0 0 0\n",
    "net/dev": "Inter-|\n face |\n  eth0: 1000 10 0 0 0 0 0 0 2000 20 0 0 0 0 0 0\n",
    "pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\n",
    "sys/kernel/hostname": f"{HOSTNAME}\n",
    "sys/kernel/osrelease": "6.8.0\n",
    "sys/kernel/random/boot_id": "11111111-2222-3333-4444-555555555555\n",
}


class TreeHost(RealHost):
    """A copied tree on a manual clock, with GPUs and a card that answer as they are told."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        super().__init__(root)
        self.manual = clock
        self.drivers = FakeHost(clock)
        add_gpus(self.drivers, 2)
        self.drivers.calls["ethtool.driver(eth0)"] = {
            "driver": "mlx5_core", "version": "", "firmware": "28.39", "bus": "0000:3b:00.0",
        }  # fmt: skip
        self.tell_card(1)

    @property
    def clock(self) -> Clock:
        return self.manual

    def call(self, seam: str, function: str, *arguments: int | str) -> Json:
        if seam == "psutil":
            return super().call(seam, function, *arguments)
        return self.drivers.call(seam, function, *arguments)

    def tell_card(self, count: int) -> None:
        """Let the network card count on."""
        self.drivers.calls["ethtool.statistics(eth0)"] = {
            "names": ["rx_bytes_phy", "rx_prio3_pause"], "values": [count * 1000, count],
        }  # fmt: skip


def make_tree(root: Path) -> Path:
    """Write the server's files."""
    files = {f"proc/{name}": text for name, text in PROC.items()}
    sysfs = FakeHost()
    add_card(sysfs, "mlx5_0")
    add_card(sysfs, "mlx5_1")
    files |= {path[1:]: text for path, text in sysfs.files.items()}
    files |= {f"sys/class/net/eth0/{name}": "1" for name in ("carrier", "carrier_changes")}
    files |= {"dev/kmsg": "6,1,1000,-;Linux version 6.8.0\n"}
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root
