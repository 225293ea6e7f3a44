"""Dumps of PyTorch's flight recorder in its form (version 2.10), and the answers of a host with such dumps."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import msgspec

from railscope.capture import CaptureMoment, Json
from railscope.timestamps import SECOND_NS
from railscope_agent.collectives.flight_recorder import parse_dump
from railscope_agent.host.job_files import JobFile, JobFileListing, OpenedDump, RankProcess
from railscope_agent.host.recorded_host import call_key

DIRECTORY = "/run/railscope/flight-recorder"
STEP_NS = SECOND_NS // 10
USER = 1000
SAME_TIME_NS = 600 * SECOND_NS
"""Default timeout of NCCL's watchdog, after which it makes a dump."""


def entry(sequence: int, created_ns: int, *, is_completed: bool, **changes: Any) -> dict[str, Any]:
    """Return an all-reduce of the default group."""
    return {
        "frames": [
            {"name": "all_reduce", "filename": "torch/distributed/distributed_c10d.py", "line": 2961},
            {"name": "training_step", "filename": "/opt/model/train.py", "line": 118},
        ],
        "record_id": sequence,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python3",
        "thread_id": "140123698707328",
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": created_ns,
        "input_sizes": [[25_165_824]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[25_165_824]],
        "output_dtypes": ["BFloat16"],
        "state": "completed" if is_completed else "started",
        "time_discovered_started_ns": created_ns,
        "time_discovered_completed_ns": created_ns + STEP_NS if is_completed else None,
        "retired": is_completed,
        "timeout_ms": 600_000,
        "is_p2p": False,
    } | changes  # fmt: skip


def dump(
    ranks: Sequence[int], enqueued: int, completed: int, began_ns: int, **changes: Any
) -> dict[str, Any]:
    """Return the dump of a rank that entered `enqueued` collectives, one each tenth of a second."""
    numbers = range(max(1, completed - 3), enqueued + 1)
    entries = [
        entry(number, began_ns + number * STEP_NS, is_completed=number <= completed)
        for number in numbers
    ]
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}},
        "comm_lib_version": "2.29.3",
        "pg_status": {
            "0": {
                "last_enqueued_collective": enqueued,
                "last_started_collective": enqueued,
                "last_completed_collective": completed,
            }
        },
        "entries": entries,
    } | changes


def pickled(content: object) -> bytes:
    """Return a pickle of the protocol that PyTorch writes."""
    return pickle.dumps(content, protocol=2)


def job_of(first: CaptureMoment) -> tuple[str, list[int]]:
    """Return the Slurm job of a node, and its processes in the order of their GPUs."""
    pids = [
        int(key.partition("(")[2].rstrip(")"))
        for key in first.calls
        if key.startswith("owner.environ(")
    ]
    return first.calls[f"owner.environ({pids[0]})"]["SLURM_JOB_ID"], pids


def hung_job(first: CaptureMoment, started_wall_ns: int) -> dict[str, Json]:
    """Return calls of a node whose Slurm job hangs: the last but one rank did not enter collective 5,000.

    The ranks are the processes on the GPUs in their order.
    """
    job, pids = job_of(first)
    ranks = range(len(pids))
    written_ns = started_wall_ns - 30 * SECOND_NS
    began_ns = written_ns - SAME_TIME_NS - 5000 * STEP_NS
    calls: dict[str, Json] = {}
    files = []
    for rank, pid in enumerate(pids):
        enqueued = 4999 if rank == len(pids) - 2 else 5000
        content = pickled(dump(ranks, enqueued, 4999, began_ns))
        name, modified_ns = f"nccl_trace_rank_{rank}", written_ns + rank * 1000
        regular = {"user": USER, "is_regular": True, "inode": 400 + rank}
        files.append(
            JobFile(job, name, str(rank), bytes=len(content), modified_ns=modified_ns, **regular)
        )
        opened = OpenedDump(USER, modified_ns, parse_dump(content))
        calls[call_key("job_files", "flight_recorder", (DIRECTORY, job, name))] = opened
        process = RankProcess(USER, rank, [job], pid)
        calls[call_key("job_files", "process", (pid,))] = process
    calls[call_key("job_files", "list", (DIRECTORY,))] = JobFileListing(files)
    return {key: msgspec.to_builtins(answer) for key, answer in calls.items()}
