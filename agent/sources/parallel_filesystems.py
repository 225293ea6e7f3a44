"""Clients of parallel file systems in the kernel: Lustre and Ceph.

Lustre: file operations, requests by target, connections to targets. Formats: lustre/lustre-release
lustre/obdclass/lprocfs_status.c and lprocfs_counters.c. Clients since 2.12 have their statistics in
debugfs, which only root may enter, older ones in /proc; some use both.

Ceph (CephFS and RBD): requests in flight, latencies, bytes. Formats: torvalds/linux
fs/ceph/debugfs.c and net/ceph/debugfs.c. Kernels from 5.8 on have the file `metrics`, from 5.14 on
a directory of that name with the same tables. Listing requests takes the client's locks: the source
runs on its own thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

from agent.host import Host
from agent.sampling import source
from agent.sources.source_bases import KeyedFile, parse_natural, whole_lines
from railscope.catalog import declare, entities, storage as c
from railscope.frame import Entity
from railscope.reading import Absent, Reading, reason_of

LUSTRE_DEBUG_ROOT = "/sys/kernel/debug/lustre"
LUSTRE_ROOTS = (LUSTRE_DEBUG_ROOT, "/proc/fs/lustre")
LUSTRE_HEALTH_FILES = ("/sys/fs/lustre/health_check", "/proc/fs/lustre/health_check")
MAX_TARGETS = 128
_REMEDY = "run the agent as root, or grant it CAP_DAC_READ_SEARCH"
_LUSTRE_CLIENT = re.compile(r"(?P<filesystem>.+)-(?P<client>[0-9a-f]{8,16})")
_TARGET = re.compile(
    r"(?P<filesystem>.+)-(?P<target>(?:OST|MDT)[0-9a-f]{4})-(?:osc|mdc)-(?P<client>[0-9a-f]{8,16})"
)
_STATISTIC = re.compile(r"(\w+)\s+(\d+) samples \[(\w+)\](?: \d+ \d+ (\d+))?")
_STATE = re.compile(r"^\s+state: (\w+)$", re.MULTILINE)
_RPCS = re.compile(r"^\s+(inflight|timeouts): (\d+)$", re.MULTILINE)
_MICROSECONDS = {"usec", "usecs"}
_LUSTRE_OPERATIONS = {
    "read", "write", "open", "close", "getattr", "setattr", "fsync", "readdir", "lookup", "create",
    "mknod", "unlink", "mkdir", "rmdir", "rename", "statfs", "mmap", "page_fault", "page_mkwrite",
    "truncate",
}  # fmt: skip
_LUSTRE_REQUESTS = {
    "ost_read", "ost_write", "ost_punch", "ost_sync", "ost_statfs", "mds_getattr",
    "mds_getattr_lock", "mds_close", "mds_sync", "mds_readpage", "mds_statfs", "ldlm_enqueue",
    "ldlm_glimpse_enqueue", "ldlm_extent_enqueue", "ldlm_ibits_enqueue", "ldlm_cancel",
    "mds_reint", "obd_ping",
}  # fmt: skip
_NUMBER_OF_STATE = {name.upper(): number for number, name in c.IMPORT_STATES.items()}
_HEALTH_KEY = "healthy"


def parse_statistics(content: bytes) -> dict[Hashable, Reading]:
    """Samples and sums by name of a stats file; times are identified by their unit.

    `(name, "samples")` is a count, `(name, "sum")` a sum in its own unit, `(name, "usec")` a sum in
    microseconds. Operations that never happened have no line.
    """
    found: dict[Hashable, Reading] = {}
    for line in whole_lines(content):
        if match := _STATISTIC.match(line):
            name, samples, unit, total = match.groups()
            found[name, "samples"] = parse_natural(samples)
            if total is not None:
                found[name, "usec" if unit in _MICROSECONDS else "sum"] = parse_natural(total)
    return found


def parse_import(content: bytes) -> dict[Hashable, Reading]:
    """State, requests in flight and timeouts of a connection to a target."""
    text = "\n".join(whole_lines(content))
    found: dict[Hashable, Reading] = {
        name: parse_natural(count) for name, count in _RPCS.findall(text)
    }
    if match := _STATE.search(text):
        found["state"] = _NUMBER_OF_STATE.get(match[1], Absent.ERROR)
    return found


def parse_health(content: bytes) -> dict[Hashable, Reading]:
    """Health: 1 for healthy, 0 for unhealthy."""
    state = content.decode(errors="replace").strip()
    if state == "healthy":
        return {_HEALTH_KEY: 1}
    return {_HEALTH_KEY: 0 if "NOT HEALTHY" in state or "LBUG" in state else Absent.ERROR}


@dataclass(frozen=True, slots=True)
class _LustreDirectory:
    """A client or a target, and its possible directories."""

    about: Entity
    kind: str
    name: str

    def file(self, host: Host, name: str) -> str:
        """Path of one of its files: the first that is readable, or ""."""
        paths = [f"{root}/{self.kind}/{self.name}/{name}" for root in LUSTRE_ROOTS]
        return next((path for path in paths if source.read_text(host, path)), "")


class LustreSource(source.SourceWithoutResources):
    """File operations of each client, requests and connection of each of its targets."""

    name = "lustre"
    family = "lustre"

    def __init__(self, period_seconds: float = 10.0) -> None:
        self.period_seconds = period_seconds
        self._files: list[KeyedFile] = []

    def probe(self, host: Host) -> source.ProbeResult:
        """Find the clients, their targets, and the counters that exist so far."""
        columns = source.ColumnBuilder()
        self._files = []

        def add(file: KeyedFile, wanted: Iterable[tuple[Hashable, declare.Metric, Entity]]) -> None:
            file.columns = [(columns.add(metric, about), key) for key, metric, about in wanted]
            self._files.append(file)

        health = next((path for path in LUSTRE_HEALTH_FILES if source.read_text(host, path)), "")
        if health:
            file = KeyedFile(health, parse_health)
            add(
                file, [(key, c.LUSTRE_HEALTHY, Entity(entities.NODE)) for key in file.present(host)]
            )
        clients = _directories(host, "llite", _LUSTRE_CLIENT)
        targets = [*_directories(host, "mdc", _TARGET), *_directories(host, "osc", _TARGET)]
        for client in clients:
            file = KeyedFile(client.file(host, "stats"), parse_statistics)
            add(file, _client_columns(file.present(host), client.about))
        for target in targets[:MAX_TARGETS]:
            file = KeyedFile(target.file(host, "stats"), parse_statistics)
            add(file, _target_columns(file.present(host), target.about))
            file = KeyedFile(target.file(host, "import"), parse_import)
            add(file, _import_columns(file.present(host), target.about))
        self._files = [file for file in self._files if file.columns]
        finding = _lustre_finding(host, health, len(clients), len(targets))
        return source.ProbeResult(tuple(columns.columns), (), (finding,))

    def read(self, host: Host, into: source.RowBuilder) -> None:
        """Read each file once."""
        for file in self._files:
            file.read(host, into)


def _directories(host: Host, kind: str, pattern: re.Pattern[str]) -> list[_LustreDirectory]:
    every = sorted(
        {name for root in LUSTRE_ROOTS for name in source.list_names(host, f"{root}/{kind}")}
    )
    matches = [match for name in every if (match := pattern.fullmatch(name))]
    about = entities.LUSTRE_CLIENT if pattern is _LUSTRE_CLIENT else entities.LUSTRE_TARGET
    return [
        _LustreDirectory(
            Entity(about, tuple(match[label] for label in about.labels)), kind, match[0]
        )
        for match in matches
    ]


WantedColumns = list[tuple[Hashable, declare.Metric, Entity]]


def _client_columns(present: Iterable[Hashable], client: Entity) -> WantedColumns:
    """Columns of a client. Byte counters always exist; an operation exists once it has happened."""
    wanted: WantedColumns = []
    for key in present:
        name, part = key if isinstance(key, tuple) else ("", "")
        about = client.part(entities.LUSTRE_OPERATION, name)
        if key == ("read_bytes", "sum"):
            wanted.append((key, c.LUSTRE_READ, client))
        elif key == ("write_bytes", "sum"):
            wanted.append((key, c.LUSTRE_WRITTEN, client))
        elif name in _LUSTRE_OPERATIONS and part == "samples":
            wanted.append((key, c.LUSTRE_OPERATIONS, about))
        elif name in _LUSTRE_OPERATIONS and part == "usec":
            wanted.append((key, c.LUSTRE_OPERATION_TIME, about))
    return wanted


_OF_TARGET: dict[Hashable, declare.Metric] = {
    ("req_waittime", "samples"): c.LUSTRE_TARGET_REQUESTS,
    ("req_waittime", "usec"): c.LUSTRE_TARGET_WAIT,
    ("read_bytes", "sum"): c.LUSTRE_TARGET_READ,
    ("write_bytes", "sum"): c.LUSTRE_TARGET_WRITTEN,
}
_OF_IMPORT: dict[Hashable, declare.Metric] = {
    "state": c.LUSTRE_TARGET_STATE,
    "inflight": c.LUSTRE_TARGET_IN_FLIGHT,
    "timeouts": c.LUSTRE_TARGET_TIMEOUTS,
}


def _target_columns(present: Iterable[Hashable], target: Entity) -> WantedColumns:
    wanted: WantedColumns = []
    for key in present:
        name, part = key if isinstance(key, tuple) else ("", "")
        about = target.part(entities.LUSTRE_REQUEST, name)
        if metric := _OF_TARGET.get(key):
            wanted.append((key, metric, target))
        elif name in _LUSTRE_REQUESTS and part == "samples":
            wanted.append((key, c.LUSTRE_REQUESTS, about))
        elif name in _LUSTRE_REQUESTS and part == "usec":
            wanted.append((key, c.LUSTRE_REQUEST_TIME, about))
    return wanted


def _import_columns(present: Iterable[Hashable], target: Entity) -> WantedColumns:
    return [(key, _OF_IMPORT[key], target) for key in present if key in _OF_IMPORT]


def _lustre_finding(host: Host, health: str, clients: int, targets: int) -> source.ProbeFinding:
    if clients:
        detail = (
            f"{source.format_count(clients, 'client')}, {source.format_count(targets, 'target')}"
        )
        if targets > MAX_TARGETS:
            detail += f"; {targets - MAX_TARGETS} beyond the first {MAX_TARGETS} are omitted"
        return source.ProbeFinding("Lustre", source.ProbeVerdict.SUPPORTED, detail)
    if not health:
        return source.ProbeFinding(
            "Lustre", source.ProbeVerdict.ABSENT, "the Lustre client is not loaded"
        )
    try:
        host.names(LUSTRE_DEBUG_ROOT)
    except OSError as error:
        if reason_of(error) is Absent.DENIED:
            return source.ProbeFinding(
                "Lustre",
                source.ProbeVerdict.DENIED,
                f"permission denied for {LUSTRE_DEBUG_ROOT}",
                _REMEDY,
            )
    return source.ProbeFinding("Lustre", source.ProbeVerdict.SUPPORTED, "nothing is mounted")


CEPH_ROOT = "/sys/kernel/debug/ceph"
_CEPH_CLIENT = re.compile(r"(?P<cluster>[0-9a-f-]{36})\.(?P<client>client\d+)")
_CEPH_REQUESTS = re.compile(r"REQUESTS (\d+) homeless (\d+)")
_CEPH_OPERATIONS = {
    "read": "read",
    "write": "write",
    "metadata": "metadata",
    "copyfrom": "copy_from",
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
    found: dict[Hashable, Reading] = {}
    columns: list[str] = []
    for line in whole_lines(content):
        words = line.split()
        if words[:1] == ["item"]:
            columns = words[1:]
        elif len(words) == len(columns) + 1 and len(columns) > 1:
            named = zip(columns, words[1:], strict=True)
            found |= {
                (words[0], column): parse_natural(word)
                for column, word in named
                if _is_published(column)
            }
            if "avg_sz(bytes)" not in columns:
                found[words[0], "total"] = parse_natural(words[1])
    return found


def _is_published(column: str) -> bool:
    return column != "total" and (column in _OF_OPERATION or column in {"hit", "miss"})


_FILES: tuple[tuple[str, Callable[[bytes], Mapping[Hashable, Reading]]], ...] = (
    ("osdc", parse_osdc),
    ("mdsc", parse_mdsc),
    ("metrics", parse_metrics),
    ("metrics/latency", parse_metrics),
    ("metrics/size", parse_metrics),
    ("metrics/caps", parse_metrics),
)


class CephSource(source.SourceWithoutResources):
    """Requests in flight, latencies and bytes of every client."""

    name = "ceph"
    family = "ceph"

    def __init__(self, period_seconds: float = 10.0) -> None:
        self.period_seconds = period_seconds
        self._files: list[KeyedFile] = []

    def probe(self, host: Host) -> source.ProbeResult:
        """Find the clients and the metrics that their kernel reports."""
        columns = source.ColumnBuilder()
        self._files = []
        clients = [
            match
            for name in source.list_names(host, CEPH_ROOT)
            if (match := _CEPH_CLIENT.fullmatch(name))
        ]
        for match in clients:
            about = Entity(entities.CEPH_CLIENT, (match["cluster"], match["client"]))
            for name, parse in _FILES:
                file = KeyedFile(f"{CEPH_ROOT}/{match[0]}/{name}", parse)
                for key in file.present(host):
                    if wanted := _ceph_column(key, about):
                        file.columns.append((columns.add(*wanted), key))
                if file.columns:
                    self._files.append(file)
        return source.ProbeResult(tuple(columns.columns), (), (_ceph_finding(host, len(clients)),))

    def read(self, host: Host, into: source.RowBuilder) -> None:
        """Read each file once."""
        for file in self._files:
            file.read(host, into)


def _ceph_column(key: Hashable, about: Entity) -> tuple[declare.Metric, Entity] | None:
    if metric := _OF_CLIENT.get(key):
        return metric, about
    row, column = key if isinstance(key, tuple) else ("", "")
    if row in _CEPH_OPERATIONS and column in _OF_OPERATION:
        return _OF_OPERATION[column], about.part(entities.CEPH_OPERATION, _CEPH_OPERATIONS[row])
    return None


def _ceph_finding(host: Host, clients: int) -> source.ProbeFinding:
    if clients:
        return source.ProbeFinding(
            "Ceph", source.ProbeVerdict.SUPPORTED, source.format_count(clients, "client")
        )
    if not source.list_names(host, "/sys/module/libceph"):
        return source.ProbeFinding(
            "Ceph", source.ProbeVerdict.ABSENT, "the Ceph client is not loaded"
        )
    try:
        host.names(CEPH_ROOT)
    except OSError as error:
        if reason_of(error) is Absent.DENIED:
            return source.ProbeFinding(
                "Ceph", source.ProbeVerdict.DENIED, f"permission denied for {CEPH_ROOT}", _REMEDY
            )
    return source.ProbeFinding("Ceph", source.ProbeVerdict.ABSENT, "nothing is mounted or mapped")
