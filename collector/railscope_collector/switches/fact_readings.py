"""Facts as readings: entities, streams, units and absence, the same for every dialect that is polled.

A dialect reads one name of one port. What it does not have is unsupported; a table that could not be read in a poll,
while others could, has the reason of that failure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar, Generic, NamedTuple, TypeVar

from railscope import untrusted_text
from railscope.catalog import declare, entities, switches as catalog
from railscope.frame import Column, Entity
from railscope.reading import Absent, Reading
from railscope_collector.switches import switch_reading as base
from railscope_collector.switches.link_ends import other_neighbours
from railscope_collector.switches.switch_facts import Name, Names, as_stored

Port = TypeVar("Port", bound=Hashable)
"""Identity of a port in a dialect: a name, or the index of an interface."""


class PortPart(NamedTuple):
    """A priority, queue, priority group or lane of a port: its label, and its key in the dialect."""

    label: str
    key: object


EIGHT = tuple(PortPart(str(number), number) for number in base.PRIORITIES)
"""Priorities; queues and priority groups by number."""


class SwitchAnswers(ABC, Generic[Port, Name]):
    """Answers of a switch in one poll."""

    units: ClassVar[Mapping[declare.Metric, Fraction]] = {}
    """Units of the dialect that are not the steps of the catalog."""

    @abstractmethod
    def read(
        self, metric: declare.Metric, name: Name, port: Port, part: object
    ) -> Reading | Decimal:
        """Return a number of a port or, with a key, of its part; unsupported if the switch does not state it."""

    def parts(self, stream: str, kind: declare.EntityKind, port: Port) -> Iterable[PortPart]:  # noqa: ARG002 - for others
        """Return the parts of a port."""
        return EIGHT

    def absence(self, metric: declare.Metric) -> Absent:  # noqa: ARG002 - for others
        """Return why nothing answers a fact."""
        return Absent.UNSUPPORTED


def fact_readings(
    facts: Mapping[str, Mapping[declare.Metric, Names[Name]]],
    ports: Mapping[Port, Entity],
    answers: SwitchAnswers[Port, Name],
) -> dict[str, base.StreamReadings]:
    """Return the facts of all ports, by stream."""
    return {stream: list(_readings(stream, names, ports, answers)) for stream, names in facts.items()}  # fmt: skip


def _readings(
    stream: str,
    facts: Mapping[declare.Metric, Names[Name]],
    ports: Mapping[Port, Entity],
    answers: SwitchAnswers[Port, Name],
) -> Iterator[tuple[Column, Reading]]:
    kinds: dict[declare.EntityKind, list[declare.Metric]] = defaultdict(list)
    for metric in facts:
        kinds[metric.about].append(metric)
    for key, port in ports.items():
        for kind, metrics in kinds.items():
            for entity, part in _entities(stream, kind, key, port, answers):
                for metric in metrics:
                    yield (metric, entity), _read(metric, facts[metric], key, part, answers)


def _entities(
    stream: str,
    kind: declare.EntityKind,
    key: Port,
    port: Entity,
    answers: SwitchAnswers[Port, Name],
) -> Iterator[tuple[Entity, object]]:
    """Yield a port itself, or its parts, each with its key in the dialect."""
    if kind is entities.SWITCH_PORT:
        # The facts of a port are those of one stream: each stream with them has a series of the info metric.
        yield port if stream == base.PORTS else Entity(kind, port.key), None
    else:
        for part in answers.parts(stream, kind, key):
            yield Entity(kind, (*port.key, part.label)), part.key


def _read(
    metric: declare.Metric,
    names: Names[Name],
    port: Port,
    part: object,
    answers: SwitchAnswers[Port, Name],
) -> Reading:
    for alternative in names:
        value = answers.read(metric, alternative[0], port, part)
        if len(alternative) > 1:
            rest = (answers.read(metric, name, port, part) for name in alternative[1:])
            value = base.sum_counters((value, *rest))
        if value is not Absent.UNSUPPORTED:
            return as_stored(metric, value, answers.units.get(metric))
    return answers.absence(metric)


@dataclass(slots=True)
class KnownSwitch:
    """Findings of earlier polls, since not all tables are due in each."""

    missing: dict[str, bool] = field(default_factory=dict)
    """Tables that the switch has (false) or does not have (true)."""
    identity: Mapping[str, str] = field(default_factory=dict)

    def readings(self, switch: str, ports: int, uptime: Reading) -> base.StreamReadings:
        """Return the readings of the switch itself."""
        missing = ", ".join(name for name, is_missing in self.missing.items() if is_missing)
        facts = {**self.identity, "missing_tables": missing}
        entity = Entity(entities.SWITCH, (switch,), facts)
        return [((catalog.UPTIME, entity), uptime), ((catalog.PORTS, entity), ports)]


def neighbour_reading(
    port: Entity, found: Sequence[Mapping[str, str]], absence: Absent | None
) -> tuple[Column, Reading]:
    """Return the first of the neighbours that were found at a port, with the others as facts."""
    facts: dict[str, str] = {}
    if found:
        facts = {**found[0], **other_neighbours(found[1:], found[0]["chassis"])}
    entity = Entity(entities.SWITCH_NEIGHBOUR, port.key, facts)
    return (catalog.NEIGHBOUR_KNOWN, entity), absence or int(bool(found))


def clean_text(text: str) -> str:
    """Return a text of a switch as printable text of limited length."""
    return base.cut_text(untrusted_text.printable(text))


def as_identifier(text: str, *, is_mac: bool) -> str:
    """Return the identifier of a chassis or port; a MAC address as aa:bb:cc:dd:ee:ff."""
    return text.lower().replace("-", ":") if is_mac else text
