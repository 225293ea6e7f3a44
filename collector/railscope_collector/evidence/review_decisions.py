"""Evidence that is pending review, and decisions of people about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from fractions import Fraction
from hashlib import sha256
from typing import NamedTuple

from sqlalchemy import Connection, select

from railscope.audit.record import RecordActor, RecordData, RecordSubject
from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import FOREVER_NS
from railscope_collector.audit.event_records import normalize_text
from railscope_collector.evidence import (
    claim_events,
    evidence_store,
    evidence_tables,
    gpu_evidence,
    node_claims,
    node_intervals,
    review_rules,
)
from railscope_collector.ledger import audit_outbox, record_draft, schema
from railscope_collector.ledger.database import Database

EVENT_TYPE = "evidence.decide.v1"
RECORD_TYPE = "evidence.decide"


class PendingEvidence(NamedTuple):
    """Evidence that is pending review: its subject, GPUs, tenants and reasons."""

    subject: review_rules.ReviewSubject
    gpus: tuple[str, ...]
    tenants: tuple[str, ...]
    reasons: tuple[str, ...]
    start_ns: int
    end_ns: int
    gpu_ns: Fraction
    """GPU time requested so far."""


class ReviewDecision(NamedTuple):
    """Decision of a person, with time and reason."""

    accepted: bool
    actor: RecordActor
    now_ns: int
    reason: str = ""


def find_pending_evidence(
    store: evidence_store.EvidenceStore, database: Database, now_ns: int
) -> list[PendingEvidence]:
    """Return all evidence that is pending review, in order. Blocking; raises UnusableLedgerError."""
    files, contacts = store.files(), store.contacts()
    late_boots = store.late_boots()
    with database.transaction() as connection:
        candidates = _find_candidates(connection, files, contacts) | late_boots.keys()
    parts: dict[review_rules.ReviewSubject, list[tuple[str, node_claims.ClaimPart, int]]] = {
        review_rules.ReviewSubject(review_rules.ReviewKind.GPU, node, gpu): []
        for node, gpus in contacts.items()
        for gpu, contact in gpus.items()
        if any(
            start < now_ns and contact.received_ns < end
            for start, end, _ in files.expected.excess(gpu, node, contacts)
        )
    }
    several = {gpu: nodes for gpu, nodes in _find_nodes(contacts).items() if len(nodes) > 1}
    for gpu_group in evidence_tables.group_items(sorted(candidates)):
        # Over all time: evidence stays pending until a person decides.
        loaded = store.load(gpu_group, {}, 0, FOREVER_NS - evidence_tables.CONTEXT_NS)
        for gpu in gpu_group:
            claims, ended = loaded.claims.get(gpu, ()), loaded.ended.get(gpu, ())
            intervals = late_boots.get(gpu, ())
            if gpu in several:
                intervals = _intervals_since_second(store, gpu, contacts, several[gpu])
            facts = gpu_evidence.collect_facts(gpu, intervals, claims, ended, contacts)
            if gpu in several:
                for node in gpu_evidence.find_nodes_under_review(facts, files, now_ns):
                    parts.setdefault(
                        review_rules.ReviewSubject(review_rules.ReviewKind.GPU, node, gpu), []
                    )
            counts = {(claim.node, claim.id): claim.count for claim in claims}
            for part in gpu_evidence.find_claims_under_review(facts, files):
                if part.claim.begins_ns < now_ns:
                    count = counts.get((part.subject.node, part.subject.name), 0) or 1
                    parts.setdefault(part.subject, []).append((gpu, part, count))
    return [
        _sum_up(subject, subject_parts, now_ns) for subject, subject_parts in sorted(parts.items())
    ]


def _find_nodes(contacts: node_intervals.Contacts) -> dict[str, list[str]]:
    """Return the nodes that ever reported each GPU."""
    found: dict[str, list[str]] = {}
    for node, gpus in contacts.items():
        for gpu in gpus:
            found.setdefault(gpu, []).append(node)
    return found


def _intervals_since_second(
    store: evidence_store.EvidenceStore,
    gpu: str,
    contacts: node_intervals.Contacts,
    nodes: Sequence[str],
) -> list[node_intervals.EvidenceInterval]:
    """Return the intervals since a second node reported a GPU: no dispute is possible before.

    Days that are only in the archive can no longer be revised, and are left out.
    """
    _, since_ns, *_ = sorted(contacts[node][gpu].received_ns for node in nodes)
    until_ns = FOREVER_NS - evidence_tables.CONTEXT_NS
    homes, start_ns = {gpu: set(nodes)}, since_ns - node_intervals.TOLERANCE_NS
    loaded = store.load([gpu], homes, start_ns, until_ns, is_partial=True)
    return [interval for node in nodes for interval in loaded.intervals[node]]


def _find_candidates(
    connection: Connection,
    files: gpu_evidence.AdministratorInputs,
    contacts: node_intervals.Contacts,
) -> set[str]:
    """Return GPUs with claims reported late or before the GPU, allocated twice, in excess, or in several nodes."""
    late = select(evidence_tables.reported_claims.c.gpu_uuid).where(
        evidence_tables.reported_claims.c.recorded_ns - evidence_tables.reported_claims.c.start_ns
        > node_intervals.LATE_NS // 60
    )
    candidates = set(connection.execute(late.distinct()).scalars())
    twice = select(evidence_tables.reported_claims.c.gpu_uuid).join(
        evidence_tables.claim_end_trust,
        evidence_tables.claim_end_trust.c.fact == evidence_tables.reported_claims.c.fact,
    )
    candidates |= set(connection.execute(twice.distinct()).scalars())
    is_late = (
        evidence_tables.claim_end_trust.c.trusted_from_ns > evidence_tables.claim_ends.c.instant_ns
    )
    ends = (
        select(evidence_tables.claim_ends.c.gpu_uuid)
        .join(
            evidence_tables.claim_end_trust,
            evidence_tables.claim_end_trust.c.fact == evidence_tables.claim_ends.c.fact,
        )
        .where(is_late)
    )
    candidates |= set(connection.execute(ends.distinct()).scalars())
    candidates |= {gpu for gpu, nodes in _find_nodes(contacts).items() if len(nodes) > 1}
    candidates |= {
        gpu
        for node, gpus in contacts.items()
        for gpu in gpus
        if gpu not in candidates and files.expected.excess(gpu, node, contacts)
    }
    return candidates


def _sum_up(
    subject: review_rules.ReviewSubject,
    subject_parts: Sequence[tuple[str, node_claims.ClaimPart, int]],
    now_ns: int,
) -> PendingEvidence:
    gpus = {gpu for gpu, _, _ in subject_parts if claim_events.is_gpu(gpu)} | (
        {subject.name} if subject.kind is review_rules.ReviewKind.GPU else set()
    )
    claims_ = [part.claim for _, part, _ in subject_parts]
    total = Fraction(0)
    for _, (claim, _, _), count in subject_parts:
        size = claim.share or Fraction(claim.compute.high - claim.compute.low, GPU_CAPACITY)
        total += count * size * max(0, min(claim.end_ns, now_ns) - claim.begins_ns)
    return PendingEvidence(
        subject,
        tuple(sorted(gpus)),
        tuple(sorted({claim.tenant for claim in claims_})),
        tuple(sorted({claim.review for claim in claims_})),
        min((claim.begins_ns for claim in claims_), default=now_ns),
        min(now_ns, max((claim.end_ns for claim in claims_), default=now_ns)),
        total,
    )


def record_decision(
    database: Database, pending: Iterable[PendingEvidence], decision: ReviewDecision
) -> int:
    """Record a decision about each of these, with its audit record; return their number.

    Raises UnusableLedgerError.
    """
    count = 0
    with database.transaction(writes=True) as connection:
        for pending_item in pending:
            content = _event(pending_item, decision)
            name = sha256(content.encode()).hexdigest()
            row = schema.to_row(
                evidence_tables.review_decisions,
                pending_item.subject,
                id=name,
                what=pending_item.subject.kind.value,
                content=content,
                accepted=int(decision.accepted),
                start_ns=pending_item.start_ns,
                end_ns=FOREVER_NS,
                recorded_ns=decision.now_ns,
            )
            evidence_tables.insert_new_rows(connection, evidence_tables.review_decisions, [row])
            audit_outbox.put_record(
                connection, f"evidence_decision/{name}", _draft(pending_item, decision, name)
            )
            count += 1
    return count


def _event(pending_item: PendingEvidence, decision: ReviewDecision) -> str:
    data = {
        "subject": pending_item.subject.id,
        "what": pending_item.subject.kind.value,
        "node": pending_item.subject.node,
        "name": pending_item.subject.name,
        "accepted": decision.accepted,
        "reason": decision.reason,
        "actor": decision.actor.id,
        "recorded_ns": str(decision.now_ns),
        "gpu_ns": str(pending_item.gpu_ns),
    }
    event = {"specversion": "1.0", "type": EVENT_TYPE, "source": "railscope/bill", "data": data}
    event["id"] = sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    return json.dumps(event, sort_keys=True)


def _draft(
    pending_item: PendingEvidence, decision: ReviewDecision, name: str
) -> record_draft.RecordDraft:
    data: RecordData = {
        "what": pending_item.subject.kind.value,
        "verdict": "accept" if decision.accepted else "reject",
        "name": normalize_text(pending_item.subject.name),
        "gpu_ns": str(pending_item.gpu_ns),
        # The log has a maximum size of records; the event in the database is complete.
        "tenants": ", ".join(map(normalize_text, pending_item.tenants))[:400],
        "why": ", ".join(pending_item.reasons),
        "reason": normalize_text(decision.reason)[:400],
        "sha256": name,
    }
    gpu = normalize_text(pending_item.gpus[0]) if len(pending_item.gpus) == 1 else ""
    about = RecordSubject(node=normalize_text(pending_item.subject.node), gpu=gpu)
    return record_draft.RecordDraft(
        RECORD_TYPE, decision.actor, decision.now_ns, "done", about, data
    )
