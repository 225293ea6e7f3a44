"""Fractions of a GPU that a job list tells, as 25 % or 250 thousandths, in the ledger's units.

A GPU has 840 units of capacity. A fraction that comes out whole is metered exactly: every percentage
that 5 divides, every number of thousandths that 25 divides, every half to eighth. Any other is no
number of units; it is told, with the job that has it, and not metered. Rounding it would bill one
tenant for what another had, or more than a GPU: three shares of 33.4 % fit no GPU.
"""

from __future__ import annotations

from fractions import Fraction

from collector.metering.units import GPU_CAPACITY


def portion(part: Fraction) -> int | None:
    """The units of a part of a GPU; None where they would not be whole. Raises ValueError."""
    if not 0 < part <= 1:
        message = f"{part} is no part of a GPU"
        raise ValueError(message)
    units = part * GPU_CAPACITY
    return int(units) if units.denominator == 1 else None
