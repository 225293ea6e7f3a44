"""Job lists of ClusterCockpit: one JSON object a line, of which GPUs are named by PCI address.

Fields: the job schema of ClusterCockpit (ClusterCockpit/cc-backend: pkg/schema). Instants and
durations are in whole seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

import msgspec

from collector.jobs.job import (
    LATEST_SECONDS,
    NS_PER_SECOND,
    Gpu,
    Job,
    JobList,
    JobListError,
    Unplaced,
    job_list,
    pci_address,
    without_repetitions,
)
from collector.metering.units import FOREVER_NS

_WAITING = frozenset({"pending"})
_RUNNING = frozenset({"running", "suspended"})
_SHOWN = 40


class _Line:
    """One object, with the number of its line for what is wrong in it."""

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        try:
            values = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise JobListError(number, "", f"no JSON: {error}") from error
        if not isinstance(values, dict):
            raise JobListError(number, "", "no JSON object")
        self._values: dict[str, Any] = values

    def __contains__(self, field: str) -> bool:
        return self._values.get(field) is not None

    def refuse(self, field: str, reason: str) -> NoReturn:
        """Raises JobListError about a field."""
        raise JobListError(self.number, field, reason)

    def text(self, field: str) -> str:
        """A field that is text and not empty."""
        return self.checked_text(field, self._present(field))

    def checked_text(self, field: str, value: object) -> str:
        """The same value, where it is text that can be printed and not empty."""
        if not isinstance(value, str) or not value or not value.isprintable():
            self.refuse(field, f"{_shown(value)} is no name")
        return value

    def integer(self, field: str, low: int) -> int:
        """A field that is a whole number, at least `low`."""
        value = self._present(field)
        if type(value) is not int or not low <= value < LATEST_SECONDS:
            self.refuse(field, f"{_shown(value)} is no whole number from {low} on")
        return value

    def items(self, field: str) -> list[Any]:
        """A field that is a list."""
        value = self._present(field)
        if not isinstance(value, list):
            self.refuse(field, f"{_shown(value)} is no list")
        return value

    def _present(self, field: str) -> object:
        if field not in self._values:
            self.refuse(field, "is missing")
        return self._values[field]


def read_clustercockpit(lines: Iterable[str]) -> JobList:
    """The jobs of a list; empty lines mean nothing. Raises JobListError."""
    told: list[tuple[int, Job]] = []
    without_gpus = never_started = 0
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        line = _Line(number, text)
        job = _job(line)
        state = line.text("job_state") if "job_state" in line else ""
        if not job.gpus and not job.unplaced:
            without_gpus += 1
        elif state in _WAITING:
            never_started += 1
        elif state in _RUNNING:
            told.append((number, msgspec.structs.replace(job, end_ns=FOREVER_NS)))
        else:
            told.append((number, job))
    return job_list(without_repetitions(told), without_gpus, never_started)


def _job(line: _Line) -> Job:
    start_ns = line.integer("start_time", 0) * NS_PER_SECOND
    gpus, unplaced = _accelerators(line)
    return Job(
        start_ns,
        str(line.integer("job_id", 1)),
        line.text("project"),
        line.text("hpc_user"),
        start_ns + line.integer("duration", 0) * NS_PER_SECOND,
        gpus,
        unplaced,
    )


def _accelerators(line: _Line) -> tuple[tuple[Gpu, ...], tuple[Unplaced, ...]]:
    """The GPUs of a job by name, and those that only are known to be there."""
    gpus: list[Gpu] = []
    unplaced: list[Unplaced] = []
    for index, resource in enumerate(line.items("resources")):
        field = f"resources[{index}]"
        if not isinstance(resource, dict):
            line.refuse(field, f"{_shown(resource)} is no object")
        node = line.checked_text(f"{field}.hostname", resource.get("hostname"))
        named = resource.get("accelerators") or []
        if not isinstance(named, list):
            line.refuse(f"{field}.accelerators", f"{_shown(named)} is no list")
        for name in named:
            if not isinstance(name, str):
                line.refuse(f"{field}.accelerators", f"{_shown(name)} is no text")
            address = pci_address(name)
            if address is None:
                unplaced.append(Unplaced(node, 1, f"{_shown(name)} is no PCI address"))
            elif (gpu := Gpu(node, address)) in gpus:
                line.refuse(f"{field}.accelerators", f"{address} is there twice")
            else:
                gpus.append(gpu)
    unplaced += _not_named(line, len(gpus) + len(unplaced))
    return tuple(sorted(gpus)), tuple(sorted(unplaced))


def _not_named(line: _Line, named: int) -> list[Unplaced]:
    """What `num_acc` counts, where the list has it, beyond the accelerators it names."""
    if "num_acc" not in line:
        return []
    counted = line.integer("num_acc", 0)
    if counted < named:
        line.refuse("num_acc", f"is {counted}, but {named} accelerators are named")
    return [Unplaced("", counted - named, "is not named")] if counted > named else []


def _shown(value: object) -> str:
    """A value for a person, on one line and not too long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
