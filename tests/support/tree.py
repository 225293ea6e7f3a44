"""A small node as a tree of files, with driver answers from a dictionary."""

from __future__ import annotations

from pathlib import Path

from support.clock import ManualClock
from support.gpus import add_gpus
from support.machine import FakeHost
from support.rdma_nics import add_nic

from railscope_agent.host import Json
from railscope_agent.host.live_host import LiveHost

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
AROUND = {
    "proc/driver/nvidia-fs/stats": "IO stats: Enabled, peer IO stats: Disabled\nActive Process: 2\n"
    "Reads : n=3 ok=3 err=0 readMiB=9 io_state_err=0\n",
    "proc/self/mountstats": "device filer:/data mounted on /data with fstype nfs4 statvers=1.1\n"
    "\topts:\trw,vers=4.2,proto=tcp,sec=sys\n\tage:\t60\n\tbytes:\t1 2 3 4 5 6 7 8\n"
    "\txprt:\ttcp 832 0 1 0 11 64 64 0 121 0 24 26 57\n"
    "\t        READ: 10 12 1 2080 40960 5 60 70 2\n\n",
    "proc/self/net/snmp": "Tcp: CurrEstab RetransSegs\nTcp: 7 42\n",
    "proc/net/softnet_stat": "00000001 00000002 00000003\n",
    "sys/class/hwmon/hwmon0/name": "acpitz\n",
    "sys/class/hwmon/hwmon0/temp1_input": "27800\n",
    "sys/class/net/bonding_masters": "bond0\n",
    "sys/class/net/bond0/bonding/mode": "active-backup 1\n",
    "sys/class/net/bond0/bonding/mii_status": "up\n",
    "sys/class/net/bond0/bonding/slaves": "eth0\n",
    "sys/class/net/eth0/bonding_slave/mii_status": "up\n",
    "sys/class/net/eth0/bonding_slave/state": "active\n",
    "sys/class/net/eth0/bonding_slave/link_failure_count": "1\n",
    "sys/class/nvme/nvme0/state": "live\n",
    "sys/class/powercap/intel-rapl:0/name": "package-0\n",
    "sys/class/powercap/intel-rapl:0/energy_uj": "240422366267\n",
    "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "262143328850\n",
    "sys/devices/system/edac/mc/mc0/ce_count": "3\n",
    "sys/fs/lustre/health_check": "healthy\n",
    "sys/kernel/debug/lustre/llite/scratch-ffff8800deadbe00/stats": "read_bytes 1 samples [bytes] 4 4 4\n",
    "sys/kernel/debug/ceph/0c93a60d-5645-4c46-8568-4c8f63db4c7f.client42/mdsc": "",
}
"""Files around a node's GPUs and rails, a little of each."""


class TreeHost(LiveHost):
    """A copied tree on a manual clock, with GPUs and a NIC with set answers."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        super().__init__(root, clock)
        self.manual = clock
        self.drivers = FakeHost(clock)
        add_gpus(self.drivers, 2)
        self.drivers.calls["ethtool.driver(eth0)"] = {
            "driver": "mlx5_core", "version": "", "firmware": "28.39", "bus": "0000:3b:00.0",
        }  # fmt: skip
        self.set_counters(1)

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        if host_interface == "psutil":
            return super().call(host_interface, function, *arguments)
        return self.drivers.call(host_interface, function, *arguments)

    def set_counters(self, count: int) -> None:
        """Let the NIC's counters advance."""
        self.drivers.calls["ethtool.statistics(eth0)"] = {
            "names": ["rx_bytes_phy", "rx_prio3_pause"],
            "values": [count * 1000, count],
        }


def make_tree(root: Path) -> Path:
    """Write the node's files."""
    files = {f"proc/{name}": text for name, text in PROC.items()}
    sysfs = FakeHost()
    add_nic(sysfs, "mlx5_0")
    add_nic(sysfs, "mlx5_1")
    files |= {path[1:]: text for path, text in sysfs.files.items()}
    files |= {f"sys/class/net/eth0/{name}": "1" for name in ("carrier", "carrier_changes")}
    files |= AROUND
    files |= {"dev/kmsg": "6,1,1000,-;Linux version 6.8.0\n"}
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root
