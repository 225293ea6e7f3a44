"""A node that is simulated while it is observed: without end, and with faults that end.

A file describes the node and its faults. They strike in rounds of one length; in each round a fault
has a fresh strength and strikes another device. Everything follows from the file and the boot clock,
so that an agent that starts again finds the node where it would have been.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from railscope.capture import SECTIONS, Json
from railscope.toml_text import parse_toml
from simulator.conditions import GpuConditions, JobConditions, PortConditions, Scenario
from simulator.model import NodeModel
from simulator.reports import strikes_gpu
from simulator.run import Views
from simulator.scenarios import scenario_of
from simulator.span import NS_PER_SECOND, Span, seconds
from simulator.spec import NodeSpec

STEP_NS = NS_PER_SECOND
MAX_STEPS = 60
"""A simulation that has fallen behind further, after a suspend, say, makes one long step."""
MAX_RECORDS = 4096
"""Of the kernel log, which is a ring as well."""


class LiveError(ValueError):
    """The file of a live node is missing or wrong; the message says where."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault of each round: which scenario, when after the start of the round, and for how long."""

    scenario: str
    begin_seconds: float
    length_seconds: float


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A node that is simulated live; `started_boot_ns` is CLOCK_BOOTTIME where offsets begin."""

    node: str
    seed: int
    scheduler: str
    booted_wall_ns: int
    started_wall_ns: int
    started_boot_ns: int
    gpus: int = 8
    round_seconds: float = 1000.0
    faults: tuple[PlannedFault, ...] = ()

    @property
    def spec(self) -> NodeSpec:
        """The healthy node."""
        return NodeSpec(
            self.node, self.seed, self.gpus, scheduler=self.scheduler,
            started_wall_ns=self.started_wall_ns,
            started_boot_ns=self.started_wall_ns - self.booted_wall_ns,
        )  # fmt: skip

    def write(self, path: Path) -> None:
        """Write the file."""
        settings = asdict(self)
        faults = settings.pop("faults")
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        for fault in faults:
            lines += ["", "[[faults]]"]
            lines += [f"{name} = {json.dumps(value)}" for name, value in fault.items()]
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def read_live_node(path: Path) -> LiveNode:
    """Read the file of a live node. Raises LiveError."""
    try:
        settings = parse_toml(path.read_text(encoding="utf-8"))
        node = msgspec.convert(settings, LiveNode)
        for fault in node.faults:
            Occurrence.of(node, fault, 0)
    except (OSError, ValueError) as error:
        message = f"{path}: invalid live node: {error}"
        raise LiveError(message) from error
    return node


class Occurrence(NamedTuple):
    """A fault of one round: the node as it is struck, and from when to when."""

    spec: NodeSpec
    begin_ns: int
    end_ns: int

    @classmethod
    def of(cls, node: LiveNode, fault: PlannedFault, number: int) -> Occurrence:
        """Return a planned fault as it is in a round. Raises ValueError for an unknown scenario."""
        dice = node.spec.stream(f"{fault.scenario} of round {number}")
        spec = replace(
            node.spec,
            scenario=fault.scenario,
            seed=dice.getrandbits(32),
            strikes=dice.randrange(node.gpus),
        )
        begin_ns = seconds(number * node.round_seconds + fault.begin_seconds)
        return cls(spec, begin_ns, begin_ns + seconds(fault.length_seconds))


class _Strike:
    """A scenario of its own time: the second half of it is the time of the occurrence."""

    def __init__(self, occurrence: Occurrence) -> None:
        self._occurrence = occurrence
        half_ns = occurrence.end_ns - occurrence.begin_ns
        self.scenario = scenario_of(occurrence.spec, 2 * half_ns)
        self.shift_ns = occurrence.begin_ns - half_ns

    def acts(self, span: Span) -> bool:
        """True if a span ends within the fault."""
        return self._occurrence.begin_ns <= span.end_ns < self._occurrence.end_ns

    @property
    def gpu(self) -> int:
        """Index of the struck GPU."""
        return self._occurrence.spec.struck

    def is_repaired(self, span: Span) -> bool:
        """True if the fault ends in a span, and only a reset of the GPU ends it."""
        return span.passes(self._occurrence.end_ns) and strikes_gpu(self._occurrence.spec)

    def local(self, span: Span) -> Span:
        """Return a span in the time of the scenario."""
        return Span(span.start_ns - self.shift_ns, span.end_ns - self.shift_ns)

    def outages(self, rail: int | None) -> list[Span]:
        """Return the outages of a rail's link, none of them longer than the fault."""
        return [
            Span(
                one.start_ns + self.shift_ns,
                min(one.end_ns + self.shift_ns, self._occurrence.end_ns),
            )
            for one in self.scenario.link_outages(rail)
        ]


class Rounds(Scenario):
    """The faults of a live node, round by round."""

    def __init__(self, node: LiveNode) -> None:
        super().__init__(node.spec, 0)
        self._node = node
        self._round_ns = seconds(node.round_seconds)
        self._strikes: dict[int, list[_Strike]] = {}
        self._at(0)

    def _at(self, instant_ns: int) -> list[_Strike]:
        """Return the faults of a round and of the one before, whose last may still act."""
        number = max(instant_ns, 0) // self._round_ns
        wanted = range(max(number - 1, 0), number + 1)
        if set(self._strikes) != set(wanted):
            self._strikes = {
                one: self._strikes.get(one)
                or [_Strike(Occurrence.of(self._node, fault, one)) for fault in self._node.faults]
                for one in wanted
            }
        return [strike for strikes in self._strikes.values() for strike in strikes]

    def _acting(self, span: Span) -> list[_Strike]:
        return [strike for strike in self._at(span.end_ns) if strike.acts(span)]

    def job(self, span: Span) -> JobConditions:
        """Return what all faults together leave of the job."""
        all_of = [one.scenario.job(one.local(span)) for one in self._acting(span)]
        return JobConditions(
            present=min((one.present for one in all_of), default=1.0),
            exchange_pace=min((one.exchange_pace for one in all_of), default=1.0),
            hung=any(one.hung for one in all_of),
        )

    def port(self, rail: int | None, span: Span) -> PortConditions:
        """Return what the first fault that acts on a port does to it."""
        for one in self._acting(span):
            if (found := one.scenario.port(rail, one.local(span))) != PortConditions():
                return found
        return PortConditions()

    def gpu(self, index: int, span: Span) -> GpuConditions:
        """Return what the first fault that acts on a GPU does to it."""
        for one in self._acting(span):
            if (found := one.scenario.gpu(index, one.local(span))) != GpuConditions():
                return found
        return GpuConditions()

    def link_outages(self, rail: int | None) -> tuple[Span, ...]:
        """Return the outages of this round and of the one before."""
        strikes = [strike for strikes in self._strikes.values() for strike in strikes]
        return tuple(outage for one in strikes for outage in one.outages(rail))

    def stray_gpu(self, span: Span) -> int | None:
        """Return the GPU that is used without a claim, if any is."""
        found = (one.scenario.stray_gpu(one.local(span)) for one in self._acting(span))
        return next((index for index in found if index is not None), super().stray_gpu(span))

    def resets(self, span: Span) -> Sequence[int]:
        """Return the GPUs that are reset because their fault ends in a span."""
        return [one.gpu for one in self._at(span.end_ns) if one.is_repaired(span)]

    def onsets(self, span: Span) -> Sequence[tuple[int, Scenario]]:
        """Return the faults that begin in a span."""
        return [
            (onset_ns + one.shift_ns, fault)
            for one in self._at(span.end_ns)
            for onset_ns, fault in one.scenario.onsets(one.local(span))
        ]


class LiveTimeline:
    """The present state of a live node, with the two questions that a capture's timeline answers.

    It steps on when it is asked about a later offset, and keeps nothing of what was but the newest
    records of the kernel log. `steps` counts its steps. Safe to use from many threads.
    """

    def __init__(self, node: LiveNode, since_ns: int) -> None:
        self._lock = threading.Lock()
        self._model = NodeModel(node.spec, Rounds(node), since_ns)
        self._views = Views(self._model)
        self._state: dict[str, dict[str, Json]] = {section: {} for section in SECTIONS}
        self._log: deque[tuple[int, str]] = deque(maxlen=MAX_RECORDS)
        self.steps = 0
        self._show()

    def look(self, section: str, key: str, offset_ns: int) -> Json:
        """Return the result at an offset; raises KeyError where there is none."""
        with self._lock:
            self._advance(offset_ns)
            return self._state[section][key]

    def log_between(self, after_ns: int, until_ns: int) -> list[str]:
        """Return kernel log records of the steps in (after, until]."""
        with self._lock:
            self._advance(until_ns)
            return [record for offset_ns, record in self._log if after_ns < offset_ns <= until_ns]

    def _advance(self, offset_ns: int) -> None:
        behind = (offset_ns - self._model.offset_ns) // STEP_NS
        if behind > MAX_STEPS:
            self._step(behind)
            return
        for _ in range(behind):
            self._step(1)

    def _step(self, count: int) -> None:
        self.steps += 1
        self._model.advance(self._model.offset_ns + count * STEP_NS)
        self._show()

    def _show(self) -> None:
        moment = self._views.show()
        for section in SECTIONS:
            self._state[section] = getattr(moment, section)
        self._log.extend((moment.offset_ns, record) for record in moment.log)
