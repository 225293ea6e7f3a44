"""The collector's /metrics: the aggregates of the views, and the collector's own state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from collector.account.cells import cluster_cells
from collector.administrator_files import AdministratorsFiles
from collector.audit.trail import Trail
from collector.fleet.cell import Cell, label_names
from collector.framelog.framelog import FrameLog
from collector.framelog.quarantine import RecordQuarantine
from collector.http.node_twins import NodeTwins
from collector.log_limit import LogLimit
from collector.settlement.settle import Settler
from collector.state.core import Core
from collector.view_refresh import Views
from railscope import logs
from railscope.catalog import audit as audit_catalog
from railscope.catalog import collector as c
from railscope.connections import Connections
from railscope.exposition import Format, page, sample_prefix

NS = 1_000_000_000


class SinkCounts(Protocol):
    """Counters of a sink."""

    written: int
    dropped: int


class Validity(Protocol):
    """Validity of a file."""

    valid: bool


@dataclass(slots=True)
class Own:
    """Sources of the collector's own metrics, and of the GPU-time account of all tenants."""

    core: Core
    log: FrameLog
    files: AdministratorsFiles
    settler: Settler
    sink: SinkCounts
    trail: Trail
    tokens: Validity
    connections: Connections
    twins: NodeTwins
    quarantine: RecordQuarantine
    limits: Sequence[LogLimit] = ()
    """All rate limits of log lines."""
    audit: Callable[[], list[Cell]] = list
    """Returns the cells of the audit log's components."""

    @property
    def why_unknown(self) -> str:
        """Reason why the claims of GPUs cannot be determined; empty if they can."""
        if self.files.unknown:
            return f"{self.files.unknown} has never been valid"
        return "" if self.settler.live.ready else "the ledger could not be read yet"

    def cells(self, views: Views) -> list[Cell]:
        """Return the collector's own state and the GPU-time account, in base units."""
        counts = self.core.counts
        plain = [
            (c.ENVELOPES, counts.envelopes),
            (c.FRAMES, counts.frames),
            (c.DUPLICATES, counts.duplicates),
            (c.MISSING, self.core.received.holes()),
            (c.VALUES, counts.values),
            (c.RECEIVED_BYTES, counts.bytes),
            (c.COMMITS, self.log.stats.commits),
            (c.COMMIT_TIME, self.log.stats.commit_ns / NS),
            (c.LOG_SIZE, self.log.size),
            (c.QUARANTINED, self.quarantine.records),
            (c.SCHEMAS, len(self.core.schemas)),
            (c.CONNECTIONS, len(self.connections)),
            (c.VIEWS_TIME, views.duration_ns / NS),
            (c.CLAIMS, self.files.claims.content.in_force(views.instant_ns)),
            (c.CLAIMS_REJECTED, self.core.evidence.refused),
            (c.EVIDENCE_TOO_OLD, self.core.evidence.aged_rows),
            (c.EVIDENCE_EXCESS_GPUS, self.core.evidence.excess_gpus),
            (c.EVIDENCE_EXCESS_SPANS, self.core.evidence.excess_spans),
            (c.EVIDENCE_WAITING, len(self.core.evidence.chunks)),
            (c.EVIDENCE_STORED, self.settler.counts.parts),
            (c.EVIDENCE_FAILURES, self.settler.counts.failures),
            (c.FINALIZED_DAYS, self.settler.counts.days),
            (c.REVISED_DAYS, self.settler.counts.revisions),
            (audit_catalog.AUDIT_RECORDS, self.trail.log.size),
            (audit_catalog.AUDIT_UNSIGNED, self.trail.log.size - self.trail.log.signed.size),
            (audit_catalog.AUDIT_LOST, self.trail.lost),
            (audit_catalog.DENIALS, self.trail.denied),
            (c.LOG_LINES_SUPPRESSED, sum(one.suppressed for one in self.limits)),
            (c.LOG_LINES_LOST, logs.lines.lost),
            (c.CLOCK_SUSPECT, int(bool(self.settler.hold()))),
            (c.SINK_WRITTEN, self.sink.written),
            (c.SINK_DROPPED, self.sink.dropped),
        ]
        return [
            *(Cell(metric, (), value) for metric, value in plain),
            *self.audit(),
            *(cluster_cells(views.account) if views.account else ()),
            *(Cell(c.FILE_VALID, (f.kind,), int(f.valid)) for f in self.files.all if f.path),
            Cell(c.FILE_VALID, ("tokens",), int(self.tokens.valid)),
            *(Cell(c.NODE_TWINS, (name,), 1) for name in self.twins.nodes(views.instant_ns)),
            *(
                Cell(c.UNPLACED_GPUS, (name,), float(amount))
                for name, amount in self.settler.live.unplaced(views.instant_ns).items()
            ),
            *(Cell(c.CONNECTIONS_CLOSED, (why,), n) for why, n in self.connections.closed.items()),
            *(
                Cell(c.MISSING_OF_NODE, (name,), count)
                for name, count in self.core.received.missing_of_nodes()
            ),
            *(
                Cell(c.RUN_ENDS_IGNORED, (reason,), count)
                for reason, count in self.core.received.ignored.items()
            ),
            *(Cell(c.REJECTED, (reason,), count) for reason, count in counts.rejected.items()),
        ]


def render(cells: Iterable[Cell], text_format: Format) -> str:
    """Render cells as the text of the metrics endpoint."""
    blocks: dict[str, list[str]] = {}
    for cell in cells:
        labels = zip(label_names(cell.metric), cell.labels, strict=True)
        line = f"{sample_prefix(cell.metric, labels)}{_number(cell.value)}\n"
        blocks.setdefault(cell.metric.name, []).append(line)
    return page({name: "".join(lines) for name, lines in blocks.items()}, text_format)


def _number(value: float) -> str:
    return repr(int(value)) if float(value).is_integer() else repr(float(value))
