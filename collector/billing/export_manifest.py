"""What an export holds, as it says itself."""

from __future__ import annotations

from fractions import Fraction

import msgspec

from collector.billing.rounding import exponent_of


class File(msgspec.Struct, frozen=True):
    """A file of an export."""

    name: str
    bytes: int
    rows: int
    sha256: str


class Total(msgspec.Struct, frozen=True):
    """An invoice of an export. `billed` is the sum of its rows and what is to be paid, as text."""

    invoice: str
    tenant: str
    currency: str
    rows: int
    billed: str
    content_hash: str


class Manifest(msgspec.Struct, frozen=True):
    """What an export holds. Amounts are text, so that no reader turns them into floating point."""

    focus: str
    exported: str
    period: tuple[str, str] | None
    tenant: str | None
    files: tuple[File, ...]
    invoices: tuple[Total, ...]
    billed: dict[str, str]
    """By currency."""
    applicability_criteria: tuple[str, ...]
    """What the validator of FOCUS is to be told of who exports this."""
    audit_checkpoint: str | None
    """The newest checkpoint of the audit log, a signed note; null where none was given."""

    @property
    def encoded(self) -> bytes:
        """As it stands in its file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def amount(value: Fraction, currency: str) -> str:
    """An amount of whole minor units, as text without a currency: -12.50."""
    exponent = exponent_of(currency)
    whole, minor = divmod(abs(value) * 10**exponent, 10**exponent)
    text = f"{'-' if value < 0 else ''}{whole}"
    return f"{text}.{int(minor):0{exponent}}" if exponent else text
