"""Claims: who holds which GPU or node, from when to when, by the word of a claims file.

CSV with the columns tenant, holds, from, to. `holds` is a GPU's UUID or a node's name; times are
RFC 3339 with an offset; an empty `to` means until further notice. Where two claims on one GPU
overlap, the earlier ends where the later begins: no instant has two holders.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

HEADER = ["tenant", "holds", "from", "to"]
FOREVER_NS = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WATCH_SECONDS = 1.0


class ClaimsError(ValueError):
    """A claims file that cannot be used; the message names the line."""


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """A tenant holds a GPU (by UUID) or all GPUs of a node (by name) in [start, end)."""

    start_ns: int
    end_ns: int
    tenant: str
    holds: str


@dataclass(frozen=True, slots=True)
class Holding:
    """A stretch of time with one holder."""

    start_ns: int
    end_ns: int
    tenant: str


@dataclass(frozen=True)
class Claims:
    """All claims, by what they hold."""

    by_target: dict[str, tuple[Claim, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, claims: Iterable[Claim]) -> Claims:
        """Claims sorted by what they hold."""
        grouped: dict[str, list[Claim]] = {}
        for claim in claims:
            grouped.setdefault(claim.holds, []).append(claim)
        return cls({target: tuple(sorted(found)) for target, found in grouped.items()})

    def holdings(self, gpu: str, node: str) -> list[Holding]:
        """Who holds a GPU of a node, over all time: disjoint, in order."""
        claims = sorted((*self.by_target.get(gpu, ()), *self.by_target.get(node, ())))
        held: list[Holding] = []
        for claim in claims:
            if held and held[-1].end_ns > claim.start_ns:
                earlier = held.pop()
                if earlier.start_ns < claim.start_ns:
                    held.append(Holding(earlier.start_ns, claim.start_ns, earlier.tenant))
            held.append(Holding(claim.start_ns, claim.end_ns, claim.tenant))
        return held

    def holder(self, gpu: str, node: str, instant_ns: int) -> str:
        """Who holds a GPU at an instant; empty for no one."""
        for holding in self.holdings(gpu, node):
            if holding.start_ns <= instant_ns < holding.end_ns:
                return holding.tenant
        return ""

    def in_force(self, instant_ns: int) -> int:
        """How many claims hold something at an instant."""
        every = (claim for claims in self.by_target.values() for claim in claims)
        return sum(claim.start_ns <= instant_ns < claim.end_ns for claim in every)


def parse(text: str) -> Claims:
    """Claims from the text of a file. Raises ClaimsError that names the line."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows = csv.reader(lines)
    header = next(rows, None)
    if header is None or [cell.strip() for cell in header] != HEADER:
        message = f"line 1: the header must be {','.join(HEADER)}"
        raise ClaimsError(message)
    claims = []
    for number, row in enumerate(rows, start=2):
        if row:
            claims.append(_claim([cell.strip() for cell in row], number))
    return Claims.of(claims)


def _claim(row: list[str], number: int) -> Claim:
    if len(row) != len(HEADER) or not row[0] or not row[1]:
        message = f"line {number}: needs {','.join(HEADER)}, got {','.join(row)}"
        raise ClaimsError(message)
    tenant, holds, start, end = row
    start_ns = _instant_ns(start, number)
    end_ns = _instant_ns(end, number) if end else FOREVER_NS
    if end_ns <= start_ns:
        message = f"line {number}: the claim ends before it begins"
        raise ClaimsError(message)
    return Claim(start_ns, end_ns, tenant, holds)


def _instant_ns(text: str, number: int) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"line {number}: {text!r} is no time like 2026-01-31T08:00:00Z"
        raise ClaimsError(message) from error
    if moment.tzinfo is None:
        message = f"line {number}: {text!r} has no offset; write Z for UTC"
        raise ClaimsError(message)
    elapsed = moment - _EPOCH
    return ((elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds) * 1000


@dataclass(slots=True)
class ClaimsFile:
    """Watches a claims file; keeps the last good claims while the file is broken."""

    path: Path | None
    claims: Claims = field(default_factory=Claims)
    valid: bool = True
    _digest: bytes = b""

    async def watch(self) -> None:
        """Read the file whenever it changes, until cancelled."""
        while self.path:
            await asyncio.to_thread(self.refresh)
            await asyncio.sleep(_WATCH_SECONDS)

    def refresh(self) -> None:
        """Read the file if it has changed since the last time."""
        if self.path is None:
            return
        try:
            content = self.path.read_bytes()
            digest = hashlib.sha256(content).digest()
            if digest == self._digest:
                return
            self._digest = digest
            self.claims, self.valid = parse(content.decode()), True
        except (OSError, ClaimsError, UnicodeDecodeError) as error:
            if self.valid or not isinstance(error, OSError):
                log.error("claims_refused", file=str(self.path), problem=str(error),
                          advice="the last good claims stay in force")  # fmt: skip
            self.valid = False
            return
        targets = len(self.claims.by_target)
        log.info("claims_read", file=str(self.path), targets=targets)
