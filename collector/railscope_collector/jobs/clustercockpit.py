"""Job lists of ClusterCockpit, which name GPUs by PCI address.

Jobs are JSON objects: one per line, consecutive as in the meta.json files of an archive, in an
array, or as `jobs` of an API response. Field names are those of its job schema (`jobId`,
`startTime`; ClusterCockpit/cc-lib: schema/job.go) or of its database (`job_id`, `start_time`).
Times and durations are in whole seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import msgspec

from railscope.timestamps import FOREVER_NS, SECOND_NS
from railscope.untrusted_text import DECODING_ERRORS
from railscope_collector.jobs import bad_lines, job_list, json_documents

_WAITING = frozenset({"pending"})
_RUNNING = frozenset({"running", "suspended"})
_MAX_DISPLAY_LENGTH = 40
_DATABASE = {
    "jobId": "job_id",
    "startTime": "start_time",
    "jobState": "job_state",
    "user": "hpc_user",
    "numAcc": "num_acc",
}
"""Field names in the database, by their names in JSON."""


class _JobObject:
    """One object; its methods raise ShapeError with the name that the object has for a field."""

    def __init__(self, values: object) -> None:
        if not isinstance(values, dict):
            reason = f"{_display_value(values)}: expected a JSON object"
            bad_lines.reject("", reason)
        self._values: dict[str, Any] = values
        self._is_database = "jobId" not in values

    def __contains__(self, field: str) -> bool:
        return self._values.get(self.name_of(field)) is not None

    def reject(self, field: str, reason: str) -> NoReturn:
        """Raise ShapeError about a field."""
        bad_lines.reject(self.name_of(field), reason)

    def name_of(self, field: str) -> str:
        """The name of a field in this object."""
        return _DATABASE.get(field, field) if self._is_database else field

    def text(self, field: str) -> str:
        """A field that must be text and not empty."""
        return self.checked_text(field, self._present(field))

    def checked_text(self, field: str, value: object) -> str:
        """The value, checked to be printable text and not empty."""
        if not isinstance(value, str) or not value or not value.isprintable():
            self.reject(field, f"{_display_value(value)}: expected a printable name")
        return value

    def integer(self, field: str, low: int) -> int:
        """A field that must be a whole number, at least `low`."""
        value = self._present(field)
        # `type` and not `isinstance`: true in JSON is a bool, which is an int in Python.
        if type(value) is not int or not low <= value < job_list.LATEST_SECONDS:
            self.reject(
                field, f"{_display_value(value)}: expected a whole number of at least {low}"
            )
        return value

    def items(self, field: str) -> list[Any]:
        """A field that must be a list."""
        value = self._present(field)
        if not isinstance(value, list):
            self.reject(field, f"{_display_value(value)}: expected a list")
        return value

    def _present(self, field: str) -> object:
        if self.name_of(field) not in self._values:
            self.reject(field, "missing field")
        return self._values[self.name_of(field)]


def read_clustercockpit(
    lines: Iterable[str], bad: bad_lines.BadLines = bad_lines.RAISE_BAD_LINES
) -> job_list.JobList:
    """Parse the jobs of a list; empty lines are ignored. Raises JobListError."""
    builder = job_list.JobListBuilder(bad)
    clusters: set[str] = set()
    for number, builder.noun, value in _objects("\n".join(lines), bad):
        with builder.line(number):
            line = _JobObject(value)
            state = line.text("jobState") if "jobState" in line else ""
            job = _job(line, state, bad)
            cluster = line.text("cluster") if "cluster" in line else ""
            builder.add(job, started=state not in _WAITING, cluster=cluster)
            clusters.add(cluster)
    return builder.build(clusters.pop() if len(clusters) == 1 else "")


def _objects(text: str, bad: bad_lines.BadLines) -> Iterator[tuple[int, str, object]]:
    """The objects of a text, each with its number and the unit that is counted."""
    start = text.lstrip()
    whole: object = None
    if start.startswith(("[", "{")):
        try:
            whole = msgspec.json.decode(start)
        except DECODING_ERRORS:
            whole = None  # one object per line, or several consecutive ones
    if isinstance(whole, dict) and isinstance(whole.get("jobs"), list):
        whole = whole["jobs"]
    if isinstance(whole, list):
        yield from ((number, "job", value) for number, value in enumerate(whole, 1))
    elif start.partition("\n")[0].strip() in ("{", "["):
        yield from (
            (number, "document", value) for number, value in json_documents.parse(text, bad)
        )
    else:
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                yield number, "line", msgspec.json.decode(line)
            except DECODING_ERRORS as error:
                bad.add(
                    bad_lines.JobListError(
                        number, "", f"invalid JSON: {error}: {_display_value(line)}"
                    )
                )


def _job(line: _JobObject, state: str, bad: bad_lines.BadLines) -> job_list.ListedJob:
    has_begun = state not in _WAITING
    start_ns = line.integer("startTime", 0) * SECOND_NS
    if has_begun:
        bad.check_past(line.name_of("startTime"), start_ns)
    gpus, unplaced = _accelerators(line)
    end_ns = FOREVER_NS
    if state not in _RUNNING and (has_begun or "duration" in line):
        end_ns = start_ns + line.integer("duration", 0) * SECOND_NS
        if has_begun:
            bad.check_past(line.name_of("duration"), end_ns, "end: ")
    number = str(line.integer("jobId", 1))
    project, user = line.text("project"), line.text("user")
    return job_list.ListedJob(start_ns, number, project, user, end_ns, gpus, unplaced)


def _accelerators(
    line: _JobObject,
) -> tuple[tuple[job_list.ListedGpu, ...], tuple[job_list.UnnamedGpus, ...]]:
    """The GPUs of a job by name, and those without a usable name."""
    gpus: set[job_list.ListedGpu] = set()
    unplaced: list[job_list.UnnamedGpus] = []
    hosts: set[str] = set()
    for index, resource in enumerate(line.items("resources")):
        field = f"resources[{index}]"
        if not isinstance(resource, dict):
            line.reject(field, f"{_display_value(resource)}: expected an object")
        node = line.checked_text(f"{field}.hostname", resource.get("hostname"))
        hosts.add(node)
        named = resource.get("accelerators") or []
        if not isinstance(named, list):
            line.reject(f"{field}.accelerators", f"{_display_value(named)}: expected a list")
        for name in named:
            if not isinstance(name, str):
                line.reject(f"{field}.accelerators", f"{_display_value(name)}: expected a string")
            address = job_list.pci_address(name)
            if address is None:
                unplaced.append(
                    job_list.UnnamedGpus(node, 1, f"{_display_value(name)}: expected a PCI address")
                )
            elif (gpu := job_list.ListedGpu(node, address)) in gpus:
                line.reject(f"{field}.accelerators", f"duplicate {address}: expected it once")
            else:
                gpus.add(gpu)
    job_list.check_gpu_count(line.name_of("resources"), len(gpus) + len(unplaced), len(hosts))
    unplaced += _unnamed_gpus(line, len(gpus) + len(unplaced), sorted(hosts))
    return tuple(sorted(gpus)), tuple(sorted(unplaced))


def _unnamed_gpus(line: _JobObject, named: int, hosts: Sequence[str]) -> list[job_list.UnnamedGpus]:
    """GPUs in `num_acc`, if the list has it, beyond the named accelerators.

    They are on the host of a single-host job; for several hosts the list does not specify which.
    """
    if "numAcc" not in line:
        return []
    counted = line.integer("numAcc", 0)
    if counted < named:
        line.reject("numAcc", f"{counted}: expected {named}, the number of named accelerators")
    job_list.check_gpu_count(line.name_of("numAcc"), counted, len(hosts))
    node = hosts[0] if len(hosts) == 1 else ""
    return [job_list.UnnamedGpus(node, counted - named, "is not named")] if counted > named else []


def _display_value(value: object) -> str:
    """A value for display, on one line and limited in length."""
    text = json.dumps(value)
    return text if len(text) <= _MAX_DISPLAY_LENGTH else f"{text[:_MAX_DISPLAY_LENGTH]}..."
