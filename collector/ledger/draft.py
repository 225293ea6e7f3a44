"""What is to be recorded, before the log has given it its place."""

from __future__ import annotations

from dataclasses import dataclass, field

from railscope.audit.record import VERSION, Actor, Data, Record, Source, Subject


@dataclass(frozen=True, slots=True)
class Draft:
    """What happened; the log adds sequence, source and identity."""

    type: str
    actor: Actor
    time_ns: int
    outcome: str
    subject: Subject = field(default_factory=Subject)
    data: Data = field(default_factory=dict)
    references: tuple[str, ...] = ()
    uncertainty_milliseconds: int = 0
    source: Source | None = None
    """Who tells it; without one it is the log's own writer."""
    commitments: dict[str, str] = field(default_factory=dict)
    """To personal data that is kept elsewhere, by what they say."""


def record_of(draft: Draft, source: Source, sequence: int) -> Record:
    """The record of a draft at its place in the log."""
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
    """The source at its record of this number."""
    return Source(source.kind, source.id, source.boot, number)
