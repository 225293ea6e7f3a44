"""Claims: who holds which GPU or node, from when to when, by the word of a claims file.

CSV with the columns tenant, holds, from, to. `holds` is a GPU's UUID or a node's name; times are
RFC 3339 with an offset; an empty `to` means until further notice. Where two claims on one GPU
overlap, the earlier ends where the later begins: no instant has two holders.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from operator import attrgetter
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

HEADER = ["tenant", "holds", "from", "to"]
FOREVER_NS = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WATCH_SECONDS = 1.0
_MOST_OVERLAPS = 10
_MOST_QUOTED = 200
_START = attrgetter("start_ns")


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
    """All claims, by what they hold. Never changed once made, so holdings are worked out once."""

    by_target: dict[str, tuple[Claim, ...]] = field(default_factory=dict)
    _holdings: dict[tuple[str, str], tuple[Holding, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, claims: Iterable[Claim]) -> Claims:
        """Claims sorted by what they hold."""
        grouped: dict[str, list[Claim]] = {}
        for claim in claims:
            grouped.setdefault(claim.holds, []).append(claim)
        return cls({target: tuple(sorted(found)) for target, found in grouped.items()})

    def holdings(self, gpu: str, node: str) -> tuple[Holding, ...]:
        """Who holds a GPU of a node, over all time: disjoint, in order."""
        key = (gpu, node)
        found = self._holdings.get(key)
        if found is None:
            found = self._holdings[key] = tuple(self._disjoint(gpu, node))
        return found

    def _disjoint(self, gpu: str, node: str) -> list[Holding]:
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
        holdings = self.holdings(gpu, node)
        begun = bisect_right(holdings, instant_ns, key=_START)
        if begun and instant_ns < holdings[begun - 1].end_ns:
            return holdings[begun - 1].tenant
        return ""

    def in_force(self, instant_ns: int) -> int:
        """How many claims hold something at an instant."""
        every = (claim for claims in self.by_target.values() for claim in claims)
        return sum(claim.start_ns <= instant_ns < claim.end_ns for claim in every)

    def overlaps(self) -> Iterator[tuple[Claim, Claim]]:
        """Claims of two tenants on one GPU or one node at one time, the earlier first.

        A claim on a GPU within a claim on its node is no mistake but an exception to it, and the
        file does not say which GPU is in which node.
        """
        for claims in self.by_target.values():
            longest: dict[str, Claim] = {}
            for claim in claims:
                for other in longest.values():
                    if other.tenant != claim.tenant and other.end_ns > claim.start_ns:
                        yield other, claim
                before = longest.get(claim.tenant)
                if before is None or before.end_ns < claim.end_ns:
                    longest[claim.tenant] = claim


def parse(text: str) -> Claims:
    """Claims from the text of a file. Raises ClaimsError that names the line."""
    rows = _rows(text)
    number, header = next(rows, (1, []))
    if header != HEADER:
        message = f"line {number}: the header must be {','.join(HEADER)}"
        raise ClaimsError(message)
    return Claims.of(_claim(row, number) for number, row in rows)


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """The rows with the number of the line each begins on. Comments count as empty lines."""
    lines = text.replace("\r\n", "\n").split("\n")
    reader = csv.reader(("" if line.startswith("#") else line for line in lines), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            message = f"line {number}: {error}"
            raise ClaimsError(message) from error
        if row is None:
            return
        if row:
            yield number, [cell.strip() for cell in row]


def _claim(row: list[str], number: int) -> Claim:
    if len(row) != len(HEADER) or not row[0] or not row[1]:
        message = f"line {number}: needs {','.join(HEADER)}, got {','.join(row)[:_MOST_QUOTED]}"
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
        message = f"line {number}: {text[:_MOST_QUOTED]!r} is no time like 2026-01-31T08:00:00Z"
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
    _ever_valid: bool = False

    @property
    def known(self) -> bool:
        """Whether anything is known of who holds what: no file says that no one holds anything.

        A file that could never be read says nothing, and no claims are not its meaning.
        """
        return self.path is None or self._ever_valid

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
            self.claims = parse(content.decode())
            self.valid = self._ever_valid = True
        except (OSError, ClaimsError, UnicodeDecodeError) as error:
            if self.valid or not isinstance(error, OSError):
                log.error("claims_refused", file=str(self.path), problem=str(error),
                          advice="the last good claims stay in force")  # fmt: skip
            self.valid = False
            if isinstance(error, OSError):
                self._digest = b""
            return
        targets = len(self.claims.by_target)
        log.info("claims_read", file=str(self.path), targets=targets)
        for earlier, later in islice(self.claims.overlaps(), _MOST_OVERLAPS):
            log.warning("claims_overlap", holds=later.holds, earlier=earlier.tenant,
                        later=later.tenant, advice="the earlier ends where the later begins")  # fmt: skip
