"""Types of declarations: metric, entity kind, event class; and the tables that metrics are declared in.

A declaration is the runtime object: exposition, wire columns, roll-ups, reference docs and checks are all
derived from it. This module imports no other module of the project.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import TypedDict, Unpack


class MetricKind(StrEnum):
    """Type of a metric; determines its exposition and the existence of a rate."""

    COUNTER = "counter"
    GAUGE = "gauge"
    INFO = "info"
    STATE = "state"
    HISTOGRAM = "histogram"


class MetricUnit(StrEnum):
    """Base units, as suffixes of metric names."""

    NONE = ""
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes_per_second"
    BYTE_SECONDS = "byte_seconds"
    SECONDS = "seconds"
    RATIO = "ratio"
    WATTS = "watts"
    JOULES = "joules"
    VOLTS = "volts"
    AMPERES = "amperes"
    CELSIUS = "celsius"
    HERTZ = "hertz"
    TRANSFERS_PER_SECOND = "transfers_per_second"
    FRAMES_PER_SECOND = "frames_per_second"
    LANES = "lanes"
    CYCLES = "cycles"
    REVOLUTIONS_PER_MINUTE = "rpm"
    PACKETS = "packets"
    FRAMES = "frames"
    ERRORS = "errors"


POWER = 0, 100_000
"""Watts of any device: joules per second of its counter."""
PORT_BYTES = 0, 10**12
"""Bytes per second of any port in one direction: a bond of eight ports of 800 Gb/s has 0.8 * 10**12."""
NVLINK_BYTES = 0, 10**13
"""Bytes per second of all NVLinks of a GPU in one direction: ten times those of NVLink 5."""
ELAPSED = 0, 1
"""Seconds per second of a counter of the time in which something lasts."""
_VALID: Mapping[MetricUnit, tuple[int, int]] = {
    MetricUnit.RATIO: (0, 1), MetricUnit.WATTS: POWER, MetricUnit.CELSIUS: (-100, 199),
    MetricUnit.HERTZ: (0, 10**12), MetricUnit.BYTES: (0, 1 << 60), MetricUnit.BYTES_PER_SECOND: (0, 10**15),
    MetricUnit.LANES: (0, 128), MetricUnit.REVOLUTIONS_PER_MINUTE: (0, 10**6), MetricUnit.NONE: (0, 1 << 62),
    MetricUnit.FRAMES_PER_SECOND: (0, 2 * 10**9),
}  # fmt: skip
"""Lowest and highest value of a gauge in base units, beyond any device and node; DCGM, too, rejects 200 degrees Celsius.

A port of 800 Gb/s has 1.2 * 10**9 frames of the smallest size per second.
"""
ALL_ONES = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF
"""Values that drivers return for an unknown one, as -1 of an unsigned type of 32 or 64 bits."""
WHOLE = -(1 << 63), (1 << 63) - 1
"""Limits of numbers that others have written: each is valid, also those that drivers use as marks."""
BLANKS = range((1 << 31) - 16, 1 << 31), range((1 << 63) - 16, 1 << 63)
"""NVML and DCGM mark blank values by the largest signed numbers of 32 or 64 bits (dcgm_structs.h, DCGM_INT32_BLANK)."""
MARKS = frozenset({*ALL_ONES, *BLANKS[0], *BLANKS[1]})
"""Numbers that stand for no value."""


class MetricDetail(StrEnum):
    """Smallest selection of the metrics endpoint that contains a metric; each contains the ones before it."""

    BASIC = "basic"
    STANDARD = "standard"
    FULL = "full"

    def includes(self, other: MetricDetail) -> bool:
        """True if this selection contains metrics of the other one."""
        ranks = tuple(MetricDetail)
        return ranks.index(other) <= ranks.index(self)


BASIC, STANDARD, FULL = MetricDetail

AGENT_START, BOOT_START = "Counts from the start of the agent.", "Counts from boot."
"""`resets` of counters that start at zero with the agent or the boot."""
BUCKET = "le"
"""Last label of a histogram's entity kind: the upper bound of a bucket, or `SUM`."""
NO_BOUND, SUM = "+Inf", "sum"


class Rollup(StrEnum):
    """Aggregation of a metric over the entities of a rail, a node, a tenant or the cluster.

    A counter rolls up as its rate per second; a gauge as its current value.
    """

    SUM = "sum"
    MEAN = "mean"
    COUNT = "count"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class EntityKind:
    """MetricKind of entity that metrics describe.

    `labels` identify one entity and are the labels of all its metrics. `facts` describe it and are labels
    of one `_info` metric. `part_of` names the kind that provides the first labels of this one, so that
    parts of a GPU or a NIC can be rolled up with it.

    `named` is the number of leading labels that differ between nodes of one build: the UUID of a GPU, and not
    the name of its clock. Frames of such nodes have one shape; without it, the labels of the outermost kind are names.
    `varies` is true if the number of entities of a node changes while jobs run; frames reserve columns for them.
    """

    name: str
    labels: tuple[str, ...]
    facts: tuple[str, ...] = ()
    part_of: EntityKind | None = None
    named: int = -1
    varies: bool = False

    def __post_init__(self) -> None:
        """Reject labels that do not begin with those of the outer kind, and facts of an entity without a name of its own."""
        parent = self.part_of
        if parent and self.labels[: len(parent.labels)] != parent.labels:
            message = f"entity kind {self.name}: labels must begin with {parent.labels}"
            raise ValueError(message)
        if self.named < 0:
            object.__setattr__(self, "named", len(self.outermost.labels))
        if self.facts and self.named < len(self.labels):
            message = f"entity kind {self.name} with facts: expected all of its labels as names"
            raise ValueError(message)

    @property
    def outermost(self) -> EntityKind:
        """The outermost kind that this one is part of: the GPU of a GPU's clock."""
        return self.part_of.outermost if self.part_of else self

    @property
    def name_kind(self) -> EntityKind:
        """The kind whose key is the name of an entity of this one: the GPU of a clock, and a process itself."""
        part_of = self.part_of
        if part_of and not self.facts and self.named == part_of.named == len(part_of.labels):
            return part_of.name_kind
        return self


# Compared by identity: each is declared once, and is a key of many tables.
@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric, declared once.

    A stored value is an integer; `scale` is the exact value of one step in base units: a board power
    stored in milliwatts has scale 1/1000. Values stay integers from the source to the ledger, and only
    outputs (Prometheus text, line protocol) multiply.

    `wraps_at_bits` is the width of a counter in hardware: 64 if a wrap cannot occur in practice, 32 for
    the Q counters of mlx5. `saturates` marks narrow counters that stop at their maximum instead. `states`
    names the integers of a STATE metric. `since` names the first hardware generation, or the first
    driver, that supports it; empty if all do.

    `detail` is the smallest selection of the metrics endpoint that contains the metric. The endpoint omits
    zeros of a `sparse` metric: kinds of errors that have not occurred, reasons that do not apply. Frames
    contain them. `total` is the name of the metric of the same device that is present nevertheless; a
    roll-up has none.

    `valid` are the lowest and the highest value of a gauge in base units; without it, those of its unit count. They contain 0.
    Of a counter they limit its increase per second; without it, the increase is unlimited.

    A HISTOGRAM describes a kind with `le` as its last label: one entity for each of its `buckets`, a
    cumulative count up to that bound, and one named `sum`, alone in steps of `scale`. All are counters.
    """

    name: str
    kind: MetricKind
    about: EntityKind
    help: str
    origin: str
    unit: MetricUnit = MetricUnit.NONE
    scale: Fraction = Fraction(1)
    rollups: tuple[Rollup, ...] = ()
    resets: str = ""
    since: str = ""
    wraps_at_bits: int = 64
    saturates: bool = False
    states: Mapping[int, str] = field(default_factory=dict)
    bounds: tuple[Fraction, ...] = ()
    other_names: Mapping[str, str] = field(default_factory=dict)
    detail: MetricDetail = STANDARD
    sparse: bool = False
    total: str = ""
    valid: tuple[int, int] | None = None
    valid_steps: range = field(init=False)
    """Stored values that the quantity can have."""

    def __post_init__(self) -> None:
        """Reject a name that violates the Prometheus rules or contradicts kind or unit."""
        problems = []
        stem = self.name.removesuffix("_total")
        if not self.name.startswith("railscope_"):
            problems.append("the name must start with railscope_")
        if (self.kind is MetricKind.COUNTER) != self.name.endswith("_total"):
            problems.append("counters, and only counters, end in _total")
        if self.unit and not stem.endswith(self.unit):
            problems.append(f"the name must end in its unit {self.unit}")
        if not self.help.endswith("."):
            problems.append("help must be a sentence with a full stop")
        if (self.kind is MetricKind.STATE) != bool(self.states):
            problems.append("STATE metrics, and only they, name their states")
        if (self.kind is MetricKind.HISTOGRAM) != bool(self.bounds):
            problems.append("HISTOGRAM metrics, and only they, have bounds")
        if (self.kind is MetricKind.HISTOGRAM) != (self.about.labels[-1:] == (BUCKET,)):
            problems.append(
                f"HISTOGRAM metrics, and only they, are about a kind that ends in {BUCKET}"
            )
        if list(self.bounds) != sorted(set(self.bounds)):
            problems.append("bounds rise")
        if problems:
            message = f"metric {self.name}: {'; '.join(problems)}"
            raise ValueError(message)
        object.__setattr__(self, "valid_steps", self._valid_steps())

    def _valid_steps(self) -> range:
        if self.kind in (MetricKind.COUNTER, MetricKind.HISTOGRAM):
            return range(ALL_ONES[1])
        if self.kind is MetricKind.STATE:
            # Newer drivers have further states, and number none of them below the known ones.
            return range(min(0, *self.states), BLANKS[1].start)
        limits = self.valid or _VALID.get(self.unit)
        if self.kind is not MetricKind.GAUGE or limits is None:
            return range(WHOLE[0], BLANKS[1].start)
        # Stored numbers have 64 bits, whatever the step.
        lowest, highest = (int(limit / self.scale) for limit in limits)
        return range(max(lowest, WHOLE[0]), min(highest, WHOLE[1]) + 1)

    @property
    def adds_parts(self) -> bool:
        """False if the largest part of a device counts: a PFC frame pauses several priorities at the same time (IEEE 802.1Qbb)."""
        return self.rollups != (Rollup.MAX,)

    @property
    def max_per_second(self) -> float:
        """Largest increase per second of a counter in base units.

        A frame is stamped before its reads, which take varying times: a rate of 1.02 s/s occurs.
        """
        is_limited = self.kind is MetricKind.COUNTER and self.valid
        return float(self.valid[1]) if is_limited and self.valid else float("inf")

    @property
    def has_limits(self) -> bool:
        """True for a gauge that cannot have every value."""
        is_limited = self.valid != WHOLE if self.valid else self.unit in _VALID
        return self.kind is MetricKind.GAUGE and is_limited

    def can_follow(self, stored: int, before: int, passed: Fraction) -> bool:
        """True if a counter with limits can have a stored value some seconds after another: it grew, or was reset.

        A counter that falls to more than half of its value ran backwards: after a reset it starts at zero.
        """
        if stored < before:
            return stored <= before // 2
        return not self.valid or (stored - before) * self.scale <= self.valid[1] * passed

    def accepts(self, stored: int) -> bool:
        """True if the quantity can have a stored value, and it is no mark; a narrow counter may have all bits set."""
        # Not `in`: of a range, that tries every number for an enumeration.
        if not self.valid_steps.start <= stored < self.valid_steps.stop:
            return False
        if stored not in MARKS or self.saturates or self.valid == WHOLE:
            return True
        # A counter passes by the numbers that mark a gauge of 32 bits.
        is_counted = self.kind in (MetricKind.COUNTER, MetricKind.HISTOGRAM)
        is_passed = is_counted and stored in BLANKS[0]
        return is_passed or self.wraps_at_bits < 64  # noqa: PLR2004 - bits of the types of counters

    @property
    def buckets(self) -> tuple[str, ...]:
        """The `le` of every bucket of a histogram in ascending order; buckets are cumulative."""
        return (*(repr(float(bound)) for bound in self.bounds), NO_BOUND)

    def scale_of(self, key: Sequence[str]) -> Fraction:
        """Return the value of one step of a stored value; the buckets of a histogram are plain counts."""
        counts = self.kind is MetricKind.HISTOGRAM and key[-1] != SUM
        return Fraction(1) if counts else self.scale

    @property
    def stem(self) -> str:
        """The name without prefix, unit and `_total`: the part that names the quantity."""
        stem = self.name.removeprefix("railscope_").removesuffix("_total")
        return stem.removesuffix(self.unit).rstrip("_") if self.unit else stem


@dataclass(frozen=True, slots=True, eq=False)
class EventClass:
    """Class of events that travel in frames with the values.

    An event of an `audited` class is numbered by the agent, and becomes a record of the audit log. For any other class,
    `judged_by` names what judges the facts that it reports, or their end: an alert, a class of incidents or a rule of health.
    """

    name: str
    about: EntityKind
    severity: str
    help: str
    origin: str
    facts: tuple[str, ...] = ()
    audited: bool = False
    judged_by: str = ""


def per(divisor: int) -> Fraction:
    """Return the scale of a value stored in `divisor` steps per base unit: 1000 for milliwatts."""
    return Fraction(1, divisor)


NANO, MICRO, MILLI, CENTI = per(10**9), per(10**6), per(1000), per(100)
KIBI, MEBI, MEGA = Fraction(1 << 10), Fraction(1 << 20), Fraction(10**6)
MEGABIT = Fraction(125_000)
"""Bytes of a megabit."""

_LONGEST_FIRST = sorted(filter(None, MetricUnit), key=len, reverse=True)


def unit_of(name: str) -> MetricUnit:
    """Return the unit that the name of a metric ends in."""
    stem = name.removesuffix("_total")
    return next((unit for unit in _LONGEST_FIRST if stem.endswith(f"_{unit}")), MetricUnit.NONE)


class MetricColumns(TypedDict, total=False):
    """Columns of a table that most rows leave out; `dcgm` and `node_exporter` are names in these programs.

    Zeros of a metric with a `total` are omitted: the help states it, and the metric that is always present.
    """

    about: EntityKind
    scale: Fraction
    rollups: tuple[Rollup, ...]
    resets: str
    since: str
    bits: int
    saturates: bool
    states: Mapping[int, str]
    bounds: tuple[Fraction, ...]
    detail: MetricDetail
    total: Metric
    valid: tuple[int, int] | None
    dcgm: str
    node_exporter: str


@dataclass(frozen=True, slots=True)
class MetricTable:
    """Table of metrics; each of its methods declares one metric in one row: name, help, origin, and columns.

    Rows without an entity kind are about the table's, rows without a detail have the table's, and counters
    without a reset reset as the table states.
    The origin of a row continues that of the table. The name determines the unit.
    """

    about: EntityKind
    origin: str = ""
    resets: str = ""
    detail: MetricDetail = STANDARD

    def counter(
        self, name: str, help_: str, origin: str = "", **columns: Unpack[MetricColumns]
    ) -> Metric:
        """Declare a counter."""
        columns.setdefault("resets", self.resets)
        return self._metric(MetricKind.COUNTER, name, help_, origin, columns)

    def histogram(
        self, name: str, help_: str, origin: str = "", **columns: Unpack[MetricColumns]
    ) -> Metric:
        """Declare a histogram, with the `bounds` of its buckets."""
        columns.setdefault("resets", self.resets)
        return self._metric(MetricKind.HISTOGRAM, name, help_, origin, columns)

    def gauge(
        self, name: str, help_: str, origin: str = "", **columns: Unpack[MetricColumns]
    ) -> Metric:
        """Declare a gauge."""
        return self._metric(MetricKind.GAUGE, name, help_, origin, columns)

    def flag(
        self, name: str, help_: str, origin: str = "", **columns: Unpack[MetricColumns]
    ) -> Metric:
        """Declare a gauge that is 1 or 0."""
        columns.setdefault("valid", (0, 1))
        return self.gauge(name, help_, origin, **columns)

    def state(
        self, name: str, help_: str, origin: str = "", **columns: Unpack[MetricColumns]
    ) -> Metric:
        """Declare a state, with the names of its `states`."""
        return self._metric(MetricKind.STATE, name, help_, origin, columns)

    def info(
        self, name: str, help_: str, origin: str = "", **columns: Unpack[MetricColumns]
    ) -> Metric:
        """Declare an info metric."""
        return self._metric(MetricKind.INFO, name, help_, origin, columns)

    def _metric(
        self, kind: MetricKind, name: str, help_: str, origin: str, columns: MetricColumns
    ) -> Metric:
        other_names = {
            "dcgm-exporter": columns.get("dcgm", ""),
            "node_exporter": columns.get("node_exporter", ""),
        }
        total = columns["total"].name if "total" in columns else ""
        is_gauge = kind is MetricKind.GAUGE
        appears = "Absent at zero" if is_gauge else "A series appears with its first non-zero value"
        return Metric(
            name,
            kind,
            columns.get("about", self.about),
            help=f"{help_} {appears}; {total} is always present." if total else help_,
            origin=self.origin + origin,
            unit=unit_of(name),
            scale=columns.get("scale", Fraction(1)),
            rollups=columns.get("rollups", ()),
            resets=columns.get("resets", ""),
            since=columns.get("since", ""),
            wraps_at_bits=columns.get("bits", 64),
            saturates=columns.get("saturates", False),
            states=columns.get("states", {}),
            bounds=columns.get("bounds", ()),
            detail=columns.get("detail", self.detail),
            sparse=bool(total),
            total=total,
            valid=columns.get("valid"),
            other_names={tool: names for tool, names in other_names.items() if names},
        )
