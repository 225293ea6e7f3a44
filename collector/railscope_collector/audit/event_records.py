"""Audit records of agent events.

The claims in force make a claim an assignment or a transfer.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from railscope import timestamps
from railscope.audit import record
from railscope.catalog import EVENTS, agent, gpu_health, nic_settings, tenancy
from railscope.wire import MAX_EVENT_NUMBER, WireEvent
from railscope_collector.audit.claims_in_force import (
    ASSIGN,
    DONE,
    OBSERVED,
    RELEASE,
    TRANSFER,
    ClaimInForce,
    ClaimsInForce,
    claim_key,
)
from railscope_collector.fleet.recent_events import SeenEvent
from railscope_collector.ledger.record_draft import RecordDraft

MAX_TEXT = 500
NO_PERSONS = frozenset({"kubernetes", "containerd", "cri-o"})
"""Sources with namespaces as owners; the owners of all others may be persons."""
UNCLAIMED, JOIN, GAP = "tenancy.unclaimed_use", "node.join", "evidence.gap"
TenantOf: TypeAlias = Callable[[str, str, int], str]
"""Tenant of a source's owner at a timestamp, if the tenants file contains one; empty otherwise."""

_FIRMWARE = ("vbios", "inforom", "gsp_firmware")
_SETTINGS = {
    "network.pfc": ("pfc", "pause"),
    "network.dscp": ("trust", "dscp", "applications", "np_cnp", "rdma_cm_tos", "rdma_traffic"),
    "network.ecn": ("ecn", "cc_", "np_", "rp_"),
    "network.mtu": ("mtu",),
    "network.buffer": (
        "buffer", "ring", "rate_limits", "traffic_classes", "bandwidth", "scheduling",
    ),
    "network.nic_firmware": ("firmware",),
}  # fmt: skip
"""Record type by prefix of the setting name; a setting without a match concerns the link."""
_GPU_CHANGES = {
    "added": JOIN,
    "removed": "device.retire",
    "mig_mode": "device.mig",
    "mig_devices": "device.mig",
    "ecc_mode": "device.ecc",
    "compute_mode": "device.compute_mode",
    "power_limit": "device.power_limit",
    "clocks": "device.clocks",
}
_CLAIMS = {
    tenancy.CLAIM_START_EVENT.name: (ASSIGN, DONE),
    tenancy.CLAIM_END_EVENT.name: (RELEASE, DONE),
    tenancy.UNCLAIMED_START_EVENT.name: (UNCLAIMED, OBSERVED),
    tenancy.UNCLAIMED_END_EVENT.name: (UNCLAIMED, DONE),
}
_CONFLICT_EVENTS = {agent.CONFLICT_EVENT.name, "audit_log_disputed"}
"""The checkpoint conflict of an agent, with its name in 0.2.0."""


def is_audited(event: WireEvent) -> bool:
    """True if an event becomes a record."""
    event_class = EVENTS.get(event.name)
    return event.name in _CONFLICT_EVENTS or (event_class is not None and event_class.audited)


def is_numbered(event: WireEvent) -> bool:
    """True if the number of an event is valid as a record number."""
    return 0 < event.number <= MAX_EVENT_NUMBER


def event_source(seen_event: SeenEvent) -> record.RecordSource:
    """Return the run of the agent as a record source, with the record number of this event."""
    run = seen_event.position.run if seen_event.position else ""
    return record.RecordSource(
        # Numbers of agents begin at 1 and those of records at 0, so that 0 can stand for an agent without numbers.
        "agent",
        normalize_text(seen_event.node),
        normalize_text(run),
        seen_event.event.number - 1,
    )


def make_draft(
    seen_event: SeenEvent,
    holdings: ClaimsInForce,
    commitment: Callable[[str], str],
    tenant_of: TenantOf = lambda _source, _owner, _timestamp_ns: "",
) -> RecordDraft:
    """Return the record of an event.

    `commitment` returns the commitment to a person's name, `tenant_of` the tenant of an owner.
    """
    draft = _draft(seen_event, commitment, tenant_of)
    if draft.type != ASSIGN:
        return draft
    claim = claim_key(draft.subject.node, str(draft.data["claim"]))
    present = holdings.gpus.get(draft.subject.gpu, {}).get(claim)
    if present is None:
        return draft
    # Agents report claims in force again after each restart: that is no new assignment.
    if present == ClaimInForce.from_record(draft.data, draft.commitments):
        return replace(draft, outcome=OBSERVED)
    return replace(draft, type=TRANSFER)


def _draft(
    seen_event: SeenEvent, commitment: Callable[[str], str], tenant_of: TenantOf
) -> RecordDraft:
    event = seen_event.event
    facts = {
        normalize_text(name): normalize_text(text)
        for name, text in event.facts.items()
        if name.isascii()
    }
    type_, outcome, about = _subject_data(event, facts)
    node = normalize_text(seen_event.node)
    position = seen_event.position
    data: record.RecordData = {**facts, **about, "event": event.name}
    references: tuple[str, ...] = ()
    if position:
        data["received_ns"] = str(position.received_ns)
        frame = f"{node}/{normalize_text(position.run)}/{position.stream}/{position.sequence}"
        references = (f"frame/{frame}/{position.index}",)
    commitments = {}
    if facts.get("owner") and not facts.get("tenant"):
        tenant = tenant_of(facts.get("source", ""), facts["owner"], event.wall_ns)
        data |= {"owner_tenant": normalize_text(tenant)} if tenant else {}
    # The name of a person is never in the log, which cannot be changed: only a commitment to it is.
    if data.get("owner") and data.get("source") not in NO_PERSONS:
        commitments["owner"] = commitment(str(data.pop("owner")))
    uncertainty_ns = facts.get("uncertainty_ns", "")
    return RecordDraft(
        type_,
        record.RecordActor(facts.get("level") or "agent", facts.get("source") or node),
        event.wall_ns,
        outcome,
        record.RecordSubject(node, _gpu(event, facts), facts.get("device", "")),
        data,
        references,
        int(uncertainty_ns) // timestamps.MILLISECOND_NS if uncertainty_ns.isdecimal() else 0,
        event_source(seen_event),
        commitments,
    )


def _subject_data(event: WireEvent, facts: dict[str, str]) -> tuple[str, str, record.RecordData]:
    """Return the type and outcome of the record, and the data derived from the event's entity."""
    key = [normalize_text(part) for part in event.entity.key]
    if event.name in _CLAIMS:
        return *_CLAIMS[event.name], {"claim": key[-1] if key else ""}
    if event.name == gpu_health.GPU_CHANGE_EVENT.name:
        return _gpu_change(facts), OBSERVED, {"address": "/".join(key)}
    if event.name == nic_settings.SETTING_EVENT.name:
        return _setting(facts.get("setting", "")), OBSERVED, {"interface": "/".join(key)}
    if event.name in _CONFLICT_EVENTS:
        return "log.witness", "failed", {}
    if event.name in {agent.GAP_EVENT.name, nic_settings.SUPPRESSED_EVENT.name}:
        return GAP, OBSERVED, {"about": "/".join(key)}
    return "evidence.quarantine", OBSERVED, {"about": "/".join(key)}


def _gpu_change(facts: dict[str, str]) -> str:
    change = facts.get("change", "")
    if change != "facts":
        return _GPU_CHANGES.get(change, "device.sharing")
    after = facts.get("after", "")
    return "device.firmware" if any(fact in after for fact in _FIRMWARE) else "device.driver"


def _setting(name: str) -> str:
    return next(
        (kind for kind, begins in _SETTINGS.items() if name.startswith(begins)),
        "network.link_admin",
    )


def _gpu(event: WireEvent, facts: dict[str, str]) -> str:
    if event.entity.kind in {"claim", "gpu"} and event.entity.key:
        return normalize_text(event.entity.key[0])
    return facts.get("gpu", "")


def find_recording_problem(seen_event: SeenEvent, problem: record.RecordError) -> RecordDraft:
    """Return a placeholder for an event that no record can hold, so that its number is not missing."""
    data: record.RecordData = {
        "event": normalize_text(seen_event.event.name),
        "problem": normalize_text(str(problem)),
        "sha256": hashlib.sha256(repr(seen_event.event).encode(errors="replace")).hexdigest(),
    }
    return RecordDraft(
        "evidence.quarantine",
        record.RecordActor("agent", normalize_text(seen_event.node)),
        max(0, seen_event.event.wall_ns),
        OBSERVED,
        record.RecordSubject(normalize_text(seen_event.node)),
        data,
        source=event_source(seen_event),
    )


def normalize_text(text: str) -> str:
    """Return a text as records store it: in NFC, cut to `MAX_TEXT` characters."""
    return unicodedata.normalize("NFC", text)[:MAX_TEXT]
