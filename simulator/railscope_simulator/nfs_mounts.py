"""NFS mounts of a simulated node: one for each file server, as /proc/1/mountstats prints them.

Nodes that mount one server see the same response times, apart from a deviation of their own. Reads are
limited by the number of requests in flight: the slower the server responds, the fewer it completes. A
checkpoint makes the server slower. Format: linux, fs/nfs/super.c and net/sunrpc/stats.c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from railscope.timestamps import SECOND_NS
from railscope_simulator import conditions, training_job
from railscope_simulator.spec import DriftNoise, NodeSpec, TimeSpan, round_randomly

READ_AHEAD = 4.0
"""Requests in flight sustain the job's input up to this multiple of the usual response time."""

_USUAL_MILLISECONDS = 2.0
_SERVER_DRIFT, _NODE_DRIFT = 0.25, 0.1
_CHECKPOINT_SLOWER = 2.0
_BLOCK_BYTES = 1 << 20
_REQUEST_BYTES, _REPLY_BYTES = 196, 240
_RATES_PER_SECOND = {
    "READ": (0.0, 45.0), "WRITE": (0.05, 0.2), "GETATTR": (0.6, 20.0), "OPEN": (0.1, 2.0),
    "CLOSE": (0.1, 2.0), "LOOKUP": (0.1, 1.0), "ACCESS": (0.1, 3.0),
}  # fmt: skip
"""Requests per second of a node without a job, and those that a job adds."""
_FETCH_READS, _CHECKPOINT_WRITES = 800.0, 1400.0
_OPTIONS = (
    "rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,acregmin=3,acregmax=60,acdirmin=30,"
    "acdirmax=60,hard,proto=tcp,timeo=600,retrans=2,sec=sys,local_lock=none"
)


@dataclass(slots=True)
class NfsOperation:
    """Requests of one kind since the export was mounted, and their times in milliseconds."""

    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    queue_ms: float = 0.0
    response_ms: float = 0.0


class SimulatedNfsMount:
    """A mount of one file server after the last span."""

    def __init__(self, spec: NodeSpec, index: int, uptime_ns: int) -> None:
        self.server, self.mount_point = server_name(index), f"/mnt/filer-{index + 1}"
        self._rng = spec.stream(f"mount {index}")
        # A shared stream: all nodes that mount the server see the same drift.
        self._server_drift = DriftNoise(spec.shared_stream(f"filer {index}"), 30.0)
        self._node_drift = DriftNoise(self._rng, 15.0)
        self.age_ns = uptime_ns
        self.operations = {name: NfsOperation() for name in _RATES_PER_SECOND}
        for name, (idle, busy) in _RATES_PER_SECOND.items():
            self._add(name, int((idle + busy) * uptime_ns / SECOND_NS), _USUAL_MILLISECONDS)

    def advance(self, span: TimeSpan, demand: training_job.JobDemand, latency: float) -> None:
        """Advance by a span under a job's demand, with this ratio of response times to the usual ones."""
        self.age_ns += span.length_ns
        drift = _SERVER_DRIFT * self._server_drift.advance(span.seconds)
        drift += _NODE_DRIFT * self._node_drift.advance(span.seconds)
        milliseconds = _USUAL_MILLISECONDS * latency * math.exp(drift)
        milliseconds *= 1.0 + _CHECKPOINT_SLOWER * demand.checkpoint
        working = demand.present - demand.checkpoint
        sustained = min(READ_AHEAD / latency, 1.0)
        for name, (idle, busy) in _RATES_PER_SECOND.items():
            rate = idle + busy * working
            if name == "READ":
                rate = (rate + _FETCH_READS * demand.fetch) * sustained
            elif name == "WRITE":
                rate += _CHECKPOINT_WRITES * demand.checkpoint / max(latency / READ_AHEAD, 1.0)
            self._add(name, round_randomly(rate * span.seconds, self._rng), milliseconds)

    def _add(self, name: str, requests: int, milliseconds: float) -> None:
        operation = self.operations[name]
        operation.requests += requests
        operation.sent_bytes += requests * (_REQUEST_BYTES + _BLOCK_BYTES * (name == "WRITE"))
        operation.received_bytes += requests * (_REPLY_BYTES + _BLOCK_BYTES * (name == "READ"))
        operation.queue_ms += 0.03 * milliseconds * requests
        operation.response_ms += 0.97 * milliseconds * requests

    def lines(self) -> list[str]:
        """Return the lines of the mount."""
        read, written = self.operations["READ"], self.operations["WRITE"]
        counts = (read.requests * _BLOCK_BYTES, written.requests * _BLOCK_BYTES, 0, 0)
        pages = (counts[0] // 4096, counts[1] // 4096)
        sends = sum(operation.requests for operation in self.operations.values())
        events = " ".join(["0"] * 27)
        return [
            f"device {self.server} mounted on {self.mount_point} with fstype nfs4 statvers=1.1",
            f"\topts:\t{_OPTIONS}",
            f"\tage:\t{self.age_ns // SECOND_NS}",
            "\tsec:\tflavor=1,pseudoflavor=1",
            f"\tevents:\t{events}",
            f"\tbytes:\t{' '.join(map(str, (*counts, *counts[:2], *pages)))}",
            "\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)",
            f"\txprt:\ttcp 801 1 2 0 0 {sends} {sends} 0 {sends} 0 2 0 0",
            "\tper-op statistics",
            *(self._operation_line(*item) for item in self.operations.items()),
            "",
        ]

    def _operation_line(self, name: str, of: NfsOperation) -> str:
        queue, response = int(of.queue_ms), int(of.response_ms)
        counts = (of.requests, of.requests, 0, of.sent_bytes, of.received_bytes)
        times = (queue, response, queue + response, 0)
        return f"\t{name:>12}: {' '.join(map(str, (*counts, *times)))}"


def server_name(index: int) -> str:
    """Return the export of a file server."""
    return f"filer-{index + 1}:/export"


def advance_mounts(
    mounts: list[SimulatedNfsMount],
    span: TimeSpan,
    demand: training_job.JobDemand,
    host: conditions.HostConditions,
) -> None:
    """Advance all mounts of a node by a span; the job uses one of them."""
    for index, mount in enumerate(mounts):
        latency = host.latencies[index] if host.latencies else 1.0
        used = demand if index == host.input_server else training_job.JobDemand()
        mount.advance(span, used, latency)


def mount_files(mounts: list[SimulatedNfsMount]) -> dict[str, str]:
    """Return the files of process 1 about its mounts, with their content; none without mounts."""
    if not mounts:
        return {}
    return {
        "/proc/1/mountstats": "\n".join(line for mount in mounts for line in mount.lines()),
        "/proc/1/mountinfo": "".join(
            f"{90 + number} 25 0:{50 + number} / {mount.mount_point} rw,relatime shared:{40 + number}"
            f" - nfs4 {mount.server} {_OPTIONS}\n"
            for number, mount in enumerate(mounts)
        ),
    }
