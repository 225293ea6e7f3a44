"""Specification of a simulation: one node, its fault and its boot time; spans of time; noise.

All random numbers are from named streams, so that adding or removing one device leaves all others
unchanged. Nodes of one seed run the same job in lockstep. Times are in nanoseconds since the start
of the simulation. Noise is smooth in time, and amounts are rounded randomly to whole numbers.
"""

from __future__ import annotations

import math
import random
import uuid
from dataclasses import dataclass

from railscope.timestamps import SECOND_NS
from railscope_simulator.data import read_table


class SimulatorError(Exception):
    """Base of the errors of the simulator and of the demo."""


MAX_GPUS = 8
STARTED_WALL_NS, UPTIME_NS = 1_760_000_000_000_000_000, 777_600 * SECOND_NS
"""Time at which captures begin, and time since the boot of their nodes."""
DEFAULT_FAULT_INDEX = 3

_CHOICES = read_table("choices", dict[str, dict[str, str]])
"""Allowed values of fields of a specification, with the meaning of each in one sentence."""
SCENARIOS, MODES, SCHEDULERS, NICS = (
    _CHOICES[name] for name in ("scenario", "mode", "scheduler", "nic")
)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node to simulate. Equal specs produce equal captures.

    A fault affects the GPU or rail with the index `fault_index`, or the last one of a node with fewer.
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
    fault_index: int = DEFAULT_FAULT_INDEX
    job: str = ""
    """Name of the job; each has its own number in Slurm."""
    tenant: str = "research"
    """Account of the job in Slurm."""
    filers: int = 0
    """Number of NFS servers that the node mounts."""
    started_wall_ns: int = STARTED_WALL_NS
    started_boot_ns: int = UPTIME_NS

    def __post_init__(self) -> None:
        """Reject an impossible specification."""
        if not 1 <= self.gpus <= MAX_GPUS:
            message = f"invalid number of GPUs: {self.gpus}: expected 1 to {MAX_GPUS}"
            raise ValueError(message)
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                kind = "NIC" if name == "nic" else name
                message = f"unknown {kind}: {value!r}: expected one of {', '.join(choices)}"
                raise ValueError(message)

    @property
    def own_gpus(self) -> int:
        """Number of GPUs that the node's own driver has; they are first."""
        return self.gpus - self.gpus // 2 if self.mode == "passthrough" else self.gpus

    @property
    def affected_index(self) -> int:
        """Index of the GPU and of the rail that a fault affects."""
        return min(self.fault_index, self.own_gpus - 1)

    @property
    def boot_id(self) -> str:
        """Identifier of the simulated boot."""
        booted_ns = self.started_wall_ns - self.started_boot_ns
        # Another boot has another identifier; that of captures with the usual times does not depend on them.
        is_usual = booted_ns == STARTED_WALL_NS - UPTIME_NS
        stream = self.stream("boot" if is_usual else f"boot {booted_ns}")
        return str(uuid.UUID(int=stream.getrandbits(128), version=4))

    def stream(self, purpose: str) -> random.Random:
        """Return random numbers for one purpose on this node."""
        return _stream(f"{self.seed}/{self.node}/{purpose}")

    def shared_stream(self, purpose: str) -> random.Random:
        """Return random numbers for one purpose, the same on all nodes of this seed."""
        return _stream(f"{self.seed}/{purpose}")


def _stream(name: str) -> random.Random:
    return random.Random(name)  # noqa: S311 - repeatable on purpose, nothing secret depends on it


def seconds_to_ns(amount: float) -> int:
    """Convert seconds to nanoseconds."""
    return round(amount * SECOND_NS)


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
        return self.length_ns / SECOND_NS

    def passes(self, timestamp_ns: int) -> bool:
        """True if a timestamp is within the span."""
        return self.start_ns < timestamp_ns <= self.end_ns

    def share_in(self, other: TimeSpan) -> float:
        """Share of this span that is within another one."""
        common_ns = min(self.end_ns, other.end_ns) - max(self.start_ns, other.start_ns)
        return max(common_ns, 0) / self.length_ns

    def share_after(self, timestamp_ns: int) -> float:
        """Share of this span after a timestamp."""
        return self.share_in(TimeSpan(timestamp_ns, max(self.end_ns, timestamp_ns)))

    def share_recurring(self, first: TimeSpan, period_ns: int) -> float:
        """Share of this span within a span that recurs with a period from `first` on."""

        def covered_until(timestamp_ns: int) -> int:
            rounds, rest_ns = divmod(max(timestamp_ns - first.start_ns, 0), period_ns)
            return rounds * first.length_ns + min(rest_ns, first.length_ns)

        return (covered_until(self.end_ns) - covered_until(self.start_ns)) / self.length_ns

    def count_recurring(self, first_ns: int, period_ns: int) -> int:
        """Number of the timestamps `first_ns`, `first_ns + period_ns`, ... within this span."""

        def passed_until(timestamp_ns: int) -> int:
            return max((timestamp_ns - first_ns) // period_ns + 1, 0)

        return passed_until(self.end_ns) - passed_until(self.start_ns)


class DriftNoise:
    """Mean-reverting noise around zero with standard deviation one and a correlation time."""

    def __init__(self, rng: random.Random, memory_seconds: float) -> None:
        self._rng = rng
        self._memory_seconds = memory_seconds
        self.value = rng.gauss(0.0, 1.0)

    def advance(self, seconds: float) -> float:
        """Advance by some time and return the noise after it."""
        decay = math.exp(-seconds / self._memory_seconds)
        fresh = math.sqrt(1.0 - decay * decay)
        self.value = decay * self.value + fresh * self._rng.gauss(0.0, 1.0)
        return self.value


def round_randomly(amount: float, rng: random.Random) -> int:
    """Round an amount randomly to a whole number with this mean; zero stays zero."""
    return int(amount + rng.random())
