"""Pods of Alibaba's trace of shared GPUs (alibaba/clusterdata: cluster-trace-gpu-v2023), as CSV.

Columns: name, num_gpu, gpu_milli (of each GPU), gpu_spec, pod_phase, scheduled_time and
deletion_time, in seconds since the start of the trace; second 0 is mapped to 1970-01-01T00:00:00Z.
The trace contains neither nodes nor owners: GPUs are only counted, and the class of service (`qos`)
is used as the tenant.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from fractions import Fraction

import msgspec

from collector.jobs.job import (
    LATEST_SECONDS,
    MAX_GPUS_OF_NODE,
    NS_PER_SECOND,
    RAISED,
    BadLines,
    Job,
    JobList,
    JobListError,
    Unplaced,
    future,
    job_list,
    without_repetitions,
)
from collector.metering.units import FOREVER_NS
from railscope.numeric_text import NumberError, parse_whole

COLUMNS = ("name", "num_gpu", "gpu_milli", "pod_phase", "deletion_time", "scheduled_time")
NOT_NAMED = "the trace does not tell which GPUs"
_MILLI = 1000
_FINAL = frozenset({"Succeeded", "Failed"})


def read_alibaba(text: str, bad: BadLines = RAISED) -> JobList:
    """Parse the pods of the trace. Raises JobListError."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    told: list[tuple[int, Job]] = []
    without_gpus = never_started = 0
    try:
        missing = sorted(set(COLUMNS) - set(reader.fieldnames or ()))
        if missing:
            raise JobListError(1, missing[0], "is not in the header")
        for row in reader:
            number = reader.line_num
            try:
                job = _job(number, row, bad.now_ns)
            except JobListError as error:
                bad.add(error)
                continue
            if not job.unplaced:
                without_gpus += 1
            elif not row["scheduled_time"]:
                never_started += 1
            else:
                told.append((number, job))
    except csv.Error as error:
        raise JobListError(reader.line_num, "", f"no CSV: {error}") from error
    found = job_list(without_repetitions(told, bad=bad), without_gpus, never_started)
    return msgspec.structs.replace(found, rejected=tuple(bad.found))


def _job(number: int, row: Mapping[str, str | None], now_ns: int) -> Job:
    name = row["name"] or ""
    if not name or not name.isprintable():
        raise JobListError(number, "name", f"{name!r} is no name")
    gpus = _whole(number, row, "num_gpu", MAX_GPUS_OF_NODE + 1)
    milli = _whole(number, row, "gpu_milli", _MILLI + 1) if gpus else 0
    if gpus and not milli:
        raise JobListError(number, "gpu_milli", f"'0' with num_gpu {gpus}: expected 1 to {_MILLI}")
    start = _whole(number, row, "scheduled_time", LATEST_SECONDS) if row["scheduled_time"] else 0
    if reason := future(start * NS_PER_SECOND, now_ns):
        raise JobListError(number, "scheduled_time", reason)
    end_ns = FOREVER_NS
    if row["deletion_time"]:
        end = _whole(number, row, "deletion_time", LATEST_SECONDS)
        if end < start:
            reason = f"{end} is before scheduled_time, {start}"
            raise JobListError(number, "deletion_time", reason)
        end_ns = end * NS_PER_SECOND
        if reason := future(end_ns, now_ns):
            raise JobListError(number, "deletion_time", reason)
    elif row["pod_phase"] in _FINAL and row["scheduled_time"]:
        raise JobListError(
            number, "deletion_time", f"is empty, but pod_phase is {row['pod_phase']}"
        )
    model = row.get("gpu_spec") or ""
    part = Unplaced(
        "",
        gpus,
        NOT_NAMED,
        "" if "|" in model else model,
        Fraction(milli, _MILLI) if gpus else Fraction(1),
    )
    return Job(
        start * NS_PER_SECOND, name, row.get("qos") or "none", "", end_ns,
        unplaced=(part,) if gpus else (),
    )  # fmt: skip


def _whole(number: int, row: Mapping[str, str | None], field: str, limit: int) -> int:
    """Parse a whole number, also such as `3.0`. Raises JobListError."""
    text = (row[field] or "").removesuffix(".0")
    try:
        return parse_whole(text, limit)
    except NumberError as error:
        raise JobListError(number, field, str(error)) from error
