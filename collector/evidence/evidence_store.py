"""Usage evidence in the ledger's database. All calls block, and raise LedgerError."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

import structlog
from sqlalchemy import Connection, func, select

from collector.evidence import (
    claim_events,
    claim_placement,
    evidence_records,
    evidence_tables,
    gpu_evidence,
    gpu_places,
    node_chunks,
    node_claims,
)
from collector.ledger import audit_outbox, schema
from collector.ledger.database import Database
from railscope.timestamps import FOREVER_NS

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

log = structlog.get_logger(__name__)

_LEVEL = 6
MAX_EARLIER_PARTS = 1344
"""Parts of 15 minutes in two weeks."""


class EncodedChunk(NamedTuple):
    """A chunk ready to be written: its name, node and time, and its content compressed with zstd."""

    name: str
    node: str
    start_ns: int
    end_ns: int
    gpus: dict[str, int]
    """First sample of each GPU in it."""
    content: bytes
    believed_ns: int = 0
    """The latest trusted start of a boot that was reported late; 0 for none."""


class LoadedFacts(NamedTuple):
    """All facts about the GPUs of some nodes in a window."""

    chunks: dict[str, list[node_chunks.EvidenceChunk]]
    claims: dict[str, list[claim_events.ReportedClaim]]
    ended: dict[str, list[claim_events.ReportedEnd]]
    homes: dict[str, set[str]]
    quarantine: evidence_records.EvidenceQuarantine
    version: int = 0
    contacts: node_chunks.Contacts = node_chunks.NO_CONTACTS

    def known(self, gpu: str, files: gpu_evidence.AdministratorInputs) -> gpu_evidence.AssembledGpu:
        """Return everything about one of the GPUs."""
        chunks = self._chunks(gpu)
        placed = None
        if any(self.has_unplaced(node) for node in self.homes.get(gpu, ())):
            placed = claim_placement.ClaimPlacer(self, files).evidence(gpu)
        return gpu_evidence.assemble_gpu(self.facts(gpu), chunks, files, placed)

    def facts(self, gpu: str) -> node_claims.GpuFacts:
        """Return the facts about one of the GPUs, or about other GPUs of their nodes."""
        claims, ended = self.claims.get(gpu, ()), self.ended.get(gpu, ())
        return gpu_evidence.facts_of(gpu, self._chunks(gpu), claims, ended, self.contacts)

    def gpus_in(self, node: str) -> set[str]:
        """Return the GPUs that were seen in a node."""
        return {gpu for chunk in self.chunks.get(node, ()) for gpu in chunk.gpus}

    def has_unplaced(self, node: str) -> bool:
        """True if a claim of the node names no device."""
        return bool(self.claims.get(claim_events.unplaced_in(node)))

    def read_claims(
        self, connection: Connection, gpus: Sequence[str], span: tuple[int, int]
    ) -> None:
        """Add the claims of GPUs that may have been in force in a window, and their ends."""
        for some in evidence_tables.groups_of(gpus):
            for row in connection.execute(evidence_tables.claims_of(some, *span)):
                if one := self.quarantine.claim(row.fact, row.content):
                    self.claims.setdefault(one.gpu, []).append(one)
            pairs = [
                (one.gpu, one.node, one.id) for gpu in some for one in self.claims.get(gpu, ())
            ]
            for few in evidence_tables.groups_of(pairs):
                for row in connection.execute(evidence_tables.releases_of(few)):
                    key = (row.instant_ns, row.gpu_uuid, row.node, row.claim_id)
                    end = claim_events.ReportedEnd(*key, row.trusted_from_ns)
                    self.ended.setdefault(end.gpu, []).append(end)

    def _chunks(self, gpu: str) -> list[node_chunks.EvidenceChunk]:
        return [c for node in sorted(self.homes.get(gpu, ())) for c in self.chunks.get(node, ())]


def compress_chunk(
    chunk: node_chunks.EvidenceChunk,
    content: bytes,
    contacts: node_chunks.Contacts = node_chunks.NO_CONTACTS,
) -> EncodedChunk:
    """Return a chunk ready to be written; `content` is its encoding."""
    name = sha256(content).hexdigest()
    gpus = {
        gpu: max(
            s.spans[0].first_ns, node_chunks.floor_ns(contacts, gpu, chunk.node, [s.received_ns])
        )
        for gpu, s in chunk.gpus.items()
        if s.spans
    }
    packed = zstd.compress(content, _LEVEL)
    believed_ns = max((sighted.believed_ns for sighted in chunk.gpus.values()), default=0)
    return EncodedChunk(name, chunk.node, chunk.start_ns, chunk.end_ns, gpus, packed, believed_ns)


class EvidenceStore:
    """Facts of all collectors that write this database."""

    def __init__(
        self, database: Database, quarantine: evidence_records.EvidenceQuarantine | None = None
    ) -> None:
        self._database = database
        self.quarantine = quarantine or evidence_records.EvidenceQuarantine()

    # Writing -----------------------------------------------------------------------------------

    def write(
        self,
        chunks: Sequence[EncodedChunk],
        facts: Sequence[claim_events.ClaimFact],
        recorded_ns: int,
        early: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        """Add facts; existing ones are not added again.

        `early` has the start of claims that began before first contact with their GPU, by GPU and
        node.
        """
        rows = [
            schema.row_of(
                evidence_tables.evidence_parts, one, part=one.name, recorded_ns=recorded_ns
            )
            for one in chunks
        ]
        trust = [
            {"fact": one.name, "trusted_from_ns": one.believed_ns}
            for one in chunks
            if one.believed_ns
        ]
        starts, ends = [], []
        for fact in facts:
            row = evidence_tables.claim_row(fact, recorded_ns)
            if isinstance(fact, claim_events.ReportedClaim):
                starts.append(row)
                continue
            ends.append(row)
            if fact.trusted_from_ns:
                trust.append({"fact": row["fact"], "trusted_from_ns": fact.trusted_from_ns})
        since = dict(early or {})
        for one in chunks:
            for gpu, first_ns in one.gpus.items():
                key = (gpu, one.node)
                since[key] = min(first_ns, since.get(key, first_ns))
        with self._database.transaction(writes=True) as connection:
            for table, new in (
                (evidence_tables.evidence_parts, rows),
                (evidence_tables.reported_claims, starts),
                (evidence_tables.claim_ends, ends),
                (evidence_tables.claim_end_trust, trust),
                (evidence_tables.gpu_nodes, evidence_tables.new_homes(connection, since)),
            ):
                evidence_tables.insert_new_rows(connection, table, new)

    def write_contacts(self, found: node_chunks.Contacts) -> None:
        """Add first receipts of GPUs."""
        with self._database.transaction(writes=True) as connection:
            rows = evidence_tables.contact_rows(found)
            evidence_tables.insert_new_rows(connection, evidence_tables.first_contacts, rows)

    def write_file(self, kind: str, text: str, recorded_ns: int) -> bool:
        """Add a version of a file, unless it is the newest already."""
        digest = sha256(text.encode()).hexdigest()
        with self._database.transaction(writes=True) as connection:
            newest = evidence_tables.newest_file(connection, kind)
            if newest and newest.digest == digest:
                return False
            if newest:
                recorded_ns = max(recorded_ns, newest.recorded_ns + 1)
            before = newest.content if newest else ""
            version = evidence_records.FileVersion(kind, text, before, digest, recorded_ns)
            row = schema.row_of(evidence_tables.file_versions, version, content=text)
            evidence_tables.insert_new_rows(connection, evidence_tables.file_versions, [row])
            for name, draft in version.drafts():
                audit_outbox.put_record(connection, name, draft)
        return True

    def record_problems(self, problems: Sequence[evidence_records.EvidenceProblem]) -> None:
        """Put problems into the outbox of the audit log, each once."""
        if not problems:
            return
        with self._database.transaction(writes=True) as connection:
            for one in problems:
                try:
                    audit_outbox.put_record(connection, one.id, one.draft())
                except audit_outbox.OutboxError as error:
                    log.error(
                        "evidence_problem_write_failed",
                        kind=one.kind,
                        gpu=one.gpu,
                        problem=str(error),
                    )

    # Reading -----------------------------------------------------------------------------------

    def files(self) -> gpu_evidence.AdministratorInputs:
        """Return administrators' files by the newest version of each, and decisions."""
        with self._database.transaction() as connection:
            newest = {
                kind: evidence_tables.newest_file(connection, kind)
                for kind in evidence_tables.PARSERS
            }
            decided = evidence_tables.decisions_of(connection)
        parsed = {
            kind: evidence_tables.PARSERS[kind](row.content) for kind, row in newest.items() if row
        }
        return gpu_evidence.AdministratorInputs(**parsed, decisions=decided)

    def file(self, kind: str) -> str | None:
        """Return the newest version of one file; None if none was ever stored."""
        with self._database.transaction() as connection:
            row = evidence_tables.newest_file(connection, kind)
        return row.content if row else None

    def homes(self) -> dict[str, dict[str, int]]:
        """Return for every GPU the nodes it was seen in, and since when."""
        query = select(
            evidence_tables.gpu_nodes.c.gpu_uuid,
            evidence_tables.gpu_nodes.c.node,
            func.min(evidence_tables.gpu_nodes.c.since_ns).label("since"),
        )
        query = query.group_by(
            evidence_tables.gpu_nodes.c.gpu_uuid, evidence_tables.gpu_nodes.c.node
        )
        found: dict[str, dict[str, int]] = {}
        with self._database.transaction() as connection:
            for row in connection.execute(query):
                found.setdefault(row.gpu_uuid, {})[row.node] = row.since
        return found

    def contacts(self) -> node_chunks.Contacts:
        """Return first receipts of all GPUs, by node."""
        with self._database.transaction() as connection:
            return evidence_tables.contacts_of(connection)

    def evidence(self, gpu: str, start_ns: int, end_ns: int) -> gpu_evidence.AssembledGpu:
        """Return everything about a GPU in a window, with the facts around it that affect it."""
        found = self.homes().get(gpu, {})
        loaded = self.load([gpu], {gpu: set(found)}, start_ns, end_ns)
        return loaded.known(gpu, self.files())

    def load(
        self, gpus: Sequence[str], homes_of: dict[str, set[str]], start_ns: int, end_ns: int
    ) -> LoadedFacts:
        """Return the facts about some GPUs in a window, with the facts around it that affect it."""
        nodes = sorted({node for gpu in gpus for node in homes_of.get(gpu, ())})
        chunks: dict[str, list[node_chunks.EvidenceChunk]] = {}
        shared: dict[str, set[str]] = {}
        for gpu in gpus:
            if len(homes_of.get(gpu, ())) > 1:
                for node in homes_of[gpu]:
                    shared.setdefault(node, set()).add(gpu)
        with self._database.transaction() as connection:
            for node in nodes:
                found = evidence_tables.parts_of(connection, node, start_ns, end_ns)
                chunks[node] = [chunk for part in found if (chunk := self.quarantine.chunk(*part))]
                if node in shared:
                    since_ns = start_ns - evidence_tables.CONTEXT_NS
                    chunks[node] += self._earlier(connection, chunks[node], shared[node], since_ns)
            span = (start_ns, end_ns)
            wanted = {gpu: homes_of.get(gpu, set()) for gpu in gpus}
            known_contacts = evidence_tables.contacts_of(connection, nodes)
            loaded = LoadedFacts(chunks, {}, {}, wanted, self.quarantine, contacts=known_contacts)
            loaded.read_claims(connection, [*gpus, *map(claim_events.unplaced_in, nodes)], span)
            # A claim without a device is placed considering all claims in its node.
            for node in filter(loaded.has_unplaced, nodes):
                others = sorted(loaded.gpus_in(node) - wanted.keys())
                loaded.read_claims(connection, others, span)
                for gpu in others:
                    wanted.setdefault(gpu, set()).add(node)
        return loaded

    def _earlier(
        self,
        connection: Connection,
        known: Sequence[node_chunks.EvidenceChunk],
        gpus: set[str],
        start_ns: int,
    ) -> list[node_chunks.EvidenceChunk]:
        """Return earlier chunks of a node, until they show if it had each GPU at a timestamp.

        They reach no further back than a node's reports of two weeks.
        """
        found = [chunk for chunk in known if chunk.start_ns < start_ns]
        if not found:
            return []
        node = found[0].node
        end_ns = min(chunk.end_ns for chunk in found)
        older: list[node_chunks.EvidenceChunk] = []
        for _ in range(MAX_EARLIER_PARTS):
            if not any(gpu_places.is_undecided(gpu, [*older, *found]) for gpu in gpus):
                break
            rows = evidence_tables.parts_before(connection, node, end_ns)
            if not rows:
                break
            more = [chunk for row in rows if (chunk := self.quarantine.chunk(*row[:2]))]
            older += more
            end_ns = min(row[2] for row in rows)
        return older

    def late_boots(self) -> dict[str, list[node_chunks.EvidenceChunk]]:
        """Return the chunks with boots that were reported late, by GPU."""
        found: dict[str, list[node_chunks.EvidenceChunk]] = {}
        query = select(
            evidence_tables.evidence_parts.c.part, evidence_tables.evidence_parts.c.content
        ).join(
            evidence_tables.claim_end_trust,
            evidence_tables.claim_end_trust.c.fact == evidence_tables.evidence_parts.c.part,
        )
        with self._database.transaction() as connection:
            rows = connection.execute(query.order_by(evidence_tables.evidence_parts.c.part)).all()
        for row in rows:
            chunk = self.quarantine.chunk(row.part, row.content)
            if chunk is None:
                continue
            for gpu, sighted in chunk.gpus.items():
                if sighted.believed_ns:
                    found.setdefault(gpu, []).append(chunk)
        return found

    def claim_facts(self, gpus: Sequence[str], start_ns: int) -> list[claim_events.ClaimFact]:
        """Return the claims of GPUs that may have been in force after a timestamp, and their ends."""
        loaded = self.load(gpus, {}, start_ns, FOREVER_NS - evidence_tables.CONTEXT_NS)
        found: list[claim_events.ClaimFact] = []
        for gpu in gpus:
            found += loaded.claims.get(gpu, ())
            found += loaded.ended.get(gpu, ())
        return found

    def changes(self, recorded_after_ns: int) -> list[evidence_tables.EvidenceChange]:
        """Return the facts that were recorded after a timestamp."""
        with self._database.transaction() as connection:
            return list(evidence_tables.find_facts_recorded_after(connection, recorded_after_ns))

    def late(
        self, homes_of: Mapping[str, Iterable[str]], which: evidence_tables.LateCondition
    ) -> list[evidence_tables.EvidenceChange]:
        """Return the late facts about some GPUs and the nodes that they were in."""
        nodes = sorted({node for nodes in homes_of.values() for node in nodes})
        with self._database.transaction() as connection:
            keys = [*sorted(homes_of), *map(claim_events.unplaced_in, nodes)]
            return list(evidence_tables.find_late_facts(connection, keys, nodes, which))

    def spread(
        self,
        changes: Iterable[evidence_tables.EvidenceChange],
        homes_of: Mapping[str, Iterable[str]],
    ) -> set[evidence_tables.EvidenceChange]:
        """Return the changes, extended to nodes that have claims without a device.

        A change of a GPU's claims there affects the placement on all GPUs of the node.
        """
        found = set(changes)
        nodes = sorted({node for one in found for node in homes_of.get(one.gpu, ())})
        there: set[str] = set()
        with self._database.transaction() as connection:
            for some in evidence_tables.groups_of([*map(claim_events.unplaced_in, nodes)]):
                gpu = evidence_tables.reported_claims.c.gpu_uuid
                query = select(gpu).where(gpu.in_(some)).distinct()
                there.update(connection.execute(query).scalars())
        return found | {
            one._replace(gpu=claim_events.unplaced_in(node))
            for one in found
            for node in homes_of.get(one.gpu, ())
            if claim_events.unplaced_in(node) in there
        }

    def newest_end_ns(self, node: str) -> int | None:
        """Return the end of the newest evidence of a node; None without evidence."""
        query = select(func.max(evidence_tables.evidence_parts.c.end_ns)).where(
            evidence_tables.evidence_parts.c.node == node
        )
        with self._database.transaction() as connection:
            found: int | None = connection.execute(query).scalar()
        return found
