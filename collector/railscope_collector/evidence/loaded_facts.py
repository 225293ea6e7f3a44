"""Facts of GPUs as read from the database: those of a window, and those beyond it that affect it.

A day of the ledger must not depend on the days that are metered with it. Its window is read with an hour on both
sides, the nearest interval of each node beyond, and those further away that affect it (`further_parts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from railscope.timestamps import DAY_NS
from railscope_collector.evidence import (
    boot_starts,
    claim_events,
    claim_placement,
    evidence_records,
    evidence_tables,
    gpu_evidence,
    node_claims,
    node_intervals,
)


class LoadedFacts(NamedTuple):
    """All facts about the GPUs of some nodes in a window."""

    intervals: dict[str, list[node_intervals.EvidenceInterval]]
    claims: dict[str, list[claim_events.ReportedClaim]]
    ended: dict[str, list[claim_events.ReportedEnd]]
    homes: dict[str, set[str]]
    quarantine: evidence_records.EvidenceQuarantine
    version: int = 0
    contacts: node_intervals.Contacts = node_intervals.NO_CONTACTS
    boots: Mapping[str, list[boot_starts.BootStart]] = {}
    """Starts of boots by GPU, since the first report of the claims that they may end."""

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
        facts = gpu_evidence.collect_facts(gpu, self._intervals(gpu), claims, ended, self.contacts)
        return msgspec.structs.replace(facts, further_boots=self.boots.get(gpu, ()))

    def gpus_in(self, node: str) -> set[str]:
        """Return the GPUs that were seen in a node."""
        return {gpu for interval in self.intervals.get(node, ()) for gpu in interval.gpus}

    def has_unplaced(self, node: str) -> bool:
        """True if a claim of the node names no device."""
        return bool(self.claims.get(claim_events.unplaced_key(node)))

    def read_claims(
        self,
        connection: sa.Connection,
        nodes: Sequence[str],
        span: tuple[int, int],
        since_ns: Mapping[str, int],
    ) -> None:
        """Add the claims of GPUs and nodes that may have been in force in a window, and their ends.

        Also those since the last reading of a GPU's counters before the window, in `since_ns`: it is the start of an
        increment in the window, whose amount belongs to a claim only if that lasted. In a node with claims without a
        device, those since the midnight before it: the claims of a day determine where it places them.
        """
        of_node: dict[str, int] = {}
        for gpu, first_ns in since_ns.items():
            for node in self.homes[gpu]:
                of_node[node] = min(first_ns, of_node.get(node, first_ns))
        midnight_ns = {node: first_ns - first_ns % DAY_NS for node, first_ns in of_node.items()}
        usual_ns = span[0] - evidence_tables.CONTEXT_NS
        by_start: dict[int, list[str]] = {}
        for node in nodes:
            start_ns = midnight_ns.get(node, usual_ns)
            by_start.setdefault(start_ns, []).append(claim_events.unplaced_key(node))
        # First: whether a node has claims without a device decides from when on those of its GPUs are read.
        self._read_claims_from(connection, by_start, span[1])
        by_start.clear()
        for gpu, homes in self.homes.items():
            placed_ns = [midnight_ns[node] for node in homes if self.has_unplaced(node)]
            start_ns = min([usual_ns, *placed_ns, since_ns.get(gpu, usual_ns)])
            by_start.setdefault(start_ns, []).append(gpu)
        self._read_claims_from(connection, by_start, span[1])

    def _read_claims_from(
        self, connection: sa.Connection, by_start: Mapping[int, Sequence[str]], end_ns: int
    ) -> None:
        for start_ns, keys in by_start.items():
            for few in evidence_tables.group_items(sorted(keys)):
                self._read_claims(connection, few, (start_ns, end_ns))

    def _read_claims(
        self, connection: sa.Connection, gpu_group: Sequence[str], span: tuple[int, int]
    ) -> None:
        for row in connection.execute(evidence_tables.select_claims(gpu_group, *span)):
            if claim := self.quarantine.claim(row.fact, row.content):
                self.claims.setdefault(claim.gpu, []).append(claim)
        self._read_other_reports(connection, gpu_group)
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

    def _read_other_reports(self, connection: sa.Connection, gpus: Sequence[str]) -> None:
        """Add all reports with the ids of claims that were read: one with a later start may be the one that counts.

        On GPUs of several nodes the names of claims depend on those of other nodes.
        """
        reports = {gpu: set(self.claims.get(gpu, ())) for gpu in gpus}
        ids = sorted({(gpu, claim.id) for gpu in gpus for claim in reports[gpu]})
        for few in evidence_tables.group_items(ids):
            for row in connection.execute(evidence_tables.select_reports(few)):
                claim = self.quarantine.claim(row.fact, row.content)
                if claim and claim not in reports[claim.gpu]:
                    self.claims[claim.gpu].append(claim)

    def read_boots(
        self, connection: sa.Connection, end_ns: int
    ) -> dict[str, list[boot_starts.BootStart]]:
        """Return by GPU the boots since the first report of its claims, or of those of its nodes without a device."""
        since_ns: dict[str, int] = {}
        keys: set[tuple[str, str, str]] = set()
        for gpu, homes in self.homes.items():
            names = [gpu, *map(claim_events.unplaced_key, homes)]
            reported = (
                claim for name in names for claim in self.claims.get(name, ()) if claim.boot
            )
            if (
                first_ns := min((claim.reported_ns for claim in reported), default=None)
            ) is not None:
                since_ns[gpu] = first_ns
                keys.update(
                    (gpu, part.node, part.boot) for part in self._intervals(gpu) if gpu in part.gpus
                )
        found: set[boot_starts.RecordedBoot] = set()
        for few in evidence_tables.group_items(sorted(keys)):
            found.update(boot_starts.read_starts(connection.execute(boot_starts.select_known(few))))
        for few in evidence_tables.group_items(sorted(since_ns)):
            earliest_ns = min(since_ns[gpu] for gpu in few)
            query = boot_starts.select_later(few, earliest_ns, end_ns + evidence_tables.CONTEXT_NS)
            found.update(boot_starts.read_starts(connection.execute(query)))
        boots: dict[str, list[boot_starts.BootStart]] = {}
        for boot in sorted(found):
            boots.setdefault(boot.gpu, []).append(boot.start)
        return boots

    def _intervals(self, gpu: str) -> list[node_intervals.EvidenceInterval]:
        return [c for node in sorted(self.homes.get(gpu, ())) for c in self.intervals.get(node, ())]


def find_counts(
    connection: sa.Connection,
    quarantine: evidence_records.EvidenceQuarantine,
    nodes: Sequence[str],
    span: tuple[int, int],
) -> dict[str, int]:
    """Return by node the midnight before the start of claims without a device in a window.

    They are on a day where the claims of that day place them, and end on each GPU that they ever held.
    """
    midnights_ns: dict[str, int] = {}
    for few in evidence_tables.group_items([*map(claim_events.unplaced_key, nodes)]):
        for row in connection.execute(evidence_tables.select_claims(few, *span)):
            if claim := quarantine.claim(row.fact, row.content):
                midnight_ns = claim.start_ns - claim.start_ns % DAY_NS
                midnights_ns[claim.node] = min(
                    midnight_ns, midnights_ns.get(claim.node, midnight_ns)
                )
    return midnights_ns


def find_starts(
    connection: sa.Connection,
    quarantine: evidence_records.EvidenceQuarantine,
    gpus: Sequence[str],
    span: tuple[int, int],
) -> dict[str, int]:
    """Return by GPU the first start of the claims on it that may have been in force in a window."""
    starts_ns: dict[str, int] = {}
    for few in evidence_tables.group_items(gpus):
        for row in connection.execute(evidence_tables.select_claims(few, *span)):
            if claim := quarantine.claim(row.fact, row.content):
                starts_ns[claim.gpu] = min(claim.start_ns, starts_ns.get(claim.gpu, claim.start_ns))
    return starts_ns
