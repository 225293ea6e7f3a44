"""Administrators' files about tenants: claims, the tenants of owners, and quotas.

A claim is the tenant that holds a GPU or node, from start to end, in the format of `railscope.claims_file`. These
claims rank above all claims that agents report. Names that only an agent resolves, such as an index, match nothing here.

The tenant of an owner is the payer of a Kubernetes namespace, a Slurm account or a user: CSV with
the columns tenant, source, owner, from, to. `source` is the source of the claim (kubernetes, slurm,
...) or `*` for any; times as in the claims file. At each instant a row of the claim's own source
takes precedence over `*`, and of two rows the one with the later start.

An owner without a row is a tenant of its own, `source:owner`, so that no use is lost; the colon,
which is invalid in a tenant of the file, marks it.

The quotas of tenants are CSV with the columns tenant, gpu_hours, period, gpus, from, to. `period` is
day or month, of UTC. `gpu_hours` and `gpus` may be decimal fractions, or empty for no bound; times as
in the claims file. Of two rows of a tenant and period that are in force, the one that began later
counts. An optional column `budget` is the amount that the tenant may be charged per month, in the
currency of the price book. Quotas and budgets are reported with their use; they are not enforced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from operator import attrgetter
from pathlib import Path

import structlog

from railscope import claim_terms, convert_errors, timestamps, untrusted_text
from railscope.claims_file import ClaimsFileError, parse_claims_file
from railscope_collector.files import watched_file
from railscope_collector.metering import evidence, timeline

log = structlog.get_logger(__name__)

SOURCE = "file"
_MAX_OVERLAPS = 10
_LOCAL_NAME = re.compile(
    r"\*|[0-9]{1,3}|/dev/nvidia[0-9]+|([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
)
"""Names of GPUs that only an agent resolves: all, an index, a device file, a PCI address."""


@dataclass(frozen=True, slots=True, order=True)
class FileClaim:
    """A tenant holds a GPU (by UUID) or all GPUs of a node (by name) in [start, end)."""

    start_ns: int
    end_ns: int
    tenant: str
    target: str
    share: str = ""
    """`n/d` of each GPU; empty for all of it."""
    workload: str = ""
    exclusive: bool = True
    system: bool = False

    @property
    def id(self) -> str:
        """Claim id in the ledger."""
        name = f"{SOURCE}/{self.target}/{self.tenant}/{self.start_ns}"
        name = f"{name}/{self.share}" if self.share else name
        return f"{name}@{self.workload}" if self.workload else name

    def metered_claim(self, node: str) -> evidence.MeteredClaim:
        """The claim for metering: on the named node, or, if empty, on a GPU in any node."""
        return evidence.MeteredClaim(
            claim_terms.ClaimAuthority.ADMINISTRATOR,
            self.start_ns,
            self.id,
            self.tenant,
            self.end_ns,
            self.workload,
            node,
            exclusive=self.exclusive and not self.share,
            system=self.system,
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
        return cls(watched_file.group_rows(claims, attrgetter("target"), lambda claim: claim))

    def __iter__(self) -> Iterator[FileClaim]:
        return (claim for claims in self.by_target.values() for claim in claims)

    def claims_on_gpu(self, gpu: str, nodes: Iterable[str]) -> Iterator[evidence.MeteredClaim]:
        """Claims of the file on a GPU that was in these nodes."""
        for claim in self.by_target.get(gpu, ()):
            yield claim.metered_claim("")
        for node in nodes:
            for claim in self.by_target.get(node, ()):
                yield claim.metered_claim(node)

    def node_holder(self, node: str, timestamp_ns: int) -> str:
        """Tenant that holds a whole node at an instant; empty if none does, or only shares of its GPUs."""
        begun = [
            claim
            for claim in self.by_target.get(node, ())
            if claim.start_ns <= timestamp_ns and claim.exclusive and not claim.share
        ]
        latest = max(begun, default=None)
        return latest.tenant if latest and timestamp_ns < latest.end_ns else ""

    def count_in_force(self, timestamp_ns: int) -> int:
        """Number of claims in force at an instant."""
        return sum(claim.start_ns <= timestamp_ns < claim.end_ns for claim in self)

    def find_overlaps(self) -> Iterator[tuple[FileClaim, FileClaim]]:
        """Claims of two tenants on one GPU or one node at one time, the earlier first.

        A claim on a GPU within a claim on its node is not an error but an exception to it, and the
        file does not specify which GPU is in which node. Shares are intended to coexist.
        """
        for claims in self.by_target.values():
            longest: dict[str, FileClaim] = {}
            for claim in claims:
                if claim.share or not claim.exclusive:
                    continue
                for other in longest.values():
                    if other.tenant != claim.tenant and other.end_ns > claim.start_ns:
                        yield other, claim
                before = longest.get(claim.tenant)
                if before is None or before.end_ns < claim.end_ns:
                    longest[claim.tenant] = claim


def parse_claims(text: str) -> FileClaims:
    """Parse claims from the text of a file. Raises FileError that names the line."""
    with convert_errors(ClaimsFileError, watched_file.FileError):
        lines = parse_claims_file(text, dated=True)
    return FileClaims.from_claims(
        FileClaim(
            line.start_ns or 0,
            timestamps.FOREVER_NS if line.end_ns is None else line.end_ns,
            line.tenant,
            line.gpu,
            line.share,
            line.workload,
            line.exclusive,
            line.system,
        )
        for line in lines
    )


def claims_file(path: Path | None) -> watched_file.WatchedFile[FileClaims]:
    """The watched claims file of a path; logs its problems after each read."""
    watched = watched_file.WatchedFile("claims", path, parse_claims, FileClaims())
    watched.on_change.append(lambda _: _log_problems(watched.content))
    return watched


def _log_problems(claims: FileClaims) -> None:
    if local_names := sorted(filter(_LOCAL_NAME.fullmatch, claims.by_target)):
        log.warning(
            "claims_ignored",
            subjects=local_names[:_MAX_OVERLAPS],
            advice="name a GPU by its UUID, or its node: other names are those of a node's own file",
        )
    for earlier, later in islice(claims.find_overlaps(), _MAX_OVERLAPS):
        log.warning(
            "claims_overlapped",
            subject=later.target,
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


QUOTAS_HEADER = ("tenant", "gpu_hours", "period", "gpus", "from", "to")
BUDGET_COLUMN = "budget"
MONTH = "month"
QUOTA_PERIODS = ("day", MONTH)


@dataclass(frozen=True, slots=True)
class Quota:
    """Quota of a tenant in [start, end)."""

    start_ns: int
    end_ns: int
    tenant: str
    period: str
    gpu_hours: Fraction | None
    gpus: Fraction | None
    budget: Fraction | None = None
    """Charges per month, in the currency of the price book."""

    @property
    def gpu_time_ns(self) -> Fraction | None:
        """GPU time per period."""
        return None if self.gpu_hours is None else self.gpu_hours * timestamps.HOUR_NS


@dataclass(frozen=True, slots=True)
class Quotas:
    """All rows of the file, by start."""

    quotas: tuple[Quota, ...] = ()

    def in_force(self, timestamp_ns: int) -> Iterator[Quota]:
        """Yield the quota of each tenant and period at a timestamp."""
        quotas: dict[tuple[str, str], Quota] = {}
        for quota in self.quotas:
            if quota.start_ns <= timestamp_ns < quota.end_ns:
                quotas[quota.tenant, quota.period] = quota
        yield from quotas.values()

    def find_budget(self, tenant: str, timestamp_ns: int) -> Fraction | None:
        """Return the budget of a tenant at a timestamp; None if it has none."""
        row_key = (tenant, MONTH)
        in_force = self.in_force(timestamp_ns)
        return next((row.budget for row in in_force if (row.tenant, row.period) == row_key), None)


def parse_quotas(text: str) -> Quotas:
    """Parse the text of a file. Raises FileError that names the line."""
    parsed = []
    for number, (tenant, gpu_hours, period, gpus, start, end, budget) in watched_file.read_rows(
        text, QUOTAS_HEADER, BUDGET_COLUMN
    ):
        location = f"line {number}"
        if not tenant or period not in QUOTA_PERIODS:
            message = f"invalid quota: {location}: tenant {tenant!r}, period {period!r}: expected a tenant, and a period of {' or '.join(QUOTA_PERIODS)}"
            raise watched_file.FileError(message)
        if budget and period != MONTH:
            message = f"invalid quota: {location}, budget: {untrusted_text.quote_text(budget)} in a row of period {period!r}: expected the period {MONTH!r}: budgets are per month"
            raise watched_file.FileError(message)
        bounds = (
            _amount(gpu_hours, f"{location}, gpu_hours"),
            _amount(gpus, f"{location}, gpus"),
            _amount(budget, f"{location}, {BUDGET_COLUMN}"),
        )
        parsed.append(
            Quota(*watched_file.parse_span(start, end or None, location), tenant, period, *bounds)
        )
    return Quotas(tuple(sorted(parsed, key=lambda quota: (quota.start_ns, quota.tenant))))


def _amount(text: str, location: str) -> Fraction | None:
    if not text:
        return None
    try:
        return untrusted_text.parse_decimal(text, minimum=0)
    except untrusted_text.NumberError as error:
        message = f"invalid quota: {location}: {error}"
        raise watched_file.FileError(message) from error


def quotas_file(path: Path | None) -> watched_file.WatchedFile[Quotas]:
    """The watched quotas file of a path."""
    return watched_file.WatchedFile("quotas", path, parse_quotas, Quotas())
