"""Draining of failed nodes in Slurm, and resuming them, by `sinfo` and `scontrol`; off unless an administrator enables it.

The collector decides, not the nodes: only it can keep to a limit for the whole cluster. It decides from the states of nodes that its
console shows. Slurm is the memory: a node is drained only if it is available, and resumed only if the prefix of its reason
is that of this program. Each decision is an audit record, which is durable before Slurm is changed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import structlog

from collector import view_refresh
from collector.audit import log_writer
from collector.audit.collector_records import AuditTrail
from collector.config import SlurmSettings
from collector.diagnosis.entity_states import FAILED, HEALTHY, UNKNOWN, NodeRow
from collector.ledger.audit_outbox import RecordDraft
from collector.sinks import SinkError
from railscope import service, settings as setting_files
from railscope.audit import record
from railscope.health_verdict import PREFIX, limit_reason
from railscope.timestamps import HOUR_NS, SECOND_NS

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 15.0
COMMAND_SECONDS = 10.0
NODES = ("sinfo", "--noheader", "--Node", "--format=%N|%T|%H|%E")
_AVAILABLE = frozenset({"idle", "mixed", "allocated", "completing", "planned", "reserved"})
_DRAINED = frozenset({"drained", "draining"})
_STATE_MARKS = "*~#!%$@^-+"
"""Marks after a state, such as that of a node that does not respond; a node with one is not available."""
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_QUOTES = re.compile(r"[\"'\\|]")
"""Characters that scontrol or the output of sinfo treats specially."""
_ENVIRONMENT = ("PATH", "SLURM_CONF", "SLURM_CONF_SERVER")
"""Variables of the collector that Slurm's programs get."""
_DRAIN_TYPE, _RESUME_TYPE = "node.drain", "node.resume"


class SlurmCommandError(SinkError):
    """A program of Slurm failed; the message states the reason."""


class SlurmNode(NamedTuple):
    """A node in Slurm. The time of its reason is 0 if it has none."""

    name: str
    state: str
    reason: str = ""
    reason_ns: int = 0

    @property
    def is_own_drain(self) -> bool:
        """True if this program drained it, and its reason has not been replaced since."""
        return self.state.rstrip(_STATE_MARKS) in _DRAINED and self.reason.startswith(PREFIX)


class NodeViews(Protocol):
    """Views with the states of nodes."""

    @property
    def views(self) -> Callable[[], view_refresh.CollectorViews]:
        """Returns the newest views."""

    def node_rows(self) -> Sequence[NodeRow]:
        """Return the states of all nodes. Blocking."""


class DrainDecision(NamedTuple):
    """A node to be drained, or resumed, with the reason."""

    node: str
    drains: bool
    reason: str


def parse_nodes(output: str) -> dict[str, SlurmNode]:
    """Return the nodes of the output of `sinfo` by name; a node is listed once per partition."""
    nodes: dict[str, SlurmNode] = {}
    for line in output.splitlines():
        name, _, rest = line.partition("|")
        state, _, rest = rest.partition("|")
        timestamp, _, reason = rest.partition("|")
        if not _NODE_NAME.fullmatch(name):
            message = f"invalid node {name[:40]!r} in the output of sinfo: expected {NODES[-1]}"
            raise SlurmCommandError(message)
        reason_ns = int(timestamp) * SECOND_NS if timestamp.isdecimal() else 0
        nodes[name] = SlurmNode(name, state.strip(), reason.strip(), reason_ns)
    return nodes


def run_program(command: Sequence[str]) -> str:
    """Run a program of Slurm without a shell; return its output. Blocking; raises SlurmCommandError."""
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    environment |= {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program; names of nodes are those of Slurm
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=COMMAND_SECONDS,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"cannot run {command[0]}: {error}"
        raise SlurmCommandError(message) from error
    if done.returncode:
        problem = done.stderr.decode(errors="replace").strip()[:200]
        message = f"{command[0]}: exit status {done.returncode}: {problem}"
        raise SlurmCommandError(message)
    return done.stdout.decode(errors="replace")


@dataclass(slots=True)
class SlurmDrainer:
    """Drains nodes that have failed, and resumes those that have recovered."""

    settings: SlurmSettings
    trail: AuditTrail
    wall_ns: Callable[[], int]
    rows: Callable[[], Sequence[NodeRow]] = tuple
    """Returns the states of all nodes. Blocking."""
    unjudged: Callable[[], Collection[str]] = tuple
    """Returns the nodes with a GPU whose verdict is unknown."""
    leads: Callable[[], bool] = lambda: True
    """True if this collector decides for the cluster."""
    run_program: Callable[[Sequence[str]], str] = run_program
    find_program: Callable[[str], str | None] = shutil.which
    _since: dict[str, tuple[str, int]] = field(default_factory=dict)
    """State of each node, and the time since which it has it."""
    _drained_ns: dict[str, int] = field(default_factory=dict)
    """Times of the drains within the last hour, with those that Slurm has from before a restart."""
    _drained_failures: dict[str, int] = field(default_factory=dict)
    """Start of the failure for which each node was drained: one that an operator resumes stays as it is."""
    _problem: str = ""
    _is_limited: bool = False

    def __post_init__(self) -> None:
        """Check that the programs exist. Raises SettingsError."""
        if self.settings.drain and not all(map(self.find_program, ("sinfo", "scontrol"))):
            message = "invalid slurm.drain: expected the programs sinfo and scontrol in PATH; fix: install Slurm's client"
            raise setting_files.SettingsError(message)

    def with_views(self, api: NodeViews) -> SlurmDrainer:
        """Return one that decides from these views."""
        return replace(self, rows=api.node_rows, unjudged=lambda: api.views().unjudged_nodes)

    async def run(self) -> None:
        """Decide periodically until cancelled; return immediately if draining is not enabled."""
        if not self.settings.drain:
            return
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            await self.attempt()

    async def attempt(self) -> bool:
        """Decide once; false if it failed, which is logged when the problem changes."""
        problem = ""
        try:
            await self.decide_and_act()
        except (SinkError, log_writer.LogWriteError, record.RecordError) as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.error("slurm_drain_failed", problem=problem)
        self._problem = problem
        return not problem

    async def decide_and_act(self) -> None:
        """Decide once. Raises SlurmCommandError, LogWriteError, RecordError."""
        if not self.leads():
            self._since.clear()
            return
        rows = await service.run_in_thread(self.rows)
        nodes = parse_nodes(await service.run_in_thread(self.run_program, NODES))
        for decision in self.decide(rows, nodes, self.wall_ns()):
            if self.leads():
                await self._act(decision)

    def decide(
        self, rows: Sequence[NodeRow], nodes: Mapping[str, SlurmNode], now_ns: int
    ) -> list[DrainDecision]:
        """Return what is to be done now, within the limits; the longest failed nodes first."""
        before = self._since
        self._since = {
            name: before[name] if before.get(name, ("",))[0] == state else (state, now_ns)
            for name, state in self._states(rows)
        }
        listed = [
            (row, nodes[row.name], self._since[row.name][0], now_ns - self._since[row.name][1])
            for row in rows
            if row.name in nodes
        ]
        failed_ns, healthy_ns = (
            round(seconds * SECOND_NS)
            for seconds in (self.settings.failed_seconds, self.settings.healthy_seconds)
        )
        to_drain = [
            DrainDecision(row.name, drains=True, reason=_describe(row))
            for row, node, state, lasted_ns in sorted(listed, key=lambda each: -each[3])
            if state == FAILED
            and node.state in _AVAILABLE
            and lasted_ns >= failed_ns
            and self._drained_failures.get(row.name) != self._since[row.name][1]
        ]
        to_resume = [
            DrainDecision(row.name, drains=False, reason=node.reason)
            for row, node, state, lasted_ns in listed
            if state == HEALTHY and node.is_own_drain and lasted_ns >= healthy_ns
        ]
        allowed = self._count_allowed(nodes, len(listed), now_ns)
        if len(to_drain) > allowed:
            waiting = len(to_drain) - allowed
            message = f"limit of drains reached: {waiting} failed nodes wait, such as {to_drain[allowed].node}"
            if not self._is_limited:
                log.error("slurm_drain_limited", problem=message)
        self._is_limited = len(to_drain) > allowed
        return [*to_drain[:allowed], *(to_resume if self.settings.resume else ())]

    def _states(self, rows: Sequence[NodeRow]) -> Iterator[tuple[str, str]]:
        """Yield the state of each node; one with a GPU whose verdict is unknown is not healthy."""
        unjudged = set(self.unjudged())
        for row in rows:
            is_unjudged = row.state == HEALTHY and row.name in unjudged
            yield row.name, UNKNOWN if is_unjudged else row.state

    def _count_allowed(self, nodes: Mapping[str, SlurmNode], total: int, now_ns: int) -> int:
        """Return how many nodes may be drained now, by the limit per hour and by that of all drained nodes.

        The limits are shares of the nodes that the collector judges: Slurm may have many more without GPUs.
        """
        from_ns = now_ns - HOUR_NS
        own_drains = [node for node in nodes.values() if node.is_own_drain]
        earlier = {node.name: node.reason_ns for node in own_drains}
        times_ns = {**earlier, **self._drained_ns}.items()
        self._drained_ns = {name: at_ns for name, at_ns in times_ns if at_ns > from_ns}
        ratios = (self.settings.max_drained_ratio_per_hour, self.settings.max_drained_ratio)
        per_hour, at_once = (max(1, int(total * ratio)) for ratio in ratios)
        return max(0, min(per_hour - len(self._drained_ns), at_once - len(own_drains)))

    async def _act(self, decision: DrainDecision) -> None:
        """Record a decision, then change Slurm; a change that Slurm rejects is recorded too."""
        await self._record(decision, "done")
        if decision.drains:
            self._drained_ns[decision.node] = self.wall_ns()
        change = "drain" if decision.drains else "resume"
        log.warning("slurm_node_changed", node=decision.node, change=change, reason=decision.reason)
        try:
            await service.run_in_thread(self.run_program, tuple(_command(decision)))
        except SlurmCommandError:
            await self._record(decision, "failed")
            raise
        if decision.drains:
            self._drained_failures[decision.node] = self._since[decision.node][1]

    async def _record(self, decision: DrainDecision, outcome: str) -> None:
        type_ = _DRAIN_TYPE if decision.drains else _RESUME_TYPE
        actor = record.RecordActor("collector", self.trail.log.source.id)
        subject = record.RecordSubject(decision.node)
        data: record.RecordData = {"scheduler": "slurm", "reason": decision.reason}
        await self.trail.log.append(
            RecordDraft(type_, actor, self.wall_ns(), outcome, subject, data)
        )


def _describe(row: NodeRow) -> str:
    """Return the reason for Slurm: the first incident, and the reason of the state."""
    incident = f"incident {row.incidents[0]}: " if row.incidents else ""
    return limit_reason(_QUOTES.sub("", f"{incident}{row.reason}"))


def _command(decision: DrainDecision) -> Iterator[str]:
    yield from ("scontrol", "update", f"NodeName={decision.node}")
    if decision.drains:
        yield from ("State=DRAIN", f"Reason={decision.reason}")
    else:
        yield "State=RESUME"
