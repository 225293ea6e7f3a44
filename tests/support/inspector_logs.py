"""Logs of NCCL Inspector in its formats 4.0 and 4.3, and a source that follows those of a directory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from support.clock import ManualClock
from support.flight_recorders import USER, job_of
from support.reading import ORIGIN

from railscope.capture import CaptureMoment, Json
from railscope.catalog import collectives as c
from railscope.frame import Event
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.collectives.inspector import parse_part
from railscope_agent.gpus import inventory, process_lists
from railscope_agent.host.job_files import (
    JobFile,
    JobFileListing,
    OpenedLog,
    RankProcess,
)
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.recorded_host import call_key
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources import nccl_inspector, source_bases
from railscope_agent.sources.rank_places import RankPlaces, SeenProcess
from railscope_agent.topology.network import NetworkScanner

DIRECTORY = "/run/railscope/nccl-inspector"
COMMUNICATOR = "0x5ea1ed00c0ffee"
STARTED_US = 1_795_000_000_000_000
BUS_FACTOR = {"AllReduce": 2.0, "AllGather": 1.0, "ReduceScatter": 1.0}
"""Bus bandwidth per bandwidth of many ranks."""


def header(rank: int, ranks: int = 4, communicator: str = COMMUNICATOR) -> dict[str, Any]:
    """Return the header of a communicator within one node."""
    return {"id": communicator, "rank": rank, "n_ranks": ranks, "nnodes": 1}


def metadata(version: str, pid: int, after_us: int = 0) -> dict[str, Any]:
    """Return the metadata of a dump."""
    return {
        "inspector_output_format_version": version,
        "git_rev": "",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": STARTED_US + after_us,
        "hostname": "gpu-node-1",
        "pid": pid,
    }


def collective(
    sequence: int, size: int, time_us: int, kind: str = "AllReduce", **changes: Any
) -> dict[str, Any]:
    """Return the body of a collective."""
    bandwidth = round(size / max(time_us, 1) / 1000, 6)
    return {
        "coll": kind,
        "coll_sn": sequence,
        "coll_msg_size_bytes": size,
        "coll_exec_time_us": time_us,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": bandwidth,
        "coll_busbw_gbs": round(bandwidth * BUS_FACTOR[kind], 6),
    } | changes


def send(sequence: int, size: int, time_us: int, peer: int) -> dict[str, Any]:
    """Return the body of a point-to-point operation."""
    bandwidth = round(size / time_us / 1000, 6)
    return {
        "p2p": "Send",
        "p2p_sn": sequence,
        "p2p_peer": peer,
        "p2p_msg_size_bytes": size,
        "p2p_exec_time_us": time_us,
        "p2p_timing_source": "kernel_gpu",
        "p2p_algobw_gbs": bandwidth,
        "p2p_busbw_gbs": bandwidth,
    }


def text(*lines: dict[str, Any]) -> bytes:
    """Return lines as the plugin writes them."""
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def whole_lines(
    rank: int, bodies: Sequence[dict[str, Any]], version: str = "v4.0", pid: int = 0
) -> bytes:
    """Return a log of format 4.0: every line has the header."""
    return text(
        *(
            {
                "header": header(rank),
                "metadata": metadata(version, pid or own_pid(rank)),
                "p2p_perf" if "p2p" in body else "coll_perf": body,
            }
            for body in bodies
        )
    )


def marked_lines(
    rank: int, bodies: Sequence[dict[str, Any]], dropped: int = 0, ranks: int = 4
) -> bytes:
    """Return a log of format 4.3: a marker has the header of the lines after it."""
    marker = {
        "header": header(rank, ranks) | {"comm_name": "tensor_parallel"},
        "metadata": metadata("v4.3", own_pid(rank)),
        "dump_stats": {
            "coll_records": len(bodies),
            "coll_dropped_total": dropped,
            "coll_dropped_since_last_dump": dropped,
            "p2p_records": 0,
            "p2p_dropped_total": 0,
            "p2p_dropped_since_last_dump": 0,
        },
    }
    return text(marker, *({"p2p_perf" if "p2p" in body else "coll_perf": body} for body in bodies))


def own_pid(rank: int) -> int:
    """Return the number of the process of a rank in its own namespace."""
    return 100 + rank


def gpu_uuid(number: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-5ea1ed00-0000-4000-8000-{number:012x}"


def straggling(
    rank: int, calls: int, late: int = 2, first: int = 1, late_us: int = 300
) -> list[dict[str, Any]]:
    """Return collectives in which one rank arrives after the others."""
    return [
        collective(number, 8 << 20, 250 + number % 3 + (0 if rank == late else late_us))
        for number in range(first, first + calls)
    ]


def case_logs() -> Iterator[tuple[str, int, bytes]]:
    """Yield case, rank and content of each log."""
    for rank in range(4):
        yield "straggler", rank, whole_lines(rank, straggling(rank, 6))
        mixed = [*straggling(rank, 2), collective(1, 1 << 30, 9000, "AllGather")]
        yield "markers", rank, marked_lines(rank, [*mixed, send(1, 1 << 20, 90, rank ^ 1)], rank)
        slow = [body | {"coll_timing_source": "kernel_cpu"} for body in straggling(rank, 3)]
        yield "cpu-clock", rank, whole_lines(rank, slow, "v4.2")
    good, body = whole_lines(0, straggling(0, 2)), text({"coll_perf": straggling(0, 1)[0]})
    other = whole_lines(0, straggling(0, 1), "v6.0")
    unnamed = whole_lines(0, [collective(1, 64, 1) | {"coll": 'A"b'}])
    negative = whole_lines(0, [collective(1, -1, 1)])
    yield (
        "damaged",
        0,
        body + good + b"\xff\x00\n[]\n" + other + body + good[:100] + b"\n" + unnamed + negative
        + body + good + good[:-20],
    )  # fmt: skip


def inspected_job(first: CaptureMoment, started_wall_ns: int) -> dict[str, Json]:
    """Return calls of a node whose Slurm job wrote logs: the last but one rank arrives last.

    The ranks are the processes on the GPUs in their order.
    """
    job, pids = job_of(first)
    ranks, calls = len(pids), {}
    logs = []
    for rank, pid in enumerate(pids):
        made = straggling(rank, 20, late=ranks - 2)
        log = marked_lines(rank, made, ranks=ranks)
        facts = {
            "job": job,
            "user": USER,
            "modified_ns": started_wall_ns - 10**10,
            "is_regular": True,
        }
        name = f"gpu-node-1-pid{pid}.log"
        logs.append(JobFile(name=name, subject=str(pid), bytes=len(log), inode=rank, **facts))
        opened = OpenedLog(USER, rank, parse_part(log, 0))
        calls[call_key("job_files", "inspector_log", (DIRECTORY, job, name, 0))] = opened
        process = RankProcess(USER, rank, [job], pid)
        calls[call_key("job_files", "process", (pid,))] = process
    calls[call_key("job_files", "list_inspector", (DIRECTORY,))] = JobFileListing(logs)
    return {key: msgspec.to_builtins(answer) for key, answer in calls.items()}


class InspectorDirectory:
    """A directory with logs of four ranks on four GPUs, and a source that follows them."""

    def __init__(self, directory: Path, job: str = "", root: Path = Path("/")) -> None:
        self.directory = directory / job
        self.directory.mkdir(exist_ok=True, parents=True)
        self.clock = ManualClock()
        self.events: list[Event] = []
        self.places = RankPlaces(
            inventory.GpuInventory(NetworkScanner()), process_lists.ProcessLists(), lambda _: ()
        )
        for rank in range(4):
            self.add_process(4000 + rank, own_pid(rank), gpu_index=rank)
        self.results = source_bases.ReportedReadings()
        self.settings = CollectiveSettings(
            nccl_inspector_directory=f"/{directory.relative_to(root)}"
        )
        self.source = nccl_inspector.NcclInspectorSource(self.settings, self.places, self.results)
        self.host = LiveHost(root, self.clock)
        self.reader = SourceReader(self.source, self.host, ORIGIN)

    def add_process(self, pid: int, own: int, user: int | None = None, **facts: Any) -> None:
        """Add a process on a GPU."""
        process = RankProcess(os.geteuid() if user is None else user, None, [], own)
        named = {name: str(fact) for name, fact in facts.items()} | {"pid": str(pid)}
        gpus = frozenset({gpu_uuid(own % 100)})
        self.places.processes[pid] = SeenProcess(process, named, self.clock.now().boot_ns, gpus)

    def log(self, rank: int) -> Path:
        """Return the path of the log of a rank."""
        return self.directory / f"gpu-node-1-pid{own_pid(rank)}.log"

    def append(self, rank: int, content: bytes) -> None:
        """Append to the log of a rank."""
        with self.log(rank).open("ab") as log:
            log.write(content)

    def read(self, times: int = 1) -> None:
        """Read, without a failure."""
        for _ in range(times):
            self.clock.advance(5)
            outcome = self.reader.run()
            assert not outcome.problem, outcome.problem
            assert outcome.frame
            self.frame = outcome.frame
            self.events += outcome.frame.events

    def close(self) -> None:
        """Read until all comparisons are closed."""
        self.read(nccl_inspector.OPEN_READS + 1)

    def by_state(self, wanted: Any) -> dict[str, int]:
        """Return numbers by state, without those of none."""
        readings = self.frame.readings()
        return {e.key[0]: int(n) for metric, e, n in readings if metric is wanted and n}  # type: ignore[arg-type]

    @property
    def files(self) -> dict[str, int]:
        """Files by state, without those of none."""
        return self.by_state(c.INSPECTOR_FILES)

    @property
    def lines(self) -> dict[str, int]:
        """Lines by state, without those of none."""
        return self.by_state(c.INSPECTOR_LINES)

    def number(self, metric: Any) -> int:
        """Return a number of the node."""
        return next(int(n) for m, _, n in self.frame.readings() if m is metric)  # type: ignore[arg-type]

    @property
    def totals(self) -> dict[str, list[int]]:
        """Totals by communicator with kind and size, or with rank."""
        return {
            " ".join(entity.key[2:]): list(readings)
            for entity, readings in self.results.readings.items()
        }
