"""Draft of an audit record: its content before the log has assigned its position."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from railscope.audit import record
from railscope.audit.record import RecordSource


@dataclass(frozen=True, slots=True)
class RecordDraft:
    """Content of a record; the log adds sequence number, source and identity."""

    type: str
    actor: record.RecordActor
    time_ns: int
    outcome: str
    subject: record.RecordSubject = field(default_factory=record.RecordSubject)
    data: record.RecordData = field(default_factory=dict)
    references: tuple[str, ...] = ()
    uncertainty_milliseconds: int = 0
    source: RecordSource | None = None
    """Source of the record; None stands for the log's own writer."""
    commitments: dict[str, str] = field(default_factory=dict)
    """Commitments to personal data that is stored elsewhere, by field."""


class TimedActor(NamedTuple):
    """Actor and time of an administrative operation."""

    actor: record.RecordActor
    now_ns: int

    def draft(self, type_: str, data: record.RecordData) -> RecordDraft:
        """Draft of the record that the operation was done."""
        return RecordDraft(type_, self.actor, self.now_ns, "done", data=data)


def build_record(draft: RecordDraft, source: RecordSource, sequence: int) -> record.AuditRecord:
    """Return the record of a draft at its position in the log."""
    return record.AuditRecord(
        v=record.VERSION,
        type=draft.type,
        id=f"{source.id}/{source.boot}/{source.n}",
        seq=sequence,
        t=str(draft.time_ns),
        tu=draft.uncertainty_milliseconds,
        src=source,
        actor=draft.actor,
        obj=draft.subject,
        out=draft.outcome,
        data=draft.data,
        ref=list(draft.references),
        pii=draft.commitments,
    )


def with_number(source: RecordSource, number: int) -> RecordSource:
    """Return the source with the number of a record."""
    return RecordSource(source.kind, source.id, source.boot, number)
