"""Facts of GPUs as read from the database: those of a window, and those beyond it that affect it.

A day of the ledger must not depend on the days that are metered with it. Its window is read with an hour on both
sides and the nearest interval of each node beyond. If these do not list a GPU, because the node stopped reporting it,
further intervals are read until they do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import sqlalchemy as sa

from collector.evidence import (
    claim_events,
    claim_placement,
    evidence_records,
    evidence_tables,
    gpu_evidence,
    gpu_node_history,
    node_claims,
    node_intervals,
)

MAX_PARTS = 1344
"""Parts of 15 minutes in two weeks: the furthest that is read beyond a window."""
LISTED_PARTS = 4
"""Parts before a window that list a GPU: of an hour, so that they contain what its node reports less often."""


class LoadedFacts(NamedTuple):
    """All facts about the GPUs of some nodes in a window."""

    intervals: dict[str, list[node_intervals.EvidenceInterval]]
    claims: dict[str, list[claim_events.ReportedClaim]]
    ended: dict[str, list[claim_events.ReportedEnd]]
    homes: dict[str, set[str]]
    quarantine: evidence_records.EvidenceQuarantine
    version: int = 0
    contacts: node_intervals.Contacts = node_intervals.NO_CONTACTS

    def assemble(
        self, gpu: str, files: gpu_evidence.AdministratorInputs
    ) -> gpu_evidence.AssembledGpu:
        """Return everything about one of the GPUs."""
        intervals = self._intervals(gpu)
        placed = None
        if any(self.has_unplaced(node) for node in self.homes.get(gpu, ())):
            placed = claim_placement.ClaimPlacer(self, files).evidence(gpu)
        return gpu_evidence.assemble_gpu(self.facts(gpu), intervals, files, placed)

    def facts(self, gpu: str) -> node_claims.GpuFacts:
        """Return the facts about one of the GPUs, or about other GPUs of their nodes."""
        claims, ended = self.claims.get(gpu, ()), self.ended.get(gpu, ())
        return gpu_evidence.collect_facts(gpu, self._intervals(gpu), claims, ended, self.contacts)

    def gpus_in(self, node: str) -> set[str]:
        """Return the GPUs that were seen in a node."""
        return {gpu for interval in self.intervals.get(node, ()) for gpu in interval.gpus}

    def has_unplaced(self, node: str) -> bool:
        """True if a claim of the node names no device."""
        return bool(self.claims.get(claim_events.unplaced_key(node)))

    def read_claims(
        self, connection: sa.Connection, gpus: Sequence[str], span: tuple[int, int]
    ) -> None:
        """Add the claims of GPUs that may have been in force in a window, and their ends."""
        for gpu_group in evidence_tables.group_items(gpus):
            for row in connection.execute(evidence_tables.select_claims(gpu_group, *span)):
                if claim := self.quarantine.claim(row.fact, row.content):
                    self.claims.setdefault(claim.gpu, []).append(claim)
            pairs = [
                (claim.gpu, claim.node, claim.id)
                for gpu in gpu_group
                for claim in self.claims.get(gpu, ())
            ]
            for few in evidence_tables.group_items(pairs):
                for row in connection.execute(evidence_tables.select_ends(few)):
                    key = (row.instant_ns, row.gpu_uuid, row.node, row.claim_id)
                    end = claim_events.ReportedEnd(*key, row.trusted_from_ns)
                    self.ended.setdefault(end.gpu, []).append(end)

    def _intervals(self, gpu: str) -> list[node_intervals.EvidenceInterval]:
        return [c for node in sorted(self.homes.get(gpu, ())) for c in self.intervals.get(node, ())]


@dataclass(slots=True)
class BeyondWindow:
    """Search of a node's intervals beyond a window for those that list its GPUs."""

    connection: sa.Connection
    quarantine: evidence_records.EvidenceQuarantine
    node: str
    window: tuple[int, int]

    def find(
        self,
        read: Sequence[node_intervals.EvidenceInterval],
        gpus: set[str],
        shared: set[str],
    ) -> list[node_intervals.EvidenceInterval]:
        """Return further intervals than those that were read.

        Before the window, until they show where each of the `shared` GPUs was, and list all others that the node
        had; after it, until they list each GPU again.
        """
        low_ns, high_ns = self.window
        found: list[node_intervals.EvidenceInterval] = []
        earlier = [interval for interval in read if interval.start_ns < low_ns]
        ends = [interval.end_ns for interval in earlier]
        parts = self._parts(min(ends), is_before=True) if ends else iter(())
        while any(not _is_known(gpu, earlier, is_shared=gpu in shared) for gpu in gpus):
            if (more := next(parts, None)) is None:
                break
            earlier += more
            found += more
        later = [interval for interval in read if interval.end_ns > high_ns]
        starts = [interval.start_ns for interval in later]
        parts = self._parts(max(starts), is_before=False) if starts else iter(())
        while not all(any(gpu in interval.gpus for interval in later) for gpu in gpus):
            if (more := next(parts, None)) is None:
                break
            later += more
            found += more
        return found

    def _parts(
        self, edge_ns: int, *, is_before: bool
    ) -> Iterator[list[node_intervals.EvidenceInterval]]:
        """Yield the intervals that end before a timestamp, or start after it, the nearest first."""
        return islice(self._all_parts(edge_ns, is_before=is_before), MAX_PARTS)

    def _all_parts(
        self, edge_ns: int, *, is_before: bool
    ) -> Iterator[list[node_intervals.EvidenceInterval]]:
        table = evidence_tables.evidence_intervals.c
        edge = table.end_ns if is_before else table.start_ns
        nearest = sa.func.max(edge) if is_before else sa.func.min(edge)
        query = sa.select(table.part, table.content).order_by(table.part)
        while True:
            beyond: Any = edge < edge_ns if is_before else edge > edge_ns
            found = sa.select(nearest).where(table.node == self.node, beyond)
            next_ns = self.connection.execute(found).scalar()
            if next_ns is None:
                return
            edge_ns = next_ns
            rows = self.connection.execute(query.where(table.node == self.node, edge == edge_ns))
            yield [interval for row in rows if (interval := self.quarantine.interval(*row))]


def _is_known(
    gpu: str, earlier: Sequence[node_intervals.EvidenceInterval], *, is_shared: bool
) -> bool:
    """True if intervals before a window contain all that affects it about a GPU of their node."""
    listed = sum(gpu in interval.gpus for interval in earlier)
    if not listed and is_shared:  # it may have left the node, and be in another one
        return not gpu_node_history.is_undecided(gpu, earlier)
    return listed >= LISTED_PARTS
