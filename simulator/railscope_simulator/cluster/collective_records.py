"""Records that the collectives of a simulated job leave on a node, as an agent records it through its own parsers.

`inspector` are logs of NCCL Inspector, `ras` answers of NCCL's RAS subsystem, `flight_recorder` dumps that the ranks write when a
collective exceeds the timeout of the watchdog.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from railscope.capture import CaptureMoment
from railscope.timestamps import MICROSECOND_NS, SECOND_NS
from railscope_agent.collectives import flight_recorder, inspector, ras_answers
from railscope_agent.host import JOB_FILES, job_files, nccl_ras, recorded_host
from railscope_simulator import gpu_tenants, node_model, owners
from railscope_simulator.cluster.collectives import JobCollectives, TimedCall

FLIGHT_RECORDER_DIRECTORY = "/run/railscope/flight-recorder"
INSPECTOR_DIRECTORY = "/run/railscope/nccl-inspector"
SETTINGS: dict[str, Any] = {
    "flight_recorder_directory": FLIGHT_RECORDER_DIRECTORY,
    "nccl_inspector_directory": INSPECTOR_DIRECTORY,
    "ras": "query",
}
"""Settings of an agent that reads all of them (`collectives`)."""
SETTINGS_FILE = "[collectives]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in SETTINGS.items())
NCCL_VERSION = "2.29.3"
_DEAD_SECONDS = 80.0
"""Time after which NCCL considers a process dead that does not respond."""
_RAS_PORT, _RAS_TIMEOUT_MS = 28028, 5000
_RECORDED = 3
"""Completed collectives in a dump."""
_Calls: TypeAlias = dict[str, Any]


def ras_answer(job: JobCollectives, offset_ns: int) -> bytes:
    """Return the answer to a query of NCCL's RAS subsystem, as NCCL 2.29.3 writes it."""
    now, ranks, missing = job.now, [], []
    for place, spec in enumerate(job.specs):
        away_ns = now.unreachable_ns.get(place)
        for index in range(spec.gpus):
            rank = place * spec.gpus + index
            about = {
                "rank": rank,
                "host": f"10.0.{place // 250}.{place % 250 + 1}",
                "pid": gpu_tenants.process_number(spec, index),
                "cuda_dev": index,
                "nvml_dev": index,
            }
            if away_ns is None:
                counts = {"Broadcast": now.stored, "Reduce": 0, "AllGather": 0}
                counts |= {"ReduceScatter": 0, "AllReduce": now.launched[rank]}
                ranks.append(about | {"status": _HEALTHY, "collective_counts": counts})
            else:
                is_dead = offset_ns - away_ns >= _DEAD_SECONDS * SECOND_NS
                status = {"unresponsive": True, "considered_dead": is_dead}
                missing.append(about | {"status": status})
    communicator = {
        "hash": now.identity,
        "secondary_hash": f"{now.identity}:{job.job.plan.name}",
        "size": job.ranks,
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": ranks,
        "missing_ranks": missing,
    }
    return json.dumps(
        {
            "nccl_version": NCCL_VERSION,
            "communicators_count": 1,
            "communicators": [communicator],
            "ras": {"collection_time_sec": 0.01, "timeouts_count": len(now.unreachable_ns)},
        }
    ).encode()


def recorder_dump(job: JobCollectives, rank: int, started_wall_ns: int) -> bytes:
    """Return the dump of a rank's flight recorder during a hang, as PyTorch 2.13 writes it."""
    now, completed = job.now, int(job.now.position)
    began_ns = started_wall_ns + (now.hung_ns or 0)
    numbers = range(max(completed - _RECORDED, 0) + 1, now.launched[rank] + 1)
    status = {
        "last_enqueued_collective": now.launched[rank],
        "last_started_collective": min(completed + 1, now.launched[rank]),
        "last_completed_collective": completed,
    }
    content = {
        "version": "2.10",
        "comm_lib_version": NCCL_VERSION,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(job.ranks)])}},
        "pg_status": {"0": status},
        "entries": [_entry(number, completed, began_ns, job.bytes) for number in numbers],
    }
    return pickle.dumps(content, protocol=2)


_HEALTHY = {
    "init_state": 0,
    "async_error": 0,
    "finalize_called": False,
    "destroy_flag": False,
    "abort_flag": False,
}


def _entry(number: int, completed: int, began_ns: int, size: int) -> dict[str, Any]:
    """Return a collective in a dump: those that have not ended were launched when the hang began."""
    is_completed, is_started = number <= completed, number == completed + 1
    created_ns = began_ns + (number - completed - 1) * 1_000_000
    frames = [{"name": "training_step", "filename": "/opt/model/train.py", "line": 118}]
    return {
        "frames": frames,
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": created_ns,
        "input_sizes": [[size // 2]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[size // 2]],
        "output_dtypes": ["BFloat16"],
        "state": "completed" if is_completed else "started" if is_started else "scheduled",
        "time_discovered_started_ns": created_ns if is_completed or is_started else None,
        "time_discovered_completed_ns": created_ns + 500_000 if is_completed else None,
        "retired": is_completed,
        "is_p2p": False,
    }


@dataclass(slots=True)
class _SimulatedLog:
    """Log of one rank: its size as last shown, and the lines that follow."""

    shown: int = 0
    lines: list[bytes] = field(default_factory=list)


class NodeCollectives:
    """View of a node's interfaces with what the collectives of its job leave there."""

    def __init__(self, job: JobCollectives, place: int) -> None:
        self._job, self._place, self._spec = job, place, job.specs[place]
        self._logs: dict[int, _SimulatedLog] = {}
        self._communicator = -1
        self._dumps: tuple[int, _Calls] = (-1, {})

    def advance(self) -> None:
        """Append the collectives of the last step to the logs."""
        job, spec = self._job, self._spec
        if self._communicator != job.now.number:
            self._communicator = job.now.number
            self._logs = {index: _SimulatedLog() for index in range(spec.gpus)}
        for index, log in self._logs.items():
            rank = self._place * spec.gpus + index
            log.lines += [self._line(rank, index, call) for call in job.calls]

    def _line(self, rank: int, index: int, call: TimedCall) -> bytes:
        """Return a line of format 4.0, as NCCL 2.29 writes it."""
        job, time_us = self._job, call.seconds[rank] * 1e6
        bandwidth = call.size / max(time_us, 1.0) / 1000
        line = {
            "header": {
                "id": job.now.identity,
                "rank": rank,
                "n_ranks": job.ranks,
                "nnodes": len(job.specs),
            },
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "git_rev": "",
                "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": self._spec.started_wall_ns // MICROSECOND_NS,
                "hostname": self._spec.node,
                "pid": gpu_tenants.process_number(self._spec, index),
            },
            "coll_perf": {
                "coll": call.kind,
                "coll_sn": call.sequence,
                "coll_msg_size_bytes": call.size,
                "coll_exec_time_us": round(time_us),
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": round(bandwidth, 6),
                "coll_busbw_gbs": round(bandwidth * job.bus_factor, 6),
            },
        }
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"

    def show(self, model: node_model.NodeModel, into: CaptureMoment) -> None:
        """Add what the agent records of the collectives."""
        job, plan = self._job, self._job.job.plan
        present = [
            (index, tenant.pid)
            for index, gpu in enumerate(model.gpus)
            for tenant in gpu.sharing.present
        ]
        calls: _Calls = {}
        for index, pid in present:
            rank = self._place * self._spec.gpus + index
            process = job_files.RankProcess(job.user, rank, [owners.workload_name(self._spec)], pid)
            calls[_key("process", pid)] = process
        if "inspector" in plan.collectives:
            calls |= self._inspector_calls(model.offset_ns)
        if "flight_recorder" in plan.collectives:
            calls |= self._recorder_calls(model.offset_ns)
        if "ras" in plan.collectives and present:
            calls |= self._ras_calls([pid for _, pid in present], model.offset_ns)
        into.calls.update({key: msgspec.to_builtins(answer) for key, answer in calls.items()})

    def _file(self, name: str, subject: int, size: int, modified_ns: int) -> job_files.JobFile:
        job, wall_ns = self._job, self._spec.started_wall_ns
        # Another one after a restart of the job: its logs are new files of the same names.
        inode = 1000 * (self._communicator + 1) + subject % 1000
        return job_files.JobFile(
            owners.workload_name(self._spec),
            name,
            str(subject),
            job.user,
            size,
            wall_ns + modified_ns,
            inode,
            is_regular=True,
        )

    def _inspector_calls(self, offset_ns: int) -> _Calls:
        """Return the logs, and of each the part that was written since it was last shown."""
        files, calls = [], _Calls()
        for index, log in self._logs.items():
            pid = gpu_tenants.process_number(self._spec, index)
            name, content = f"{self._spec.node}-pid{pid}.log", b"".join(log.lines)
            begin, log.shown, log.lines = log.shown, log.shown + len(content), []
            file = self._file(name, pid, log.shown, offset_ns)
            files.append(file)
            if content:
                # The parser expects the byte before the part, which is the end of the last line.
                part = inspector.parse_part(b"\n" * bool(begin) + content, begin)
                key = _key(
                    "inspector_log",
                    INSPECTOR_DIRECTORY,
                    owners.workload_name(self._spec),
                    name,
                    begin,
                )
                calls[key] = job_files.OpenedLog(self._job.user, file.inode, part)
        return calls | _listing("list_inspector", INSPECTOR_DIRECTORY, files)

    def _recorder_calls(self, offset_ns: int) -> _Calls:
        """Return the dumps of the ranks of this node, once the watchdog has made them."""
        job, now = self._job, self._job.now
        timeout_ns = round(job.job.plan.watchdog_seconds * SECOND_NS)
        if job.is_present and now.hung_ns is not None and offset_ns - now.hung_ns >= timeout_ns:
            written_ns = now.hung_ns + timeout_ns
            # Created once per hang: a dump remains as it was written, and is costly to make.
            if self._dumps[0] != written_ns:
                self._dumps = written_ns, dict(self._dump_calls(written_ns))
        return self._dumps[1] or _listing("list", FLIGHT_RECORDER_DIRECTORY, [])

    def _dump_calls(self, written_ns: int) -> Iterator[tuple[str, Any]]:
        job, files = self._job, []
        for index in range(self._spec.gpus):
            rank = self._place * self._spec.gpus + index
            content = recorder_dump(job, rank, self._spec.started_wall_ns)
            file = self._file(f"rank_{rank}", rank, len(content), written_ns + rank * 1000)
            files.append(file)
            key = _key("flight_recorder", FLIGHT_RECORDER_DIRECTORY, file.job, file.name)
            dump = flight_recorder.parse_dump(content)
            yield key, job_files.OpenedDump(job.user, file.modified_ns, dump)
        yield from _listing("list", FLIGHT_RECORDER_DIRECTORY, files).items()

    def _ras_calls(self, pids: Sequence[int], offset_ns: int) -> _Calls:
        """Return the processes of NCCL; those on the node of rank 0 answer."""
        started_ns = owners.process_started_seconds(self._spec) * SECOND_NS
        calls: _Calls = {
            f"nccl_ras.process({pid})": nccl_ras.NcclProcess(
                NCCL_VERSION, started_ns, has_same_network=True
            )
            for pid in pids
        }
        if self._place:
            return calls
        arguments = _RAS_PORT, _RAS_TIMEOUT_MS, self._job.user, *sorted(pids)
        report = ras_answers.parse_report(ras_answer(self._job, offset_ns))
        for function, answer in (
            ("events", nccl_ras.RasAnswer(nccl_ras.ANSWERED, min(pids))),
            ("query", nccl_ras.RasAnswer(nccl_ras.ANSWERED, min(pids), report)),
        ):
            calls[recorded_host.call_key("nccl_ras", function, arguments)] = answer
        return calls


def _key(function: str, *arguments: int | str) -> str:
    return recorded_host.call_key(JOB_FILES, function, arguments)


def _listing(function: str, directory: str, files: list[job_files.JobFile]) -> _Calls:
    return {_key(function, directory): job_files.JobFileListing(files)}
