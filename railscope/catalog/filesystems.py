"""Metrics of the kernel's clients of parallel file systems: Lustre and Ceph."""

from railscope.catalog.declare import EntityKind, Kind, Metric, Rollup, Unit, per
from railscope.catalog.entities import (
    CEPH_CLIENT,
    CEPH_OPERATION,
    LUSTRE_CLIENT,
    LUSTRE_OPERATION,
    LUSTRE_REQUEST,
    LUSTRE_TARGET,
    NODE,
)

_MICROSECOND = per(10**6)
_LUSTRE = "/sys/kernel/debug/lustre or /proc/fs/lustre,"
_CEPH = "/sys/kernel/debug/ceph/*/"
_MOUNTED = "Counts from when the file system was mounted, or from when its statistics were cleared."

IMPORT_STATES = {
    1: "closed",
    2: "new",
    3: "disconn",
    4: "connecting",
    5: "replay",
    6: "replay_locks",
    7: "replay_wait",
    8: "recover",
    9: "full",
    10: "evicted",
    11: "idle",
}
"""Connection states of a target: enum lustre_imp_state. Full and idle are healthy."""


def _counter(
    stem: str, about: EntityKind, help_: str, origin: str, unit: Unit = Unit.NONE
) -> Metric:
    name = f"railscope_{stem}_{unit}_total" if unit else f"railscope_{stem}_total"
    return Metric(
        name, Kind.COUNTER, about,
        unit=unit, scale=_MICROSECOND if unit is Unit.SECONDS else per(1),
        rollups=(Rollup.SUM,), resets=_MOUNTED, help=help_, origin=origin,
    )  # fmt: skip


def _lustre(
    stem: str, about: EntityKind, help_: str, origin: str, unit: Unit = Unit.NONE
) -> Metric:
    return _counter(f"lustre_{stem}", about, help_, f"{_LUSTRE} {origin}", unit)


LUSTRE_HEALTHY = Metric(
    "railscope_lustre_healthy",
    Kind.GAUGE,
    NODE,
    rollups=(Rollup.MIN,),
    help="Whether Lustre calls itself healthy on this server (1) or not (0).",
    origin="/sys/fs/lustre/health_check",
)
LUSTRE_READ = _lustre(
    "read", LUSTRE_CLIENT, "Bytes programs read.", "llite/*/stats read_bytes, sum", Unit.BYTES
)
LUSTRE_WRITTEN = _lustre(
    "write", LUSTRE_CLIENT, "Bytes programs wrote.", "llite/*/stats write_bytes, sum", Unit.BYTES
)
LUSTRE_OPERATIONS = _lustre(
    "operations",
    LUSTRE_OPERATION,
    "File operations of programs.",
    "llite/*/stats, samples",
)
LUSTRE_OPERATION_TIME = _lustre(
    "operation",
    LUSTRE_OPERATION,
    "Time all file operations of a kind together have taken.",
    "llite/*/stats, sum (us), Lustre 2.14",
    Unit.SECONDS,
)
LUSTRE_TARGET_REQUESTS = _lustre(
    "target_requests",
    LUSTRE_TARGET,
    "Requests the target has answered.",
    "{osc,mdc}/*/stats req_waittime, samples",
)
LUSTRE_TARGET_WAIT = _lustre(
    "target_wait",
    LUSTRE_TARGET,
    "Time all requests together have waited for the target.",
    "{osc,mdc}/*/stats req_waittime, sum (us)",
    Unit.SECONDS,
)
LUSTRE_TARGET_READ = _lustre(
    "target_read", LUSTRE_TARGET, "Bytes read from the target.", "osc/*/stats read_bytes, sum",
    Unit.BYTES,
)  # fmt: skip
LUSTRE_TARGET_WRITTEN = _lustre(
    "target_write", LUSTRE_TARGET, "Bytes written to the target.", "osc/*/stats write_bytes, sum",
    Unit.BYTES,
)  # fmt: skip
LUSTRE_REQUESTS = _lustre(
    "requests",
    LUSTRE_REQUEST,
    "Requests of a kind the target has answered.",
    "{osc,mdc}/*/stats ost_*, mds_*, ldlm_*, samples",
)
LUSTRE_REQUEST_TIME = _lustre(
    "request",
    LUSTRE_REQUEST,
    "Time all requests of a kind together have taken.",
    "{osc,mdc}/*/stats ost_*, mds_*, ldlm_*, sum (us)",
    Unit.SECONDS,
)
LUSTRE_TARGET_STATE = Metric(
    "railscope_lustre_target_state",
    Kind.STATE,
    LUSTRE_TARGET,
    states=IMPORT_STATES,
    help="How the connection to the target is; full and idle ones are well.",
    origin=f"{_LUSTRE} {{osc,mdc}}/*/import state",
)
LUSTRE_TARGET_IN_FLIGHT = Metric(
    "railscope_lustre_target_requests_in_flight",
    Kind.GAUGE,
    LUSTRE_TARGET,
    rollups=(Rollup.SUM, Rollup.MAX),
    help="Requests sent to the target and not yet answered.",
    origin=f"{_LUSTRE} {{osc,mdc}}/*/import rpcs inflight",
)
LUSTRE_TARGET_TIMEOUTS = _lustre(
    "target_timeouts",
    LUSTRE_TARGET,
    "Requests the target did not answer in time.",
    "{osc,mdc}/*/import rpcs timeouts",
)


def _in_flight(stem: str, help_: str, origin: str) -> Metric:
    return Metric(
        f"railscope_ceph_{stem}_in_flight", Kind.GAUGE, CEPH_CLIENT,
        rollups=(Rollup.SUM, Rollup.MAX), help=help_, origin=f"{_CEPH}{origin}",
    )  # fmt: skip


CEPH_OSD_REQUESTS = _in_flight(
    "osd_requests", "Requests to object stores that are not yet answered.", "osdc REQUESTS"
)
CEPH_HOMELESS = _in_flight(
    "homeless_requests", "Requests that no object store is up for.", "osdc homeless"
)
CEPH_MDS_REQUESTS = _in_flight(
    "mds_requests", "Requests to metadata servers that are not yet answered.", "mdsc, lines"
)
CEPH_OPERATIONS = _counter(
    "ceph_operations",
    CEPH_OPERATION,
    "Requests of a kind the client made.",
    f"{_CEPH}metrics/latency total (Linux 5.8)",
)
CEPH_LATENCY = Metric(
    "railscope_ceph_average_latency_seconds",
    Kind.GAUGE,
    CEPH_OPERATION,
    unit=Unit.SECONDS,
    scale=_MICROSECOND,
    rollups=(Rollup.MAX,),
    help="Time a request takes, averaged over all since the file system was mounted.",
    origin=f"{_CEPH}metrics/latency avg_lat(us)",
)
CEPH_LONGEST = Metric(
    "railscope_ceph_longest_latency_seconds",
    Kind.GAUGE,
    CEPH_OPERATION,
    unit=Unit.SECONDS,
    scale=_MICROSECOND,
    rollups=(Rollup.MAX,),
    help="Time the slowest request since the file system was mounted took.",
    origin=f"{_CEPH}metrics/latency max_lat(us)",
)
CEPH_BYTES = _counter(
    "ceph_transferred",
    CEPH_OPERATION,
    "Bytes the requests of a kind moved.",
    f"{_CEPH}metrics/size total_sz(bytes)",
    Unit.BYTES,
)
CEPH_CAPS_HITS = _counter(
    "ceph_capability_hits",
    CEPH_CLIENT,
    "Times the client already had the capability it needed.",
    f"{_CEPH}metrics/caps hit",
)
CEPH_CAPS_MISSES = _counter(
    "ceph_capability_misses",
    CEPH_CLIENT,
    "Times the client had to ask a metadata server for a capability.",
    f"{_CEPH}metrics/caps miss",
)
