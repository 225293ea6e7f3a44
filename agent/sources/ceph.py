"""Ceph clients of the kernel (CephFS and RBD): requests in flight, latencies, bytes.

Formats: torvalds/linux fs/ceph/debugfs.c and net/ceph/debugfs.c. Kernels from 5.8 on have the file
`metrics`, from 5.14 on a directory of that name with the same tables. Listing requests takes the
client's locks: the source runs on its own thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping

from agent.host import Host
from agent.sampling.facts import counted, names
from agent.sampling.source import Columns, Finding, HoldsNothing, Inventory, Table, Verdict
from agent.sources.picked import Picked, natural, whole_lines
from railscope.catalog import filesystems as c
from railscope.catalog.declare import Metric
from railscope.catalog.entities import CEPH_CLIENT, CEPH_OPERATION
from railscope.entity import Entity
from railscope.reading import Absent, Reading, reason_of

ROOT = "/sys/kernel/debug/ceph"
_REMEDY = "run the agent as root, or give it CAP_DAC_READ_SEARCH"
_CLIENT = re.compile(r"(?P<cluster>[0-9a-f-]{36})\.(?P<client>client\d+)")
_REQUESTS = re.compile(r"REQUESTS (\d+) homeless (\d+)")
_OPERATIONS = {"read": "read", "write": "write", "metadata": "metadata", "copyfrom": "copy_from"}
_OF_OPERATION: dict[str, Metric] = {
    "total": c.CEPH_OPERATIONS,
    "avg_lat(us)": c.CEPH_LATENCY,
    "max_lat(us)": c.CEPH_LONGEST,
    "total_sz(bytes)": c.CEPH_BYTES,
}
_OF_CLIENT: dict[Hashable, Metric] = {
    "requests": c.CEPH_OSD_REQUESTS,
    "homeless": c.CEPH_HOMELESS,
    "metadata requests": c.CEPH_MDS_REQUESTS,
    ("caps", "hit"): c.CEPH_CAPS_HITS,
    ("caps", "miss"): c.CEPH_CAPS_MISSES,
}


def parse_osdc(content: bytes) -> dict[Hashable, Reading]:
    """Requests to object stores, and the number of them without a target."""
    lines = whole_lines(content)
    match = _REQUESTS.fullmatch(lines[0]) if lines else None
    if match:
        return {"requests": natural(match[1]), "homeless": natural(match[2])}
    return {"requests": Absent.ERROR} if lines else {}


def parse_mdsc(content: bytes) -> dict[Hashable, Reading]:
    """Requests to metadata servers, one line each."""
    return {"metadata requests": len(whole_lines(content))}


def parse_metrics(content: bytes) -> dict[Hashable, Reading]:
    """Cells by row and column of the tables with named columns; `total` comes from latencies."""
    found: dict[Hashable, Reading] = {}
    columns: list[str] = []
    for line in whole_lines(content):
        words = line.split()
        if words[:1] == ["item"]:
            columns = words[1:]
        elif len(words) == len(columns) + 1 and len(columns) > 1:
            named = zip(columns, words[1:], strict=True)
            found |= {
                (words[0], column): natural(word) for column, word in named if _is_ours(column)
            }
            if "avg_sz(bytes)" not in columns:
                found[words[0], "total"] = natural(words[1])
    return found


def _is_ours(column: str) -> bool:
    return column != "total" and (column in _OF_OPERATION or column in {"hit", "miss"})


_FILES: tuple[tuple[str, Callable[[bytes], Mapping[Hashable, Reading]]], ...] = (
    ("osdc", parse_osdc),
    ("mdsc", parse_mdsc),
    ("metrics", parse_metrics),
    ("metrics/latency", parse_metrics),
    ("metrics/size", parse_metrics),
    ("metrics/caps", parse_metrics),
)


class Ceph(HoldsNothing):
    """Requests in flight, latencies and bytes of every client."""

    name = "ceph"
    family = "ceph"

    def __init__(self, period_seconds: float = 10.0) -> None:
        self.period_seconds = period_seconds
        self._files: list[Picked] = []

    def probe(self, host: Host) -> Inventory:
        """Find the clients and the metrics that their kernel reports."""
        columns = Columns()
        self._files = []
        clients = [match for name in names(host, ROOT) if (match := _CLIENT.fullmatch(name))]
        for match in clients:
            about = Entity(CEPH_CLIENT, (match["cluster"], match["client"]))
            for name, parse in _FILES:
                file = Picked(f"{ROOT}/{match[0]}/{name}", parse)
                for key in file.present(host):
                    if wanted := _column(key, about):
                        file.columns.append((columns.add(*wanted), key))
                if file.columns:
                    self._files.append(file)
        return Inventory(tuple(columns.columns), (), (_finding(host, len(clients)),))

    def read(self, host: Host, into: Table) -> None:
        """Read each file once."""
        for file in self._files:
            file.read(host, into)


def _column(key: Hashable, about: Entity) -> tuple[Metric, Entity] | None:
    if metric := _OF_CLIENT.get(key):
        return metric, about
    row, column = key if isinstance(key, tuple) else ("", "")
    if row in _OPERATIONS and column in _OF_OPERATION:
        return _OF_OPERATION[column], about.part(CEPH_OPERATION, _OPERATIONS[row])
    return None


def _finding(host: Host, clients: int) -> Finding:
    if clients:
        return Finding("Ceph", Verdict.SUPPORTED, counted(clients, "client"))
    if not names(host, "/sys/module/libceph"):
        return Finding("Ceph", Verdict.ABSENT, "the Ceph client is not loaded")
    try:
        host.names(ROOT)
    except OSError as error:
        if reason_of(error) is Absent.DENIED:
            return Finding("Ceph", Verdict.DENIED, f"{ROOT} may not be entered", _REMEDY)
    return Finding("Ceph", Verdict.ABSENT, "nothing is mounted or mapped")
