"""The tenants of owners: the payer of a Kubernetes namespace, a Slurm account or a user.

CSV with the columns tenant, source, owner, from, to. `source` is the source of the claim (kubernetes, slurm,
...) or `*` for any; times as in the claims file. At each instant a row of the claim's own source
takes precedence over `*`, and of two rows the one with the later start.

An owner without a row is a tenant of its own, `source:owner`, so that no use is lost; the colon,
which is invalid in a tenant of the file, marks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from railscope_collector.files import watched_file
from railscope_collector.metering import timeline

TENANTS_HEADER = ("tenant", "source", "owner", "from", "to")
ANY_SOURCE = "*"
UNMAPPED = ":"


@dataclass(frozen=True, slots=True, order=True)
class TenantMapping:
    """Assignment of an owner to a tenant in [start, end)."""

    start_ns: int
    end_ns: int
    tenant: str
    source: str
    owner: str


@dataclass(frozen=True)
class TenantMappings:
    """All mappings, by source and owner."""

    mappings: dict[tuple[str, str], tuple[TenantMapping, ...]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[TenantMapping]:
        return (mapping for mappings in self.mappings.values() for mapping in mappings)

    def timeline(
        self, source: str, owner: str, start_ns: int, end_ns: int
    ) -> list[timeline.TimePiece[str]]:
        """Tenants of an owner over [start, end), without gaps."""
        timelines = [
            timeline.resolve_overlaps(
                timeline.TimePiece(mapping.start_ns, mapping.end_ns, mapping)
                for mapping in self.mappings.get((name, owner), ())
            )
            for name in (source, ANY_SOURCE)
        ]
        tenants: list[timeline.TimePiece[str]] = []
        for start, end, (specific, general) in timeline.align_timelines(
            timelines, start_ns, end_ns
        ):
            mapping = specific or general
            tenant = mapping.tenant if mapping else unmapped_tenant(source, owner)
            timeline.append_piece(tenants, timeline.TimePiece(start, end, tenant))
        return tenants

    def find_tenant(self, source: str, owner: str, timestamp_ns: int) -> str:
        """The tenant of the row for an owner at an instant; empty without a row."""
        (piece,) = self.timeline(source, owner, timestamp_ns, timestamp_ns + 1)
        return "" if UNMAPPED in piece.value else piece.value


def unmapped_tenant(source: str, owner: str) -> str:
    """The tenant of an owner without a row."""
    return f"{source or 'unknown'}{UNMAPPED}{owner or 'nobody'}"


def parse_tenants(text: str) -> TenantMappings:
    """Parse mappings from the text of a file. Raises FileError that names the line."""
    by_owner: dict[tuple[str, str], list[TenantMapping]] = {}
    for number, (tenant, source, owner, start, end) in watched_file.read_rows(text, TENANTS_HEADER):
        location = f"line {number}"
        if not (tenant and source and owner):
            message = f"{location}: expected tenant, source and owner, none of them empty"
            raise watched_file.FileError(message)
        if UNMAPPED in tenant:
            message = (
                f"{location}: invalid tenant {tenant!r}: expected no colon, which marks owners"
                " without a tenant"
            )
            raise watched_file.FileError(message)
        mapping = TenantMapping(
            *watched_file.parse_span(start, end or None, location), tenant, source, owner
        )
        by_owner.setdefault((source, owner), []).append(mapping)
    return TenantMappings({key: tuple(sorted(mappings)) for key, mappings in by_owner.items()})
