"""The words that the table of dcgm-exporter's metrics is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from railscope.catalog.declare import Kind, Metric

EACH = "*"
"""Any part of an entity's key: every link of a GPU."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A unit of DCGM, and how many of it are in one base unit of ours."""

    name: str
    per_base_unit: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class Term:
    """A reading of a GPU or a MIG device; `part` is what its key has beyond the device.

    Where a part is `EACH`, all that the device has are added up, the others are not missing.
    `weights` gives what each counts for, by the last part of its key.
    """

    metric: Metric
    part: tuple[str, ...] = ()
    weight: int = 1
    weights: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Formula:
    """A weighted sum of readings; where `over` is given, as a share of that sum."""

    terms: tuple[Term, ...]
    over: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A metric of dcgm-exporter.

    `gpu` are the ways to make it: the first that a GPU has all readings for. `mig` makes it of a
    MIG device; the GPU that is cut has no sample of its own then. `otherwise_zero` is a metric of
    the node: while that has a value, a GPU without the reading shows 0.
    """

    name: str
    kind: Kind
    measure: Measure
    help: str
    gpu: tuple[Formula, ...]
    mig: Formula | None = None
    otherwise_zero: Metric | None = None
    remark: str = ""

    @property
    def sentence(self) -> str:
        """The help text with its unit."""
        return f"{self.help}, {self.measure.name}." if self.measure.name else f"{self.help}."

    @property
    def formulas(self) -> tuple[Formula, ...]:
        """Every way to make the metric."""
        return (*self.gpu, self.mig) if self.mig else self.gpu


def of(metric: Metric, *part: str) -> Formula:
    """One reading, or the sum of those that `EACH` stands for."""
    return Formula((Term(metric, part),))


def gauge(
    name: str, measure: Measure, help_: str, *gpu: Formula, mig: Formula | None = None,
    remark: str = "",
) -> Row:  # fmt: skip
    """A row of the table; the name comes without the prefix that all have."""
    return Row(f"DCGM_FI_{name}", Kind.GAUGE, measure, help_, gpu, mig, remark=remark)


def counter(name: str, measure: Measure, help_: str, *gpu: Formula, remark: str = "") -> Row:
    """A row of the table; the name comes without the prefix that all have."""
    return Row(f"DCGM_FI_{name}", Kind.COUNTER, measure, help_, gpu, remark=remark)
