"""The collector's own metrics, and the text of the metrics endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from railscope import exposition, log_output, server_connections, timestamps
from railscope.catalog import collector as catalog, declare
from railscope_collector import administrator_files, view_refresh
from railscope_collector.access.tokens_file import TokensFile
from railscope_collector.account.account_cells import cluster_cells
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.finalization.day_finalizer import DayFinalizer
from railscope_collector.fleet import view_cells
from railscope_collector.framelog import framelog
from railscope_collector.http.identity_conflicts import IdentityConflictDetector
from railscope_collector.state import state_reader
from railscope_collector.state.collector_state import CollectorState


@dataclass(slots=True)
class CollectorMetrics:
    """Sources of the collector's own metrics, and of the GPU-time account of all tenants."""

    core: CollectorState
    log: framelog.FrameLog
    files: administrator_files.AdministratorFiles
    finalizer: DayFinalizer
    trail: AuditTrail
    tokens: TokensFile
    connections: server_connections.ServerConnections
    conflicts: IdentityConflictDetector
    reader: state_reader.StateReader
    limits: Sequence[log_output.LogRateLimit] = ()
    """All rate limits of log lines."""
    parts: list[Callable[[], Iterable[view_cells.ViewCell]]] = field(default_factory=list)
    """Return the cells of further parts."""

    @property
    def unknown_reason(self) -> str:
        """Reason why the claims of GPUs cannot be determined; empty if they can."""
        if self.files.unknown:
            return f"{self.files.unknown} has never been valid"
        return "" if self.finalizer.live.is_ready else "the ledger has not been read yet"

    def cells(self, views: view_refresh.CollectorViews) -> list[view_cells.ViewCell]:
        """Return the collector's own state and the GPU-time account, in base units."""
        counts = self.core.counts
        plain = [
            (catalog.ENVELOPES, counts.envelopes),
            (catalog.FRAMES, counts.frames),
            (catalog.SWITCH_FRAMES, counts.switch_frames),
            (catalog.DUPLICATES, counts.duplicates),
            (catalog.MISSING, self.core.received.count_missing()),
            (catalog.VALUES, counts.values),
            (catalog.RECEIVED_BYTES, counts.bytes),
            (catalog.COMMITS, self.log.stats.commits),
            (catalog.COMMIT_TIME, self.log.stats.commit_ns / timestamps.SECOND_NS),
            (catalog.LOG_SIZE, self.log.size),
            (catalog.QUARANTINED, self.reader.quarantined),
            (catalog.SCHEMAS, len(self.core.schemas)),
            (catalog.CONNECTIONS, len(self.connections)),
            (catalog.VIEWS_TIME, views.duration_ns / timestamps.SECOND_NS),
            (catalog.CLAIMS, self.files.claims.content.count_in_force(views.timestamp_ns)),
            (catalog.CLAIMS_REJECTED, self.core.evidence.rejected_claims),
            (catalog.EVIDENCE_TOO_OLD, self.core.evidence.aged_rows),
            (catalog.EVIDENCE_EXCESS_GPUS, self.core.evidence.excess_gpus),
            (catalog.EVIDENCE_SUPPRESSED, self.core.evidence.problems.suppressed),
            (catalog.EVIDENCE_WAITING, self.finalizer.waiting_intervals),
            (catalog.EVIDENCE_WAITING_SIZE, self.finalizer.waiting.size_bytes),
            (catalog.EVIDENCE_STORED, self.finalizer.counts.intervals),
            (catalog.EVIDENCE_REJECTED, len(self.finalizer.rejected)),
            (catalog.EVIDENCE_FAILURES, self.finalizer.counts.failures),
            (catalog.FINALIZED_DAYS, self.finalizer.counts.days),
            (catalog.REVISED_DAYS, self.finalizer.counts.revisions),
            (catalog.REJECTED_DAYS, len(self.finalizer.rejected_days)),
            (catalog.AUDIT_RECORDS, self.trail.log.size),
            (catalog.AUDIT_UNSIGNED, self.trail.log.size - self.trail.log.signed.size),
            (catalog.AUDIT_LOST, self.trail.lost_records),
            (catalog.DENIALS, self.trail.denials),
            (catalog.LOG_LINES_SUPPRESSED, sum(limit.suppressed for limit in self.limits)),
            (catalog.LOG_LINES_LOST, log_output.LOG_STREAM.lost),
            (catalog.CLOCK_SUSPECT, int(bool(self.finalizer.hold_reason()))),
        ]
        files = [
            (file.kind, int(file.is_valid and file.kind not in self.finalizer.rejected_files))
            for file in self.files.all_files
            if file.path
        ]
        unplaced = self.finalizer.live.unplaced()
        by_label: tuple[tuple[declare.Metric, Iterable[tuple[str, float]]], ...] = (
            (catalog.FILE_VALID, (*files, ("tokens", int(self.tokens.is_valid)))),
            (
                catalog.NODE_IDENTITY_CONFLICT,
                ((name, 1) for name in self.conflicts.nodes(views.timestamp_ns)),
            ),
            (catalog.UNPLACED_GPUS, ((name, float(amount)) for name, amount in unplaced.items())),
            (catalog.CONNECTIONS_CLOSED, self.connections.closed.items()),
            (catalog.MISSING_OF_NODE, self.core.received.missing_of_nodes()),
            (catalog.RUN_ENDS_IGNORED, self.core.received.ignored.items()),
            (catalog.REJECTED, counts.rejected.items()),
        )
        return [
            *(view_cells.ViewCell(metric, (), value) for metric, value in plain),
            *chain.from_iterable(cells() for cells in self.parts),
            *(cluster_cells(views.account) if views.account else ()),
            *(
                view_cells.ViewCell(metric, (label,), n)
                for metric, values in by_label
                for label, n in values
            ),
        ]


def render(cells: Iterable[view_cells.ViewCell], text_format: exposition.TextFormat) -> str:
    """Render cells as the text of the metrics endpoint; zeros of sparse metrics are omitted."""
    blocks: dict[str, list[str]] = {}
    for cell in cells:
        if cell.metric.sparse and not cell.value:
            continue
        labels = zip(view_cells.label_names(cell.metric), cell.labels, strict=True)
        line = f"{exposition.labelled(cell.metric.name, labels)}{_format_number(cell.value)}\n"
        blocks.setdefault(cell.metric.name, []).append(line)
    return exposition.render_blocks(
        {name: "".join(lines) for name, lines in blocks.items()}, text_format
    )


def _format_number(value: float) -> str:
    # Without an exponent and without `.0`, which repr() of a float would add to a large or whole number.
    return repr(int(value)) if float(value).is_integer() else repr(float(value))
