"""Content of a record, before the log has assigned its position."""

from __future__ import annotations

from dataclasses import dataclass, field

from railscope.audit.record import VERSION, Actor, Data, Record, Source, Subject


@dataclass(frozen=True, slots=True)
class Draft:
    """Content of a record; the log adds sequence number, source and identity."""

    type: str
    actor: Actor
    time_ns: int
    outcome: str
    subject: Subject = field(default_factory=Subject)
    data: Data = field(default_factory=dict)
    references: tuple[str, ...] = ()
    uncertainty_milliseconds: int = 0
    source: Source | None = None
    """Source of the record; None stands for the log's own writer."""
    commitments: dict[str, str] = field(default_factory=dict)
    """Commitments to personal data that is stored elsewhere, by field."""


def record_of(draft: Draft, source: Source, sequence: int) -> Record:
    """Return the record of a draft at its position in the log."""
    return Record(
        v=VERSION,
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


def counted(source: Source, number: int) -> Source:
    """Return the source with the number of a record."""
    return Source(source.kind, source.id, source.boot, number)
