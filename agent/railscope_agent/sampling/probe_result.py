"""Result of a probe: the columns of a source, and findings about the node for `railscope agent check`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from railscope.catalog.declare import Metric
from railscope.frame import Column, Entity
from railscope.reading import Absent, reason_of


class ProbeVerdict(StrEnum):
    """Result of a probe for one part of the node."""

    SUPPORTED = "supported"
    ABSENT = "absent"
    DENIED = "denied"
    BROKEN = "broken"
    AWAITED = "awaited"


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """One line of `railscope agent check`: subject, result, details and remedy.

    A finding about one device of several has a subject that precedes its name: `GPU`, `transceiver of`.
    """

    subject: str
    verdict: ProbeVerdict
    detail: str
    remedy: str = ""
    device: str = ""

    @property
    def title(self) -> str:
        """Subject with the device."""
        return f"{self.subject} {self.device}" if self.device else self.subject

    @classmethod
    def supported(
        cls, subject: str, detail: str, remedy: str = "", device: str = ""
    ) -> ProbeFinding:
        """Finding about a part that can be read."""
        return cls(subject, ProbeVerdict.SUPPORTED, detail, remedy, device)

    @classmethod
    def absent(cls, subject: str, detail: str, remedy: str = "", device: str = "") -> ProbeFinding:
        """Finding about a part that the node does not have."""
        return cls(subject, ProbeVerdict.ABSENT, detail, remedy, device)

    @classmethod
    def failed(
        cls,
        subject: str,
        error: Exception,
        remedy: str = "",
        query: str = "",
        device: str = "",
    ) -> ProbeFinding:
        """Finding about a failed query, or about an answer of an unexpected form.

        The remedy applies if permission was denied.
        """
        head = f"{query}: " if query else ""
        if not isinstance(error, OSError):
            detail = f"{head}malformed answer: {type(error).__name__}: {error}"
            return cls(subject, ProbeVerdict.BROKEN, detail, "report this as a bug", device)
        detail = f"{head}{error.strerror or error}"
        if reason_of(error) is Absent.DENIED:
            return cls(subject, ProbeVerdict.DENIED, detail, remedy, device)
        return cls(subject, ProbeVerdict.BROKEN, detail, device=device)


def fold_findings(findings: Iterable[ProbeFinding]) -> Sequence[ProbeFinding]:
    """Return findings, with one for all devices about which the same was found; each once."""
    devices: dict[ProbeFinding, list[str]] = {}
    for finding in dict.fromkeys(findings):
        devices.setdefault(replace(finding, device=""), []).append(finding.device)
    return [
        replace(finding, device=", ".join(filter(None, names)))
        for finding, names in devices.items()
    ]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of a probe: the columns, in the order in which `read` fills them, and findings."""

    columns: tuple[Column, ...] = ()
    columnless_entities: tuple[Entity, ...] = ()
    findings: tuple[ProbeFinding, ...] = ()


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


def format_count(number: int, noun: str) -> str:
    """Return a number of things: `1 GPU`, `2 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
