"""Tenant of an owner: the payer of a Kubernetes namespace, a Slurm account or a user.

CSV with the columns tenant, source, owner, from, to. `source` is the source of the claim
(kubernetes, slurm, ...) or `*` for any; times as in the claims file. At each instant a row of the
claim's own source takes precedence over `*`, and of two rows the one with the later start.

An owner without a row is a tenant of its own, `source:owner`, so that no use is lost; the colon,
which is invalid in a tenant of the file, marks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from collector.files.watched import FileError, Watched, rows, span
from collector.metering.timeline import Piece, aligned, extend, prevailing

HEADER = ("tenant", "source", "owner", "from", "to")
ANY = "*"
UNMAPPED = ":"


@dataclass(frozen=True, slots=True, order=True)
class Mapping:
    """Assignment of an owner to a tenant in [start, end)."""

    start_ns: int
    end_ns: int
    tenant: str
    source: str
    owner: str


@dataclass(frozen=True)
class Tenants:
    """All mappings, by source and owner."""

    mappings: dict[tuple[str, str], tuple[Mapping, ...]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Mapping]:
        return (mapping for found in self.mappings.values() for mapping in found)

    def pieces(self, source: str, owner: str, start_ns: int, end_ns: int) -> list[Piece[str]]:
        """Tenants of an owner over [start, end), without gaps."""
        timelines = [
            prevailing(
                Piece(mapping.start_ns, mapping.end_ns, mapping)
                for mapping in self.mappings.get((word, owner), ())
            )
            for word in (source, ANY)
        ]
        found: list[Piece[str]] = []
        for start, end, (own, general) in aligned(timelines, start_ns, end_ns):
            mapping = own or general
            tenant = mapping.tenant if mapping else unmapped(source, owner)
            extend(found, Piece(start, end, tenant))
        return found

    def at(self, source: str, owner: str, instant_ns: int) -> str:
        """The tenant of the row for an owner at an instant; empty without a row."""
        (piece,) = self.pieces(source, owner, instant_ns, instant_ns + 1)
        return "" if UNMAPPED in piece.value else piece.value


def unmapped(source: str, owner: str) -> str:
    """The tenant of an owner without a row."""
    return f"{source or 'unknown'}{UNMAPPED}{owner or 'nobody'}"


def parse(text: str) -> Tenants:
    """Parse mappings from the text of a file. Raises FileError that names the line."""
    found: dict[tuple[str, str], list[Mapping]] = {}
    for number, (tenant, source, owner, start, end) in rows(text, HEADER):
        where = f"line {number}"
        if not (tenant and source and owner):
            message = f"{where}: tenant, source and owner must not be empty"
            raise FileError(message)
        if UNMAPPED in tenant:
            message = f"{where}: {tenant!r} has a colon, which marks owners without a tenant"
            raise FileError(message)
        mapping = Mapping(*span(start, end, where), tenant, source, owner)
        found.setdefault((source, owner), []).append(mapping)
    return Tenants({key: tuple(sorted(mappings)) for key, mappings in found.items()})


def tenants_file(path: Path | None) -> Watched[Tenants]:
    """The watched tenants file of a path."""
    return Watched("tenants", path, parse, Tenants())
