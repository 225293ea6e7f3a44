"""Node that is simulated in real time: without end, and with faults that end.

A file describes the node and its faults. They occur in rounds of one length; in each round a fault has a
fresh strength and affects another device. All state follows from the file and the boot clock, so that a
restarted agent sees the same node in its expected state.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from railscope import convert_errors
from railscope.capture import SECTIONS, Json
from railscope.timestamps import SECOND_NS
from railscope.untrusted_text import parse_toml
from railscope_simulator import fault_schedule, node_model, simulation, sonic_answers
from railscope_simulator.continuous_counters import between
from railscope_simulator.spec import NodeSpec, SimulatorError, seconds_to_ns
from railscope_simulator.switch_ports import LeafSwitches

STEP_NS = SECOND_NS
MAX_STEPS = 60
"""A simulation that has fallen behind by more, for example after a suspend, takes one long step."""
MAX_START_STEPS = 12 * 3600
"""Steps from offset zero that a start repeats, so that a node continues as it was; each takes about a millisecond."""
MAX_RECORDS = 4096
"""Bound of the kernel log, which is a ring buffer as well."""
COUNTERS = (
    "/sys/class/infiniband/",
    "ethtool.statistics(",
    "netlink.links(",
    "netlink.rdma_statistics(",
    "nvml.nvmlDeviceGetFieldValues(",
    "nvml.nvmlDeviceGetTotalEnergyConsumption(",
    "nvml.nvmlDeviceGetViolationStatus(",
    "psutil.net_io_counters(",
)
"""Beginnings of the files and calls whose counters advance between two steps; all other results are those of the step."""


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
    with convert_errors((OSError, ValueError), LiveNodeFileError, f"{path}: invalid live node: "):
        settings = parse_toml(path.read_text(encoding="utf-8"))
        node = msgspec.convert(settings, LiveNode)
        for fault in node.faults:
            planned_occurrence(node, fault, 0)
    return node


class FaultRounds(fault_schedule.FaultSchedule):
    """The faults of a live node, round by round."""

    def __init__(self, node: LiveNode) -> None:
        super().__init__(node.spec)
        self._node = node
        self._round_ns = seconds_to_ns(node.round_seconds)
        self._rounds: dict[int, list[fault_schedule.FaultOccurrence]] = {}

    def faults_at(self, timestamp_ns: int) -> list[fault_schedule.FaultOccurrence]:
        """Return the faults of a round and of the previous one; its last fault may still be active."""
        number = max(timestamp_ns, 0) // self._round_ns
        numbers = range(max(number - 1, 0), number + 1)
        # Kept while their round lasts: each step asks for them.
        if set(self._rounds) != set(numbers):
            self._rounds = {
                number: self._rounds.get(number)
                or [planned_occurrence(self._node, fault, number) for fault in self._node.faults]
                for number in numbers
            }
        return [fault for faults in self._rounds.values() for fault in faults]


def planned_occurrence(
    node: LiveNode, fault: PlannedFault, number: int
) -> fault_schedule.FaultOccurrence:
    """Return a planned fault's occurrence in a round. Raises ValueError for an unknown scenario."""
    rng = node.spec.stream(f"{fault.scenario} of round {number}")
    spec = replace(
        node.spec,
        scenario=fault.scenario,
        seed=rng.getrandbits(32),
        fault_index=rng.randrange(node.gpus),
    )
    begin_ns = seconds_to_ns(number * node.round_seconds + fault.begin_seconds)
    return fault_schedule.FaultOccurrence.from_spec(
        spec, begin_ns, seconds_to_ns(fault.length_seconds)
    )


def start_model(node: LiveNode, since_ns: int) -> node_model.NodeModel:
    """Return the model of a node at an offset: the same one in every process, up to `MAX_START_STEPS`.

    Beyond, the drivers are loaded again at this offset.
    """
    is_same = since_ns <= MAX_START_STEPS * STEP_NS
    model = node_model.NodeModel(node.spec, FaultRounds(node), 0 if is_same else since_ns)
    while model.offset_ns + STEP_NS <= since_ns:
        model.advance(model.offset_ns + STEP_NS)
    return model


class LiveSwitches:
    """Leaf switches of live nodes, whose agents simulate these nodes as well, with the same counters. Thread-safe."""

    def __init__(self, nodes: Sequence[LiveNode], boot_ns: Callable[[], int]) -> None:
        self._lock = threading.Lock()
        self._boot_ns, self._started_boot_ns = boot_ns, nodes[0].started_boot_ns
        # One offset advances all models.
        if any(node.started_boot_ns != self._started_boot_ns for node in nodes):
            message = "expected live nodes with the same started_boot_ns"
            raise LiveNodeFileError(message)
        since_ns = boot_ns() - self._started_boot_ns
        self._models = [start_model(node, since_ns) for node in nodes]
        self._leaves = LeafSwitches(self._models)
        self._shown: dict[str, dict[sonic_answers.TablePath, Mapping[str, object]]] = {}
        """Tables at the step before that of the models."""
        self._step(1)

    def answers(self) -> dict[str, sonic_answers.FindAnswer]:
        """Return the function that answers for each switch."""
        return {name: partial(self._find_answer, name) for name in self._leaves.switches}

    def _find_answer(
        self, switch: str, path: sonic_answers.TablePath
    ) -> Mapping[str, object] | None:
        with self._lock:
            offset_ns = self._boot_ns() - self._started_boot_ns
            self._advance(offset_ns)
            before = self._shown[switch].get(path)
            after = sonic_answers.find_answer(self._leaves.switches[switch], path)
            elapsed_ns = max(offset_ns - (self._models[0].offset_ns - STEP_NS), 0)
            found: Mapping[str, object] | None = between(before, after, elapsed_ns, STEP_NS)
            return found

    def _advance(self, offset_ns: int) -> None:
        """Advance the models to the step after an offset."""
        behind = (offset_ns - self._models[0].offset_ns) // STEP_NS + 1
        if behind > MAX_STEPS:
            self._step(behind - 1)
            behind = 1
        for _ in range(behind):
            self._step(1)

    def _step(self, count: int) -> None:
        self._shown = {
            name: sonic_answers.find_all(switch) for name, switch in self._leaves.switches.items()
        }
        for model in self._models:
            model.advance(model.offset_ns + count * STEP_NS)
        self._leaves.advance(self._models[0].span)


class LiveTimeline:
    """Present state of a live node, with the two read methods of a capture's timeline.

    A read of a later offset advances the simulation, which is one step ahead: counters advance between two steps. Past
    state is discarded except the newest records of the kernel log. `steps` counts the steps of the state. Thread-safe.
    """

    def __init__(self, node: LiveNode, since_ns: int) -> None:
        self._lock = threading.Lock()
        self._model = start_model(node, since_ns)
        self._views = simulation.NodeInterfaces(self._model)
        self._log: deque[tuple[int, str]] = deque(maxlen=MAX_RECORDS)
        self.steps = 0
        self._state = self._next = self._show()
        self._step(1)

    def result_at(self, section: str, key: str, offset_ns: int) -> Json:
        """Return the result at an offset; raises KeyError if there is none."""
        with self._lock:
            self._advance(offset_ns)
            result = self._state[section][key]
            if not key.startswith(COUNTERS):
                return result
            elapsed_ns = max(offset_ns - (self._model.offset_ns - STEP_NS), 0)
            return between(result, self._next[section].get(key, result), elapsed_ns, STEP_NS)

    def log_between(self, after_ns: int, until_ns: int) -> list[str]:
        """Return kernel log records of the steps in (after, until]."""
        with self._lock:
            self._advance(until_ns)
            return [record for offset_ns, record in self._log if after_ns < offset_ns <= until_ns]

    def _advance(self, offset_ns: int) -> None:
        """Advance the state to the step at or before an offset, and the model to the next one."""
        behind = (offset_ns - self._model.offset_ns) // STEP_NS + 1
        if behind > MAX_STEPS:
            self._step(behind - 1)
            behind = 1
        for _ in range(behind):
            self._step(1)
            self.steps += 1

    def _step(self, count: int) -> None:
        self._model.advance(self._model.offset_ns + count * STEP_NS)
        self._state, self._next = self._next, self._show()

    def _show(self) -> Mapping[str, dict[str, Json]]:
        moment = self._views.show()
        self._log.extend((moment.offset_ns, record) for record in moment.log)
        return {section: getattr(moment, section) for section in SECTIONS}
