"""Charges: the exact lines of an invoice."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from fractions import Fraction
from functools import cached_property

from collector.billing.canonical import digest
from collector.metering.instants import HOUR_NS
from collector.metering.units import GPU_CAPACITY

NANO = 10**9
_MILLIJOULES_PER_KILOWATT_HOUR = 3_600 * 10**6


class Kind(StrEnum):
    """Kind of a charge."""

    USAGE = "usage"
    MINIMUM_TOPUP = "minimum_topup"
    RESERVATION = "reservation"
    ENERGY = "energy"
    CREDIT = "credit"
    ADJUSTMENT = "adjustment"
    ROUNDING = "rounding"
    TAX = "tax"


class Unit(Enum):
    """Unit of a price: its name, and its size in metered units.

    GPU time is metered in units of capacity times nanoseconds, the time of a MIG instance with its
    own price in nanoseconds times the share of it that is held, energy in millijoules.
    """

    GPU_HOURS = ("GPU-Hours", GPU_CAPACITY * HOUR_NS)
    INSTANCE_HOURS = ("Instance-Hours", HOUR_NS)
    KILOWATT_HOURS = ("kWh", _MILLIJOULES_PER_KILOWATT_HOUR)

    @property
    def label(self) -> str:
        """The name of the unit."""
        return self.value[0]

    @property
    def size(self) -> int:
        """Number of metered units in one unit."""
        return self.value[1]


@dataclass(frozen=True)
class Charge:
    """One exact line: tenant, resource, service time, quantity, price and reason.

    `quantity` counts metered units of `unit`; it and `amount` are negative in a charge that
    reverses an earlier one. `price_nano` and `list_nano` are nano-currency per unit. `corrects`
    names the closed invoice that is corrected; `corrected_in_ns` is the start of the open period in
    which the correction is billed.

    Raises ValueError if a priced charge is not exactly quantity times price, or if a number is
    neither an integer nor a fraction.
    """

    tenant: str
    kind: Kind
    service_t0_ns: int
    service_t1_ns: int
    amount: Fraction
    sku: str = ""
    quantity: Fraction = Fraction(0)
    unit: Unit | None = None
    price_nano: int = 0
    list_nano: int = 0
    price_version: int = 0
    resource: str = ""
    mig_profile: str = ""
    claim: str = ""
    state: str = ""
    note: str = ""
    corrects: str = ""
    corrected_in_ns: int | None = None

    def __post_init__(self) -> None:
        exact = type(self.amount) is Fraction and type(self.quantity) is Fraction
        if not (exact and type(self.price_nano) is int and type(self.list_nano) is int):
            message = "amounts and quantities are fractions, prices integers"
            raise ValueError(message)
        if self.unit and self.amount != priced(self.quantity, self.unit, self.price_nano):
            message = f"{self.amount} is not {self.quantity} at {self.price_nano} nano"
            raise ValueError(message)

    @cached_property
    def charge_id(self) -> str:
        """SHA-256 of the content: the same charge has the same id whenever it is computed."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        return digest(content | {"unit": self.unit.label if self.unit else None})


def priced(quantity: Fraction, unit: Unit, price_nano: int) -> Fraction:
    """The exact amount, in units of the currency."""
    return Fraction(quantity * price_nano, unit.size * NANO)
