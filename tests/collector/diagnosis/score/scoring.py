"""Score of the diagnosis: random scenarios, the incidents that `railscope diagnose` reports, and the truth.

An incident is correct if its class and its cause are those of a fault, and if its onset is between one
evaluation before the fault and the deadline of the class after it. An incident of the severity warning or
critical that is neither correct nor explained by another one is a false positive, once per run and class.
Intervals have a confidence of 95%: Wilson's of shares, exact ones of a Poisson distribution of rates.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from railscope.timestamps import SECOND_NS, parse_timestamp
from railscope_simulator.cluster.captures import write_cluster
from railscope_simulator.cluster.scenario import ClusterScenario
from railscope_simulator.spec import SimulatorError
from tests.collector.diagnosis.score.score_scenarios import draw_scenario, with_collectives

JsonObject: TypeAlias = dict[str, Any]
DIAGNOSE = (sys.executable, "-P", "-m", "railscope", "diagnose")

_EVALUATION_SECONDS = 10.0
"""Time between two evaluations; an onset before the fault by less is exact."""

_MIN_COVERED = 0.5
"""Share of the parts of a cause that incidents must name."""

_TIME_LIMIT_SECONDS = 1800.0


class ScoreGoal(NamedTuple):
    """Goal of a class: precision, recall, and the deadline of detection in seconds."""

    precision: float = 0.95
    recall: float = 0.95
    deadline_seconds: float = 60.0


_GOALS = {
    "pfc_storm": ScoreGoal(0.99, 0.99),
    **dict.fromkeys(("link_flap", "gpu_lost", "row_remap", "agent_partition", "nic_lost", "ecc_uncorrectable"), ScoreGoal(0.99, 0.99, 20.0)),
    "link_down": ScoreGoal(0.99, 0.99, 80.0),  # a link counts as down after a minute
    "transceiver_degraded": ScoreGoal(0.95, 0.98),
    "link_speed_low": ScoreGoal(deadline_seconds=180.0),  # errors rise for two minutes before
    **dict.fromkeys(("storage_bound", "dataloader_stall", "host_late"), ScoreGoal(0.9, 0.95, 120.0)),
    **dict.fromkeys(("nvlink_errors", "thermal_straggler", "gpu_straggler"), ScoreGoal(deadline_seconds=180.0)),
    "nccl_hang": ScoreGoal(0.95, 0.99, 180.0),
    **dict.fromkeys(("ecn_inactive", "lossless_broken", "ecn_late"), ScoreGoal(deadline_seconds=300.0)),
    "clock_skew": ScoreGoal(0.99, 0.95, 60.0),
}  # fmt: skip


def goal_of(incident_class: str) -> ScoreGoal:
    """Return the goal of a class."""
    return _GOALS.get(incident_class, ScoreGoal())


class ScoreError(SimulatorError, RuntimeError):
    """The diagnosis failed, or its output is not JSON lines; the message states the reason."""


# One run -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class FaultOutcome:
    """Result for one fault: the delay of its detection, or None; and if its cause ranked first.

    `forms` are properties of the scenario, such as the sample period, for which recall is reported.
    """

    incident_class: str
    strength: float = 0.0
    forms: tuple[str, ...] = ()
    delay_seconds: float | None = None
    ranked_first: bool = False
    is_rank_named: bool | None = None
    """True if an incident names the rank on the device; None if collectives cannot determine it."""
    is_path_named: bool | None = None
    """True if an incident names a communicator with a low bandwidth; None for a fault that is not of a path."""


@dataclass(slots=True)
class RunOutcome:
    """Result of one scenario: its faults, and the classes of false positives.

    `problem` is the reason why the diagnosis failed; its faults then count as missed.
    """

    name: str
    node_hours: float
    faults: list[FaultOutcome] = field(default_factory=list)
    false_classes: list[str] = field(default_factory=list)
    problem: str = ""
    false_ranks: list[int] = field(default_factory=list)
    """Ranks that incidents name although no fault is on their devices."""
    has_collectives: bool = False

    def line(self) -> str:
        """Return the result in one line."""
        found = [
            f"{fault.incident_class} "
            + ("missed" if fault.delay_seconds is None else f"after {fault.delay_seconds:.0f} s")
            + ("" if fault.ranked_first else ", not ranked first")
            + {True: ", rank named", False: ", rank not named", None: ""}[fault.is_rank_named]
            + {True: ", path named", False: ", path not named", None: ""}[fault.is_path_named]
            for fault in self.faults
        ]
        found += [f"false {name}" for name in self.false_classes]
        found += [f"false rank {rank}" for rank in self.false_ranks]
        found += [f"failed: {self.problem}"] if self.problem else []
        name = self.name + ", with collectives" * self.has_collectives
        return f"{name}: {'; '.join(found) or 'nothing reported'}"


_WITHOUT_COLLECTIVES = '[collectives]\nflight_recorder_directory = ""\n'


def run_scenario(
    incident_class: str, seed: int, command: Sequence[str], *, collectives: bool = False
) -> list[RunOutcome]:
    """Simulate a scenario, diagnose its captures, and compare the result with the truth.

    With `collectives`, the captures are diagnosed without the records of collectives and with them.
    """
    name, scenario = f"{incident_class}/{seed}", draw_scenario(incident_class, seed)
    if collectives:
        scenario = with_collectives(scenario)
    with tempfile.TemporaryDirectory(prefix="railscope-score-") as directory:
        path = Path(directory)
        write_cluster(scenario, path)
        outcomes = [_diagnosed(path, command, scenario, name)]
        if collectives:
            outcomes[0].has_collectives = True
            (path / "agent.toml").write_text(_WITHOUT_COLLECTIVES, encoding="utf-8")
            outcomes.insert(0, _diagnosed(path, command, scenario, name))
    return outcomes


def _diagnosed(
    path: Path, command: Sequence[str], scenario: ClusterScenario, name: str
) -> RunOutcome:
    truths = [*map(json.loads, (path / "truth.jsonl").read_text("utf-8").splitlines())]
    outcome = RunOutcome(name, scenario.topology.nodes * scenario.seconds / 3600)
    try:
        incidents = diagnose(path, command)
    except ScoreError as error:
        # A diagnosis that failed counts as one that found nothing: else a program that fails at hard
        # scenarios would have the better score.
        incidents, outcome.problem = [], str(error)
    compare(truths, incidents, scenario.step_seconds, outcome)
    for fault in outcome.faults:
        fault.forms = (*_forms(scenario), f"strength {_STRENGTHS[int(fault.strength * 2.99)]}")
    return outcome


_STRENGTHS = ("below 0.33", "0.33 to 0.67", "above 0.67")


def _forms(scenario: ClusterScenario) -> Iterator[str]:
    job = scenario.jobs[0]
    yield f"period {scenario.step_seconds:g} s"
    yield f"{scenario.topology.nodes} nodes"
    yield f"NICs {scenario.cluster.nic}"
    yield f"exchange {job.pattern}"
    yield f"lost samples {scenario.lost:.0%}"


def diagnose(directory: Path, command: Sequence[str]) -> list[JsonObject]:
    """Return the incidents that a program reports of captures. Raises ScoreError."""
    arguments = [*command, "--captures", str(directory), "--format", "json"]
    try:
        done = subprocess.run(
            arguments, capture_output=True, check=False, text=True, timeout=_TIME_LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        message = f"{command[0]} ran too long: expected its end within {error.timeout:.0f} s"
        raise ScoreError(message) from error
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        message = f"{command[0]} failed: exit status {done.returncode}: {reason[0]}"
        raise ScoreError(message)
    try:
        return [json.loads(line) for line in done.stdout.splitlines()]
    except ValueError as error:
        message = f"invalid output: {error}: expected JSON lines"
        raise ScoreError(message) from error


def compare(
    truths: Sequence[JsonObject],
    incidents: Sequence[JsonObject],
    period_seconds: float,
    outcome: RunOutcome,
) -> None:
    """Add the result for each fault and the false positives to an outcome."""
    correct: set[int] = set()
    classes = {name for truth in truths for name in (truth["class"], *truth["accepted"])}
    # Advice is of severity info; it counts where it is the truth.
    roots = [
        incident
        for incident in incidents
        if not incident.get("explained_by")
        and (incident["severity"] != "info" or incident["class"] in classes)
    ]
    ranked = sorted(roots, key=lambda incident: -float(incident.get("confidence") or 0.0))
    for truth in truths:
        named = [
            (index, incident)
            for index, incident in enumerate(incidents)
            if _has_class(incident, truth)
            and _is_in_time(incident, truth, period_seconds)
            and _covered(incident["cause"], truth) > 0
        ]
        # A fault that becomes another one is one fault: the later incident explains the first.
        explaining = {incident.get("explained_by") for _, incident in named} - {None}
        correct |= {index for index, _ in named}
        correct |= {i for i, incident in enumerate(incidents) if incident.get("id") in explaining}
        fault = FaultOutcome(truth["class"], truth["strength"])
        # Several incidents may name a part of the cause each, such as the NICs of one node.
        if sum(_covered(incident["cause"], truth) for _, incident in named) >= _MIN_COVERED:
            detected = min(_seconds(incident["detected"]) for _, incident in named)
            fault.delay_seconds = max(detected - _seconds(truth["onset"]), 0.0)
        later = [incident for incident in ranked if _is_in_time(incident, truth, period_seconds)]
        # With several faults, the first ranks may be in any order.
        fault.ranked_first = any(
            _covered(incident["cause"], truth) > 0 for incident in later[: len(truths)]
        )
        if truth["class"] in _CLASSES_OF_RANKS and truth.get("ranks"):
            ranks = {rank for _, each in named for rank in _named_ranks(each)}
            fault.is_rank_named = not ranks.isdisjoint(truth["ranks"])
        if truth["class"] in _CLASSES_OF_PATHS:
            signals = {item["signal"] for _, each in named for item in each.get("evidence", ())}
            fault.is_path_named = "collective_slow_path" in signals
        outcome.faults.append(fault)
    correct_ranks = {rank for truth in truths for rank in truth.get("ranks", ())}
    all_ranks = {rank for incident in incidents for rank in _named_ranks(incident)}
    outcome.false_ranks = sorted(all_ranks - correct_ranks)
    false = {
        incident["class"]
        for index, incident in enumerate(incidents)
        if index not in correct
        and incident["severity"] != "info"
        and not incident.get("explained_by")
    }
    outcome.false_classes = sorted(false)


_CLASSES_OF_RANKS = {"nccl_hang", "gpu_straggler", "thermal_straggler"}
"""Classes of faults on a GPU whose rank its job's collectives show."""
_CLASSES_OF_PATHS = {"link_speed_low", "nvlink_errors", "pcie_bound_receiver", "pfc_storm", "slow_receiver"}  # fmt: skip
"""Classes of faults of a path, which lower the bandwidth of collectives."""
_RANK = re.compile(r" rank (\d+)")


def _named_ranks(incident: JsonObject) -> Iterator[int]:
    """Yield the ranks that an incident names in its evidence."""
    for item in incident.get("evidence", ()):
        if match := _RANK.search(item["device"]):
            yield int(match[1])


def _has_class(incident: JsonObject, truth: JsonObject) -> bool:
    return incident["class"] in {truth["class"], *truth["accepted"]}


def _seconds(text: str) -> float:
    return parse_timestamp(text) / SECOND_NS


def _is_in_time(incident: JsonObject, truth: JsonObject, period_seconds: float) -> bool:
    after = _seconds(incident["onset"]) - _seconds(truth["onset"])
    deadline_seconds = goal_of(truth["class"]).deadline_seconds
    return -max(period_seconds, _EVALUATION_SECONDS) <= after <= deadline_seconds


def _covered(cause: JsonObject, truth: JsonObject) -> float:
    """Return the share of a fault's cause that an incident names: 0 if it names something else."""
    parts: list[JsonObject] = truth["cause"]
    kinds = {part["kind"] for part in parts}
    if cause["kind"] in kinds:
        alternatives = [cause, *(cause.get("or") or [])]
        if cause["kind"] in truth["accepted"]:
            return float(any(other.get("rail") == cause.get("rail") for other in parts))
        same = sum(any(_is_same(each, part) for each in alternatives) for part in parts)
        return same / len(parts)
    nodes = {part["node"] for part in parts if "node" in part}
    if cause["kind"] == "node" and len(nodes) == 1:
        is_accepted = len(parts) > 1 or "node" in truth["accepted"]
        return float(is_accepted and cause["node"] in nodes)
    return float(cause["kind"] in truth["accepted"])


_KEYS = {
    "gpu": ("uuid", "pci_address", "index"),
    "nic": ("interface", "pci_address", "device"),
    "leaf": ("switch", "rail"),
    "job": ("workload", "job"),
}
"""Names of an entity on its node or in its cluster; the first one that is reported counts."""


def _is_same(cause: JsonObject, part: JsonObject) -> bool:
    """True if an incident names an entity of the truth."""
    if cause["kind"] == "storage":
        return _host(cause.get("server")) == _host(part["server"])
    if cause.get("node") != part.get("node"):
        return False
    keys = _KEYS.get(cause["kind"], ())
    named = next((key for key in keys if cause.get(key) not in {"", None}), "")
    return not keys or bool(named and cause[named] == part.get(named))


def _host(server: object) -> str:
    return str(server).partition(":")[0]


# All runs ----------------------------------------------------------------------------------------


def run_all(
    classes: Sequence[str],
    seeds: Sequence[int],
    jobs: int,
    command: Sequence[str],
    *,
    collectives: bool = False,
) -> Iterator[RunOutcome]:
    """Run the scenarios of all classes and seeds, several at once, and yield the results in their order."""
    pairs = [(name, seed) for seed in seeds for name in classes]
    with ProcessPoolExecutor(jobs) as pool:
        tasks = [
            pool.submit(run_scenario, name, seed, command, collectives=collectives)
            for name, seed in pairs
        ]
        try:
            for task in tasks:
                yield from task.result()
        finally:
            # Also if the caller stops early: runs that have not begun are left out.
            pool.shutdown(cancel_futures=True)
