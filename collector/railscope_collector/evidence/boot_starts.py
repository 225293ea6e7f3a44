"""Starts of boots on GPUs: the first sample of each GPU in each boot of a node.

A boot ends the claims that it does not report, however long ago it began: the days of a claim depend on all boots
since its first report. So starts are recorded by themselves, and are read without the parts of the evidence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from railscope.timestamps import FOREVER_NS
from railscope_collector.evidence import gpu_node_history, node_intervals
from railscope_collector.ledger.schema import integers, make_append_only, metadata, texts, to_row

boot_starts = sa.Table(
    "evidence_boot",
    metadata,
    sa.Column("fact", sa.Text, primary_key=True),
    *texts("gpu_uuid", "node", "boot"),
    *integers("first_ns", "trusted_ns", "recorded_ns"),
    sa.Index("evidence_boot_gpu", "gpu_uuid", "node", "boot"),
    sa.Index("evidence_boot_recorded", "recorded_ns"),
)
"""Starts of boots by GPU, node and boot: the lowest `first_ns` and the lowest `trusted_ns` of each count."""
make_append_only(boot_starts)
_KEY = (boot_starts.c.gpu_uuid, boot_starts.c.node, boot_starts.c.boot)


class BootStart(NamedTuple):
    """Start of a boot of a node: its first sample of a GPU, and the time from which that is trusted."""

    node: str
    boot: str
    first_ns: int
    trusted_ns: int

    def earliest(self, other: BootStart) -> BootStart:
        """Return the start of the boot by two starts of it, of which each may be of a part of its samples."""
        first_ns = min(self.first_ns, other.first_ns)
        return self._replace(first_ns=first_ns, trusted_ns=min(self.trusted_ns, other.trusted_ns))

    @classmethod
    def collect(cls, presences: Iterable[gpu_node_history.GpuPresence]) -> Iterator[BootStart]:
        """Yield the starts of boots in which a GPU has samples."""
        for presence in presences:
            if presence.spans:
                first_ns = min(span.first_ns for span in presence.spans)
                trusted_ns = presence.trusted_start_ns or first_ns
                yield cls(presence.node, presence.boot, first_ns, trusted_ns)


class RecordedBoot(NamedTuple):
    """Start of a boot on a GPU, as far as one interval shows."""

    gpu: str
    start: BootStart

    @classmethod
    def collect(cls, interval: node_intervals.EvidenceInterval) -> tuple[RecordedBoot, ...]:
        """Return the starts on the GPUs of an interval."""
        found = []
        for gpu, reported in interval.gpus.items():
            fields = (reported.received_ns, reported.spans, reported.trusted_start_ns)
            presence = gpu_node_history.GpuPresence(interval.node, interval.boot, *fields)
            found += [cls(gpu, start) for start in BootStart.collect([presence])]
        return tuple(found)

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the GPU, node and boot."""
        return self.gpu, self.start.node, self.start.boot


def _select_starts(condition: Any) -> Any:
    first_ns, trusted_ns = (
        sa.func.min(boot_starts.c[name]).label(name) for name in ("first_ns", "trusted_ns")
    )
    return sa.select(*_KEY, first_ns, trusted_ns).where(condition).group_by(*_KEY)


def select_known(keys: Collection[tuple[str, str, str]]) -> Any:
    """Return a query for the recorded starts of some boots, by GPU, node and boot."""
    return _select_starts(sa.tuple_(*_KEY).in_(keys))


def select_later(gpus: Sequence[str], since_ns: int, end_ns: int) -> Any:
    """Return a query for the boots that began on GPUs after a timestamp and before another."""
    first_ns = sa.func.min(boot_starts.c.first_ns)
    within = sa.and_(first_ns > since_ns, first_ns < end_ns)
    return _select_starts(boot_starts.c.gpu_uuid.in_(gpus)).having(within)


def read_starts(rows: Iterable[sa.Row[Any]]) -> list[RecordedBoot]:
    """Return the starts in rows of these queries."""
    return [
        RecordedBoot(row.gpu_uuid, BootStart(row.node, row.boot, row.first_ns, row.trusted_ns))
        for row in rows
    ]


def lower_rows(
    known_boots: Iterable[RecordedBoot], new_boots: Iterable[RecordedBoot], recorded_ns: int
) -> list[dict[str, Any]]:
    """Return rows for the starts that are earlier, or trusted from earlier on, than the known ones."""
    lowest_ns: dict[tuple[str, str, str], tuple[int, int]] = {
        boot.key: boot.start[2:] for boot in known_boots
    }
    rows = []
    for boot in sorted(set(new_boots)):
        first_ns, trusted_ns = lowest_ns.get(boot.key, (FOREVER_NS, FOREVER_NS))
        lower_ns = min(boot.start.first_ns, first_ns), min(boot.start.trusted_ns, trusted_ns)
        # Rows are never changed: a row is added only if it lowers the minimum, which is what counts.
        if lower_ns != (first_ns, trusted_ns):
            lowest_ns[boot.key] = lower_ns
            fact = sha256(msgspec.msgpack.encode(boot)).hexdigest()
            names = {"fact": fact, "gpu_uuid": boot.gpu}
            rows.append(to_row(boot_starts, boot.start, **names, recorded_ns=recorded_ns))
    return rows
