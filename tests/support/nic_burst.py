"""NICs with counters of which bursts are sampled."""

from __future__ import annotations

from support.clock import ManualClock
from support.machine import FakeHost
from support.reading import ORIGIN, readings

from railscope.catalog import Metric
from railscope.frame import Frame
from railscope.reading import Reading
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nic_burst import NicBurstSource

MS = 1_000_000
WINDOW_MS = 100
COUNTERS = "/sys/class/infiniband/mlx5_0/ports/1/hw_counters"


class CountingNic:
    """A NIC of 400 Gb/s with counters that a test increments."""

    def __init__(self, interface: str = "ens1") -> None:
        self.interface = interface
        self.host = FakeHost(ManualClock())
        self.grown = {
            "rx_bytes_phy": 10**12, "tx_bytes_phy": 10**12, "rx_prio3_pause_duration": 5_000_000,
            "tx_prio3_pause_duration": 0, "rx_prio4_pause_duration": 0,
        }  # fmt: skip
        self.names = list(self.grown)
        self.host.files |= {
            f"/sys/class/net/{interface}/speed": "400000\n",
            f"{COUNTERS}/np_cnp_sent": "0\n",
            f"{COUNTERS}/rp_cnp_handled": "0\n",
            "/sys/bus/pci/devices/0000:18:00.0/vendor": "0x15b3\n",
        }
        for name in (f"net/{interface}", "infiniband/mlx5_0"):
            self.host.links[f"/sys/class/{name}/device"] = "/sys/bus/pci/devices/0000:18:00.0"
        self.host.calls[f"ethtool.driver({interface})"] = {
            "driver": "mlx5_core", "version": "", "firmware": "", "bus": "0000:18:00.0",
        }  # fmt: skip
        self.publish()

    def publish(self) -> None:
        """Return the present counters from now on."""
        self.host.calls[f"ethtool.statistics({self.interface})"] = {
            "names": self.names,
            "values": [self.grown[name] for name in self.names],
        }

    def go_on(self, milliseconds: float, **growth: int) -> None:
        """Advance time and increment counters."""
        self.host.clock.advance(milliseconds / 1000)
        for name, amount in growth.items():
            self.grown[name] += amount
        self.publish()


class BurstReader:
    """Burst sampling of a NIC, and its latest frame."""

    def __init__(self, nic: CountingNic, window_seconds: float = 0.1) -> None:
        self.nic = nic
        self.window_ms = 1000 * window_seconds
        self.reader = SourceReader(NicBurstSource(window_seconds), nic.host, ORIGIN)
        self.frame: Frame | None = None
        self.read()

    def read(self) -> None:
        outcome = self.reader.run()
        assert not outcome.problem
        self.frame = outcome.frame or self.frame

    def next_readings(self) -> dict[tuple[str, tuple[str, ...]], Reading]:
        """Return the readings of the frame at the next full second."""
        clock = self.nic.host.clock
        while True:
            left_ms = 1000 - clock.now().boot_ns // MS % 1000
            clock.advance(min(left_ms, self.window_ms) / 1000)
            self.read()
            if left_ms <= self.window_ms:
                return readings(self.frame)

    def histogram(self, metric: Metric, direction: str) -> list[Reading]:
        values = self.next_readings()
        return [values[metric.name, ("ens1", direction, part)] for part in metric.buckets]


BNXT = {"driver": "bnxt_en", "version": "", "firmware": "", "bus": "0000:18:00.0"}


class SlowNic(CountingNic):
    """A NIC whose driver fetches its counters once per second."""

    def __init__(self, fetched_at_ms: int) -> None:
        super().__init__()
        self.host.calls["ethtool.driver(ens1)"] = BNXT
        self.grown = {"rx_bytes": 10**12, "tx_bytes": 10**12}
        self.names = list(self.grown)
        self._fetched_at_ms = fetched_at_ms
        self._fetched = -1
        self.publish()

    def publish(self) -> None:
        second = (self.host.clock.now().boot_ns // MS - getattr(self, "_fetched_at_ms", 0)) // 1000
        if second != getattr(self, "_fetched", second):
            self._fetched = second
            super().publish()
