"""Ranks of collectives that agents name in events, joined over the nodes of a job: evidence of a hang.

An agent compares the ranks of its node, by dumps of PyTorch's flight recorder, or those of the whole job, by NCCL's RAS
subsystem. Here the events of all nodes of a job are joined: the rank that is last in its process group over all nodes, and
the nodes whose ranks do not wait in a collective in which those of the others wait.

An event counts for the job whose claim it has, as the agent reads it from the claims of the process, or for the one that holds the
GPU of the rank: what processes report about themselves assigns nothing to the job of another tenant.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from railscope.timestamps import SECOND_NS
from railscope.untrusted_text import printable
from railscope_collector.diagnosis import explanation, findings, ranking
from railscope_collector.diagnosis.jobs import ActiveJob
from railscope_collector.diagnosis.node_readings import NodeEvent
from railscope_collector.diagnosis.straggler_detectors import (
    max_straggling_nodes,
    may_have_straggler,
)

KEEP_NS = 3600 * SECOND_NS
"""Time for which an event may explain a hang: an agent reports a state once, and dumps are written after minutes."""
BEFORE_NS = 60 * SECOND_NS
"""Time by which an event may precede the wait of the whole job: the other ranks notice a dead process later."""
MAX_EVENTS_PER_NODE, MAX_NAMED, MAX_TEXT = 128, 4, 64
STRAGGLER_NS = 900 * SECOND_NS
"""Time for which the report of a rank that arrives last supports that a job or its GPU is slow."""
CONFIRM_NS, WINDOW_NS = 180 * SECOND_NS, 60 * SECOND_NS
"""Time after the report of such a rank within which its job must be slower than before, and the time that the report is about."""
WAITING, STRAGGLER, SLOW_PATH = "collective_waiting", "collective_straggler", "collective_slow_path"
RANK_TEXTS = {
    "nccl_process_dead": "is considered dead by NCCL",
    "nccl_rank_dead": "is considered dead by NCCL",
    "nccl_rank_failed": "has a communicator with an error",
    "collective_late": "has not entered",
    "nccl_rank_late": "launched fewer collectives than the others",
    "nccl_rank_missing": "does not respond to the RAS subsystem of NCCL",
    "collective_mismatch": "entered another collective than the others",
    "nccl_rank_mismatch": "launched another collective than the others",
}
"""Events that name a rank, those first that explain the others."""
_ORDER = tuple(RANK_TEXTS)
RANK_EVENTS = frozenset((*RANK_TEXTS, WAITING, STRAGGLER, SLOW_PATH))
"""Events that the diagnosis uses."""
_KEY_PARTS = {
    "collective_rank": 4, "communicator_rank": 4, "nccl_rank": 4, "nccl_job": 2, "collective_group": 3, "communicator_call": 5,
}  # fmt: skip
PATH_CLASSES = frozenset({*explanation.FABRIC, "transport_retry", "paused_unlocalised", "pcie_degraded", "nvlink_errors", "job_slowdown"})  # fmt: skip
"""Classes that a slow path between ranks supports."""


class RankEvents:
    """Last events about ranks of collectives, by node."""

    def __init__(self) -> None:
        self._events: dict[str, dict[tuple[str, ...], NodeEvent]] = defaultdict(dict)
        self._confirmed: set[tuple[str, ...]] = set()
        """Reports of stragglers whose job was slower than before: nodes and keys."""

    def add(self, events: Iterable[NodeEvent], now_ns: int) -> None:
        """Add new events, and forget old ones."""
        for node_event in events:
            event = node_event.event
            if event.name not in RANK_EVENTS:
                continue
            if len(event.entity.key) == _KEY_PARTS.get(event.entity.kind):
                of_node, key = self._events[node_event.node], (event.name, *event.entity.key)
                of_node.pop(key, None)
                of_node[key] = node_event
                if len(of_node) > MAX_EVENTS_PER_NODE:
                    _drop_one(of_node)
        for node, of_node in list(self._events.items()):
            for key in [k for k, e in of_node.items() if now_ns - e.timestamp_ns > KEEP_NS]:
                del of_node[key]
            if not of_node:
                del self._events[node]

    def all(self) -> list[NodeEvent]:
        """Return the events of all nodes."""
        return [node_event for of_node in self._events.values() for node_event in of_node.values()]

    def of_node(self, node: str) -> list[NodeEvent]:
        """Return the events of a node."""
        return list(self._events.get(node, {}).values())

    def name_ranks(
        self, view: findings.DiagnosisView, found: Iterable[findings.Finding]
    ) -> Iterator[findings.Finding]:
        """Yield findings with the ranks that did not arrive, for a hang, or that arrive last, for slow jobs and GPUs."""
        for finding in found:
            named = self._named(view, finding) if self._events else []
            texts = [finding.detail, *(text for _, text in named)]
            job = finding.evidence[0].job
            yield replace(
                finding,
                evidence=(*finding.evidence, *(each.as_report(job) for each, _ in named)),
                detail="; ".join(filter(None, texts)),
            )

    def late_gpus(
        self, view: findings.DiagnosisView, found: Iterable[findings.Finding]
    ) -> Iterator[findings.Finding]:
        """Yield findings of stragglers, with their ranks; in slower jobs without one, the GPU of a rank that arrives last.

        Counters of GPUs do not show a GPU that is a little slower, or one of a job whose stages are uneven.
        """
        found_gpus = set[int]()
        for finding in self.name_ranks(view, found):
            found_gpus.update(finding.parts or [finding.cause.position])
            yield finding
        self._confirmed &= {_report_key(node_event) for node_event in self.all()}
        for job in view.jobs if self._events else ():
            if found_gpus.isdisjoint(job.gpus.tolist()):
                yield from self._late_gpus(view, job)

    def _late_gpus(
        self, view: findings.DiagnosisView, job: ActiveJob
    ) -> Iterator[findings.Finding]:
        if not may_have_straggler(view, job):
            return
        reports: dict[int, NodeEvent] = {}
        for node_event in self._of_job(view, job, view.timestamp_ns - STRAGGLER_NS):
            node = view.devices.nodes.get(node_event.node)
            gpu = node.gpus.get(node_event.event.facts.get("gpu", "")) if node else None
            if node_event.event.name != STRAGGLER or gpu not in job.gpus:
                continue
            key = _report_key(node_event)
            if view.timestamp_ns - node_event.timestamp_ns <= CONFIRM_NS:
                self._confirmed.add(key)
            if key in self._confirmed and gpu is not None:
                reports[gpu] = node_event
        if len({e.node for e in reports.values()}) > max_straggling_nodes(job):
            return
        for gpu, node_event in reports.items():
            ((each, text),) = stragglers([node_event], 0)
            onset_ns, cause = node_event.timestamp_ns - WINDOW_NS, findings.Cause("gpu", gpu)
            found = (each.as_report(job.key),)
            yield findings.Finding("gpu_straggler", cause, found, 0.0, "", onset_ns, detail=text)

    def name_paths(
        self, view: findings.DiagnosisView, found: Iterable[findings.Finding]
    ) -> Iterator[findings.Finding]:
        """Yield findings, those of slow paths with the communicators of their jobs whose bandwidth is low."""
        for finding in found:
            paths = []
            if self._events and finding.incident_class in PATH_CLASSES:
                paths = list(self._slow_paths(view, finding))
            if paths:
                texts = [finding.detail, *(text for _, text in paths)]
                finding = replace(  # noqa: PLW2901 - the others are passed on as they are
                    finding,
                    evidence=(*finding.evidence, *(each for each, _ in paths)),
                    detail="; ".join(filter(None, texts)),
                )
            yield finding

    def _slow_paths(
        self, view: findings.DiagnosisView, finding: findings.Finding
    ) -> Iterator[tuple[findings.FindingEvidence, str]]:
        """Yield the communicators that are slowest, on the rails or the GPU of a finding.

        The bandwidth of a job with a rank that arrives last does not show its path.
        """
        reach, since_ns = ranking.reach_of(view, finding), view.timestamp_ns - STRAGGLER_NS
        rails = {rail for rail in reach.rails if rail}
        gpus = set[str]()
        if finding.cause.kind == "gpu":
            gpus = {view.devices.gpus[finding.cause.position].index}
        slow: list[tuple[NodeEvent, ActiveJob]] = []
        for job in (job for job in view.jobs if job.key in reach.jobs):
            events = self._of_job(view, job, since_ns)
            if any(each.event.name == STRAGGLER for each in events):
                continue
            for node_event in (each for each in events if each.event.name == SLOW_PATH):
                facts = node_event.event.facts
                is_there = not gpus or node_event.node in reach.nodes
                if is_there and all(
                    not (places and facts.get(name)) or places & set(facts[name].split())
                    for places, name in ((rails, "rails"), (gpus, "gpus"))
                ):
                    slow.append((node_event, job))
        for node_event, job in sorted(slow, key=lambda each: _percent(each[0]))[:MAX_NAMED]:
            communicator, kind, size = node_event.event.entity.key[2:]
            name = _text(node_event, "communicator_name") or printable(communicator[:MAX_TEXT])
            device = f"{node_event.node} {printable(kind[:MAX_TEXT])} up to {printable(size[:MAX_TEXT])} of communicator {name}"
            facts, names = node_event.event.facts, ("bytes_per_second", "expected_bytes_per_second")
            found, expected = (float(_number(facts.get(each, ""))) for each in names)
            comparison = "usual bus bandwidth, or that of other communicators"
            evidence = findings.FindingEvidence(SLOW_PATH, found, expected, comparison, device)
            text = f"{device} has {_percent(node_event)}% of its usual bus bandwidth"
            yield evidence.as_report(job.key), text

    def _named(
        self, view: findings.DiagnosisView, finding: findings.Finding
    ) -> list[tuple[findings.FindingEvidence, str]]:
        cause = finding.cause
        if cause.kind == "gpu":
            gpu = view.devices.gpus[cause.position]
            since_ns = view.timestamp_ns - STRAGGLER_NS
            of_node = self.of_node(gpu.node) if gpu.uuid else []
            return stragglers(of_node, since_ns, gpu.uuid)
        job = next((job for job in view.jobs if job.key == cause.job), None)
        if job is None:
            return []
        if finding.incident_class != "nccl_hang":
            since_ns = view.timestamp_ns - STRAGGLER_NS
            return stragglers(self._of_job(view, job, since_ns), since_ns)
        wait = view.states[job.key].history.wait
        waited_ns = (view.signals.slot - wait.first_slot + 1) * findings.SLOT_NS
        of_job = self._of_job(view, job, view.timestamp_ns - waited_ns - BEFORE_NS)
        return explain_hang(of_job, job.nodes, len(job.gpus))

    def _of_job(
        self, view: findings.DiagnosisView, job: ActiveJob, since_ns: int
    ) -> list[NodeEvent]:
        """Return the events about ranks of a job since a time."""
        return [
            node_event
            for node in job.nodes
            for node_event in self.of_node(node)
            if node_event.timestamp_ns >= since_ns and _job_of(view, node_event) is job
        ]


def _report_key(node_event: NodeEvent) -> tuple[str, ...]:
    return node_event.node, *node_event.event.entity.key, str(node_event.timestamp_ns)


def _drop_one(events: dict[tuple[str, ...], NodeEvent]) -> None:
    """Remove the oldest event of the holder that has most of them: one job does not displace the events of others."""
    holders = {
        key: tuple(each.event.facts.get(name, "") for name in ("source", "workload"))
        for key, each in events.items()
    }
    (largest, _), *_ = Counter(holders.values()).most_common(1)
    del events[next(key for key, holder in holders.items() if holder == largest)]


def _job_of(view: findings.DiagnosisView, node_event: NodeEvent) -> ActiveJob | None:
    """Return the job of an event: by its claim, by the GPU of the rank, or as the only job of its node."""
    facts = node_event.event.facts
    node = view.devices.nodes.get(node_event.node)
    if node is None or not facts.get("source"):
        return None  # no claim covers the process
    claim = facts["source"], facts.get("workload", "")
    of_node = [job for job in view.jobs if node_event.node in job.nodes]
    found = [job for job in of_node if (job.key.source, job.key.workload) == claim]
    if not found and (uuid := facts.get("gpu")):
        # Pods of one job have names of their own.
        of_node = [job for job in of_node if node.gpus.get(uuid) in job.gpus]
    found = found or of_node
    return found[0] if len(found) == 1 else None


def explain_hang(
    events: Sequence[NodeEvent], nodes: Sequence[str], ranks: int = 0
) -> list[tuple[findings.FindingEvidence, str]]:
    """Return the ranks that did not arrive, or else the nodes that are behind, each with a sentence.

    `ranks` is the number of ranks of the job.
    """
    return [*_blamed_ranks(events, ranks)] or [*_last_nodes(events, nodes)]


def _blamed_ranks(
    events: Iterable[NodeEvent], ranks: int
) -> Iterator[tuple[findings.FindingEvidence, str]]:
    """Yield the ranks that are the cause by their own events, the last one of all nodes first, each once.

    A late rank that waits in another collective is not the cause, unless all late ranks do.
    """
    named = [node_event for node_event in events if node_event.event.name in RANK_TEXTS]
    causes = [each for each in named if not each.event.facts.get("waits_in")] or named
    places = _RankPlaces.from_events(named, ranks)
    found: dict[str, tuple[NodeEvent, str]] = {}
    for node_event in sorted(causes, key=_rank_order):
        key, device = places.find(node_event)
        found.setdefault(key, (node_event, device))
    for node_event, device in list(found.values())[:MAX_NAMED]:
        name = node_event.event.name
        collective = f"{_text(node_event, 'collective')} {_text(node_event, 'sequence')}".strip()
        text = f"{RANK_TEXTS[name]} {collective}" if name == "collective_late" else RANK_TEXTS[name]
        evidence = findings.FindingEvidence(
            name, float(_lag(node_event)), 0.0, "collectives behind other ranks", device
        )
        yield evidence, f"{device} {text}"


class _RankPlaces(NamedTuple):
    """Events of the nodes of ranks, by rank of the job, and nodes by their addresses.

    The node of rank 0 reports the ranks of all nodes by NCCL's RAS subsystem, with an address in place of the name, and no GPU.
    In the communicator of all ranks, a rank has the number that it has in the dumps of flight recorders.
    """

    local: Mapping[str, NodeEvent]
    nodes: Mapping[str, str]
    ranks: int

    @classmethod
    def from_events(cls, events: Iterable[NodeEvent], ranks: int) -> _RankPlaces:
        """Return the places that events of a job contain; an event of two nodes about one rank is ambiguous."""
        dumped: dict[str, list[NodeEvent]] = defaultdict(list)
        remote, nodes = [], {}
        for node_event in events:
            event = node_event.event
            if event.entity.kind == "collective_rank":
                dumped[event.entity.key[3]].append(node_event)
            elif host := _text(node_event, "host"):
                if _text(node_event, "gpu"):
                    nodes[host] = node_event.node
                else:
                    remote.append((host, node_event))
        local = {
            rank: found[0] for rank, found in dumped.items() if len({e.node for e in found}) == 1
        }
        places = cls(local, nodes, ranks)
        for host, node_event in remote:
            if place := places.dumped_by(node_event):
                nodes.setdefault(host, place.node)
        return places

    def dumped_by(self, node_event: NodeEvent) -> NodeEvent | None:
        """Return the event of the node of a rank that RAS reports from another node."""
        event = node_event.event
        is_of_all = event.entity.kind == "nccl_rank" and event.facts.get("size") == str(self.ranks)
        return self.local.get(event.entity.key[3]) if is_of_all else None

    def find(self, node_event: NodeEvent) -> tuple[str, str]:
        """Return the identity of a rank, which is that of its GPU if it is known, and its name."""
        facts = node_event.event.facts
        if not facts.get("gpu"):
            place = self.dumped_by(node_event)
            if place is not None and place.event.facts.get("gpu"):
                node_event, facts = place, place.event.facts
            else:
                name = _rank_name(node_event, self.nodes.get(_text(node_event, "host"), ""))
                return name, name
        return facts["gpu"], _rank_name(node_event)


def stragglers(
    events: Iterable[NodeEvent], since_ns: int, gpu: str | None = None
) -> list[tuple[findings.FindingEvidence, str]]:
    """Return the ranks that arrive last at nearly all collectives, or that of a GPU, as NCCL Inspector measured them."""
    found = [
        node_event
        for node_event in events
        if node_event.event.name == STRAGGLER
        and node_event.timestamp_ns >= since_ns
        and gpu in {None, node_event.event.facts.get("gpu", "")}
    ]
    return [
        (
            findings.FindingEvidence(
                STRAGGLER,
                float(_number(node_event.event.facts.get("late_percent", ""))),
                0.0,
                "percent of the duration of its collectives",
                _rank_name(node_event),
            ),
            f"{_rank_name(node_event)} arrives last at nearly all collectives of its node",
        )
        for node_event in found[-MAX_NAMED:]
    ]


def _rank_name(node_event: NodeEvent, host_node: str = "") -> str:
    """Return node, rank, GPU and rail of a rank, as far as they are known; `host_node` is that of its address."""
    key = node_event.event.entity.key
    is_rank = len(key) == _KEY_PARTS["nccl_rank"]
    rank = f"rank {printable(key[3])}" if is_rank else f"process {_text(node_event, 'pid')}"
    place = [
        f"{label} {text}"
        for fact, label in (("gpu_index", "GPU"), ("rail", "rail"))
        if (text := _text(node_event, fact))
    ]
    is_local = bool(_text(node_event, "gpu"))
    node = node_event.node
    if not is_local:
        node = host_node or _text(node_event, "host") or node
    return f"{node} {rank}" + (f" ({', '.join(place)})" if place else "")


def _text(node_event: NodeEvent, fact: str) -> str:
    """Return a fact that an agent sent, as a text to be shown."""
    return printable(node_event.event.facts.get(fact, "")[:MAX_TEXT])


def _lag(node_event: NodeEvent) -> int:
    """Return the number of collectives by which a rank is behind; 0 if unknown."""
    facts = node_event.event.facts
    if "lag" in facts:
        return _number(facts["lag"])
    if "last_sequence" not in facts:
        return 0
    return max(_number(facts.get("sequence", "")) - _number(facts["last_sequence"]), 0)


def _number(text: str) -> int:
    """Return a natural number in a text of an agent; 0 for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else 0  # noqa: PLR2004 - 64 bits


def _percent(node_event: NodeEvent) -> int:
    return _number(node_event.event.facts.get("percent", ""))


def _rank_order(node_event: NodeEvent) -> tuple[int, int, str, tuple[str, ...]]:
    event = node_event.event
    return _ORDER.index(event.name), -_lag(node_event), node_event.node, event.entity.key


def _last_nodes(
    events: Iterable[NodeEvent], nodes: Sequence[str]
) -> Iterator[tuple[findings.FindingEvidence, str]]:
    """Yield the nodes whose ranks are behind those of the other nodes, by the collectives in which ranks wait.

    In a process group in which most nodes wait: those that wait in an earlier collective, or else those without a rank that
    waits.
    """
    groups: dict[tuple[str, ...], dict[str, tuple[int, str]]] = defaultdict(dict)
    for node_event in events:
        facts = node_event.event.facts
        if node_event.event.name == WAITING:
            waiting = _number(facts.get("sequence", "")), _text(node_event, "collective")
            groups[node_event.event.entity.key][node_event.node] = waiting
    if not groups:
        return
    by_node = max(groups.values(), key=len)
    sequence, collective = max(by_node.values())
    last = [node for node, (number, _) in by_node.items() if number < sequence]
    last = last or [node for node in nodes if node not in by_node]
    count = Counter(number for number, _ in by_node.values())[sequence]
    if not last or len(last) > MAX_NAMED or 2 * count <= len(nodes):
        return
    for node in sorted(last):
        number = by_node.get(node, (0, ""))[0]
        evidence = findings.FindingEvidence(
            "nodes_waiting", float(count), len(nodes) / 2, "half of the nodes", node
        )
        state = f"waits in collective {number}" if number else "reports no rank that waits"
        yield (
            evidence,
            f"{node} {state}, while ranks of {count} nodes wait in {collective} {sequence}",
        )
