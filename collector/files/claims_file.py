"""Claims of an administrator: the tenant that holds a GPU or node, from start to end.

CSV with the columns tenant, holds, from, to, and optionally share. `holds` is a GPU's UUID or a
node's name; times are RFC 3339 with an offset; an empty `to` means no end; `share` is a fraction of
each GPU such as 3/8 or 37.5%, empty for all of it. These claims rank above all claims that agents
report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import structlog

from collector.files.watched import MAX_QUOTED, FileError, Watched, rows, span
from collector.metering.evidence import Claim, Level
from railscope.shares import ShareError, parse_share, parse_written_share, share_text

log = structlog.get_logger(__name__)

SOURCE = "file"
HEADER = ("tenant", "holds", "from", "to")
OPTIONAL = ("share",)
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

    def on(self, node: str) -> Claim:
        """The claim for metering: on the named node, or, if empty, on a GPU in any node."""
        return Claim(
            Level.ADMINISTRATOR, self.start_ns, self.id, self.tenant, self.end_ns, node=node,
            exclusive=not self.share, source=SOURCE,
            share=parse_share(self.share) if self.share else None,
        )  # fmt: skip


@dataclass(frozen=True)
class FileClaims:
    """All claims of the file, by their target."""

    by_target: dict[str, tuple[FileClaim, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, claims: Iterable[FileClaim]) -> FileClaims:
        """Claims grouped by their target."""
        grouped: dict[str, list[FileClaim]] = {}
        for claim in claims:
            grouped.setdefault(claim.holds, []).append(claim)
        return cls({target: tuple(sorted(found)) for target, found in grouped.items()})

    def __iter__(self) -> Iterator[FileClaim]:
        return (claim for claims in self.by_target.values() for claim in claims)

    def claims(self, gpu: str, nodes: Iterable[str]) -> Iterator[Claim]:
        """Claims of the file on a GPU that was in these nodes."""
        for claim in self.by_target.get(gpu, ()):
            yield claim.on("")
        for node in nodes:
            for claim in self.by_target.get(node, ()):
                yield claim.on(node)

    def holder(self, node: str, instant_ns: int) -> str:
        """Tenant that holds a whole node at an instant; empty if none does, or only shares of its GPUs."""
        begun = [
            claim
            for claim in self.by_target.get(node, ())
            if claim.start_ns <= instant_ns and not claim.share
        ]
        latest = max(begun, default=None)
        return latest.tenant if latest and instant_ns < latest.end_ns else ""

    def in_force(self, instant_ns: int) -> int:
        """Number of claims in force at an instant."""
        return sum(claim.start_ns <= instant_ns < claim.end_ns for claim in self)

    def overlaps(self) -> Iterator[tuple[FileClaim, FileClaim]]:
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


def parse(text: str) -> FileClaims:
    """Parse claims from the text of a file. Raises FileError that names the line."""
    found = []
    for number, (tenant, holds, start, end, part) in rows(text, HEADER, OPTIONAL):
        if not tenant or not holds:
            quoted = f"{tenant},{holds},{start},{end}"[:MAX_QUOTED]
            message = f"line {number}: needs {','.join(HEADER)}, got {quoted}"
            raise FileError(message)
        try:
            share = share_text(parse_written_share(part)) if part else ""
        except ShareError as error:
            message = f"line {number}: {error}"
            raise FileError(message) from error
        found.append(FileClaim(*span(start, end, f"line {number}"), tenant, holds, share))
    return FileClaims.of(found)


def claims_file(path: Path | None) -> Watched[FileClaims]:
    """The watched claims file of a path; logs overlapping tenants after each read."""
    watched = Watched("claims", path, parse, FileClaims())
    watched.on_change.append(lambda _: _name_overlaps(watched.content))
    return watched


def _name_overlaps(claims: FileClaims) -> None:
    for earlier, later in islice(claims.overlaps(), _MAX_OVERLAPS):
        log.warning("claims_overlap", holds=later.holds, earlier=earlier.tenant,
                    later=later.tenant, advice="the later holds while it lasts, then the earlier holds again")  # fmt: skip
