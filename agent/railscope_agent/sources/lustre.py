"""Lustre clients in the kernel: file operations, requests by target, connections to targets.

Formats: lustre/lustre-release lustre/obdclass/lprocfs_status.c and lprocfs_counters.c. Clients since
2.12 have their statistics in debugfs, which only root may enter, older ones in /proc; some use both.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
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
    parse_natural,
    whole_lines,
)

LUSTRE_DEBUG_ROOT = "/sys/kernel/debug/lustre"
LUSTRE_ROOTS = (LUSTRE_DEBUG_ROOT, "/proc/fs/lustre")
LUSTRE_HEALTH_FILES = ("/sys/fs/lustre/health_check", "/proc/fs/lustre/health_check")
# A file system may have thousands of targets, each with two files and dozens of series.
MAX_TARGETS = 128
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

_CLIENT_SUMS: dict[Hashable, declare.Metric] = {
    ("read_bytes", "sum"): c.LUSTRE_READ,
    ("write_bytes", "sum"): c.LUSTRE_WRITTEN,
}
_TARGET_SUMS: dict[Hashable, declare.Metric] = {
    ("req_waittime", "samples"): c.LUSTRE_TARGET_REQUESTS,
    ("req_waittime", "usec"): c.LUSTRE_TARGET_WAIT,
    ("read_bytes", "sum"): c.LUSTRE_TARGET_READ,
    ("write_bytes", "sum"): c.LUSTRE_TARGET_WRITTEN,
}
_IMPORT: dict[Hashable, declare.Metric] = {
    "state": c.LUSTRE_TARGET_STATE,
    "inflight": c.LUSTRE_TARGET_IN_FLIGHT,
    "timeouts": c.LUSTRE_TARGET_TIMEOUTS,
}


def parse_statistics(content: bytes) -> dict[Hashable, Reading]:
    """Samples and sums by name of a stats file; times are identified by their unit.

    `(name, "samples")` is a count, `(name, "sum")` a sum in its own unit, `(name, "usec")` a sum in
    microseconds. Operations that never happened have no line.
    """
    readings: dict[Hashable, Reading] = {}
    for line in whole_lines(content):
        if match := _STATISTIC.match(line):
            name, samples, unit, total = match.groups()
            readings[name, "samples"] = parse_natural(samples)
            if total is not None:
                readings[name, "usec" if unit in _MICROSECONDS else "sum"] = parse_natural(total)
    return readings


def parse_import(content: bytes) -> dict[Hashable, Reading]:
    """State, requests in flight and timeouts of a connection to a target."""
    text = "\n".join(whole_lines(content))
    readings: dict[Hashable, Reading] = {
        name: parse_natural(count) for name, count in _RPCS.findall(text)
    }
    if match := _STATE.search(text):
        readings["state"] = _NUMBER_OF_STATE.get(match[1], Absent.ERROR)
    return readings


def parse_health(content: bytes) -> dict[Hashable, Reading]:
    """Health: 1 for healthy, 0 for unhealthy."""
    state = content.decode(errors="replace").strip()
    if state == "healthy":
        return {_HEALTH_KEY: 1}
    return {_HEALTH_KEY: 0 if "NOT HEALTHY" in state or "LBUG" in state else Absent.ERROR}


class LustreSource(ScanSource):
    """File operations of each client, requests and connection of each of its targets."""

    name = "lustre"
    period_seconds = 10.0

    def readings(self, host: Host) -> Iterator[Found | probe_result.ProbeFinding]:
        """Yield the health, and the counters of clients and targets that exist so far."""
        health = _first_readable(host, LUSTRE_HEALTH_FILES)
        if health:
            healthy = c.LUSTRE_HEALTHY, Entity(entities.NODE)
            yield from self.keyed(host, health, parse_health, lambda _: healthy)
        clients = _directories(host, "llite", _LUSTRE_CLIENT)
        # Metadata targets first: they are few, and within the limit in any case.
        targets = [*_directories(host, "mdc", _TARGET), *_directories(host, "osc", _TARGET)]
        for directory, about, file, parse, column_of in (
            *((*each, "stats", parse_statistics, _client_column) for each in clients),
            *((*each, "stats", parse_statistics, _target_column) for each in targets[:MAX_TARGETS]),
            *((*each, "import", parse_import, _import_column) for each in targets[:MAX_TARGETS]),
        ):
            path = _first_readable(host, [f"{root}/{directory}/{file}" for root in LUSTRE_ROOTS])
            yield from self.keyed(host, path, parse, partial(column_of, about))
        if len(targets) > MAX_TARGETS:
            detail = (
                f"{len(targets) - MAX_TARGETS} targets beyond the first {MAX_TARGETS} are omitted"
            )
            yield probe_result.ProbeFinding.absent("Lustre", detail)
        if health and not clients:
            yield from denied_findings(host, "Lustre", LUSTRE_DEBUG_ROOT)


def _first_readable(host: Host, paths: Sequence[str]) -> str:
    return next((path for path in paths if fact_readers.read_text(host, path)), "")


def _directories(host: Host, kind: str, pattern: re.Pattern[str]) -> list[tuple[str, Entity]]:
    """Clients or targets: their directories below the roots, and their entities."""
    instances = {
        name for root in LUSTRE_ROOTS for name in fact_readers.list_names(host, f"{root}/{kind}")
    }
    about = entities.LUSTRE_CLIENT if pattern is _LUSTRE_CLIENT else entities.LUSTRE_TARGET
    return [
        (f"{kind}/{name}", Entity(about, tuple(match[label] for label in about.labels)))
        for name in sorted(instances)
        if (match := pattern.fullmatch(name))
    ]


def _client_column(client: Entity, key: Hashable) -> Column | None:
    """Column of a client. Byte counters always exist; an operation exists once it has happened."""
    if metric := _CLIENT_SUMS.get(key):
        return metric, client
    name, part = key if isinstance(key, tuple) else ("", "")
    metrics = {"samples": c.LUSTRE_OPERATIONS, "usec": c.LUSTRE_OPERATION_TIME}
    if name in _LUSTRE_OPERATIONS and part in metrics:
        return metrics[part], client.child(entities.LUSTRE_OPERATION, name)
    return None


def _target_column(target: Entity, key: Hashable) -> Column | None:
    if metric := _TARGET_SUMS.get(key):
        return metric, target
    name, part = key if isinstance(key, tuple) else ("", "")
    metrics = {"samples": c.LUSTRE_REQUESTS, "usec": c.LUSTRE_REQUEST_TIME}
    if name in _LUSTRE_REQUESTS and part in metrics:
        return metrics[part], target.child(entities.LUSTRE_REQUEST, name)
    return None


def _import_column(target: Entity, key: Hashable) -> Column | None:
    return (_IMPORT[key], target) if key in _IMPORT else None
