"""The words a declaration is made of: metric, entity kind, event class.

A declaration is the runtime object: exposition, wire columns, roll-ups, reference pages and checks
are all derived from it. This module imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction


class Kind(StrEnum):
    """What sort of number a metric is; decides its exposition and whether it has a rate."""

    COUNTER = "counter"
    GAUGE = "gauge"
    INFO = "info"
    STATE = "state"
    HISTOGRAM = "histogram"


class Unit(StrEnum):
    """Base units, as they stand at the end of a metric's name."""

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
    LANES = "lanes"
    CYCLES = "cycles"
    REVOLUTIONS_PER_MINUTE = "rpm"
    PACKETS = "packets"
    FRAMES = "frames"
    ERRORS = "errors"


BUCKET = "le"
"""The last label of what a histogram is about: the upper bound of a bucket, or `SUM`."""
NO_BOUND, SUM = "+Inf", "sum"


class Rollup(StrEnum):
    """How a metric adds up over the entities of a rail, a node, a tenant or the cluster.

    A counter rolls up as its rate per second; a gauge as its present value.
    """

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class EntityKind:
    """What a metric can be about.

    `labels` identify one entity and are the labels of all its metrics. `facts` describe it and
    live in one `_info` metric. `part_of` names the kind whose labels come first in this one's, so
    that what belongs to a GPU or a NIC can be rolled up with it.
    """

    name: str
    labels: tuple[str, ...]
    facts: tuple[str, ...] = ()
    part_of: EntityKind | None = None

    def __post_init__(self) -> None:
        """Refuse a kind whose labels do not begin with those of what it is part of."""
        parent = self.part_of
        if parent and self.labels[: len(parent.labels)] != parent.labels:
            message = f"entity kind {self.name}: labels must begin with {parent.labels}"
            raise ValueError(message)

    @property
    def whole(self) -> EntityKind:
        """The outermost kind this one is part of: the GPU of a GPU's clock."""
        return self.part_of.whole if self.part_of else self


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric, declared once.

    A stored value is an integer; `scale` is the number of base units that one step of it is worth,
    exactly: a board power kept in milliwatts has scale 1/1000. Integers travel from the source to
    the ledger, and only an edge (Prometheus text, line protocol) multiplies.

    `wraps_at_bits` is the width of a counter in hardware: 64 where a wrap cannot be met in
    practice, 32 for the Q counters of mlx5. `saturates` marks narrow counters that stick at their
    maximum instead. `states` names the integers of a STATE metric. `since` names the generation of
    hardware, or the driver, that first has it; empty where all have it.

    A HISTOGRAM is about a kind whose last label is `le`: one entity for each of its `buckets`, which
    counts what was at most so much, and one named `sum`, alone in steps of `scale`. All are counters.
    """

    name: str
    kind: Kind
    about: EntityKind
    help: str
    origin: str
    unit: Unit = Unit.NONE
    scale: Fraction = Fraction(1)
    rollups: tuple[Rollup, ...] = ()
    resets: str = ""
    since: str = ""
    wraps_at_bits: int = 64
    saturates: bool = False
    states: Mapping[int, str] = field(default_factory=dict)
    bounds: tuple[Fraction, ...] = ()
    other_names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a name that breaks Prometheus' rules or disagrees with kind or unit."""
        problems = []
        stem = self.name.removesuffix("_total")
        if not self.name.startswith("railscope_"):
            problems.append("the name must start with railscope_")
        if (self.kind is Kind.COUNTER) != self.name.endswith("_total"):
            problems.append("counters, and only counters, end in _total")
        if self.unit and not stem.endswith(self.unit):
            problems.append(f"the name must end in its unit {self.unit}")
        if not self.help.endswith("."):
            problems.append("help must be a sentence with a full stop")
        if (self.kind is Kind.STATE) != bool(self.states):
            problems.append("STATE metrics, and only they, name their states")
        if (self.kind is Kind.HISTOGRAM) != bool(self.bounds):
            problems.append("HISTOGRAM metrics, and only they, have bounds")
        if (self.kind is Kind.HISTOGRAM) != (self.about.labels[-1:] == (BUCKET,)):
            problems.append(
                f"HISTOGRAM metrics, and only they, are about a kind that ends in {BUCKET}"
            )
        if list(self.bounds) != sorted(set(self.bounds)):
            problems.append("bounds rise")
        if problems:
            message = f"metric {self.name}: {'; '.join(problems)}"
            raise ValueError(message)

    @property
    def buckets(self) -> tuple[str, ...]:
        """The `le` of every bucket of a histogram, the smallest first; each counts those before."""
        return (*(repr(float(bound)) for bound in self.bounds), NO_BOUND)

    def scale_of(self, key: Sequence[str]) -> Fraction:
        """What one step of a stored value is worth; the buckets of a histogram count."""
        counts = self.kind is Kind.HISTOGRAM and key[-1] != SUM
        return Fraction(1) if counts else self.scale

    @property
    def stem(self) -> str:
        """The name without prefix, unit and `_total`: the part that says what is measured."""
        stem = self.name.removeprefix("railscope_").removesuffix("_total")
        return stem.removesuffix(self.unit).rstrip("_") if self.unit else stem


@dataclass(frozen=True, slots=True, eq=False)
class EventClass:
    """A kind of happening that travels in frames beside the values.

    One that is `audited` is numbered by the agent, and becomes a record of the audit log.
    """

    name: str
    about: EntityKind
    severity: str
    help: str
    origin: str
    facts: tuple[str, ...] = ()
    audited: bool = False


def per(divisor: int) -> Fraction:
    """Give the scale of a value stored in `divisor` steps a base unit: 1000 for milliwatts."""
    return Fraction(1, divisor)
