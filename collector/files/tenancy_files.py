"""Administrators' files about tenants: claims, and the tenants of owners.

A claim is the tenant that holds a GPU or node, from start to end: CSV with the columns tenant,
holds, from, to, and optionally share. `holds` is a GPU's UUID or a node's name; times are RFC 3339
with an offset; an empty `to` means no end; `share` is a fraction of each GPU such as 3/8 or 37.5%,
empty for all of it. These claims rank above all claims that agents report.

The tenant of an owner is the payer of a Kubernetes namespace, a Slurm account or a user: CSV with
the columns tenant, source, owner, from, to. `source` is the source of the claim (kubernetes, slurm,
...) or `*` for any; times as in the claims file. At each instant a row of the claim's own source
takes precedence over `*`, and of two rows the one with the later start.

An owner without a row is a tenant of its own, `source:owner`, so that no use is lost; the colon,
which is invalid in a tenant of the file, marks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from pathlib import Path

import structlog

from collector.files import watched_file
from collector.metering import evidence, timeline
from railscope import claim_terms

log = structlog.get_logger(__name__)

SOURCE = "file"
CLAIMS_HEADER = ("tenant", "holds", "from", "to")
CLAIMS_OPTIONAL = ("share",)
_MAX_OVERLAPS = 10


@dataclass(frozen=True, slots=True, order=True)
class FileClaim:
    """A tenant holds a GPU (by UUID) or all GPUs of a node (by name) in [start, end)."""

    start_ns: int
    end_ns: int
    tenant: str
    holds: str
    share: str = ""
    """`n/d` of each GPU; empty for all of it."""

    @property
    def id(self) -> str:
        """Claim id in the ledger."""
        name = f"file/{self.holds}/{self.tenant}/{self.start_ns}"
        return f"{name}/{self.share}" if self.share else name

    def metered_claim(self, node: str) -> evidence.MeteredClaim:
        """The claim for metering: on the named node, or, if empty, on a GPU in any node."""
        return evidence.MeteredClaim(
            claim_terms.ClaimAuthority.ADMINISTRATOR,
            self.start_ns,
            self.id,
            self.tenant,
            self.end_ns,
            node=node,
            exclusive=not self.share,
            source=SOURCE,
            share=claim_terms.parse_share(self.share) if self.share else None,
        )


@dataclass(frozen=True)
class FileClaims:
    """All claims of the file, by their target."""

    by_target: dict[str, tuple[FileClaim, ...]] = field(default_factory=dict)

    @classmethod
    def from_claims(cls, claims: Iterable[FileClaim]) -> FileClaims:
        """Claims grouped by their target."""
        return cls(watched_file.group_rows(claims, attrgetter("holds"), lambda claim: claim))

    def __iter__(self) -> Iterator[FileClaim]:
        return (claim for claims in self.by_target.values() for claim in claims)

    def claims_on_gpu(self, gpu: str, nodes: Iterable[str]) -> Iterator[evidence.MeteredClaim]:
        """Claims of the file on a GPU that was in these nodes."""
        for claim in self.by_target.get(gpu, ()):
            yield claim.metered_claim("")
        for node in nodes:
            for claim in self.by_target.get(node, ()):
                yield claim.metered_claim(node)

    def node_holder(self, node: str, instant_ns: int) -> str:
        """Tenant that holds a whole node at an instant; empty if none does, or only shares of its GPUs."""
        begun = [
            claim
            for claim in self.by_target.get(node, ())
            if claim.start_ns <= instant_ns and not claim.share
        ]
        latest = max(begun, default=None)
        return latest.tenant if latest and instant_ns < latest.end_ns else ""

    def count_in_force(self, instant_ns: int) -> int:
        """Number of claims in force at an instant."""
        return sum(claim.start_ns <= instant_ns < claim.end_ns for claim in self)

    def find_overlaps(self) -> Iterator[tuple[FileClaim, FileClaim]]:
        """Claims of two tenants on one GPU or one node at one time, the earlier first.

        A claim on a GPU within a claim on its node is not an error but an exception to it, and the
        file does not specify which GPU is in which node. Shares are intended to coexist.
        """
        for claims in self.by_target.values():
            longest: dict[str, FileClaim] = {}
            for claim in claims:
                if claim.share:
                    continue
                for other in longest.values():
                    if other.tenant != claim.tenant and other.end_ns > claim.start_ns:
                        yield other, claim
                before = longest.get(claim.tenant)
                if before is None or before.end_ns < claim.end_ns:
                    longest[claim.tenant] = claim


def parse_claims(text: str) -> FileClaims:
    """Parse claims from the text of a file. Raises FileError that names the line."""
    claims = []
    rows = watched_file.read_rows(text, CLAIMS_HEADER, CLAIMS_OPTIONAL)
    for number, (tenant, holds, start, end, written) in rows:
        if not tenant or not holds:
            quoted = f"{tenant},{holds},{start},{end}"[: watched_file.MAX_QUOTED]
            message = f"line {number}: expected {','.join(CLAIMS_HEADER)}: {quoted}"
            raise watched_file.FileError(message)
        try:
            share = (
                claim_terms.share_text(claim_terms.parse_written_share(written)) if written else ""
            )
        except claim_terms.ShareError as error:
            message = f"line {number}: {error}"
            raise watched_file.FileError(message) from error
        claims.append(
            FileClaim(
                *watched_file.parse_span(start, end or None, f"line {number}"), tenant, holds, share
            )
        )
    return FileClaims.from_claims(claims)


def claims_file(path: Path | None) -> watched_file.WatchedFile[FileClaims]:
    """The watched claims file of a path; logs overlapping tenants after each read."""
    watched = watched_file.WatchedFile("claims", path, parse_claims, FileClaims())
    watched.on_change.append(lambda _: _log_overlaps(watched.content))
    return watched


def _log_overlaps(claims: FileClaims) -> None:
    for earlier, later in islice(claims.find_overlaps(), _MAX_OVERLAPS):
        log.warning(
            "claims_overlapped",
            subject=later.holds,
            earlier_tenant=earlier.tenant,
            later_tenant=later.tenant,
            advice="the later claim applies while it lasts, then the earlier one again",
        )


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
        for start, end, (own, general) in timeline.align_timelines(timelines, start_ns, end_ns):
            mapping = own or general
            tenant = mapping.tenant if mapping else unmapped_tenant(source, owner)
            timeline.append_piece(tenants, timeline.TimePiece(start, end, tenant))
        return tenants

    def find_tenant(self, source: str, owner: str, instant_ns: int) -> str:
        """The tenant of the row for an owner at an instant; empty without a row."""
        (piece,) = self.timeline(source, owner, instant_ns, instant_ns + 1)
        return "" if UNMAPPED in piece.value else piece.value


def unmapped_tenant(source: str, owner: str) -> str:
    """The tenant of an owner without a row."""
    return f"{source or 'unknown'}{UNMAPPED}{owner or 'nobody'}"


def parse_tenants(text: str) -> TenantMappings:
    """Parse mappings from the text of a file. Raises FileError that names the line."""
    by_owner: dict[tuple[str, str], list[TenantMapping]] = {}
    for number, (tenant, source, owner, start, end) in watched_file.read_rows(text, TENANTS_HEADER):
        where = f"line {number}"
        if not (tenant and source and owner):
            message = f"{where}: expected tenant, source and owner, none of them empty"
            raise watched_file.FileError(message)
        if UNMAPPED in tenant:
            message = (
                f"{where}: invalid tenant {tenant!r}: expected no colon, which marks owners"
                " without a tenant"
            )
            raise watched_file.FileError(message)
        mapping = TenantMapping(
            *watched_file.parse_span(start, end or None, where), tenant, source, owner
        )
        by_owner.setdefault((source, owner), []).append(mapping)
    return TenantMappings({key: tuple(sorted(mappings)) for key, mappings in by_owner.items()})
