"""Models of the pages about the audit log: its state, its records, and the proof of one record."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from railscope.api import audit as api
from railscope.audit import log_checkpoint, record as audit_record, signed_note
from railscope.timestamps import SECOND_NS
from railscope_collector.audit import record_tenants, record_words
from railscope_collector.audit.cosignatures import CosignedCheckpoint
from railscope_collector.console import page_table
from railscope_collector.http import ResourceError, audit_api, signed_entries

PAGE_RECORDS = 50
MAX_WITNESSES = 100
_TREE_LINES = 3


class WitnessRow(msgspec.Struct, frozen=True):
    """The newest checkpoint that a node has cosigned."""

    node: str
    size: int
    time_ns: int
    """Time of the cosignature; 0 if it is not valid."""
    key: str


class AuditHealth(msgspec.Struct, frozen=True):
    """State of the whole log, which a tenant does not see."""

    records: int
    unsigned: int
    stop_reason: str
    """Reason why nothing is signed any more; empty if records are signed."""
    is_valid: bool | None
    """Result of the last verification by the collector itself; null before the first."""
    valid_age_seconds: float | None
    witnesses: tuple[WitnessRow, ...]
    """Those with the newest checkpoints."""
    witness_count: int


class AuditRow(NamedTuple):
    """One record in words."""

    number: int
    time_ns: int
    type: str
    actor: str
    outcome: str
    subject: str
    tenant: str
    """The only tenant that it names."""


class AuditPage(api.AuditEntries, frozen=True, kw_only=True):
    """Some records, and the state of the log."""

    origin: str
    root: str
    key: str
    start: int
    older: int | None
    """First record of the previous page; null if there is none."""
    tenant: str
    """The only tenant of the list; empty for all."""
    health: AuditHealth | None = None


@dataclass(slots=True)
class AuditPages:
    """Models from the signed log; `health` returns the state of its components."""

    log: audit_api.AuditApi
    health: Callable[[], AuditHealth]

    def models(self) -> page_table.PageModels:
        """Return the functions by name of the page."""
        return {"audit": self._audit, "audit_record": self._record}

    async def _audit(self, request: page_table.PageRequest) -> page_table.PageContent:
        tenant = request.selected_tenant

        def make() -> page_table.PageContent:
            start = request.query.start
            if start is None:
                size = self.log.entries.count_records() if tenant is None else 0
                start = max(0, size - PAGE_RECORDS)
            is_own = request.tenant is not None
            selection = signed_entries.EntrySelection(start, PAGE_RECORDS, tenant, is_own)
            selected = self.log.entries.select(selection)
            # The one that the proofs are made for: the writer may have signed since the read above.
            checkpoint = log_checkpoint.read_checkpoint(selected.checkpoint, self.log.entries.key)
            page = AuditPage(
                checkpoint=selected.checkpoint,
                size=selected.size,
                entries=selected.entries,
                next=selected.next,
                origin=checkpoint.origin,
                root=base64.b64encode(checkpoint.tree.root).decode(),
                key=str(self.log.entries.key),
                start=start,
                older=max(0, start - PAGE_RECORDS) if start else None,
                tenant=tenant or "",
                health=None if is_own else self.health(),
            )
            return page_table.PageContent(page, {"rows": [*map(_row, selected.entries)]})

        return await self.log.read(request.credential, make)

    async def _record(self, request: page_table.PageRequest) -> page_table.PageContent:
        number = request.parts["index"]
        # One text for both: a tenant must not learn which records exist.
        unknown = ResourceError(HTTPStatus.NOT_FOUND, "unknown record, or access denied")
        if not log_checkpoint.SIZE.fullmatch(number):
            raise unknown
        index = int(number)

        def make() -> page_table.PageContent | None:
            is_own = request.tenant is not None
            selection = signed_entries.EntrySelection(index, 1, request.tenant, is_own)
            selected = self.log.entries.select(selection)
            entry = next((each for each in selected.entries if each.index == index), None)
            if entry is None:
                return None
            shown = {
                "row": _row(entry),
                "record": msgspec.json.format(bytes(entry.record), indent=2).decode(),
                # None if fields are omitted because they could name another party.
                "proof": self.log.entries.make_proof(index, request.tenant),
            }
            entries = api.AuditEntries(selected.checkpoint, selected.size, (entry,), None)
            return page_table.PageContent(entries, shown)

        content = await self.log.read(request.credential, make)
        if content is None:
            raise unknown
        return content


def _row(entry: api.AuditEntry) -> AuditRow:
    record = msgspec.json.decode(entry.record, type=audit_record.AuditRecord)
    return AuditRow(
        entry.index,
        int(record.t),
        record_words.type_text(record.type),
        record_words.actor_text(record),
        record.out,
        record_words.subject_text(record),
        record_tenants.sole_tenant(record),
    )


def witness_rows(
    cosigned: Mapping[str, CosignedCheckpoint],
) -> tuple[WitnessRow, ...]:
    """Return the witnesses with the newest checkpoints; their cosignatures are verified again."""
    newest = sorted(cosigned.items(), key=lambda item: (-_size(item[1].note), item[0]))
    rows = []
    # Only of those that are shown: each verification takes time.
    for node, checkpoint in newest[:MAX_WITNESSES]:
        try:
            seconds = checkpoint.seconds()
        except signed_note.NoteError:
            seconds = 0
        size = _size(checkpoint.note)
        rows.append(WitnessRow(node, size, seconds * SECOND_NS, checkpoint.key))
    return tuple(rows)


def _size(note: str) -> int:
    """Return the size in the text of a checkpoint; 0 if it has none."""
    lines = note.split("\n", _TREE_LINES)
    return int(lines[1]) if len(lines) > 1 and log_checkpoint.SIZE.fullmatch(lines[1]) else 0
