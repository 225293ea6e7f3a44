"""Ceph clients (CephFS and RBD) in the kernel: requests in flight, latencies, bytes.

Formats: torvalds/linux fs/ceph/debugfs.c and net/ceph/debugfs.c. Kernels from 5.8 on have the file
`metrics`, from 5.14 on a directory of that name with the same tables. Listing requests takes the
client's locks: the source runs on its own thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial

from railscope.catalog import declare, entities, storage as c
from railscope.frame import Column, Entity
from railscope.reading import Absent, Reading
from railscope_agent.host import Host
from railscope_agent.sampling import fact_readers, probe_result
from railscope_agent.sources.debugfs import denied_findings
from railscope_agent.sources.scan_source import (
    Found,
    ScanSource,
    matching,
    parse_natural,
    whole_lines,
)

CEPH_ROOT = "/sys/kernel/debug/ceph"
_CEPH_CLIENT = re.compile(r"(?P<cluster>[0-9a-f-]{36})\.(?P<client>client\d+)")
_CEPH_REQUESTS = re.compile(r"REQUESTS (\d+) homeless (\d+)")
_CEPH_OPERATIONS = {name: name for name in ("read", "write", "metadata")} | {
    "copyfrom": "copy_from"
}
_OF_OPERATION: dict[str, declare.Metric] = {
    "total": c.CEPH_OPERATIONS,
    "avg_lat(us)": c.CEPH_LATENCY,
    "max_lat(us)": c.CEPH_LONGEST,
    "total_sz(bytes)": c.CEPH_BYTES,
}
_OF_CLIENT: dict[Hashable, declare.Metric] = {
    "requests": c.CEPH_OSD_REQUESTS,
    "homeless": c.CEPH_HOMELESS,
    "metadata requests": c.CEPH_MDS_REQUESTS,
    ("caps", "hit"): c.CEPH_CAPS_HITS,
    ("caps", "miss"): c.CEPH_CAPS_MISSES,
}

_PUBLISHED = frozenset({*_OF_OPERATION, "hit", "miss"} - {"total"})


def parse_osdc(content: bytes) -> dict[Hashable, Reading]:
    """Requests to object stores, and the number of them without a target."""
    lines = whole_lines(content)
    match = _CEPH_REQUESTS.fullmatch(lines[0]) if lines else None
    if match:
        return {"requests": parse_natural(match[1]), "homeless": parse_natural(match[2])}
    return {"requests": Absent.ERROR} if lines else {}


def parse_mdsc(content: bytes) -> dict[Hashable, Reading]:
    """Requests to metadata servers, one line each."""
    return {"metadata requests": len(whole_lines(content))}


def parse_metrics(content: bytes) -> dict[Hashable, Reading]:
    """Cells by row and column of the tables with named columns; `total` comes from latencies."""
    readings: dict[Hashable, Reading] = {}
    columns: list[str] = []
    for line in whole_lines(content):
        row, *cells = line.split() or [""]
        if row == "item":
            columns = cells
        # The table of capabilities has rows of another length in some kernels: a row counts only if every
        # cell has a name.
        elif len(cells) == len(columns) > 1:
            named = zip(columns, map(parse_natural, cells), strict=True)
            readings |= {(row, name): cell for name, cell in named if name in _PUBLISHED}
            # The table of sizes counts the same operations again.
            if "avg_sz(bytes)" not in columns:
                readings[row, "total"] = parse_natural(cells[0])
    return readings


_FILES: tuple[tuple[str, Callable[[bytes], Mapping[Hashable, Reading]]], ...] = (
    ("osdc", parse_osdc),
    ("mdsc", parse_mdsc),
    ("metrics", parse_metrics),
    ("metrics/latency", parse_metrics),
    ("metrics/size", parse_metrics),
    ("metrics/caps", parse_metrics),
)


class CephSource(ScanSource):
    """Requests in flight, latencies and bytes of every client."""

    name = "ceph"
    period_seconds = 10.0

    def readings(self, host: Host) -> Iterator[Found | probe_result.ProbeFinding]:
        """Yield the metrics of each client that its kernel reports."""
        for match in matching(host, CEPH_ROOT, _CEPH_CLIENT):
            about = Entity(entities.CEPH_CLIENT, (match["cluster"], match["client"]))
            for name, parse in _FILES:
                yield from self.keyed(
                    host, f"{CEPH_ROOT}/{match[0]}/{name}", parse, partial(_column, about)
                )
        if fact_readers.list_names(host, "/sys/module/libceph"):
            yield from denied_findings(host, "Ceph", CEPH_ROOT)


def _column(about: Entity, key: Hashable) -> Column | None:
    if metric := _OF_CLIENT.get(key):
        return metric, about
    row, column = key if isinstance(key, tuple) else ("", "")
    if row in _CEPH_OPERATIONS and column in _OF_OPERATION:
        return _OF_OPERATION[column], about.child(entities.CEPH_OPERATION, _CEPH_OPERATIONS[row])
    return None
