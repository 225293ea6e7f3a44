"""Claims of administrators: the tenant that holds a GPU or node, from start to end.

The format is that of `railscope.claims_file`. These claims rank above all claims that agents report. Names that only an
agent resolves, such as an index, match nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from pathlib import Path

import structlog

from railscope import claim_terms, convert_errors, timestamps
from railscope.claims_file import ClaimsFileError, parse_claims_file
from railscope_collector.files import watched_file
from railscope_collector.metering import evidence, holders

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


def _precedence(claim: FileClaim) -> tuple[holders.Precedence, FileClaim]:
    return holders.claim_order(claim.metered_claim("")), claim


@dataclass(frozen=True)
class FileClaims:
    """All claims of the file, by their target, in ascending precedence as in metering."""

    by_target: dict[str, tuple[FileClaim, ...]] = field(default_factory=dict)

    @classmethod
    def from_claims(cls, claims: Iterable[FileClaim]) -> FileClaims:
        """Claims grouped by their target."""
        return cls(watched_file.group_rows(claims, attrgetter("target"), _precedence))

    def __iter__(self) -> Iterator[FileClaim]:
        return (claim for claims in self.by_target.values() for claim in claims)

    def claims_on_gpu(self, gpu: str, nodes: Iterable[str]) -> Iterator[evidence.MeteredClaim]:
        """Claims of the file on a GPU that was in these nodes."""
        if gpu.startswith(claim_terms.GPU_UUID_PREFIX):
            for claim in self.by_target.get(gpu, ()):
                yield claim.metered_claim("")
        for node in nodes:
            for claim in self.by_target.get(node, ()):
                yield claim.metered_claim(node)

    def node_holder(self, node: str, timestamp_ns: int) -> str:
        """Tenant that holds a whole node at an instant; empty if none does, or only shares of its GPUs.

        As in metering, an earlier claim resumes when a later one ends.
        """
        in_force = (
            claim.tenant
            for claim in reversed(self.by_target.get(node, ()))
            if claim.start_ns <= timestamp_ns < claim.end_ns and claim.exclusive and not claim.share
        )
        return next(in_force, "")

    def count_in_force(self, timestamp_ns: int) -> int:
        """Number of claims in force at an instant."""
        return sum(claim.start_ns <= timestamp_ns < claim.end_ns for claim in self)

    def find_overlaps(self) -> Iterator[tuple[FileClaim, FileClaim]]:
        """Claims of two tenants on one GPU or one node at one time, the earlier first.

        A claim on a GPU within a claim on its node is not an error but an exception to it, and the
        file does not specify which GPU is in which node. Shares are intended to coexist.
        """
        for claims in self.by_target.values():
            # In order of start: if any earlier claim of a tenant overlaps, the one that ends last does.
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
        lines = parse_claims_file(text)
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


def watch(path: Path | None) -> watched_file.WatchedFile[FileClaims]:
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
