"""Types of the table of dcgm-exporter's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from railscope.catalog.declare import Kind, Metric

EACH = "*"
"""Any value of a key part, for example every link of a GPU."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A DCGM unit, and the number of it per Railscope base unit."""

    name: str
    per_base_unit: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class Term:
    """A reading of a GPU or a MIG device; `part` is its key without the device.

    If a part is `EACH`, all readings of the device are summed; a missing one is not an error. `weights` are
    factors by the last part of the key.
    """

    metric: Metric
    part: tuple[str, ...] = ()
    weight: int = 1
    weights: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Formula:
    """A weighted sum of readings; with `over`, as a share of that sum."""

    terms: tuple[Term, ...]
    over: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A metric of dcgm-exporter.

    `gpu` are the formulas in order; the first one with all readings of a GPU is used. `mig` computes the
    metric for a MIG device; a partitioned GPU has no sample of its own then. `otherwise_zero` is a metric
    of the node: while that has a value, a GPU without the reading shows 0.
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
        """Help text with the unit."""
        return f"{self.help}, {self.measure.name}." if self.measure.name else f"{self.help}."

    @property
    def formulas(self) -> tuple[Formula, ...]:
        """All formulas of the metric."""
        return (*self.gpu, self.mig) if self.mig else self.gpu


def of(metric: Metric, *part: str) -> Formula:
    """Return a formula for one reading, or for the sum of those that `EACH` matches."""
    return Formula((Term(metric, part),))


def gauge(
    name: str, measure: Measure, help_: str, *gpu: Formula, mig: Formula | None = None,
    remark: str = "",
) -> Row:  # fmt: skip
    """Return a gauge row; the name comes without the common prefix."""
    return Row(f"DCGM_FI_{name}", Kind.GAUGE, measure, help_, gpu, mig, remark=remark)


def counter(name: str, measure: Measure, help_: str, *gpu: Formula, remark: str = "") -> Row:
    """Return a counter row; the name comes without the common prefix."""
    return Row(f"DCGM_FI_{name}", Kind.COUNTER, measure, help_, gpu, remark=remark)
