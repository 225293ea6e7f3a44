"""Detection of two nodes under one name and token, by data that a single node cannot send.

A node has one boot at a time: it never sends again under an earlier boot. Within one boot, a
restarted agent sends the remaining frames of its predecessor, but none that are newer than its
own first frames by more than the overlap of a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from railscope.wire import Envelope
from railscope_collector.evidence.evidence_records import EvidenceProblem
from railscope_collector.framelog.segment_files import FrameRecord

IDENTITY_CONFLICT = "identity_conflict"
CONFLICT_LASTS_NS = 3_600_000_000_000
"""Time after the last detection in which a name counts as used by two nodes."""
_OVERLAP_NS = 60_000_000_000
# Bounds per node. More than one, as the conflict is found when an earlier boot or run returns.
_MAX_BOOTS, _MAX_RUNS = 8, 8


@dataclass(slots=True)
class _SendingRun:
    first_ns: int
    last_ns: int


@dataclass(slots=True)
class _SendingNode:
    boots: list[str] = field(default_factory=list)
    """Boot IDs of the node, the current one last."""
    runs: OrderedDict[tuple[str, str], _SendingRun] = field(default_factory=OrderedDict)
    """Boot clock of the first and last frames, by boot and run."""
    conflict_ns: int = 0


@dataclass(slots=True)
class IdentityConflictDetector:
    """Tracks all nodes; `report` is called if two nodes send under one name."""

    report: Callable[[EvidenceProblem], None]
    _nodes: dict[str, _SendingNode] = field(default_factory=dict)

    def check(self, record: FrameRecord, envelope: Envelope) -> None:
        """Check an envelope."""
        node = self._nodes.setdefault(envelope.node, _SendingNode())
        conflict = self._reused_boot(node, record.sent.boot_id) or self._parallel_run(
            node, envelope
        )
        if not conflict:
            return
        node.conflict_ns = max(node.conflict_ns, record.received_wall_ns)
        kind, first, second = conflict
        # In one order, so that both directions are one problem, which is recorded once.
        facts = {"by": kind, "one": min(first, second), "other": max(first, second)}
        self.report(
            EvidenceProblem(IDENTITY_CONFLICT, "", envelope.node, record.received_wall_ns, facts)
        )

    def nodes(self, now_ns: int) -> list[str]:
        """Return the names that were recently used by two nodes."""
        return [
            name
            for name, node in self._nodes.items()
            if node.conflict_ns and now_ns - node.conflict_ns < CONFLICT_LASTS_NS
        ]

    @staticmethod
    def _reused_boot(node: _SendingNode, boot_id: str) -> tuple[str, str, str] | None:
        """Return the boot that was left, if the node sends under an earlier one again."""
        if not boot_id or (node.boots and node.boots[-1] == boot_id):
            return None
        previous = node.boots[-1] if boot_id in node.boots else ""
        node.boots = [*(boot for boot in node.boots if boot != boot_id), boot_id][-_MAX_BOOTS:]
        return ("boot", previous, boot_id) if previous else None

    @staticmethod
    def _parallel_run(node: _SendingNode, envelope: Envelope) -> tuple[str, str, str] | None:
        """Return another run of the boot that continues in parallel to this one."""
        if not envelope.batches or not envelope.boot_id:
            return None
        first_ns = min(batch.boot_ns[0] for batch in envelope.batches)
        last_ns = max(batch.boot_ns[-1] for batch in envelope.batches)
        key = (envelope.boot_id, envelope.run)
        run = node.runs.setdefault(key, _SendingRun(first_ns, last_ns))
        run.first_ns, run.last_ns = min(run.first_ns, first_ns), max(run.last_ns, last_ns)
        node.runs.move_to_end(key)
        if len(node.runs) > _MAX_RUNS:
            node.runs.popitem(last=False)
        for (boot_id, name), other in node.runs.items():
            if boot_id != envelope.boot_id or name == envelope.run:
                continue
            overlap_ns = min(run.last_ns, other.last_ns) - max(run.first_ns, other.first_ns)
            if overlap_ns > _OVERLAP_NS:
                return "run", name, envelope.run
        return None
