"""Lustre clients: file operations, requests by target, connections to targets.

Formats: lustre/lustre-release lustre/obdclass/lprocfs_status.c and lprocfs_counters.c. Clients
since 2.12 have their statistics in debugfs, which only root may enter, older ones in /proc; some
use both.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from agent.host import Host
from agent.sampling.facts import counted, names, text
from agent.sampling.source import Columns, Finding, HoldsNothing, Inventory, Table, Verdict
from agent.sources.picked import Picked, natural, whole_lines
from railscope.catalog import filesystems as c
from railscope.catalog.declare import Metric
from railscope.catalog.entities import (
    LUSTRE_CLIENT,
    LUSTRE_OPERATION,
    LUSTRE_REQUEST,
    LUSTRE_TARGET,
    NODE,
)
from railscope.entity import Entity
from railscope.reading import Absent, Reading, reason_of

DEBUG = "/sys/kernel/debug/lustre"
ROOTS = (DEBUG, "/proc/fs/lustre")
HEALTH = ("/sys/fs/lustre/health_check", "/proc/fs/lustre/health_check")
MAX_TARGETS = 128
_REMEDY = "run the agent as root, or give it CAP_DAC_READ_SEARCH"
_CLIENT = re.compile(r"(?P<filesystem>.+)-(?P<client>[0-9a-f]{8,16})")
_TARGET = re.compile(
    r"(?P<filesystem>.+)-(?P<target>(?:OST|MDT)[0-9a-f]{4})-(?:osc|mdc)-(?P<client>[0-9a-f]{8,16})"
)
_STATISTIC = re.compile(r"(\w+)\s+(\d+) samples \[(\w+)\](?: \d+ \d+ (\d+))?")
_STATE = re.compile(r"^\s+state: (\w+)$", re.MULTILINE)
_RPCS = re.compile(r"^\s+(inflight|timeouts): (\d+)$", re.MULTILINE)
_MICROSECONDS = {"usec", "usecs"}
_OPERATIONS = {
    "read", "write", "open", "close", "getattr", "setattr", "fsync", "readdir", "lookup", "create",
    "mknod", "unlink", "mkdir", "rmdir", "rename", "statfs", "mmap", "page_fault", "page_mkwrite",
    "truncate",
}  # fmt: skip
_REQUESTS = {
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
            found[name, "samples"] = natural(samples)
            if total is not None:
                found[name, "usec" if unit in _MICROSECONDS else "sum"] = natural(total)
    return found


def parse_import(content: bytes) -> dict[Hashable, Reading]:
    """State, requests in flight and timeouts of a connection to a target."""
    said = "\n".join(whole_lines(content))
    found: dict[Hashable, Reading] = {name: natural(count) for name, count in _RPCS.findall(said)}
    if match := _STATE.search(said):
        found["state"] = _NUMBER_OF_STATE.get(match[1], Absent.ERROR)
    return found


def parse_health(content: bytes) -> dict[Hashable, Reading]:
    """Health: 1 for healthy, 0 for unhealthy."""
    said = content.decode(errors="replace").strip()
    if said == "healthy":
        return {_HEALTH_KEY: 1}
    return {_HEALTH_KEY: 0 if "NOT HEALTHY" in said or "LBUG" in said else Absent.ERROR}


@dataclass(frozen=True, slots=True)
class _Directory:
    """A client or a target, and its possible directories."""

    about: Entity
    kind: str
    name: str

    def file(self, host: Host, name: str) -> str:
        """Path of one of its files: the first that is readable, or ""."""
        paths = [f"{root}/{self.kind}/{self.name}/{name}" for root in ROOTS]
        return next((path for path in paths if text(host, path)), "")


class Lustre(HoldsNothing):
    """File operations of each client, requests and connection of each of its targets."""

    name = "lustre"
    family = "lustre"

    def __init__(self, period_seconds: float = 10.0) -> None:
        self.period_seconds = period_seconds
        self._files: list[Picked] = []

    def probe(self, host: Host) -> Inventory:
        """Find the clients, their targets, and the counters that exist so far."""
        columns = Columns()
        self._files = []

        def add(file: Picked, wanted: Iterable[tuple[Hashable, Metric, Entity]]) -> None:
            file.columns = [(columns.add(metric, about), key) for key, metric, about in wanted]
            self._files.append(file)

        health = next((path for path in HEALTH if text(host, path)), "")
        if health:
            file = Picked(health, parse_health)
            add(file, [(key, c.LUSTRE_HEALTHY, Entity(NODE)) for key in file.present(host)])
        clients = _directories(host, "llite", _CLIENT)
        targets = [*_directories(host, "mdc", _TARGET), *_directories(host, "osc", _TARGET)]
        for client in clients:
            file = Picked(client.file(host, "stats"), parse_statistics)
            add(file, _of_client(file.present(host), client.about))
        for target in targets[:MAX_TARGETS]:
            file = Picked(target.file(host, "stats"), parse_statistics)
            add(file, _of_target(file.present(host), target.about))
            file = Picked(target.file(host, "import"), parse_import)
            add(file, _of_import(file.present(host), target.about))
        self._files = [file for file in self._files if file.columns]
        finding = _finding(host, health, len(clients), len(targets))
        return Inventory(tuple(columns.columns), (), (finding,))

    def read(self, host: Host, into: Table) -> None:
        """Read each file once."""
        for file in self._files:
            file.read(host, into)


def _directories(host: Host, kind: str, pattern: re.Pattern[str]) -> list[_Directory]:
    every = sorted({name for root in ROOTS for name in names(host, f"{root}/{kind}")})
    matches = [match for name in every if (match := pattern.fullmatch(name))]
    about = LUSTRE_CLIENT if pattern is _CLIENT else LUSTRE_TARGET
    return [
        _Directory(Entity(about, tuple(match[label] for label in about.labels)), kind, match[0])
        for match in matches
    ]


Wanted = list[tuple[Hashable, Metric, Entity]]


def _of_client(present: Iterable[Hashable], client: Entity) -> Wanted:
    """Columns of a client. Byte counters always exist; an operation exists once it has happened."""
    wanted: Wanted = []
    for key in present:
        name, part = key if isinstance(key, tuple) else ("", "")
        about = client.part(LUSTRE_OPERATION, name)
        if key == ("read_bytes", "sum"):
            wanted.append((key, c.LUSTRE_READ, client))
        elif key == ("write_bytes", "sum"):
            wanted.append((key, c.LUSTRE_WRITTEN, client))
        elif name in _OPERATIONS and part == "samples":
            wanted.append((key, c.LUSTRE_OPERATIONS, about))
        elif name in _OPERATIONS and part == "usec":
            wanted.append((key, c.LUSTRE_OPERATION_TIME, about))
    return wanted


_OF_TARGET: dict[Hashable, Metric] = {
    ("req_waittime", "samples"): c.LUSTRE_TARGET_REQUESTS,
    ("req_waittime", "usec"): c.LUSTRE_TARGET_WAIT,
    ("read_bytes", "sum"): c.LUSTRE_TARGET_READ,
    ("write_bytes", "sum"): c.LUSTRE_TARGET_WRITTEN,
}
_OF_IMPORT: dict[Hashable, Metric] = {
    "state": c.LUSTRE_TARGET_STATE,
    "inflight": c.LUSTRE_TARGET_IN_FLIGHT,
    "timeouts": c.LUSTRE_TARGET_TIMEOUTS,
}


def _of_target(present: Iterable[Hashable], target: Entity) -> Wanted:
    wanted: Wanted = []
    for key in present:
        name, part = key if isinstance(key, tuple) else ("", "")
        about = target.part(LUSTRE_REQUEST, name)
        if metric := _OF_TARGET.get(key):
            wanted.append((key, metric, target))
        elif name in _REQUESTS and part == "samples":
            wanted.append((key, c.LUSTRE_REQUESTS, about))
        elif name in _REQUESTS and part == "usec":
            wanted.append((key, c.LUSTRE_REQUEST_TIME, about))
    return wanted


def _of_import(present: Iterable[Hashable], target: Entity) -> Wanted:
    return [(key, _OF_IMPORT[key], target) for key in present if key in _OF_IMPORT]


def _finding(host: Host, health: str, clients: int, targets: int) -> Finding:
    if clients:
        detail = f"{counted(clients, 'client')}, {counted(targets, 'target')}"
        if targets > MAX_TARGETS:
            detail += f"; {targets - MAX_TARGETS} beyond the first {MAX_TARGETS} are left out"
        return Finding("Lustre", Verdict.SUPPORTED, detail)
    if not health:
        return Finding("Lustre", Verdict.ABSENT, "the Lustre client is not loaded")
    try:
        host.names(DEBUG)
    except OSError as error:
        if reason_of(error) is Absent.DENIED:
            return Finding("Lustre", Verdict.DENIED, f"{DEBUG} may not be entered", _REMEDY)
    return Finding("Lustre", Verdict.SUPPORTED, "nothing is mounted")
