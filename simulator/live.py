"""Node that is simulated in real time: without end, and with faults that end.

A file describes the node and its faults. They strike in rounds of one length; in each round a fault has a
fresh strength and strikes another device. All state follows from the file and the boot clock, so that a
restarted agent sees the same node in its expected state.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from railscope.capture import SECTIONS, Json
from railscope.untrusted_text import parse_toml
from simulator import conditions, kernel_log, node_model, scenarios, simulation
from simulator.spec import NS_PER_SECOND, NodeSpec, SimulatorError, TimeSpan, seconds

STEP_NS = NS_PER_SECOND
MAX_STEPS = 60
"""A simulation that has fallen behind by more, for example after a suspend, takes one long step."""
MAX_RECORDS = 4096
"""Bound of the kernel log, which is a ring buffer as well."""


class LiveNodeFileError(SimulatorError, ValueError):
    """The file of a live node is missing or invalid; the message states the position."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """Fault of each round: its scenario, its time after the start of the round, and its duration."""

    scenario: str
    begin_seconds: float
    length_seconds: float


@dataclass(frozen=True, slots=True)
class LiveNode:
    """Node that is simulated live; `started_boot_ns` is CLOCK_BOOTTIME at offset zero."""

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
            self.node,
            self.seed,
            self.gpus,
            scheduler=self.scheduler,
            started_wall_ns=self.started_wall_ns,
            started_boot_ns=self.started_wall_ns - self.booted_wall_ns,
        )

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
    """Read the file of a live node. Raises LiveNodeFileError."""
    try:
        settings = parse_toml(path.read_text(encoding="utf-8"))
        node = msgspec.convert(settings, LiveNode)
        for fault in node.faults:
            FaultOccurrence.from_plan(node, fault, 0)
    except (OSError, ValueError) as error:
        message = f"{path}: invalid live node: {error}"
        raise LiveNodeFileError(message) from error
    return node


@dataclass(frozen=True, slots=True)
class FaultOccurrence:
    """Fault of one round: the node with this fault, its start and end, and its scenario.

    The scenario has local time: its second half is the time of the occurrence.
    """

    spec: NodeSpec
    begin_ns: int
    end_ns: int
    scenario: conditions.Scenario

    @classmethod
    def from_plan(cls, node: LiveNode, fault: PlannedFault, number: int) -> FaultOccurrence:
        """Return a planned fault's occurrence in a round. Raises ValueError for an unknown scenario."""
        rng = node.spec.stream(f"{fault.scenario} of round {number}")
        spec = replace(
            node.spec,
            scenario=fault.scenario,
            seed=rng.getrandbits(32),
            strikes=rng.randrange(node.gpus),
        )
        begin_ns = seconds(number * node.round_seconds + fault.begin_seconds)
        length_ns = seconds(fault.length_seconds)
        return cls(spec, begin_ns, begin_ns + length_ns, scenarios.scenario_of(spec, 2 * length_ns))

    @property
    def shift_ns(self) -> int:
        """Start of the scenario's local time."""
        return 2 * self.begin_ns - self.end_ns

    def acts(self, span: TimeSpan) -> bool:
        """True if a span ends within the fault."""
        return self.begin_ns <= span.end_ns < self.end_ns

    def is_repaired(self, span: TimeSpan) -> bool:
        """True if the fault ends in a span, and only a reset of the GPU ends it."""
        return span.passes(self.end_ns) and kernel_log.strikes_gpu(self.spec)

    def local(self, span: TimeSpan) -> TimeSpan:
        """Convert a span to the scenario's local time."""
        return TimeSpan(span.start_ns - self.shift_ns, span.end_ns - self.shift_ns)

    def outages(self, rail: int | None) -> list[TimeSpan]:
        """Return the outages of a rail's link, none of them longer than the fault."""
        shift_ns = self.shift_ns
        return [
            TimeSpan(outage.start_ns + shift_ns, min(outage.end_ns + shift_ns, self.end_ns))
            for outage in self.scenario.link_outages(rail)
        ]


class FaultRounds(conditions.Scenario):
    """The faults of a live node, round by round."""

    def __init__(self, node: LiveNode) -> None:
        super().__init__(node.spec, 0)
        self._node = node
        self._round_ns = seconds(node.round_seconds)
        self._strikes: dict[int, list[FaultOccurrence]] = {}
        self._faults_at(0)

    def _faults_at(self, timestamp_ns: int) -> list[FaultOccurrence]:
        """Return the faults of a round and of the previous one; its last fault may still be active."""
        number = max(timestamp_ns, 0) // self._round_ns
        numbers = range(max(number - 1, 0), number + 1)
        if set(self._strikes) != set(numbers):
            self._strikes = {
                number: self._strikes.get(number)
                or [
                    FaultOccurrence.from_plan(self._node, fault, number)
                    for fault in self._node.faults
                ]
                for number in numbers
            }
        return [strike for strikes in self._strikes.values() for strike in strikes]

    def _acting(self, span: TimeSpan) -> list[FaultOccurrence]:
        return [strike for strike in self._faults_at(span.end_ns) if strike.acts(span)]

    def job(self, span: TimeSpan) -> conditions.JobConditions:
        """Return the combined effect of all faults on the job."""
        all_of = [strike.scenario.job(strike.local(span)) for strike in self._acting(span)]
        return conditions.JobConditions(
            present=min((job.present for job in all_of), default=1.0),
            exchange_speed=min((job.exchange_speed for job in all_of), default=1.0),
            hung=any(job.hung for job in all_of),
        )

    def port(self, rail: int | None, span: TimeSpan) -> conditions.PortConditions:
        """Return the effect of the first fault that is active on a port."""
        for strike in self._acting(span):
            if (
                found := strike.scenario.port(rail, strike.local(span))
            ) != conditions.PortConditions():
                return found
        return conditions.PortConditions()

    def gpu(self, index: int, span: TimeSpan) -> conditions.GpuConditions:
        """Return the effect of the first fault that is active on a GPU."""
        for strike in self._acting(span):
            if (
                found := strike.scenario.gpu(index, strike.local(span))
            ) != conditions.GpuConditions():
                return found
        return conditions.GpuConditions()

    def link_outages(self, rail: int | None) -> tuple[TimeSpan, ...]:
        """Return the outages of this round and of the previous one."""
        strikes = [strike for strikes in self._strikes.values() for strike in strikes]
        return tuple(outage for strike in strikes for outage in strike.outages(rail))

    def unclaimed_gpu(self, span: TimeSpan) -> int | None:
        """Return the GPU that is used without a claim, if any."""
        found = (strike.scenario.unclaimed_gpu(strike.local(span)) for strike in self._acting(span))
        return next((index for index in found if index is not None), super().unclaimed_gpu(span))

    def resets(self, span: TimeSpan) -> Sequence[int]:
        """Return the GPUs that are reset because their fault ends in a span."""
        return [
            strike.spec.struck
            for strike in self._faults_at(span.end_ns)
            if strike.is_repaired(span)
        ]

    def onsets(self, span: TimeSpan) -> Sequence[tuple[int, conditions.Scenario]]:
        """Return the faults that begin in a span."""
        return [
            (onset_ns + strike.shift_ns, fault)
            for strike in self._faults_at(span.end_ns)
            for onset_ns, fault in strike.scenario.onsets(strike.local(span))
        ]


class LiveTimeline:
    """Present state of a live node, with the two read methods of a capture's timeline.

    A read of a later offset advances the simulation; past state is discarded except the newest records of
    the kernel log. `steps` counts its steps. Thread-safe.
    """

    def __init__(self, node: LiveNode, since_ns: int) -> None:
        self._lock = threading.Lock()
        self._model = node_model.NodeModel(node.spec, FaultRounds(node), since_ns)
        self._views = simulation.NodeInterfaces(self._model)
        self._state: dict[str, dict[str, Json]] = {section: {} for section in SECTIONS}
        self._log: deque[tuple[int, str]] = deque(maxlen=MAX_RECORDS)
        self.steps = 0
        self._show()

    def result_at(self, section: str, key: str, offset_ns: int) -> Json:
        """Return the result at an offset; raises KeyError if there is none."""
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
