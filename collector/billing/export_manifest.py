"""Manifest of an export."""

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
    """An invoice of an export. `billed`, as text, is the sum of its rows and its payable amount."""

    invoice: str
    tenant: str
    currency: str
    rows: int
    billed: str
    content_hash: str


class Manifest(msgspec.Struct, frozen=True):
    """Contents of an export. Amounts are text, so that no parser converts them to floating point."""

    focus: str
    exported: str
    period: tuple[str, str] | None
    tenant: str | None
    files: tuple[File, ...]
    invoices: tuple[Total, ...]
    billed: dict[str, str]
    """By currency."""
    applicability_criteria: tuple[str, ...]
    """Applicability criteria of the exporter for the FOCUS validator."""
    audit_checkpoint: str | None
    """The newest checkpoint of the audit log, a signed note; null without one."""

    @property
    def encoded(self) -> bytes:
        """The manifest as JSON, as written to its file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def amount(value: Fraction, currency: str) -> str:
    """An amount of whole minor units, as text without a currency: -12.50."""
    exponent = exponent_of(currency)
    whole, minor = divmod(abs(value) * 10**exponent, 10**exponent)
    text = f"{'-' if value < 0 else ''}{whole}"
    return f"{text}.{int(minor):0{exponent}}" if exponent else text
