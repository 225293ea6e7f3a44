"""Histories of a small cluster as it runs: jobs back to back, shares, outages with a spool, reboots, moves of GPUs, late ends."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from random import Random

from support.story import (
    DAY_SECONDS,
    SECOND,
    NodeReporter,
    accept,
    claim_ended,
    claim_started,
    gpus_of,
    host,
    temporary_core,
)

from railscope.frame import Event, Frame
from railscope_collector.evidence.claim_events import ClaimFact, ReportedClaim, ReportedEnd
from railscope_collector.evidence.node_intervals import EvidenceInterval

HOUR = 3600
STEP = 30
Fact = EvidenceInterval | ClaimFact


class RandomCluster:
    """Two nodes with two GPUs each."""

    def __init__(self, seed: int, days: int = 2) -> None:
        self.random = Random(seed)  # noqa: S311 - a seed of a test
        self.days, self.end = days, days * DAY_SECONDS
        self.sent: list[tuple[int, int, NodeReporter, list[Frame]]] = []
        self.nodes = range(2)
        self.places = {f"GPU-{n}{g}": [(0, n)] for n in self.nodes for g in range(2)}
        self.absent: dict[str, tuple[int, int]] = {}
        if self.random.random() < 0.6:
            self._move()
        self.down: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.spools: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.boots = {n: [0] for n in self.nodes}
        for n in self.nodes:
            self._interrupt(n)
        self.events: dict[int, dict[int, list[Event]]] = {n: defaultdict(list) for n in self.nodes}
        for gpu, places in self.places.items():
            for begin, n in places:
                end = self.absent[gpu][0] if gpu in self.absent and begin == 0 else self.end
                self._run_jobs(gpu, n, begin + self.random.randrange(3 * HOUR), end)
        for n in self.nodes:
            self._report(n)
        self.sent.sort(key=lambda each: each[:2])

    def facts(self) -> list[Fact]:
        """Return the facts that a collector makes of all envelopes."""
        core = temporary_core()
        for second, _, node, frames in self.sent:
            newest = max(f.timestamp.boot_ns for f in frames) / SECOND + node.booted_at
            accept(core, [node.record(frames, max(second, newest))])
        quarters = [kept.interval for kept in core.evidence.quarters.by_key.values()]
        return [*quarters, *core.evidence.unwritten]

    def _move(self) -> None:
        gpu = self.random.choice(list(self.places))
        begin = self.random.randrange(6 * HOUR, self.end - 6 * HOUR)
        pause = self.random.choice([300, 1800, 5 * HOUR])
        self.places[gpu].append((begin + pause, 1 - self.places[gpu][0][1]))
        self.absent[gpu] = (begin, begin + pause)

    def _interrupt(self, n: int) -> None:
        """Stop a node, or its connection, some times."""
        for _ in range(self.random.randrange(3)):
            begin = self.random.randrange(HOUR, self.end - HOUR)
            end = begin + self.random.choice([120, 900, 2400, 3 * HOUR, 9 * HOUR, 30 * HOUR])
            kind = self.random.choice(["down", "reboot", "spool"])
            if any(low < end and begin < high for low, high in self.down[n] + self.spools[n]):
                continue
            end = min(end, self.end - 300)
            (self.spools if kind == "spool" else self.down)[n].append((begin, end))
            if kind == "reboot":
                self.boots[n] = sorted([*self.boots[n], end])

    def _run_jobs(self, gpu: str, n: int, begin: int, last: int) -> None:
        random, number = self.random, 0
        while begin < last - 60:
            lengths = [90, 600, 4000, 5 * HOUR, 20 * HOUR, 40 * HOUR]
            end = min(begin + random.choice(lengths) + random.randrange(60), last - 1)
            jobs = self._draw_jobs(f"{gpu}-{number}", number + 1)
            number += 1
            reboot = next((boot for boot in self.boots[n] if begin < boot <= end), None)
            if reboot is not None:
                # The agent may remember the claim and report its end, with the time of its last poll.
                dead = next((low for low, high in self.down[n] if high == reboot), reboot)
                is_remembered = random.random() < 0.5
                for name, facts in jobs:
                    self._happen(n, begin, claim_started(gpu, name, begin, **facts))
                    if is_remembered:
                        ended = claim_ended(gpu, name, max(dead, begin + 1))
                        self._happen(n, reboot + 30, ended)
                begin = reboot + random.randrange(60, 3000)
                continue
            for i, (name, facts) in enumerate(jobs):
                start, stop = begin + 7 * i, max(end - 11 * i, begin + 7 * i + 1)
                self._happen(n, start, claim_started(gpu, name, start, **facts))
                if end < self.end - 2 * HOUR or random.random() < 0.5:
                    delay = random.choice([0, 0, 0, 0, 5, 45 * 60])
                    self._happen(n, stop + delay, claim_ended(gpu, name, stop))
            begin = end + random.choice([0, 1, 30, 600, 7000])

    def _draw_jobs(self, name: str, number: int) -> list[tuple[str, dict[str, str]]]:
        random = self.random
        facts = {"owner": random.choice(["acct1", "acct2", "acct3"]), "workload": f"slurm:{number}"}
        kind = random.random()
        if kind < 0.25:
            halves = [["1/2", "1/2"], ["1/4", "1/2"], ["1/7", "2/7", "1/3"], ["2/3", "2/3"]]
            return [
                (f"{name}.{i}", facts | {"owner": f"acct{i}", "share": p, "exclusive": "false"})
                for i, p in enumerate(random.choice(halves))
            ]
        if kind < 0.3:
            return [(name, facts | {"system": "true"})]
        if kind < 0.36:
            return [(name, {"level": "process", "source": "docker", "owner": "x"})]
        if kind < 0.42:
            return [(name, facts), (f"{name}.b", facts | {"level": "node_plugin"})]
        return [(name, facts)]

    def _happen(self, n: int, second: int, event: Event) -> None:
        self.events[n][min(second, self.end - STEP - 1)].append(event)

    def _report(self, n: int) -> None:
        skew, uncertainty_ns = self.random.choice([0, 0, 3]), self.random.choice([None, 0, SECOND])
        runs = [
            NodeReporter(
                f"n{n}", f"n{n}-boot{i}", f"run{i}", boot - 5040 * (not i), skew, uncertainty_ns
            )
            for i, boot in enumerate(self.boots[n])
        ]
        schemas = {names: gpus_of(*names) for names in map(tuple, self._listings(n))}
        waiting: list[Frame] = []
        sender, pending, order = runs[0], sorted(self.events[n]), 0
        for second in range(0, self.end, STEP):
            run = runs[max(i for i, boot in enumerate(self.boots[n]) if boot <= second)]
            is_down = any(low <= second < high for low, high in self.down[n])
            edges = [edge for span in self.spools[n] for edge in span]
            is_full = len(waiting) >= 40 or any(0 <= second - edge < STEP for edge in edges)
            if waiting and (is_down or is_full or run is not sender):
                spooled = (high for low, high in self.spools[n] if low <= second - STEP < high)
                self.sent.append((next(spooled, second), n * SECOND + order, sender, waiting))
                waiting, order = [], order + 1
            if is_down:
                continue
            sender, happened = run, []
            while pending and pending[0] <= second:
                happened += self.events[n][pending.pop(0)]
            names = self._listed(n, second)
            if names:
                waiting += run.frames(schemas[names], [second])
            if happened or second % 300 == 0 or not names:
                placed = [
                    replace(event, boot_ns=event.boot_ns - run.booted_at * SECOND)
                    for event in happened
                ]
                waiting += run.frames(host(), [second], events={second: placed})
        if waiting:
            self.sent.append((self.end, n * SECOND + order, sender, waiting))

    def _listed(self, n: int, second: int) -> tuple[str, ...]:
        return tuple(
            gpu
            for gpu, places in sorted(self.places.items())
            if [place for begin, place in places if begin <= second][-1] == n
            and not (gpu in self.absent and self.absent[gpu][0] <= second < self.absent[gpu][1])
        )

    def _listings(self, n: int) -> set[tuple[str, ...]]:
        edges = {0, *(begin for places in self.places.values() for begin, _ in places)}
        edges |= {edge for span in self.absent.values() for edge in span}
        return {self._listed(n, edge) for edge in edges} - {()}


def received_ns(fact: Fact) -> int:
    """Return about when a collector received a fact."""
    if isinstance(fact, EvidenceInterval):
        return fact.end_ns
    return fact.received_ns if isinstance(fact, ReportedClaim) else fact.timestamp_ns


def arrivals(facts: list[Fact], random: Random) -> list[tuple[int, Fact]]:
    """Return facts with times at which two collectors store them, some of which are behind by hours."""
    queues: dict[object, list[Fact]] = defaultdict(list)
    for fact in facts:
        # A node sends its frames to one of two collectors, by turns.
        turn = fact.start_ns // (5 * HOUR * SECOND) % 2 if isinstance(fact, EvidenceInterval) else 2
        queues[fact.node, turn, isinstance(fact, ReportedEnd)].append(fact)
    found: list[tuple[int, Fact]] = []
    for queue in queues.values():
        lag_ns, last_ns = random.choice([0, 0, 900, 7200, 40_000]) * SECOND, 0
        for fact in sorted(queue, key=received_ns):
            last_ns = max(last_ns, received_ns(fact) + lag_ns)
            found.append((last_ns, fact))
    return sorted(found, key=lambda each: each[0])
