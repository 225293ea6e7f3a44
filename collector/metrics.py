"""The collector's /metrics: the aggregates of the views, and the collector's own state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from collector.audit.trail import Trail
from collector.claims import ClaimsFile
from collector.core import Core
from collector.framelog import FrameLog
from collector.metering.account import Account
from collector.views.refresh import Views
from collector.views.table import Cell
from railscope.catalog import collector as c
from railscope.exposition import Format, page, sample_prefix

NS = 1_000_000_000


class SinkCounts(Protocol):
    """What a sink counts."""

    written: int
    dropped: int


class Validity(Protocol):
    """What is read from a file that may be wrong."""

    valid: bool


@dataclass(slots=True)
class Own:
    """Where the collector's own numbers come from."""

    core: Core
    log: FrameLog
    claims: ClaimsFile
    sink: SinkCounts
    trail: Trail
    tokens: Validity

    def cells(self, views: Views) -> list[Cell]:
        """The collector's own state and the GPU-time account, in base units."""
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
            (c.VIEWS_TIME, views.duration_ns / NS),
            (c.CLAIMS, self.claims.claims.in_force(views.instant_ns)),
            (c.CLAIMS_VALID, int(self.claims.valid)),
            (c.TOKENS_VALID, int(self.tokens.valid)),
            (c.AUDIT_RECORDS, self.trail.log.size),
            (c.AUDIT_UNSIGNED, self.trail.log.size - self.trail.log.signed.size),
            (c.AUDIT_LOST, self.trail.lost),
            (c.DENIALS, self.trail.denied),
            (c.SINK_WRITTEN, self.sink.written),
            (c.SINK_DROPPED, self.sink.dropped),
        ]
        return [
            *(Cell(metric, (), value) for metric, value in plain),
            *_gpu_time(views.account),
            *(Cell(c.REJECTED, (reason,), count) for reason, count in counts.rejected.items()),
        ]


def _gpu_time(account: Account | None) -> list[Cell]:
    if account is None:
        return []
    states = {"held": account.held_ns, "idle": account.idle_ns, "unknown": account.unknown_ns}
    return [
        Cell(c.GPU_CAPACITY, (), account.capacity_ns / NS),
        *(Cell(c.GPU_TIME, (state,), ns / NS) for state, ns in states.items()),
    ]


def render(cells: Iterable[Cell], text_format: Format) -> str:
    """A page of cells."""
    blocks: dict[str, list[str]] = {}
    for cell in cells:
        labels = zip(cell.metric.about.labels, cell.labels, strict=True)
        line = f"{sample_prefix(cell.metric, labels)}{_number(cell.value)}\n"
        blocks.setdefault(cell.metric.name, []).append(line)
    return page({name: "".join(lines) for name, lines in blocks.items()}, text_format)


def _number(value: float) -> str:
    return repr(int(value)) if float(value).is_integer() else repr(float(value))
