"""Verdict on every GPU, from the latest frames of the other sources.

A source like any other, except that it reads the agent and not the node. The rules are in
`agent.health`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from agent.health import RULES, GpuVerdict, judge
from agent.health.gather import SOURCES, Gathering
from agent.health.reset_memory import ResetMemory
from agent.health.rule import HEALTHY, LOAD, UNKNOWN
from agent.health.words import in_words
from agent.host import Host
from agent.sampling.facts import counted, known
from agent.sampling.source import Columns, Finding, HoldsNothing, Inventory, Table, Verdict
from agent.sampling.status import FAILED, STARTING, UNSUPPORTED, Status
from agent.streams.xid_book import XidBook
from railscope.catalog import gpu_health as h
from railscope.catalog.entities import GPU_REASON
from railscope.entity import Entity
from railscope.frame import Event, Frame, Instant
from railscope.reading import Absent

KEEP_NS = 600_000_000_000
_Said = tuple[int, tuple[str, ...]]


class GpuVerdicts(HoldsNothing):
    """State, reasons and recommended action of every GPU, and an event when they change."""

    name = "gpu_verdict"
    family = "agent"
    longest_period_seconds = 20.0
    """Upper bound of the delay until a GPU that needs draining is reported."""

    def __init__(
        self,
        statuses: Callable[[], Mapping[str, Status]],
        xids: XidBook,
        period_seconds: float = 5.0,
    ) -> None:
        self.period_seconds = period_seconds
        self._statuses = statuses
        self._gathering = Gathering(xids.remembered)
        self._memory: ResetMemory | None = None
        self._kept: dict[str, int] = {}
        self._kept_ns = 0
        self._judged: list[Entity] = []
        self._said: dict[str, _Said] = {}

    def remember(self, memory: ResetMemory) -> None:
        """Load the state from before a restart, and store it from now on."""
        self._memory = memory
        self._gathering.remembered = memory.load()

    def _keep(self, now_ns: int) -> None:
        """Store each reset at once, and periodically the counters that reveal the next one."""
        lifetimes = {**self._gathering.remembered, **self._gathering.lifetimes}
        resets = {name: lifetime.resets for name, lifetime in lifetimes.items()}
        due = resets != self._kept or now_ns - self._kept_ns >= KEEP_NS
        if self._memory and lifetimes and due:
            self._memory.save(lifetimes)
            self._kept, self._kept_ns = resets, now_ns

    def probe(self, host: Host) -> Inventory:
        """Columns for every GPU seen so far, including lost ones."""
        self._look(host.clock.now().boot_ns)
        self._judged = self._gathering.gpus
        met = {gpu.key[0] for gpu in self._judged}
        self._said = {name: said for name, said in self._said.items() if name in met}
        columns = Columns()
        for gpu in self._judged:
            columns.add(h.GPU_HEALTH, gpu)
            columns.add(h.GPU_ACTION, gpu)
            for rule in RULES:
                columns.add(h.GPU_HEALTH_REASON, gpu.part(GPU_REASON, rule.reason))
        return Inventory(tuple(columns.columns), (), tuple(self._findings()))

    def read(self, host: Host, into: Table) -> None:
        """Judge every GPU."""
        now = host.clock.now()
        self._look(now.boot_ns)
        self._keep(now.boot_ns)
        met = self._gathering.gpus
        into.grown = met != self._judged or (not met and self._load_state() != UNSUPPORTED)
        left = {gpu.key for gpu in met}
        width = 2 + len(RULES)
        for first, gpu in zip(range(0, len(into.values), width), self._judged, strict=True):
            if gpu.key not in left:
                into.put_none(first, width, Absent.GONE)
                continue
            verdict = judge(self._gathering.facts(gpu))
            into.put(first, verdict.state)
            into.put(first + 1, verdict.action)
            for column, answer in enumerate(verdict.answers.values(), first + 2):
                into.put(column, answer)
            into.events += self._tell(gpu, verdict, now)

    def _look(self, now_ns: int) -> None:
        statuses = self._statuses()
        latest = {name: _latest(statuses.get(name), now_ns) for name in SOURCES}
        self._gathering.look(latest, now_ns)

    def _load_state(self) -> int:
        status = self._statuses().get(LOAD)
        return status.state if status else UNSUPPORTED

    def _findings(self) -> list[Finding]:
        """Number of GPUs in each state, and for each unhealthy one the reason and the action."""
        if not self._judged:
            return [self._no_gpu()]
        facts = {gpu.key[0]: self._gathering.facts(gpu) for gpu in self._judged}
        verdicts = {name: judge(of_gpu) for name, of_gpu in facts.items()}
        number = Counter(verdict.state for verdict in verdicts.values())
        states = [f"{number[s]} {word}" for s, word in h.GPU_HEALTH.states.items() if number[s]]
        detail = f"{counted(len(facts), 'GPU')} by {len(RULES)} rules: {', '.join(states)}"
        return [Finding("health of GPUs", Verdict.SUPPORTED, detail)] + [
            # If a GPU is unknown, the finding about the cause, if any, is one of its source.
            Finding(
                f"GPU {name}",
                Verdict.ABSENT if verdict.state == UNKNOWN else Verdict.BROKEN,
                in_words(facts[name], verdict),
            )
            for name, verdict in verdicts.items()
            if verdict.state != HEALTHY
        ]

    def _no_gpu(self) -> Finding:
        verdict, detail = {
            STARTING: (Verdict.AWAITED, "waits for the first reading of the GPUs"),
            FAILED: (Verdict.BROKEN, "no GPU could be read so far"),
        }.get(self._load_state(), (Verdict.ABSENT, "there is no GPU to judge"))
        return Finding("health of GPUs", verdict, detail)

    def _tell(self, gpu: Entity, verdict: GpuVerdict, now: Instant) -> list[Event]:
        """Event for a changed verdict; none for a GPU that is healthy from the start."""
        (name,) = gpu.key
        before, said = self._said.get(name), (verdict.state, verdict.reasons)
        unclear = verdict.missing if verdict.state == UNKNOWN else {}
        if said == before or (before is None and Absent.NOT_DUE in unclear.values()):
            return []
        self._said[name] = said
        if before is None and verdict.state == HEALTHY:
            return []
        reasons = (*verdict.reasons, *(f"{reason} ({why.word})" for reason, why in unclear.items()))
        facts = known(
            before=h.GPU_HEALTH.states[before[0]] if before else "",
            after=h.GPU_HEALTH.states[verdict.state],
            reasons=", ".join(reasons),
            action=" ".join(verdict.actions),
            nvidia_action=", ".join(verdict.nvidia),
        )
        return [Event(h.GPU_HEALTH_EVENT, gpu, now.wall_ns, now.boot_ns, facts)]


def _latest(status: Status | None, now_ns: int) -> Frame | Absent:
    """Latest frame of a source, or its absence reason."""
    if status is None or status.state == UNSUPPORTED:
        return Absent.UNSUPPORTED
    if status.state == STARTING:
        return Absent.NOT_DUE
    if frame := status.fresh_frame(now_ns):
        return frame
    if status.overdue or status.frame:
        return Absent.TIMEOUT
    denied = any(finding.verdict is Verdict.DENIED for finding in status.findings)
    return Absent.DENIED if denied else Absent.ERROR
