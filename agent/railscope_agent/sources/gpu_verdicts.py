"""Verdict on every GPU, derived from the latest frames of the other sources; the rules are in `railscope_agent.health`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from railscope.catalog import entities, gpu_health as h
from railscope.frame import Entity, Event, NodeTimestamp
from railscope.reading import Absent
from railscope_agent.health import RULES, HealthVerdict, health_findings, judge
from railscope_agent.health.gpu_facts import GpuFacts
from railscope_agent.health.gpu_lifetime import SavedLifetimes
from railscope_agent.health.rule import HEALTHY, LOAD, UNKNOWN
from railscope_agent.host import Host
from railscope_agent.host.boot_state import BootStateFile
from railscope_agent.sampling import (
    fact_readers,
    probe_result,
    row_builder,
    source as base,
    status as states,
)
from railscope_agent.streams.xid_matcher import XidMatcher

SAVE_EVERY_NS = 600_000_000_000
_ReportedVerdict = tuple[int, tuple[str, ...]]


class GpuVerdictSource(base.Source):
    """State, reasons and recommended action of every GPU, and an event when they change."""

    name = "gpu_verdict"
    lane = base.NVML
    period_seconds = 10.0
    stage = 1
    denied_remedy = "fix the sources above: verdicts need their readings"
    longest_period_seconds = 20.0
    """Upper bound of the delay until a GPU that needs draining is reported."""

    def __init__(
        self, statuses: Callable[[], Mapping[str, states.SourceState]], xids: XidMatcher
    ) -> None:
        self._statuses = statuses
        self._facts = GpuFacts(xids)
        self._file: BootStateFile | None = None
        self._saved_resets: dict[str, int] = {}
        self._saved_ns = 0
        self._gpus: list[Entity] = []
        self._reported: dict[str, _ReportedVerdict] = {}
        self._verdicts: dict[str, HealthVerdict] = {}
        """Verdict on each GPU at the last poll."""

    def remember(self, directory: Path, boot_id: str) -> None:
        """Load and store the resets of GPUs."""
        self._file = BootStateFile(directory / "gpu-resets.json", boot_id, "gpu_resets")
        if saved := self._file.read(SavedLifetimes):
            self._facts.earlier_lifetimes = saved.gpus

    def _save_lifetimes(self, now_ns: int) -> None:
        """Store each reset at once, and periodically the counters that reveal the next one."""
        lifetimes = {**self._facts.earlier_lifetimes, **self._facts.lifetimes}
        resets = {name: lifetime.resets for name, lifetime in lifetimes.items()}
        due = resets != self._saved_resets or now_ns - self._saved_ns >= SAVE_EVERY_NS
        if self._file and lifetimes and due:
            self._file.write(SavedLifetimes(self._file.boot_id, lifetimes))
            self._saved_resets, self._saved_ns = resets, now_ns

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Columns for every GPU seen so far, including lost ones."""
        self._facts.update(self._statuses(), host.clock.now().boot_ns)
        self._gpus = self._facts.gpus
        uuids = {gpu.key[0] for gpu in self._gpus}
        self._reported = {name: v for name, v in self._reported.items() if name in uuids}
        self._verdicts = {name: v for name, v in self._verdicts.items() if name in uuids}
        columns = probe_result.ColumnBuilder()
        for gpu in self._gpus:
            columns.add_each((h.GPU_HEALTH, h.GPU_ACTION), gpu)
            for rule in RULES:
                columns.add(h.GPU_HEALTH_REASON, gpu.child(entities.GPU_REASON, rule.reason))
        return columns.result(*self._findings())

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Judge every GPU."""
        now = host.clock.now()
        self._facts.update(self._statuses(), now.boot_ns)
        self._save_lifetimes(now.boot_ns)
        gpus = self._facts.gpus
        into.needs_probe = gpus != self._gpus or (
            not gpus and self._load_state() != states.UNSUPPORTED
        )
        left = {gpu.key for gpu in gpus}
        width = 2 + len(RULES)
        for first, gpu in zip(range(0, len(into.values), width), self._gpus, strict=True):
            if gpu.key not in left:
                into.put_none(first, width, Absent.GONE)
                continue
            verdict = self._judge(gpu)
            results = [
                result if isinstance(result, Absent) else int(result)
                for result in verdict.results.values()
            ]
            into.put_readings(first, (verdict.state, verdict.action, *results))
            into.events += self._record_changes(gpu, verdict, now)

    def _judge(self, gpu: Entity) -> HealthVerdict:
        """Judge a GPU; errors of a single poll leave its state and action as they were.

        NVML_ERROR_UNKNOWN, the driver's answer if it has no better one, may be returned once.
        """
        (name,) = gpu.key
        verdict = judge(self._facts.facts(gpu))
        before = self._verdicts.get(name, verdict)
        self._verdicts[name] = verdict
        has_errors_only = set(verdict.missing.values()) == {Absent.ERROR}
        if verdict.state == UNKNOWN and has_errors_only:
            return replace(before, results=verdict.results)
        return verdict

    def _load_state(self) -> int:
        status = self._statuses().get(LOAD)
        return status.state if status else states.UNSUPPORTED

    def _findings(self) -> list[probe_result.ProbeFinding]:
        if not self._gpus:
            return [self._no_gpu()]
        facts = {gpu.key[0]: self._facts.facts(gpu) for gpu in self._gpus}
        return health_findings("health of GPUs", "GPU", facts)

    def _no_gpu(self) -> probe_result.ProbeFinding:
        verdict, detail = {
            states.STARTING: (
                probe_result.ProbeVerdict.AWAITED,
                "waiting for the first readings of the GPUs",
            ),
            states.FAILED: (probe_result.ProbeVerdict.BROKEN, "no GPU could be read"),
        }.get(self._load_state(), (probe_result.ProbeVerdict.ABSENT, "the node has no GPU"))
        return probe_result.ProbeFinding("health of GPUs", verdict, detail)

    def _record_changes(
        self, gpu: Entity, verdict: HealthVerdict, now: NodeTimestamp
    ) -> list[Event]:
        """Event for a changed verdict; none for a GPU that is healthy from the start."""
        (name,) = gpu.key
        before, reported = self._reported.get(name), (verdict.state, verdict.reasons)
        unclear = verdict.missing if verdict.state == UNKNOWN else {}
        # At the start, some sources have not been read yet: unknown would be an event for each GPU at each
        # restart.
        if reported == before or (before is None and Absent.NOT_DUE in unclear.values()):
            return []
        self._reported[name] = reported
        if before is None and verdict.state == HEALTHY:
            return []
        reasons = (
            *verdict.reasons,
            *(f"{reason} ({why.label})" for reason, why in unclear.items()),
        )
        facts = fact_readers.nonempty_facts(
            before=h.GPU_HEALTH.states[before[0]] if before else "",
            after=h.GPU_HEALTH.states[verdict.state],
            reasons=", ".join(reasons),
            action=" ".join(verdict.actions),
            nvidia_action=", ".join(verdict.nvidia),
        )
        return [Event(h.GPU_HEALTH_EVENT, gpu, now.wall_ns, now.boot_ns, facts)]
