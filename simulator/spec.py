"""Specification of a simulation: one node, its fault and its boot time; spans of time; noise.

All random numbers are from named streams, so that adding or removing one device leaves all others
unchanged. Nodes of one seed run the same job in lockstep. Times are in nanoseconds since the start
of the simulation. Noise is smooth in time, and amounts are rounded randomly to whole numbers.
"""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from simulator.device_models import NICS


class SimulatorError(Exception):
    """Base of the errors of the simulator and of the demo."""


MAX_GPUS = 8
STRUCK = 3

SCENARIOS: Mapping[str, str] = MappingProxyType(
    {
        "idle": "No job: GPUs at idle clocks, nothing on the rails.",
        "training": "A healthy synchronous training job on all GPUs, with checkpoints.",
        "incast": "From half time on, too many senders at one rail: ECN marks, CNPs sent, no pause.",
        "pause_storm": "From half time on, one rail's NIC sends pause permanently; storm events.",
        "slow_receiver": "From half time on, one rail's NIC waits for PCIe and pauses the switch.",
        "stalled_receiver": "The same, so bad that pause takes a large share of the port's time.",
        "pfc_victim": "From half time on, the switch pauses one rail's NIC for others' congestion.",
        "thermal": "From half time on, one GPU is badly cooled and throttles; the job waits for it.",
        "xid79": "At half time one GPU falls off the bus; the job hangs.",
        "row_remap": "At half time a GPU marks a memory row for remapping, pending until a reset.",
        "link_down": "From half time on, one rail's link is down; the job waits for it.",
        "link_flap": "At half time one rail's link goes down and comes up again.",
        "flapping": "From half time on, one rail's link goes down and comes up again and again.",
        "speed_down": "At half time one rail's cable fails: errors, then a link of half the speed.",
        "optics": "From half time on, one rail's optics lose power, until errors are uncorrectable.",
        "nic_lost": "At half time one rail's NIC vanishes from the bus; the job hangs.",
        "pcie_degraded": "At half time one rail's NIC loses half its PCIe bandwidth.",
        "settings_drift": "At half time rails lose settings: PFC, ECN, DSCP trust and MTU in turn.",
        "counter_reset": "At half time the drivers are reloaded: counters restart at zero.",
        "nvlink_errors": "From half time on, one NVLink of a GPU has errors and retransmits.",
        "ecc_uncorrected": "At half time a GPU has an uncorrectable memory error; the job ends.",
        "gpu_hung": "From half time on, one GPU's firmware does not answer; the job hangs.",
        "driver_stuck": "From half time on, no call about one GPU returns; the job hangs.",
        "unclaimed": "From half time on, a process uses one GPU without a claim.",
        "nvml_denied": "NVML denies the agent activity of GPUs and errors of their on-chip memory.",
    }
)
"""Scenarios by name: description in one sentence."""

MODES: Mapping[str, str] = MappingProxyType(
    {
        "whole": "Each GPU belongs to one process of the job.",
        "mig": "Each GPU is partitioned into MIG instances, each with its own process or idle.",
        "mps": "The clients of an MPS server share each GPU.",
        "time_slicing": "Two processes take turns on each GPU.",
        "vgpu": "A hypervisor has the GPUs; virtual machines have virtual GPUs on them.",
        "passthrough": "The second half of the GPUs is passed through to virtual machines.",
    }
)
"""Modes of GPU sharing by name: users of the GPUs, in one sentence."""


SCHEDULERS: Mapping[str, str] = MappingProxyType(
    {
        "none": "No scheduler; GPUs are not assigned.",
        "kubernetes": "Processes belong to pods, to which the kubelet assigned devices.",
        "slurm": "Processes are the tasks of one Slurm job, which has all GPUs of the node.",
    }
)
"""Schedulers of the GPUs by name, in one sentence."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node to simulate. Equal specs produce equal captures.

    A fault strikes the GPU or rail with the index `strikes`, or the last one of a node with fewer.
    """

    node: str
    seed: int = 0
    gpus: int = MAX_GPUS
    model: str = "NVIDIA H100 80GB HBM3"
    scenario: str = "training"
    mode: str = "whole"
    nic: str = "cx7"
    scheduler: str = "none"
    unclaimed: bool = False
    """True if one process uses a GPU without a claim."""
    strikes: int = STRUCK
    started_wall_ns: int = 1_760_000_000_000_000_000
    started_boot_ns: int = 777_600_000_000_000

    def __post_init__(self) -> None:
        """Reject an impossible specification."""
        if not 1 <= self.gpus <= MAX_GPUS:
            message = f"invalid number of GPUs: {self.gpus}: expected 1 to {MAX_GPUS}"
            raise ValueError(message)
        if self.scenario not in SCENARIOS:
            message = f"unknown scenario: {self.scenario!r}: expected one of {', '.join(SCENARIOS)}"
            raise ValueError(message)
        if self.mode not in MODES:
            message = f"unknown mode: {self.mode!r}: expected one of {', '.join(MODES)}"
            raise ValueError(message)
        if self.scheduler not in SCHEDULERS:
            known = ", ".join(SCHEDULERS)
            message = f"unknown scheduler: {self.scheduler!r}: expected one of {known}"
            raise ValueError(message)
        if self.nic not in NICS:
            message = f"unknown NIC: {self.nic!r}: expected one of {', '.join(NICS)}"
            raise ValueError(message)

    @property
    def own_gpus(self) -> int:
        """Number of GPUs that the node's own driver has; they are first."""
        return self.gpus - self.gpus // 2 if self.mode == "passthrough" else self.gpus

    @property
    def struck(self) -> int:
        """Index of the GPU and of the rail that a fault strikes."""
        return min(self.strikes, self.own_gpus - 1)

    @property
    def boot_id(self) -> str:
        """Identifier of the simulated boot."""
        return str(uuid.UUID(int=self.stream("boot").getrandbits(128), version=4))

    def stream(self, purpose: str) -> random.Random:
        """Return random numbers for one purpose on this node."""
        return _stream(f"{self.seed}/{self.node}/{purpose}")

    def shared_stream(self, purpose: str) -> random.Random:
        """Return random numbers for one purpose, the same on all nodes of this seed."""
        return _stream(f"{self.seed}/{purpose}")


def _stream(name: str) -> random.Random:
    return random.Random(name)  # noqa: S311 - repeatable on purpose, nothing secret depends on it


NS_PER_US = 1_000
NS_PER_SECOND = 1_000_000_000


def seconds(amount: float) -> int:
    """Convert seconds to nanoseconds."""
    return round(amount * NS_PER_SECOND)


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The time after `start_ns`, up to and including `end_ns`."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """Length of the span."""
        return self.end_ns - self.start_ns

    @property
    def seconds(self) -> float:
        """Length of the span, in seconds."""
        return self.length_ns / NS_PER_SECOND

    def passes(self, instant_ns: int) -> bool:
        """True if a timestamp is within the span."""
        return self.start_ns < instant_ns <= self.end_ns

    def share_in(self, other: TimeSpan) -> float:
        """Share of this span that is within another one."""
        common_ns = min(self.end_ns, other.end_ns) - max(self.start_ns, other.start_ns)
        return max(common_ns, 0) / self.length_ns

    def share_after(self, instant_ns: int) -> float:
        """Share of this span after a timestamp."""
        return self.share_in(TimeSpan(instant_ns, max(self.end_ns, instant_ns)))

    def share_recurring(self, first: TimeSpan, period_ns: int) -> float:
        """Share of this span within a span that recurs with a period from `first` on."""

        def covered_until(instant_ns: int) -> int:
            rounds, rest_ns = divmod(max(instant_ns - first.start_ns, 0), period_ns)
            return rounds * first.length_ns + min(rest_ns, first.length_ns)

        return (covered_until(self.end_ns) - covered_until(self.start_ns)) / self.length_ns

    def count_recurring(self, first_ns: int, period_ns: int) -> int:
        """Number of the timestamps `first_ns`, `first_ns + period_ns`, ... within this span."""

        def passed_until(instant_ns: int) -> int:
            return max((instant_ns - first_ns) // period_ns + 1, 0)

        return passed_until(self.end_ns) - passed_until(self.start_ns)


class DriftNoise:
    """Mean-reverting noise around zero with standard deviation one and a correlation time."""

    def __init__(self, dice: random.Random, memory_seconds: float) -> None:
        self._dice = dice
        self._memory_seconds = memory_seconds
        self.value = dice.gauss(0.0, 1.0)

    def advance(self, seconds: float) -> float:
        """Advance by some time and return the noise after it."""
        kept = math.exp(-seconds / self._memory_seconds)
        fresh = math.sqrt(1.0 - kept * kept)
        self.value = kept * self.value + fresh * self._dice.gauss(0.0, 1.0)
        return self.value


def round_randomly(amount: float, dice: random.Random) -> int:
    """Round an amount randomly to a whole number with this mean; zero stays zero."""
    return int(amount + dice.random())
