"""Clusters as text: what devices and switches report from an onset on, and all incidents that follow.

    # promise                 a pod of 6 nodes; job 0 has the nodes 0 to 2, job 1 the nodes 3 and 4
    cluster pods=2 job=0-6 other=7,8:0-3   more pods, other nodes of the jobs, and GPUs of each node
    cluster alone=yes         the story shares its cluster with no other story
    cluster benign=yes        alone; the jobs also store checkpoints, evaluate and restart, as in a healthy cluster
    cluster rails=yes         alone; each GPU has the rail of the NIC with its index
    cluster fabric=yes        leaves 0-3 and 1-3 have links with two spines at their ports 18 and 19
    [WHEN] nic|gpu|node|mount PLACE SIGNAL=X SIGNAL*X SIGNAL+X    readings at a place such as 1:2, 0,6:3, 1:0-3, *:* or 1
    [WHEN] slow JOB SPEED [busy 0:3] [keep|lead nic|gpu PLACE SIGNALS X]
                              a job works with this speed and waits the rest of the time
                              keep: signals of a place have X times their value before the slowdown
                              lead: signals of a place lose only 1 - X of what the slowdown takes from them
    [WHEN] hang JOB; [WHEN] stop JOB; [WHEN] start JOB NODES; [WHEN] absent PLACE gone|timeout
    [WHEN] xid PLACE CODE TEXT
    [WHEN] stale|cut NODES    nodes that do not report, or are cut off from the collector while they work
    [WHEN] clock NODE SECONDS
    [WHEN] rank NODE EVENT KEY,KEY FACT=X    a report of an agent about ranks; gpu=1:2 is the GPU of the rank
    [WHEN] setting nic|gpu|neighbour PLACE FACT=X
    [WHEN] port SWITCH:PORT[/QUEUE] COUNTER+X GAUGE=X    what a switch counts per second, or reports
                              until a command changes it; 0 before
    [WHEN] silent SWITCH
    uplink SWITCH:PORT SWITCH:PORT; pauses PLACE SHARE   share of the pauses of a NIC that its switch port counts
    show onset cost reach evidence detail
    end SLOT                  slot of the incidents that are expected, 33 if missing

WHEN is FROM..TO in slots of 10 s since the onset, 0.. if missing; FROM..TO%N is a part of every N slots; of several, all hold. The
last command prints each incident: class, kind, place, number of parts, jobs that it touches if there are several, alternatives,
switch port, the incident that explains it, `ended`. The severity is printed only where it differs from the usual severity of the
class.

Stories that follow each other in a file are evaluated in one cluster, at most eight: each has pods and a rail of its own. They are
sorted by their ends, so that none is evaluated for longer than it needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.drawn_cluster import (
    GONE,
    START_NS,
    TIMEOUT,
    DrawnCluster,
    DrawnFeed,
    DrawnJob,
    Row,
    gpu_uuid,
)
from support.drawn_settings import DrawnSettings
from support.drawn_switches import DrawnSwitches
from support.printed_incidents import printed_incidents
from support.scenario_names import NODES, Names, numbers
from support.stories import Story, files_beside, read

from railscope.catalog import switches as catalog
from railscope.reading import Absent
from railscope.wire import WireEntity, WireEvent
from railscope_collector.diagnosis.findings import SLOT_NS

pytestmark = pytest.mark.timeout(600)

ONSET, END = 50, 33
GROUP, MAX_LONGER = 8, 16
"""Stories of a cluster, and slots that one may be longer than the first: those of a file are in the order of their ends."""
_OPERATIONS = {
    "=": lambda _, x: x,
    "*": lambda value, x: value * x,
    "+": lambda value, x: value + x,
}
_WHEN = re.compile(r"(?:(-?\d*)\.\.(-?\d*)(?:%(\d+))?|(-?\d+)) ")
_TIMES = re.compile(f"(?:{_WHEN.pattern})*")
_HUNG = {"utilization": 1.0, "activity": 0.15, "tensor": 0.0, "nvlink": 0.0, "power": 150.0}
_PORT = re.compile(r"(^| )port (leaf|spine)")
_STATIC = {"cluster", "end", "show", "uplink", "pauses"}
_COMMANDS = _STATIC | {
    "nic", "gpu", "node", "mount", "slow", "hang", "stop", "start", "absent", "xid", "stale", "cut", "clock", "rank", "setting",
    "port", "silent",
}  # fmt: skip
_OPTIONS = {"pods", "job", "other", "alone", "benign", "rails", "fabric"}
_SHOWN = {"onset", "cost", "reach", "evidence", "detail"}
_OPTIONAL = {"gone", "extra_notifications", "graphics", "write_operations", "write_latency"}
"""Signals that a row has in some stories only."""
_HEALTHY_PORT = ("port_up=1", "port_enabled=1", "received_errors=0")
_LONE = {"alone", "benign", "rails"}


@dataclass
class Cluster:
    """A cluster of several stories."""

    drawn: DrawnCluster
    feed: DrawnFeed
    switches: DrawnSwitches
    settings: DrawnSettings | None = None


class Scenario:
    """The commands of a story."""

    def __init__(self, story: Story) -> None:
        self.commands = [command for step in story.steps for command in step.commands]
        static = [words for words in map(str.split, self.commands) if words[0] in _STATIC]
        self.static = {words[0]: words[1:] for words in static}
        self.links = [words for words in static if words[0] in {"uplink", "pauses"}]
        self.options = dict(word.split("=") for word in self.static.get("cluster", ()))
        self.end = int(self.static.get("end", [str(END)])[0])
        self.names = Names(int(self.options.get("pods", 1)))
        self.has_settings = any("setting " in each for each in self.commands)
        self.is_alone = self.has_settings or bool(_LONE & self.options.keys())

    def unknown_words(self) -> set[str]:
        """Return words that are no command, option or part of an incident, also of commands whose time does not come."""
        words = {line[_TIMES.match(line).end() :].split()[0] for line in self.commands}  # type: ignore[union-attr]
        shown = set(self.static.get("show", ()))
        return words - _COMMANDS | self.options.keys() - _OPTIONS | shown - _SHOWN

    def add_jobs(self, drawn: DrawnCluster) -> None:
        usual = ("0-2", "3-4") if self.names.pods == 1 else ("0-5", "7-10")
        for number, (option, default) in enumerate(zip(("job", "other"), usual, strict=True)):
            nodes, _, gpus = self.options.get(option, default).partition(":")
            if nodes != "none":
                job = drawn.add_job(self.names.nodes(nodes), self.job_name(number))
                held = numbers(gpus or "0-7", 0, 8)
                job.gpus = range(held[0], held[-1] + 1)
                drawn.jobs.append(job)

    def begin(self, cluster: Cluster) -> None:
        """Add links, and the ports that some command changes, with their first values."""
        ports = [line.partition("port ")[2] for line in self.commands if _PORT.search(line)]
        if "fabric" in self.options:
            self.add_fabric(cluster)
        if ports or self.links:
            cluster.switches.link(self.names.nodes())
        for kind, first, second in self.links:
            if kind == "uplink":
                near, far = (self.names.port(word)[0] for word in (first, second))
                cluster.switches.neighbours |= {near: far[0], far: near[0]}
            else:
                places = self.names.places(first, "nic")
                cluster.switches.shares |= dict.fromkeys(places, float(second))
        for place, *changes in map(str.split, ports):
            for change in changes:
                self.set_port(cluster, place, re.sub(r"[+=].*", "+0", change))
        if "rails" in self.options:
            for gpu in cluster.feed.diagnosis.devices.gpus:
                gpu.rail = gpu.index

    def add_fabric(self, cluster: Cluster) -> None:
        """Add links of two leaves with two spines, which are up and have no errors."""
        ends = [(f"leaf-{n}-3:1{7 + m}", f"spine-{m}:{n}") for n in (0, 1) for m in (1, 2)]
        self.links += [["uplink", *each] for each in ends]
        for place, change in product((port for each in ends for port in each), _HEALTHY_PORT):
            self.set_port(cluster, place, change)

    def apply(self, cluster: Cluster, row: Row, since: int) -> None:
        """Change the readings of a slot."""
        for line in self.commands:
            text, is_now = line, since >= 0 or bool(_WHEN.match(line))
            while found := _WHEN.match(text):
                text = text[found.end() :]
                begin, end, every, only = found.groups()
                at = since % int(every) if every else since
                is_now &= at == int(only) if only else int(begin or -ONSET) <= at < int(end or 999)
            if is_now:
                self._apply(cluster, row, text.split(), since)

    def _apply(self, cluster: Cluster, row: Row, words: list[str], since: int) -> None:  # noqa: C901, PLR0912 - a case for each command
        names, slot = self.names, ONSET + since
        match words:
            case ["nic" | "gpu" | "node" | "mount" as device, place, *changes]:
                shape = (cluster.drawn.nodes, 8) if ":" in place else cluster.drawn.nodes
                for name, sign, value in map(_change, changes):
                    is_of_frames = name == "frame_seconds"
                    signals = cluster.drawn.__dict__ if is_of_frames else getattr(row, device)
                    if name in _OPTIONAL:
                        signals.setdefault(name, np.full(shape, np.nan if device == "gpu" else 0.0))
                    at = names.at(place, device)
                    signals[name][at] = _OPERATIONS[sign](signals[name][at], float(value))
            case ["slow", number, speed, *more]:
                self.slow(cluster, row, number, float(speed), more)
            case ["hang", number] if job := self.job(cluster, number):
                for name, level in _HUNG.items():
                    row.gpu[name][job.nodes] = level
                row.nic["send"][job.nodes] = row.nic["receive"][job.nodes] = 2e-4
            case ["stop", number] if job := self.job(cluster, number):
                cluster.feed.end_job(job, slot)
            case ["start", number, nodes]:
                job = cluster.drawn.add_job(names.nodes(nodes), self.job_name(number))
                cluster.drawn.jobs.append(job)
                cluster.feed.add_claim_events(job, "claim_start", START_NS + slot * SLOT_NS)
            case ["xid", place, code, *text]:
                ((node, gpu),) = names.places(place)
                entity = WireEntity("xid", (f"0000:{gpu:02x}:00.0", code))
                facts = {"message": " ".join(text)}
                row.events.append((node, WireEvent("xid", 0, entity, 0, 0, facts)))
            case ["absent", place, reason]:
                code = GONE if reason == "gone" else TIMEOUT
                row.absent |= dict.fromkeys(names.places(place), code)
            case ["stale" | "cut" as kind, nodes]:
                getattr(row, f"{kind}_nodes").update(names.nodes(nodes))
            case ["clock", nodes, seconds]:
                for node in names.nodes(nodes):
                    row.offsets[node] += float(seconds)
            case ["rank", nodes, name, key, *facts]:
                for node in names.nodes(nodes):
                    self.report(row, node, name, tuple(key.split(",")), _facts(facts))
            case ["setting", kind, place, *facts] if cluster.settings:
                changed = {name: names.actual(value) for name, value in _facts(facts).items()}
                cluster.settings.change(kind, names.places(place, kind), changed, slot)
            case ["port", place, *changes]:
                for change in changes:
                    self.set_port(cluster, place, change)
            case ["silent", switch]:
                cluster.switches.silent.add(names.actual(switch))
            case ["stop" | "hang", _]:
                pass
            case [static, *_] if static not in _STATIC:
                pytest.fail(f"unknown command: {' '.join(words)}")

    def slow(self, cluster: Cluster, row: Row, number: str, speed: float, more: list[str]) -> None:
        """Slow a job down, except for signals of a place."""
        busy, kept = None, list[tuple[str, Any, Any, Any, float]]()
        while more:
            word, *more = more
            if word == "busy":
                (busy,), more = self.names.places(more[0]), more[1:]
                continue
            device, place, signals, share, *more = more
            for name in signals.split(","):
                values, at = getattr(row, device)[name], self.names.at(place, device)
                kept.append((word, values, at, values[at].copy(), float(share)))
        cluster.drawn.slow_job(row, self.job(cluster, number), speed, busy)
        for word, values, at, before, share in kept:
            lead = values[at] + share * (before - values[at])
            values[at] = before * share if word == "keep" else lead

    def report(
        self, row: Row, node: int, name: str, key: tuple[str, ...], facts: dict[str, str]
    ) -> None:
        """Add a report about ranks of job 0, unless it names another one."""
        kinds = {2: "nccl_job", 3: "collective_group", 4: "collective_rank", 5: "communicator_call"}
        kind = "nccl_rank" if name.startswith("nccl_rank") else kinds[len(key)]
        kind = "communicator_rank" if name == "collective_straggler" else kind
        if ":" in facts.get("gpu", ""):
            ((of, index),) = self.names.places(facts["gpu"])
            facts |= {"gpu": gpu_uuid(of, index), "gpu_index": str(index)}
        for each in facts.keys() & {"rail", "rails"}:
            facts[each] = str(self.names.rails(facts[each])[0])
        job = self.job_name(0)
        about = {"source": "slurm", "workload": job, "owner": f"tenant-{job}"} | facts
        row.events.append((node, WireEvent(name, 0, WireEntity(kind, key), START_NS, 0, about)))

    def set_port(self, cluster: Cluster, place: str, change: str) -> None:
        """Set or increase a value of a switch port."""
        name, sign, value = _change(change)
        key = getattr(catalog, name.upper()), *self.names.port(place)
        before = cluster.switches.values.get(key, 0)
        if not value[-1].isdigit():
            cluster.switches.values[key] = Absent[value.upper()]
        elif isinstance(before, int):
            risen = before + int(10 * float(value))
            cluster.switches.values[key] = int(value) if sign == "=" else risen

    def job_name(self, number: int | str) -> str:
        """Return the name of a job in the cluster of all."""
        return f"{self.names.first}/{number}"

    def job(self, cluster: Cluster, number: str) -> DrawnJob | None:
        """Return a job that runs."""
        name = self.job_name(number)
        return next((job for job in cluster.drawn.jobs if job.name == name), None)


def _change(text: str) -> tuple[str, str, str]:
    found = re.fullmatch(r"(\w+)([=*+])(\S+)", text)
    assert found, text
    return found[1], found[2], found[3]


def _facts(words: list[str]) -> dict[str, str]:
    return dict(word.split("=") for word in words)


def evaluate(some: list[Scenario]) -> Iterator[tuple[Scenario, list[str]]]:
    """Evaluate a cluster of some scenarios; yield the lines that each prints at its end."""
    pods = sum(each.names.pods for each in some)
    drawn = DrawnCluster(9, pods, NODES, benign="benign" in some[0].options)
    drawn.jobs, first = [], 0
    for shift, each in enumerate(some):
        each.names.first, each.names.shift = first, shift
        first += NODES * each.names.pods
        drawn.filers |= dict.fromkeys(each.names.nodes(), f"filer-{each.names.first}")
        each.add_jobs(drawn)
    slots = ONSET + max(each.end for each in some) + 1
    feed = DrawnFeed(drawn, slots)
    cluster = Cluster(drawn, feed, DrawnSwitches(feed))
    if any(each.has_settings for each in some):
        cluster.settings = DrawnSettings(feed)
    for each in some:
        each.begin(cluster)
    cluster.switches.begin()
    for slot in range(slots):
        row = drawn.draw()
        cluster.switches.silent.clear()
        for each in some:
            each.apply(cluster, row, slot - ONSET)
        if cluster.settings and not slot:
            cluster.settings.begin()
        cluster.switches.poll(slot, row)
        feed.evaluate(slot, row)
        for each in some:
            if each.end == slot - ONSET:
                shown = set(each.static.get("show", ()))
                yield each, printed_incidents(feed, each.names, shown, ONSET)


def groups() -> Iterator[list[tuple[Story, Scenario]]]:
    """Yield the stories of a file that are parts of one cluster: no more than rails."""
    for path in files_beside(Path(__file__)):
        stories = [(story, Scenario(story)) for story in read(path)]
        yield from ([each] for each in stories if each[1].is_alone)
        group = list[tuple[Story, Scenario]]()
        for each in (each for each in stories if not each[1].is_alone):
            if group and (len(group) == GROUP or each[1].end - group[0][1].end > MAX_LONGER):
                yield group
                group = []
            group.append(each)
        if group:
            yield group


@pytest.fixture(scope="module")
def printed() -> dict[tuple[str, str], list[str]]:
    """Lines of each story by its file and promise; those of a cluster are evaluated at once."""
    return {}


def test_story(story: Story, printed: dict[tuple[str, str], list[str]]) -> None:
    """Play a story."""
    assert not Scenario(story).unknown_words()
    key = story.path.name, story.promise
    if key not in printed:
        group = next(
            group for group in groups() if key in [(s.path.name, s.promise) for s, _ in group]
        )
        lines = {id(each): found for each, found in evaluate([each for _, each in group])}
        printed |= {(s.path.name, s.promise): lines[id(each)] for s, each in group}
    commands = [command for step in story.steps for command in step.commands]
    remaining = iter(range(len(commands) - 1, -1, -1))
    story.play(lambda _: [] if next(remaining) else printed[key])
