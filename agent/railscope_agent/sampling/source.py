"""Interface of a source, the row that it fills, and readers of descriptive facts.

A source has no timer, no logger and no configuration beyond its constructor. `probe` determines the
columns and may be called again at any time; `read` fills the columns of the last probe; `close`
releases what they opened. All run on the thread of the source's device family, never two at once.

Descriptive facts are short texts that may be missing, for labels and not for values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import compress, repeat
from operator import is_not
from typing import Protocol, TypeVar, cast

from railscope.catalog.declare import Metric
from railscope.frame import Column, Entity, Event
from railscope.reading import PRESENT, Absent, Reading, parse_integer, reason_of
from railscope_agent.config import SourcePeriods
from railscope_agent.host import FileGroup, Host, Json, NvmlError


class ProbeVerdict(StrEnum):
    """Result of a probe for one part of the node."""

    SUPPORTED = "supported"
    ABSENT = "absent"
    DENIED = "denied"
    BROKEN = "broken"
    AWAITED = "awaited"


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """One line of `railscope agent check`: subject, result, details and remedy."""

    subject: str
    verdict: ProbeVerdict
    detail: str
    remedy: str = ""

    @classmethod
    def supported(cls, subject: str, detail: str, remedy: str = "") -> ProbeFinding:
        """Finding about a part that can be read."""
        return cls(subject, ProbeVerdict.SUPPORTED, detail, remedy)

    @classmethod
    def absent(cls, subject: str, detail: str, remedy: str = "") -> ProbeFinding:
        """Finding about a part that the node does not have."""
        return cls(subject, ProbeVerdict.ABSENT, detail, remedy)

    @classmethod
    def failed(
        cls, subject: str, error: Exception, remedy: str = "", query: str = ""
    ) -> ProbeFinding:
        """Finding about a failed query, or about an answer of an unexpected form.

        The remedy applies if permission was denied.
        """
        head = f"{query}: " if query else ""
        if not isinstance(error, OSError):
            detail = f"{head}malformed answer: {type(error).__name__}: {error}"
            return cls(subject, ProbeVerdict.BROKEN, detail, "report this as a bug")
        detail = f"{head}{error.strerror or error}"
        if reason_of(error) is Absent.DENIED:
            return cls(subject, ProbeVerdict.DENIED, detail, remedy)
        return cls(subject, ProbeVerdict.BROKEN, detail)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of a probe: the columns, in the order in which `read` fills them, and findings."""

    columns: tuple[Column, ...] = ()
    columnless_entities: tuple[Entity, ...] = ()
    findings: tuple[ProbeFinding, ...] = ()


class RowBuilder:
    """One row under construction: a stored integer and a reason code for each column."""

    def __init__(self, columns: int) -> None:
        self.values = [0] * columns
        self.reasons = bytearray(columns)
        self.events: list[Event] = []
        self.needs_probe = False
        """Set by a source that found something without a column in the last probe."""
        self.is_intermediate = False
        """Set by a source that only sampled: a later read returns the readings."""

    def put(self, column: int, reading: Reading) -> None:
        """Set one column."""
        if isinstance(reading, Absent):
            self.values[column] = 0
            self.reasons[column] = reading.value
        else:
            self.values[column] = reading
            self.reasons[column] = PRESENT

    def put_each(self, columns: Iterable[int], reading: Reading) -> None:
        """Set several columns to the same reading."""
        for column in columns:
            self.put(column, reading)

    def put_readings(self, start: int, readings: Iterable[Reading]) -> None:
        """Set consecutive columns."""
        row = list(readings)
        self.put_all(start, cast("list[int]", row))
        for position in compress(range(len(row)), map(is_not, map(type, row), repeat(int))):
            self.put(start + position, row[position])

    def put_all(self, start: int, readings: Sequence[int]) -> None:
        """Set consecutive columns that all have a value. Raises IndexError if there are not as many."""
        if start + len(readings) > len(self.values):
            message = f"readings from column {start}: {len(readings)}: expected at most {len(self.values) - start}"
            raise IndexError(message)
        self.values[start : start + len(readings)] = readings
        self.reasons[start : start + len(readings)] = bytes(len(readings))

    def put_none(self, start: int, count: int, reason: Absent) -> None:
        """Set consecutive columns to no value, all for one reason."""
        self.values[start : start + count] = [0] * count
        self.reasons[start : start + count] = bytes([reason.value]) * count


class CounterTotal:
    """Sum of counters that may appear, disappear and be reset; it never decreases while the agent runs.

    It starts with the sum of the first read. A counter that appears later counts from then on, and one
    without a value keeps its part of the sum.
    """

    def __init__(self) -> None:
        self._last: dict[str | tuple[str, ...], int] = {}
        self._total: int | None = None

    @property
    def has_started(self) -> bool:
        """True after the first read with a value."""
        return self._total is not None

    def update(self, row: RowBuilder, columns: Mapping[str | tuple[str, ...], int]) -> Reading:
        """Return the sum after a read; if none of the columns has a value, the reason of the first.

        Without columns, the counters that were read before cannot be found: an error.

        `columns` are the counters' columns by a key that lasts from probe to probe.
        """
        present = {
            key: row.values[column]
            for key, column in columns.items()
            if row.reasons[column] == PRESENT
        }
        if not columns:
            return Absent.ERROR
        if not present:
            return Absent(row.reasons[next(iter(columns.values()))])
        if self._total is None:
            self._total = sum(present.values())
        elif present != self._last:
            for key, value in present.items():
                last = self._last.get(key, value)
                self._total += value - last if value >= last else value
        self._last |= present
        return self._total


LONGEST_PERIOD_SECONDS = 120.0


class Source(Protocol):
    """Reads one part of the node.

    A source may define `longest_period_seconds`, the longest period at which it may be read however
    expensive it is: for events in a bounded queue, or counters that wrap. The default is
    `LONGEST_PERIOD_SECONDS`. It never lowers a configured period.

    A source that computes its readings from the results of others defines `stage`: it is read after the
    sources of lower stages that are due at the same time. The default is 0. One that only reads the memory of
    the agent defines `is_in_memory` as True: it is read on the event loop, without waking a thread.
    """

    name: str
    family: str
    period_seconds: float

    def probe(self, host: Host) -> ProbeResult:
        """Return the columns that exist. Raises OSError or NvmlError if that cannot be determined."""
        ...

    def read(self, host: Host, into: RowBuilder) -> None:
        """Fill the columns of the last probe. Raises OSError or NvmlError if nothing can be read."""
        ...

    def close(self) -> None:
        """Release all resources. A later probe acquires them again."""
        ...


def longest_period_seconds(source: Source) -> float:
    """Return the longest period at which a source may be read."""
    longest: float = getattr(source, "longest_period_seconds", LONGEST_PERIOD_SECONDS)
    return max(longest, source.period_seconds)


def selected_metrics(source: Source) -> frozenset[str]:
    """Return the names of the metrics that frames of a source are limited to; none if they have all."""
    selection: frozenset[str] = getattr(source, "selection", frozenset())
    return selection


def source_stage(source: Source) -> int:
    """Return the stage of a source."""
    stage: int = getattr(source, "stage", 0)
    return stage


def is_in_memory(source: Source) -> bool:
    """True if a source may be read on the event loop."""
    return getattr(source, "is_in_memory", False)


MALFORMED_ERRORS = (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError)
"""Errors raised when a reading is extracted from an answer of an unexpected form."""
Answer = TypeVar("Answer")
FileKey = TypeVar("FileKey", str, int)


def pick_reading(pick: Callable[[Answer], Reading], answer: Answer) -> Reading:
    """Return the reading in an answer; an unexpected form results in `Absent.ERROR`."""
    try:
        return pick(answer)
    except MALFORMED_ERRORS:
        return Absent.ERROR


def parsed_reading(
    read: Callable[[FileKey], bytes],
    place: FileKey,
    parse: Callable[[bytes], Reading] = parse_integer,
) -> Reading:
    """Return the reading in the content of a file, or the reason why it cannot be read.

    `read` is `Host.read` with a path, or `FileGroup.text` with an index.
    """
    try:
        return parse(read(place))
    except OSError as error:
        return reason_of(error)


_DEFAULT_PERIODS = SourcePeriods()


class PeriodicSource:
    """Base class of sources: the period is the default of the setting with their name, unless it is set."""

    name: str
    selection: frozenset[str] = frozenset()
    """Names of the metrics that are read; all if empty."""
    _period_seconds = 0.0

    def selects(self, *metrics: Metric) -> bool:
        """True if one of these metrics is read."""
        return not self.selection or any(metric.name in self.selection for metric in metrics)

    @property
    def period_seconds(self) -> float:
        """Seconds between two reads."""
        period: float = self._period_seconds or getattr(_DEFAULT_PERIODS, self.name)
        return period

    @period_seconds.setter
    def period_seconds(self, seconds: float) -> None:
        self._period_seconds = seconds


class SourceWithoutResources(PeriodicSource):
    """Base class of sources without open files: nothing to release."""

    def close(self) -> None:
        """Do nothing."""


class SourceWithFiles(PeriodicSource):
    """Base class of sources that hold files open between reads, in groups."""

    _files: tuple[FileGroup, ...] = ()

    def _keep(self, host: Host, *groups: Sequence[str]) -> None:
        """Open groups of files in place of those of the last probe."""
        self.close()
        self._files = tuple(host.open_file_group(paths) for paths in groups)

    def close(self) -> None:
        """Close the open files."""
        for files in self._files:
            files.close()
        self._files = ()


class CounterFileSource(SourceWithFiles):
    """Base class of sources with one group of files that contain one integer each."""

    def read(self, host: Host, into: RowBuilder) -> None:  # noqa: ARG002 - its files are held open
        """Read every file."""
        for files in self._files:
            files.read_into(into.values, into.reasons, 0)


@dataclass(slots=True)
class ColumnBuilder:
    """Columns under construction."""

    columns: list[Column] = field(default_factory=list)

    def add(self, metric: Metric, entity: Entity) -> int:
        """Append a column and return its position."""
        self.columns.append((metric, entity))
        return len(self.columns) - 1

    def add_each(self, metrics: Iterable[Metric], entity: Entity) -> int:
        """Append a column of an entity for each metric, and return the first position."""
        first = len(self.columns)
        self.columns += ((metric, entity) for metric in metrics)
        return first

    def result(
        self, *findings: ProbeFinding, columnless_entities: Iterable[Entity] = ()
    ) -> ProbeResult:
        """Return these columns as the result of a probe."""
        return ProbeResult(tuple(self.columns), tuple(columnless_entities), findings)


# NVML return codes: nvml.h, nvmlReturn_t.
_NVML_REASONS = {
    1: Absent.GONE,  # UNINITIALIZED
    2: Absent.GONE,  # INVALID_ARGUMENT: the device vanished
    3: Absent.UNSUPPORTED,  # NOT_SUPPORTED
    4: Absent.DENIED,  # NO_PERMISSION
    6: Absent.UNSUPPORTED,  # NOT_FOUND
    9: Absent.GONE,  # DRIVER_NOT_LOADED
    10: Absent.TIMEOUT,  # TIMEOUT
    27: Absent.NOT_DUE,  # NOT_READY
    12: Absent.UNSUPPORTED,  # LIBRARY_NOT_FOUND
    13: Absent.UNSUPPORTED,  # FUNCTION_NOT_FOUND
    15: Absent.GONE,  # GPU_IS_LOST
    16: Absent.GONE,  # RESET_REQUIRED: no call succeeds until then
    21: Absent.UNSUPPORTED,  # NO_DATA
    22: Absent.UNSUPPORTED,  # VGPU_ECC_NOT_SUPPORTED
    25: Absent.UNSUPPORTED,  # ARGUMENT_VERSION_MISMATCH
    26: Absent.UNSUPPORTED,  # DEPRECATED
    28: Absent.UNSUPPORTED,  # GPU_NOT_FOUND
}


def nvml_reason(code: int) -> Absent:
    """Return the absence reason of an NVML return code."""
    return _NVML_REASONS.get(code, Absent.ERROR)


def reason_for(error: OSError | NvmlError) -> Absent:
    """Return the absence reason of a failed call."""
    return nvml_reason(error.code) if isinstance(error, NvmlError) else reason_of(error)


def call_nvml(host: Host, function: str, *arguments: int | str) -> Json:
    """Return the answer of an NVML call, or None if the call fails."""
    try:
        return host.call("nvml", function, *arguments)
    except (NvmlError, OSError):
        return None


_NVML_REMEDIES = {
    4: "run the agent as root, or grant it access to /dev/nvidia*",
    9: "load the nvidia kernel module: modprobe nvidia, then nvidia-smi",
    18: "the driver was updated without a reload: reload it, or reboot the node",
}


def nvml_remedy(code: int) -> str:
    """Return the remedy for an NVML return code that prevents reading all GPUs."""
    return _NVML_REMEDIES.get(code, "run nvidia-smi and read the kernel log")


def read_text(host: Host, path: str) -> str:
    """Return the content of a file without surrounding space; empty if it cannot be read."""
    try:
        return host.read(path).decode(errors="replace").strip()
    except OSError:
        return ""


def list_names(host: Host, path: str) -> list[str]:
    """Return the entries of a directory; none if it cannot be read."""
    try:
        return host.names(path)
    except OSError:
        return []


def network_file(host: Host, path: str) -> str:
    """Return the path of a file of the network stack: /proc/net is a link to /proc/self/net.

    A copied tree, a container or a capture may have only one of the two.
    """
    name = path.partition("/net/")[2]
    for directory in ("/proc/self/net", "/proc/net"):
        try:
            host.read(f"{directory}/{name}")
        except OSError:
            continue
        return f"{directory}/{name}"
    return path


def read_link_name(host: Host, path: str) -> str:
    """Return the last part of a link's target; empty if it does not resolve."""
    try:
        return host.resolve(path).rsplit("/", 1)[-1]
    except OSError:
        return ""


def format_count(number: int, noun: str) -> str:
    """Return a number of things: `1 GPU`, `2 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def nonempty_facts(**facts: str) -> dict[str, str]:
    """Return the facts that are not empty."""
    return {name: value for name, value in facts.items() if value}
