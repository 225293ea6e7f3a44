"""One GPU: silicon, memory errors, activity, NVLinks, bus and tenants, which advance together.

The job determines SM utilization; its division into pipes is that of mixed-precision training. The job's
exchange within a node uses all NVLinks evenly.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, fields
from typing import NamedTuple

from railscope.timestamps import MICROSECOND_NS, SECOND_NS
from railscope_simulator import device_models, node_hardware, workload
from railscope_simulator.conditions import GpuConditions
from railscope_simulator.silicon import Silicon
from railscope_simulator.spec import DriftNoise, NodeSpec, TimeSpan, round_randomly

_OCCUPANCY = 0.31
_PIPES = {"tensor": 0.62, "integer": 0.24, "fp32": 0.21, "fp16": 0.09}
"""Fractions of an SM's busy time."""

_DRAM = 0.85
"""Memory that is in use all the time moves this share of its peak bandwidth."""

_USUAL = workload.JobDemand(present=1.0, occupied=1.0, activity=0.6, memory_activity=0.4)


@dataclass(frozen=True, slots=True)
class ActivityShares:
    """Shares of a span: of its time, of all SMs, or of the memory's bandwidth.

    All work of the tensor pipes is in half precision; none is in double precision.
    """

    graphics: float = 0.0
    sm: float = 0.0
    occupancy: float = 0.0
    tensor: float = 0.0
    integer: float = 0.0
    fp32: float = 0.0
    fp16: float = 0.0
    dram: float = 0.0


def activity_shares(demand: workload.JobDemand, ripple: float) -> ActivityShares:
    """Return the activity of a GPU under the job's demand, times a factor for this GPU's own load."""
    sm = min(demand.activity * ripple, 1.0)
    computing = max(sm - demand.spinning, 0.0)
    return ActivityShares(
        graphics=min(demand.occupied, 1.0),
        sm=sm,
        occupancy=_OCCUPANCY * sm,
        **{pipe: share * computing for pipe, share in _PIPES.items()},
        dram=_DRAM * min(demand.memory_activity * ripple, 1.0),
    )


@dataclass(slots=True)
class SmCycles:
    """Cycles of all SMs since the GPU's last reset: elapsed, and those in which a pipe was busy."""

    elapsed: int = 0
    sm: int = 0
    tensor: int = 0
    integer: int = 0
    fp32: int = 0
    fp16: int = 0

    @classmethod
    def usual(cls, uptime_ns: int, megahertz: int, multiprocessors: int) -> SmCycles:
        """Return the counters of a GPU that has been under normal load since boot."""
        cycles = cls()
        usual = activity_shares(_USUAL, 1.0)
        cycles.advance(TimeSpan(0, uptime_ns), megahertz, multiprocessors, usual)
        return cycles

    def advance(
        self, span: TimeSpan, megahertz: int, multiprocessors: int, shares: ActivityShares
    ) -> None:
        """Count cycles for a span at one clock."""
        elapsed = megahertz * multiprocessors * span.length_ns // MICROSECOND_NS
        self.elapsed += elapsed
        for pipe in fields(self)[1:]:
            counted = getattr(self, pipe.name) + round(elapsed * getattr(shares, pipe.name))
            setattr(self, pipe.name, counted)


BAD_ADDRESS = 0x0000_0012_BAC1_C3E0
"""Bad memory address of a GPU with an error."""

PAGE_BYTES = 4096


@dataclass(slots=True)
class MemoryErrors:
    """Errors since driver load and for life; rows, or pages of older GPUs, that wait for a reset."""

    corrected: int
    corrected_for_life: int
    uncorrected: int = 0
    uncorrected_for_life: int = 0
    correctable_rows: int = 0
    uncorrectable_rows: int = 0

    @classmethod
    def usual(cls, rng: random.Random) -> MemoryErrors:
        """Return a few corrected errors, as on every GPU."""
        corrected = rng.choice((0, 0, 0, 1, 2))
        return cls(corrected, corrected + rng.randrange(20))

    @property
    def pending(self) -> bool:
        """True if any row or page waits for a reset."""
        return self.correctable_rows + self.uncorrectable_rows > 0

    def advance(self, conditions: GpuConditions) -> None:
        """Add the errors of a span."""
        self.corrected += conditions.corrected_errors
        self.corrected_for_life += conditions.corrected_errors
        self.uncorrected += conditions.uncorrected_errors
        self.uncorrected_for_life += conditions.uncorrected_errors
        self.correctable_rows = conditions.correctable_rows
        self.uncorrectable_rows = conditions.uncorrectable_rows

    def reload(self) -> None:
        """Reset the counters, as after a driver load."""
        self.corrected = self.uncorrected = 0


_CHECKPOINT_BYTES_PER_SECOND = 1_200_000_000
_DATA_BYTES_PER_SECOND = 900_000_000
_USUAL_BYTES_PER_SECOND = 15_000_000_000
_COMMAND_BYTES_PER_SECOND, _RESULT_BYTES_PER_SECOND = 6_000_000, 3_000_000
_REGISTER_BYTES_PER_SECOND = 50_000


@dataclass(slots=True)
class BusDirection:
    """Bytes in one direction since driver load, and bytes per second during the last span."""

    moved_bytes: int = 0
    bytes_per_second: float = 0.0

    def move(self, span: TimeSpan, amount_bytes: int) -> None:
        """Count the bytes of a span."""
        self.moved_bytes += amount_bytes
        self.bytes_per_second = amount_bytes / span.seconds


class GpuBus:
    """PCIe link of a GPU, and its C2C link if it has one, after the last span.

    A rail's traffic is the GPU's own memory, which its NIC reads and writes. Traffic to and from the
    processors is checkpoints, data and commands. All of it uses PCIe, except on a module with a Grace
    processor: there the NIC is attached to the processor, and its reads and writes use C2C as well. The
    GPU's own PCIe link then carries only the driver's register accesses.
    """

    def __init__(self, *, grace: bool, uptime_ns: int) -> None:
        self.grace = grace
        rate = _REGISTER_BYTES_PER_SECOND if grace else _USUAL_BYTES_PER_SECOND
        usual = rate * uptime_ns // SECOND_NS
        self.pcie_out, self.pcie_in = BusDirection(usual), BusDirection(usual)
        self.c2c_out, self.c2c_in = BusDirection(), BusDirection()

    def reload(self) -> None:
        """Reset the counters, as after a driver load."""
        for way in (self.pcie_out, self.pcie_in):
            way.moved_bytes = 0

    def advance(
        self, span: TimeSpan, demand: workload.JobDemand, rail_bytes: tuple[int, int]
    ) -> None:
        """Advance by a span in which the rail's NIC sent and received this many bytes."""
        outward = int(
            span.seconds
            * (
                _CHECKPOINT_BYTES_PER_SECOND * demand.checkpoint
                + _RESULT_BYTES_PER_SECOND * demand.occupied
            )
        )
        inward = int(
            span.seconds
            * (_DATA_BYTES_PER_SECOND * demand.fetch + _COMMAND_BYTES_PER_SECOND * demand.occupied)
        )
        sent, received = rail_bytes
        outward, inward = outward + sent, inward + received
        if self.grace:
            self.c2c_out.move(span, outward)
            self.c2c_in.move(span, inward)
            outward = inward = int(span.seconds * _REGISTER_BYTES_PER_SECOND * demand.occupied)
        self.pcie_out.move(span, outward)
        self.pcie_in.move(span, inward)


EXCHANGE_RATE = 0.6
"""Share of the nominal speed that a link carries while gradients are exchanged."""

FAULTY_LINK = 7
CODEWORD_BITS = 5440
"""RS(544,514) over symbols of ten bits."""

NO_ERROR = 15 << 8 | 255
"""Encoding of a bit error ratio without any error."""

_USUAL_EXCHANGED = 0.4
_KIBIBYTE = 1024
_BITS_PER_MEGABYTE = 8_000_000
_MAX_EXPONENT = 254


@dataclass(slots=True)
class NvLinkState:
    """One link since driver load, and its errors during the last span."""

    raw_bit_error_ratio: float
    transmitted_kibibytes: int = 0
    received_kibibytes: int = 0
    errors: int = 0
    recent_errors: int = 0


class GpuNvLinks:
    """All links of one GPU after the last span.

    Bytes are counted in kibibytes, as in NVML; all other counters derive from these, from the time that the
    links were up and from the errors of a bad one.
    """

    def __init__(
        self, model: device_models.NvLinkModel, rng: random.Random, uptime_ns: int
    ) -> None:
        self.model = model
        self.up_ns = uptime_ns
        self.recent_ns = SECOND_NS
        self.transmit_kibibytes_per_second = self.receive_kibibytes_per_second = 0.0
        self._rng = rng
        self._drift = DriftNoise(rng, 20.0)
        self.links = [NvLinkState(10 ** rng.uniform(-9.5, -7.5)) for _ in range(model.links)]
        usual = self._kibibytes(uptime_ns / SECOND_NS, _USUAL_EXCHANGED)
        for link in self.links:
            link.transmitted_kibibytes = link.received_kibibytes = int(usual)

    def reload(self) -> None:
        """Reset the counters, as after a driver load."""
        self.links = [NvLinkState(link.raw_bit_error_ratio) for link in self.links]
        self.up_ns = 0

    def advance(self, span: TimeSpan, exchanged: float, errors: int) -> None:
        """Advance by a span with a volume of exchange, and errors of the faulty link."""
        ripple = 1.0 + 0.02 * self._drift.advance(span.seconds)
        share = self._kibibytes(span.seconds, exchanged * ripple)
        transmitted = received = 0
        for link in self.links:
            there, back = round_randomly(share, self._rng), round_randomly(share, self._rng)
            link.transmitted_kibibytes += there
            link.received_kibibytes += back
            link.recent_errors = 0
            transmitted, received = transmitted + there, received + back
        faulty_link = self.links[min(FAULTY_LINK, len(self.links) - 1)]
        faulty_link.errors += errors
        faulty_link.recent_errors = errors
        self.up_ns += span.length_ns
        self.recent_ns = span.length_ns
        self.transmit_kibibytes_per_second = transmitted / span.seconds
        self.receive_kibibytes_per_second = received / span.seconds

    def _kibibytes(self, seconds: float, exchanged: float) -> float:
        """Traffic of one link in one direction, in kibibytes."""
        bytes_per_second = self.model.nominal_megabytes * 10**6
        return EXCHANGE_RATE * exchanged * bytes_per_second * seconds / _KIBIBYTE

    def raw(self, kibibytes: int) -> int:
        """Raw traffic of a link for this payload, including protocol overhead."""
        return kibibytes * self.model.raw_megabytes // self.model.nominal_megabytes

    def bits(self, length_ns: int) -> int:
        """Bits that a link receives during some time: it also transmits while idle."""
        return self.model.raw_megabytes * _BITS_PER_MEGABYTE * length_ns // SECOND_NS

    def raw_errors(self, link: NvLinkState) -> int:
        """Wrong bits received, before any correction."""
        return int(self.bits(self.up_ns) * link.raw_bit_error_ratio) + 1000 * link.errors

    def codewords(self, link: NvLinkState, symbols: int) -> int:
        """Codewords in which this many symbols had to be corrected; in most of them, none.

        Wrong bits are isolated, except on a bad link, where they occur in bursts.
        """
        codewords = self.bits(self.up_ns) // CODEWORD_BITS
        mean = CODEWORD_BITS * link.raw_bit_error_ratio
        share = mean if symbols else 1.0 - mean
        for number in range(2, symbols + 1):
            share *= mean / number
        return int(codewords * share) + (link.errors >> symbols if symbols else 0)

    def raw_ratio(self, link: NvLinkState) -> int:
        """Ratio of wrong bits before any correction, in NVML's encoding."""
        wrong = 1000 * link.recent_errors / self.bits(self.recent_ns)
        return encode_ratio(link.raw_bit_error_ratio + wrong)

    def error_ratio(self, recent_errors: int) -> int:
        """Ratio of errors to bits during the last span, in NVML's encoding."""
        return encode_ratio(recent_errors / self.bits(self.recent_ns))


def encode_ratio(ratio: float) -> int:
    """Encode a ratio of at most one as mantissa (bits 8 to 11) and negative exponent (bits 0 to 7)."""
    if ratio <= 0:
        return NO_ERROR
    mantissa, _, exponent = f"{ratio:.0e}".partition("e")
    return int(mantissa) << 8 | min(-int(exponent), _MAX_EXPONENT)


SAMPLES_KEPT = 2
"""Number of samples that the driver retains; one is taken per span."""


class DriverSample(NamedTuple):
    """Sample of the driver's own measurements, with its time in microseconds since 1970."""

    stamp_us: int
    occupied_percent: int
    power_milliwatts: int


class GpuState:
    """State of a GPU after the last span. `identity` is the constant part."""

    def __init__(
        self,
        spec: NodeSpec,
        model: device_models.GpuModel,
        identity: node_hardware.SimulatedGpu,
        uptime_ns: int,
    ) -> None:
        name = f"gpu {identity.index}"
        rng = spec.stream(name)
        self.model, self.identity = model, identity
        self.silicon = Silicon(model, rng, uptime_ns)
        self.errors = MemoryErrors.usual(rng)
        self.pcie_replays = rng.choice((0, 0, 0, 0, 1))
        self.sharing = workload.GpuSharing(spec, model, identity.index)
        self.bus = GpuBus(grace=model.grace, uptime_ns=uptime_ns)
        self.links: GpuNvLinks | None = None
        if model.nvlink and not self.sharing.mig_devices:  # the driver hides them under MIG
            self.links = GpuNvLinks(model.nvlink, spec.stream(f"{name} links"), uptime_ns)
        self.demand, self.activity = workload.JobDemand(), ActivityShares()
        self.cycles = SmCycles.usual(uptime_ns, model.max_megahertz, model.multiprocessors)
        self.lost = self.hung = self.stuck = self.denied = False
        self.recovery_action = 0
        self.samples: deque[DriverSample] = deque(maxlen=SAMPLES_KEPT)
        self._origin_us = spec.started_wall_ns // MICROSECOND_NS

    def advance(
        self,
        span: TimeSpan,
        requested: workload.JobDemand,
        conditions: GpuConditions,
        rail_bytes: tuple[int, int],
    ) -> None:
        """Advance by a span in which the rail's NIC sent and received this many bytes.

        A lost GPU stays lost, and its state unchanged.
        """
        self.lost = self.lost or conditions.lost
        if self.lost:
            return
        self.hung, self.stuck = conditions.hung, conditions.stuck
        self.denied = conditions.denied
        self.recovery_action = conditions.recovery_action
        self.demand = self.sharing.take(requested)
        self.silicon.advance(span, self.demand, conditions.thermal_resistance, conditions.brake)
        self.activity = activity_shares(self.demand, self.silicon.ripple)
        clock = self.silicon.clock_megahertz
        self.cycles.advance(span, clock, self.model.multiprocessors, self.activity)
        silicon, stamp_us = self.silicon, self._origin_us + span.end_ns // MICROSECOND_NS
        self.samples.append(
            DriverSample(stamp_us, silicon.occupied_percent, silicon.power_milliwatts)
        )
        self.errors.advance(conditions)
        self.bus.advance(span, self.demand, rail_bytes)
        if self.links:
            self.links.advance(span, self.demand.exchanged, conditions.link_errors)

    def reset(self) -> None:
        """Restore the GPU from any fault."""
        self.lost = False
        self.reload()

    def reload(self) -> None:
        """Reset the counters, as after a driver load. Cycles count from a reset of the GPU."""
        self.silicon.reload()
        self.errors.reload()
        self.pcie_replays = 0
        self.bus.reload()
        if self.links:
            self.links.reload()
