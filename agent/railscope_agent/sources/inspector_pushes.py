"""Pushes of NCCL Inspector by OTLP: the reports of its metrics files, or the calls of its logs.

By default the plugin pushes what it otherwise writes to metrics files. NCCL_INSPECTOR_OTEL_VERBOSE pushes each call instead,
with its communicator, but without its rank and the clock of its time, so that ranks are not compared. Source: NVIDIA/nccl
plugins/profiler/inspector (inspector_otel.cc), development branch.

A push is that of the process on a GPU of this node that has the other end of its connection. What it states about its node, GPU
and job is not used: so a tenant can state something false about its own processes only.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

from railscope import otlp_metrics
from railscope.catalog import collectives as c
from railscope.timestamps import SECOND_NS
from railscope_agent.collectives.inspector import (
    MAX_BANDWIDTH_GBS,
    MAX_DURATION_NS,
    InspectedCall,
)
from railscope_agent.collectives.inspector_metrics import (
    METRIC_NAMES,
    InspectorMetrics,
    MetricsCollector,
)
from railscope_agent.host import Host
from railscope_agent.host.tcp_sockets import TCP_SOCKETS
from railscope_agent.sources.rank_places import JobKey, RankPlaces

LISTED_NS = 60 * SECOND_NS
"""Time for which a process is a sender after the last list of processes with it: its number may be used again."""
MAX_AGE_NS = 300 * SECOND_NS
"""Age at which a push has no series, as that of a metrics file."""
MAX_REPORTS = 512
"""Combinations of communicator, kind and size of a push."""
MAX_PROCESSES = 256
MAX_CALLS, MAX_NODE_CALLS, JOB_CALLS = 5000, 20_000, 2000
"""Calls of a process, and of all, that wait to be read; and of a job, whatever those of others have left."""
STORED, UNMAPPED, INVALID, DELTA, EXCESS, AMBIGUOUS = c.INSPECTOR_POINT_RESULTS
_CALL_VALUES = {
    "nccl_bus_bandwidth_gbs": "bandwidth", "nccl_p2p_bus_bandwidth_gbs": "bandwidth",
    "nccl_collective_exec_time_microseconds": "time", "nccl_p2p_exec_time_microseconds": "time",
    "nccl_collective_algobw_gbs": "", "nccl_p2p_algobw_gbs": "",
}  # fmt: skip
"""Value of a call by the name of its metric; empty for one without use."""
_COMMUNICATOR = "comm_id"
"""Attribute that only points of single calls have."""
_NAME, _NUMBER = re.compile(r"[A-Za-z0-9_]{1,64}"), re.compile(r"\d{1,15}", re.ASCII)
_MICROSECOND_NS = 1000


class PushedCall(NamedTuple):
    """A call of a process, and the communicator of it."""

    communicator: str
    call: InspectedCall


class InspectorPush(NamedTuple):
    """Content of a request; `points` counts its points by result."""

    metrics: InspectorMetrics
    calls: list[PushedCall]
    points: Counter[str]


def decode_push(request: otlp_metrics.MetricsRequest) -> InspectorPush:
    """Return the reports and calls of a request."""
    points = Counter({
        EXCESS: request.excessive, INVALID: request.invalid, DELTA: request.increments,
    })  # fmt: skip
    collector = MetricsCollector()
    combinations: set[tuple[tuple[str, str], ...]] = set()
    calls: dict[tuple[str, ...], dict[str, float]] = {}
    for point in (point for resource in request.resources for point in resource.points):
        attributes, value = point.attributes, point.value
        is_call = _COMMUNICATOR in attributes
        if point.name not in (_CALL_VALUES.keys() if is_call else METRIC_NAMES):
            points[UNMAPPED] += 1
        # NaN fails both comparisons.
        elif value is None or not 0 <= value < float("inf"):
            points[INVALID] += 1
        elif is_call:
            key = _call_key(attributes)
            points[STORED if key else INVALID] += 1
            if key:
                calls.setdefault(key, {})[_CALL_VALUES[point.name]] = value
        elif (combination := tuple(sorted(attributes.items()))) in combinations or len(
            combinations
        ) < MAX_REPORTS:
            combinations.add(combination)
            points[STORED if collector.add(point.name, attributes, value) else INVALID] += 1
        else:
            points[EXCESS] += 1
    return InspectorPush(collector.collect({}), list(_calls(calls, points)), points)


def _call_key(attributes: Mapping[str, str]) -> tuple[str, ...]:
    """Return communicator, kind, sequence number, size and peer of a call; empty if one is invalid."""
    prefix = "p2p" if "p2p_operation" in attributes else "coll"
    kind = attributes.get("p2p_operation" if prefix == "p2p" else "collective", "")
    numbers = [attributes.get(f"{prefix}_{name}", "") for name in ("sn", "msg_size_bytes")]
    communicator = attributes[_COMMUNICATOR]
    if not (_NAME.fullmatch(communicator) and _NAME.fullmatch(kind)):
        return ()
    if not all(map(_NUMBER.fullmatch, numbers)):
        return ()
    return communicator, kind, *numbers, attributes.get("p2p_peer", "")


def _calls(
    calls: dict[tuple[str, ...], dict[str, float]], points: Counter[str]
) -> Iterator[PushedCall]:
    for (communicator, kind, sequence, size, _), values in calls.items():
        time_ns, bandwidth = values.get("time", -1) * _MICROSECOND_NS, values.get("bandwidth", -1)
        # The product is infinite for the largest numbers.
        if not (0 <= time_ns <= MAX_DURATION_NS and 0 <= bandwidth <= MAX_BANDWIDTH_GBS):
            points[STORED] -= len(values)
            points[INVALID] += len(values)
            continue
        duration_ns = round(time_ns)
        # GB/s times nanoseconds are bytes: both factors of a thousand million cancel.
        bus_bytes = round(bandwidth * duration_ns)
        numbers = int(sequence), int(size), duration_ns, bus_bytes
        # Without a rank the arrival at the collective cannot be compared.
        call = InspectedCall(-1, kind, *numbers, is_compared=False)
        yield PushedCall(communicator, call)


class PushingProcess(NamedTuple):
    """A process on GPUs with its job; the GPU is empty if it is on several."""

    pid: int
    job: JobKey
    gpu: str


class PushedMetrics(NamedTuple):
    """Reports of the last push of a process, and its time on the boot clock."""

    process: PushingProcess
    metrics: InspectorMetrics
    boot_ns: int


@dataclass(slots=True)
class InspectorPushes:
    """Pushes of the processes of this node; the receiver and the sources that read them are on several threads."""

    places: RankPlaces
    requests: Counter[str] = field(default_factory=Counter)
    """Requests by result."""
    points: Counter[str] = field(default_factory=Counter)
    """Points by result."""
    _metrics: dict[int, PushedMetrics] = field(default_factory=dict)
    _calls: dict[PushingProcess, list[PushedCall]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find_sender(
        self, host: Host, address: tuple[str, int], server: tuple[str, int]
    ) -> PushingProcess:
        """Return the process that has connected from an address. Blocking; raises OtlpRejectedError."""
        now_ns = host.clock.now().boot_ns
        listed = {
            pid: process
            # A copy: the thread of the sources replaces entries meanwhile.
            for pid, process in list(self.places.processes.items())
            if now_ns - process.seen_ns < LISTED_NS
        }
        try:
            answer = host.call(TCP_SOCKETS, "owners", *address, *server, *listed)
        except OSError as error:
            message = f"the sender is not known: {error.strerror}"
            raise otlp_metrics.OtlpRejectedError(
                message, HTTPStatus.SERVICE_UNAVAILABLE, "unknown_sender"
            ) from error
        user, *pids = answer if isinstance(answer, list) and answer else [-1]
        # A socket that a parent passed to its children belongs to several processes: it identifies none.
        if len(pids) == 1 and listed[pids[0]].process.user == user:
            job = self.places.job_of(pids[0])
            if job:
                gpus = listed[pids[0]].gpus
                return PushingProcess(pids[0], job, next(iter(gpus)) if len(gpus) == 1 else "")
        message = "unknown sender: expected one process on a GPU of this node, of a job that no other holder's can be"
        raise otlp_metrics.OtlpRejectedError(message, HTTPStatus.FORBIDDEN, "unknown_sender")

    def add(self, process: PushingProcess, push: InspectorPush, now_ns: int) -> Counter[str]:
        """Add a push; return its points by result. Raises OtlpRejectedError if too many calls wait."""
        points = Counter(push.points)
        with self._lock:
            waiting = self._calls.get(process, [])
            total, count = sum(map(len, self._calls.values())), len(push.calls)
            of_job = sum(len(c) for each, c in self._calls.items() if each.job == process.job)
            # Each job has some places of its own, so that one job cannot take them all.
            is_full = total + count > MAX_NODE_CALLS and of_job + count > JOB_CALLS
            if push.calls and (is_full or len(waiting) + count > MAX_CALLS):
                message = f"too many calls wait: expected at most {MAX_CALLS} of a process"
                raise otlp_metrics.OtlpRejectedError(
                    message, HTTPStatus.SERVICE_UNAVAILABLE, "busy"
                )
            if push.calls:
                self._calls.setdefault(process, []).extend(push.calls)
            if push.metrics.reports and not process.gpu:
                points[AMBIGUOUS] = points.pop(STORED)
            elif push.metrics != InspectorMetrics():
                # Removed and added again, which moves it to the end: the first entry is the oldest.
                self._metrics.pop(process.pid, None)
                self._metrics[process.pid] = PushedMetrics(process, push.metrics, now_ns)
                if len(self._metrics) > MAX_PROCESSES:
                    del self._metrics[next(iter(self._metrics))]
            self.points += points
        return points

    def take_calls(self) -> dict[PushingProcess, list[PushedCall]]:
        """Return the calls since the last time."""
        with self._lock:
            calls, self._calls = self._calls, {}
        return calls

    def recent_metrics(self, now_ns: int) -> list[PushedMetrics]:
        """Return the last reports of each process; forget those that are too old."""
        with self._lock:
            self._metrics = {
                pid: pushed
                for pid, pushed in self._metrics.items()
                if now_ns - pushed.boot_ns < MAX_AGE_NS
            }
            return list(self._metrics.values())
