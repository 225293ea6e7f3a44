"""Audit records about the evidence: file versions, problems, and rows that cannot be read.

Each is recorded once, whichever collector finds it. Rows that cannot be read are skipped
individually, logged once, and counted. The name of a row is the SHA-256 of its content, so every
change to it is detected. Facts of a damaged row count as not observed; all other rows count as before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import structlog

from railscope.audit.record import RecordActor, RecordData, RecordSubject
from railscope.timestamps import FOREVER_NS
from railscope_collector.audit.event_records import normalize_text
from railscope_collector.evidence import claim_events, node_intervals
from railscope_collector.files import inventory_file, retirements_file, tenants_file
from railscope_collector.ledger.record_draft import RecordDraft


class FileVersion(NamedTuple):
    """Version of a file, with the text of the previous version; empty if there was none."""

    kind: str
    text: str
    before: str
    digest: str
    recorded_ns: int

    def drafts(self) -> Iterator[tuple[str, RecordDraft]]:
        """Return its audit records, each with its own id."""
        of = f"{self.recorded_ns}/{self.digest}"
        if self.kind == "tenants":
            count = sum(1 for _ in tenants_file.parse_tenants(self.text))
            yield f"tenant_map/{of}", self._draft("billing.tenant_map", {"rows": count})
        elif self.kind == "inventory":
            count = sum(1 for _ in inventory_file.parse_inventory(self.text))
            data: RecordData = {"file": "inventory", "rows": count}
            yield f"inventory/{of}", self._draft("admin.config", data)
        elif self.kind == "retired":
            for number, (change, retirement) in enumerate(self._retirements()):
                yield f"retired/{of}/{number}", self._retirement(change, retirement)

    def _retirements(self) -> list[tuple[str, retirements_file.Retirement]]:
        """Return the added and the removed rows."""
        before, now = (
            set(retirements_file.parse_retirements(text)) if text else set()
            for text in (self.before, self.text)
        )
        return [
            *(("withdrawn", retirement) for retirement in sorted(before - now)),
            *(("retired", retirement) for retirement in sorted(now - before)),
        ]

    def _retirement(self, change: str, retirement: retirements_file.Retirement) -> RecordDraft:
        data: RecordData = {
            "what": change,
            "from_ns": str(retirement.start_ns),
            "why": normalize_text(retirement.reason),
        }
        if retirement.end_ns != FOREVER_NS:
            data["to_ns"] = str(retirement.end_ns)
        return self._draft("device.retire", data, RecordSubject(gpu=normalize_text(retirement.gpu)))

    def _draft(
        self, kind: str, data: RecordData, subject: RecordSubject | None = None
    ) -> RecordDraft:
        actor = RecordActor("administrator", f"{self.kind}_file")
        content: RecordData = {"sha256": self.digest, **data}
        return RecordDraft(
            kind, actor, self.recorded_ns, "done", subject or RecordSubject(), content
        )


class EvidenceProblem(NamedTuple):
    """Problem of the evidence for auditors: its kind, subject, time and details."""

    kind: str
    """One of the following.

    quarantine, seen_twice, retired_seen, rejected_claim, rank_lowered, identity_conflict, too_many_gpus.
    """
    gpu: str
    node: str
    timestamp_ns: int
    facts: dict[str, str]

    @property
    def id(self) -> str:
        """Id of its audit record: the same for the same problem at any collector, and after a restart."""
        facts = list(self._replace(timestamp_ns=0) if self.kind in _RECORDED_ONCE else self)
        # In a fixed order: the id must be the same at each collector.
        content = msgspec.json.encode(facts, order="deterministic")
        return f"evidence/{sha256(content).hexdigest()[:40]}"

    def draft(self) -> RecordDraft:
        """Return its audit record."""
        data: RecordData = {"what": self.kind, **self.facts}
        subject = RecordSubject(node=self.node, gpu=self.gpu)
        actor = RecordActor("collector", "metering")
        return RecordDraft("evidence.quarantine", actor, self.timestamp_ns, "seen", subject, data)


_RECORDED_ONCE = {"rank_lowered", "identity_conflict", "too_many_gpus"}
"""Recorded once, even if it happens again."""


if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_NAMED = 10_000

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class EvidenceQuarantine:
    """The damaged rows found since the start."""

    rows: set[tuple[str, str]] = field(default_factory=set)
    """Table and name of each."""

    def interval(
        self, name: Any, packed: Any, table: str = "evidence_part"
    ) -> node_intervals.EvidenceInterval | None:
        """Decode the interval of a row; None if the row is damaged."""
        try:
            content = zstd.decompress(packed)
            self._check(name, content)
            return node_intervals.decode_interval(content)
        except (zstd.ZstdError, msgspec.MsgspecError, ValueError, TypeError) as error:
            self._skip(table, name, error)
            return None

    def claim(
        self, name: Any, content: Any, table: str = "evidence_claim"
    ) -> claim_events.ReportedClaim | None:
        """Decode the claim of a row; None if the row is damaged."""
        try:
            self._check(name, content)
            return msgspec.msgpack.decode(content, type=claim_events.ReportedClaim)
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            self._skip(table, name, error)
            return None

    @staticmethod
    def _check(name: Any, content: bytes) -> None:
        if sha256(content).hexdigest() != name:
            message = "content does not match its hash"
            raise ValueError(message)

    def _skip(self, table: str, name: Any, error: Exception) -> None:
        row = (table, str(name))
        # Once: the same rows are read again for each day.
        if row not in self.rows and len(self.rows) < MAX_NAMED:
            self.rows.add(row)
            log.error(
                "evidence_damaged",
                table=table,
                row=row[1],
                problem=str(error),
                advice="its content is ignored; restore it from a backup",
            )
