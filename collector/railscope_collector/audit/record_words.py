"""Audit records in words, for people; JSON and the log have the codes."""

from __future__ import annotations

from railscope.audit.record import AuditRecord
from railscope.catalog import event_titles
from railscope.claim_terms import ClaimAuthority

_TITLES = {
    "access.cross_tenant": "Read of another tenant denied",
    "access.denied": "Access denied",
    "access.login": "Sign-in",
    "access.token": "Token",
    "admin.config": "Start, stop or new settings",
    "admin.restore": "Older database accepted",
    "admin.upgrade": "Version changed",
    "billing.adjust": "Credit recorded",
    "billing.close": "Period closed",
    "billing.export": "Export made",
    "billing.head": "Ledger head recorded",
    "billing.import": "Job list imported",
    "billing.issue": "Invoice issued",
    "billing.opening": "Opening date set",
    "billing.price": "Prices published",
    "billing.void": "Invoice voided",
    "evidence.clock_step": "Clock set",
    "evidence.counter_reset": "Counter reset",
    "evidence.gap": "Frames lost",
    "evidence.incident_close": "Incident ended",
    "evidence.incident_open": "Incident opened",
    "evidence.incident_update": "Incident changed",
    "evidence.quarantine": "Report not counted",
    "log.genesis": "Log began",
    "log.policy": "Signed with too few witnesses",
    "log.recovered": "Log recovered",
    "log.witness": "Witness",
    "node.boot": "Node booted",
    "node.drain": "Node drained",
    "node.join": "Node or GPU appeared",
    "node.resume": "Node resumed",
    "tenancy.assign": "GPU assigned",
    "tenancy.conflict": "Claims in conflict",
    "tenancy.release": "GPU released",
    "tenancy.transfer": "GPU passed to another tenant",
    "tenancy.unclaimed_use": "Use without a claim",
}
TYPES = frozenset(_TITLES)
"""Types of records with a title; `admin` and `node` have further ones, by what changed."""
_SOURCES = {"slurm": "Slurm", "kubernetes": "Kubernetes"}
_AUTHORITIES = frozenset(each.label for each in ClaimAuthority) - {"administrator"}


def type_text(code: str) -> str:
    """Return a type in words: its title, or its area and what changed."""
    area, _, name = code.partition(".")
    return _TITLES.get(code) or f"{event_titles.title_of(area)}: {event_titles.in_words(name)}"


def actor_text(record: AuditRecord) -> str:
    """Return the actor in words: the source of a claim, otherwise kind and identity."""
    kind, identity = record.actor.kind, record.actor.id
    if kind in _AUTHORITIES:
        return f"by {_SOURCES.get(identity, identity)}"
    return " ".join(filter(None, ("by", event_titles.in_words(kind), identity, record.actor.ip)))


def subject_text(record: AuditRecord) -> str:
    """Return node and GPU with its slots, which may begin with the GPU."""
    node, gpu, slot = record.obj.node, record.obj.gpu, record.obj.slot
    return " ".join(filter(None, (node, "" if gpu and gpu in slot else gpu, slot)))
