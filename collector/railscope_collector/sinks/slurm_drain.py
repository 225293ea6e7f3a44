"""Draining of failed nodes in Slurm, and resuming them, by `sinfo` and `scontrol`; off unless an administrator enables it.

The collector decides, not the nodes: only it can keep to a limit for the whole cluster. It decides from the states of nodes that its
console shows. Slurm is the memory: a node is drained only if it is available, and resumed only if its reason has the prefix
of this program and states the number of GPUs, of which each must have a verdict again. Each decision is an audit record, which is
durable before Slurm is changed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import structlog

from railscope import service, settings as setting_files
from railscope.api import Node
from railscope.audit import record
from railscope.catalog import collector as catalog
from railscope.health_verdict import PREFIX, limit_reason
from railscope.timestamps import HOUR_NS, SECOND_NS
from railscope_collector import view_refresh
from railscope_collector.audit import LogWriteError
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.config import CollectorSettings, SlurmSettings
from railscope_collector.diagnosis.entity_states import DEGRADED, FAILED, HEALTHY, UNKNOWN
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.ledger.record_draft import RecordDraft
from railscope_collector.sinks import SinkError

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 15.0
COMMAND_SECONDS = 10.0
MAX_WAIT_SECONDS = 3600.0
"""Maximum time between two attempts of a change that Slurm rejects."""
MAX_REJECTED = 10
"""Rejected changes of a kind after which the others wait for the next attempt: each may take COMMAND_SECONDS."""
# `--all` includes the nodes of hidden partitions: sinfo(1).
NODES = ("sinfo", "--all", "--noheader", "--Node", "--format=%N|%T|%H|%E")
_AVAILABLE = frozenset({"idle", "mixed", "allocated", "completing", "planned", "reserved"})
_DRAINED = frozenset({"drained", "draining"})
_ACCEPTING_MARKS = "@-+"
"""Marks after a state, by sinfo(1). A node accepts jobs, or will, although a reboot is pending (`@`), although it is planned for a job
(`-`), or although one of its jobs is completing (`+`). With the others it does not respond (`*`), is powered down or up, is in maintenance
or reboots.
"""
_NODE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,252})\|([a-z_]+[^a-z|]*)\|([0-9]*|Unknown)\|(.*)")
_GPUS = re.compile(
    r" \[([0-9]{1,4}) GPUs\](?: : reboot (?:requested|issued|complete|timed out))*\Z"
)
"""Number of GPUs at the end of a reason, to which `scontrol reboot` appends the progress of the reboot."""
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
    def is_available(self) -> bool:
        """True if it accepts jobs, or will without a change by an administrator."""
        return self.state.rstrip(_ACCEPTING_MARKS) in _AVAILABLE

    @property
    def has_own_reason(self) -> bool:
        """True if this program drained it, also if it is in another state now, such as down during a reboot."""
        return self.reason.startswith(PREFIX) and not self.is_available

    @property
    def is_own_drain(self) -> bool:
        """True if this program drained it, its reason has not been replaced since, and its state has no mark.

        Slurm cancels the pending reboot (`@`) of a node that is resumed.
        """
        return self.state in _DRAINED and self.reason.startswith(PREFIX)

    @property
    def gpus(self) -> int:
        """Number of GPUs that it had when this program drained it; 0 if the reason does not state it."""
        found = _GPUS.search(self.reason)
        return int(found[1]) if found else 0


class NodeViews(Protocol):
    """Views with the states of nodes."""

    @property
    def views(self) -> Callable[[], view_refresh.CollectorViews]:
        """Returns the newest views."""

    def node_rows(self) -> Sequence[Node]:
        """Return the states of all nodes. Blocking."""


class DrainDecision(NamedTuple):
    """A node to be drained, or resumed, with the reason."""

    node: str
    drains: bool
    reason: str


def parse_nodes(output: str) -> tuple[dict[str, SlurmNode], list[str]]:
    """Return the nodes of the output of `sinfo` by name, and the lines that are of no node.

    A node is listed once per partition. A reason may contain line breaks. Raises SlurmCommandError for output without a node.
    """
    nodes: dict[str, SlurmNode] = {}
    other_lines: list[str] = []
    for line in filter(None, output.split("\n")):
        if found := _NODE.fullmatch(line):
            name, state, timestamp, reason = found.groups()
            reason_ns = int(timestamp) * SECOND_NS if timestamp.isdecimal() else 0
            nodes.setdefault(name, SlurmNode(name, state, reason.strip(), reason_ns))
        else:
            other_lines.append(line)
    if other_lines and not nodes:
        message = (
            f"invalid node {other_lines[0][:40]!r} in the output of sinfo: expected {NODES[-1]}"
        )
        raise SlurmCommandError(message)
    return nodes, other_lines


def run_program(command: Sequence[str]) -> str:
    """Run a program of Slurm without a shell; return its output. Blocking; raises SlurmCommandError."""
    # Only variables that Slurm's programs need: those of the collector may contain secrets.
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


def check_settings(
    settings: CollectorSettings, find_program: Callable[[str], str | None] = shutil.which
) -> None:
    """Check that draining has an effect, and that the programs exist. Raises SettingsError."""
    drain, message = settings.slurm.drain, ""
    if settings.slurm.resume and not drain:
        message = "invalid slurm.resume without draining: expected slurm.drain = true"
    elif drain and not settings.diagnosis.enabled:
        message = "invalid slurm.drain without the diagnosis: expected diagnosis.enabled = true"
    elif drain and not all(map(find_program, ("sinfo", "scontrol"))):
        message = "invalid slurm.drain: expected the programs sinfo and scontrol in PATH; fix: install Slurm's client"
    if message:
        raise setting_files.SettingsError(message)


class RejectedChange(NamedTuple):
    """Attempts in a row that Slurm rejected, and the time of the next one."""

    attempts: int
    next_ns: int


@dataclass(slots=True)
class SlurmDrainer:
    """Drains nodes that have failed, and resumes those that have recovered."""

    settings: SlurmSettings
    trail: AuditTrail
    wall_ns: Callable[[], int]
    rows: Callable[[], Sequence[Node]] = tuple
    """Returns the states of all nodes. Blocking."""
    verdicts: Callable[[], Mapping[str, view_refresh.GpuVerdicts]] = dict
    """Returns the numbers of GPUs with a verdict, by node."""
    drains: MutableMapping[str, int] = field(default_factory=dict)
    """Nodes drained whose failure has not ended, with the time: one that an operator resumes is not drained again. A failure has ended
    when the node has been healthy or degraded for `healthy_seconds`.
    """
    leads: Callable[[], bool] = lambda: True
    """True if this collector decides for the cluster."""
    run_program: Callable[[Sequence[str]], str] = run_program
    period_seconds: float = PERIOD_SECONDS
    _since: dict[str, tuple[str, int]] = field(init=False, default_factory=dict)
    """State of each node, and the time since which it has it."""
    _usable_ns: dict[str, int] = field(init=False, default_factory=dict)
    """Time since which each node that is healthy or degraded has been one of these."""
    _gpus: dict[str, int] = field(init=False, default_factory=dict)
    """GPUs of each node: the most that were listed since it was healthy."""
    _drained_ns: dict[str, int] = field(init=False, default_factory=dict)
    """Times of the drains within the last hour, with those from before a restart."""
    _rejected: dict[tuple[str, bool], RejectedChange] = field(init=False, default_factory=dict)
    """Changes that Slurm rejected and that are still due, by node and whether it is to be drained."""
    _unrecorded: list[DrainDecision] = field(init=False, default_factory=list)
    """Repeated changes that Slurm accepted and that are not in the audit log yet."""
    _other_lines: list[str] = field(init=False, default_factory=list)
    failures: int = 0
    """Attempts that failed."""
    _waiting: dict[str, int] = field(init=False, default_factory=dict)
    """Numbers of failed nodes that are not drained, and of healthy ones that are not resumed, by reason."""
    _problem: str = ""

    def decide_from(self, api: NodeViews, drains: MutableMapping[str, int]) -> None:
        """Use these views and drains from now on, and forget the states that were timed before."""
        self.rows, self.verdicts = api.node_rows, lambda: api.views().gpu_verdicts
        self.drains = drains
        for memory in (self._since, self._usable_ns, self._gpus, self._drained_ns, self._waiting):
            memory.clear()
        for changes in (self._rejected, self._unrecorded, self._other_lines):
            changes.clear()

    async def run(self) -> None:
        """Decide periodically until cancelled; return immediately if draining is not enabled."""
        if not self.settings.drain:
            return
        while True:
            await asyncio.sleep(self.period_seconds)
            await self.attempt()

    async def attempt(self) -> bool:
        """Decide once; false if it failed, which is logged when the problem changes."""
        problem = ""
        try:
            await self.decide_and_act()
        except (SinkError, LogWriteError, record.RecordError) as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.error("slurm_drain_failed", problem=problem)
        self._problem = problem
        self.failures += bool(problem)
        return not problem

    def cells(self) -> Iterator[ViewCell]:
        """Yield the metrics of draining; none if it is not enabled, or another collector decides."""
        if self.settings.drain and self.leads():
            yield ViewCell(catalog.SLURM_FAILURES, (), self.failures)
            for reason, number in (*self._waiting.items(), ("rejected", len(self._rejected))):
                yield ViewCell(catalog.SLURM_WAITING, (reason,), number)

    async def decide_and_act(self) -> None:
        """Decide once. Raises SlurmCommandError, LogWriteError, RecordError."""
        if not self.leads():
            # States are timed again by the next term: what happened meanwhile was not seen.
            self._since.clear()
            self._usable_ns.clear()
            return
        await self._record_repeated()
        rows = await service.run_in_thread(self.rows)
        nodes, other_lines = parse_nodes(await service.run_in_thread(self.run_program, NODES))
        if other_lines != self._other_lines:
            log.warning("slurm_lines_skipped", lines=len(other_lines), first=other_lines[:1])
        self._other_lines = other_lines
        for decisions, allowed in self.decide(rows, nodes, self.wall_ns()):
            accepted = rejected = 0
            for decision in decisions:
                # Slurm rejects changes when its controller is down: further attempts in this period would fail as well.
                if accepted == allowed or rejected == MAX_REJECTED or not self.leads():
                    break
                is_accepted = await self._act(decision)
                accepted, rejected = accepted + is_accepted, rejected + (not is_accepted)

    def decide(
        self, rows: Sequence[Node], nodes: Mapping[str, SlurmNode], now_ns: int
    ) -> list[tuple[Sequence[DrainDecision], int]]:
        """Return the nodes to be drained now and those to be resumed, each with the number of allowed changes.

        The longest failed nodes are first, and those last whose change Slurm rejected before.
        """
        failed_ns, healthy_ns = (
            round(seconds * SECOND_NS)
            for seconds in (self.settings.failed_seconds, self.settings.healthy_seconds)
        )
        self._update_states(rows, nodes, now_ns, healthy_ns)
        listed = [
            (row, nodes[row.node], self._since[row.node][0], now_ns - self._since[row.node][1])
            for row in rows
            if row.node in nodes
        ]
        failed = [
            row
            for row, node, state, lasted_ns in sorted(listed, key=lambda each: -each[3])
            if state == FAILED and node.is_available and lasted_ns >= failed_ns
        ]
        to_drain = [
            DrainDecision(row.node, drains=True, reason=_describe(row, self._gpus[row.node]))
            for row in failed
            if row.node not in self.drains
        ]
        to_resume = [
            DrainDecision(row.node, drains=False, reason=limit_reason(node.reason[len(PREFIX) :]))
            for row, node, state, lasted_ns in listed
            if self.settings.resume
            and state == HEALTHY
            and node.is_own_drain
            and lasted_ns >= healthy_ns
        ]
        due = {each[:2] for each in (*to_drain, *to_resume)}
        self._rejected = {key: each for key, each in self._rejected.items() if key in due}
        allowed = self._count_allowed(nodes, len(listed), now_ns)
        waiting = [each.node for each in to_drain if each[:2] not in self._rejected][allowed:]
        if waiting and not self._waiting.get("limit"):
            message = (
                f"limit of drains reached: {len(waiting)} failed nodes wait, such as {waiting[0]}"
            )
            log.error("slurm_drain_limited", problem=message)
        unverified = sum(
            self.settings.resume and row.state == HEALTHY != state and node.is_own_drain
            for row, node, state, _ in listed
        )
        self._waiting = {
            "limit": len(waiting),
            "resumed": len(failed) - len(to_drain),
            "unverified": unverified,
        }
        return [
            (self._order(to_drain, now_ns), allowed),
            (self._order(to_resume, now_ns), len(to_resume)),
        ]

    def _update_states(
        self, rows: Sequence[Node], nodes: Mapping[str, SlurmNode], now_ns: int, healthy_ns: int
    ) -> None:
        """Update the state of each node. One is not healthy while a GPU, such as one that it had before the drain, has no verdict."""
        verdicts, before, gpus, usable_ns = (
            self.verdicts(),
            self._since,
            self._gpus,
            self._usable_ns,
        )
        self._since, self._gpus, self._usable_ns = {}, {}, {}
        for name in self.drains.keys() - nodes.keys() - {row.node for row in rows}:
            del self.drains[name]
        for row in rows:
            name, state, node = row.node, row.state, nodes.get(row.node)
            found = verdicts.get(name, view_refresh.GpuVerdicts())
            is_judged = found.judged == found.listed
            if node and node.has_own_reason:
                is_judged &= 0 < node.gpus <= found.judged
            if state == HEALTHY and not is_judged:
                state = UNKNOWN
            since_ns = before[name][1] if before.get(name, ("",))[0] == state else now_ns
            self._since[name] = state, since_ns
            is_usable = is_judged and state in {HEALTHY, DEGRADED}
            if is_usable:
                self._usable_ns[name] = usable_ns.get(name, now_ns)
            if is_usable and now_ns - self._usable_ns[name] >= healthy_ns:
                # Only after it has been usable for this long: a node that flaps must not be drained after each
                # recovery.
                self.drains.pop(name, None)
            elif node and node.has_own_reason:  # also if it was drained before the last save
                self.drains.setdefault(name, node.reason_ns)
            is_healthy = state == HEALTHY and now_ns - since_ns >= healthy_ns
            earlier = 0 if is_healthy else gpus.get(name, 0)
            self._gpus[name] = max(row.gpus, found.listed, earlier)

    def _order(self, decisions: Sequence[DrainDecision], now_ns: int) -> list[DrainDecision]:
        """Return the decisions that may be attempted now; those last that Slurm rejected before."""
        never = RejectedChange(0, now_ns)
        due = [each for each in decisions if self._rejected.get(each[:2], never).next_ns <= now_ns]
        return sorted(due, key=lambda each: self._rejected.get(each[:2], never).attempts)

    def _count_allowed(self, nodes: Mapping[str, SlurmNode], total: int, now_ns: int) -> int:
        """Return how many nodes may be drained now, by the limit per hour and by that of all drained nodes.

        The limits are shares of the nodes that the collector judges: Slurm may have many more without GPUs.
        """
        from_ns = now_ns - HOUR_NS
        drained = [node for node in nodes.values() if node.has_own_reason]
        earlier = {node.name: node.reason_ns for node in drained}
        times_ns = {**earlier, **self.drains, **self._drained_ns}.items()
        self._drained_ns = {name: at_ns for name, at_ns in times_ns if at_ns > from_ns}
        ratios = (self.settings.max_drained_ratio_per_hour, self.settings.max_drained_ratio)
        # At least one, so that a small cluster drains anything at all.
        per_hour, at_once = (max(1, int(total * ratio)) for ratio in ratios)
        return max(0, min(per_hour - len(self._drained_ns), at_once - len(drained)))

    async def _act(self, decision: DrainDecision) -> bool:
        """Record a decision, then change Slurm; false if Slurm rejects it, which is recorded once.

        A repetition has its record already. It is recorded again when Slurm accepts it.
        """
        key = decision[:2]
        earlier = self._rejected.get(key)
        if earlier is None:
            # Before Slurm is changed: there is never a drain without its record.
            await self._record(decision, "done")
        try:
            await service.run_in_thread(self.run_program, tuple(_command(decision)))
        except SlurmCommandError as error:
            attempts = earlier.attempts if earlier else 0
            wait_seconds = min(PERIOD_SECONDS * 2 ** min(attempts, 10), MAX_WAIT_SECONDS)
            next_ns = self.wall_ns() + round(wait_seconds * SECOND_NS)
            self._rejected[key] = RejectedChange(attempts + 1, next_ns)
            if earlier is None:
                log.error("slurm_change_rejected", node=decision.node, problem=str(error))
                await self._record(decision, "failed")
            return False
        change = "drain" if decision.drains else "resume"
        log.warning("slurm_node_changed", node=decision.node, change=change, reason=decision.reason)
        if decision.drains:
            self._drained_ns[decision.node] = self.drains[decision.node] = self.wall_ns()
        if earlier:
            del self._rejected[key]
            self._unrecorded.append(decision)
            await self._record_repeated()
        return True

    async def _record_repeated(self) -> None:
        while self._unrecorded:
            await self._record(self._unrecorded[0], "done")
            del self._unrecorded[0]

    async def _record(self, decision: DrainDecision, outcome: str) -> None:
        type_ = _DRAIN_TYPE if decision.drains else _RESUME_TYPE
        actor = record.RecordActor("collector", self.trail.log.source.id)
        subject = record.RecordSubject(decision.node)
        data: record.RecordData = {"scheduler": "slurm", "reason": decision.reason}
        await self.trail.log.append(
            RecordDraft(type_, actor, self.wall_ns(), outcome, subject, data)
        )


def _describe(row: Node, gpus: int) -> str:
    """Return the reason for Slurm: the first incident, the reason of the state, and the number of GPUs."""
    incident = f"incident {row.incidents[0]}: " if row.incidents else ""
    return limit_reason(_QUOTES.sub("", f"{incident}{row.reason}"), f" [{gpus} GPUs]")


def _command(decision: DrainDecision) -> Iterator[str]:
    yield from ("scontrol", "update", f"NodeName={decision.node}")
    if decision.drains:
        yield from ("State=DRAIN", f"Reason={decision.reason}")
    else:
        yield "State=RESUME"
