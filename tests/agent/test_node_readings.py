"""Readings of a node as stories in `node_readings/`: driver answers, files and time, and what each source reads.

Commands of `support.node_story`, and:

    read SOURCE [S [N]]         N reads of a source, every S seconds; below it each reading that has changed since the last
                                one, in base units or with the reason for its absence; `all REASON` for all of a device
                                that had values, `as before` when they are back, `new` and `none` for columns; events
    show SOURCE PATTERN         present readings and absence reasons whose text has the pattern
    facts SOURCE PATTERN        facts of devices
    findings SOURCE             findings of `agent check`
    dcgm GPU PATTERN            samples of the names of dcgm-exporter with the pattern, after a read of their sources
    restart                     the agent starts again, with its state directory; `boot ID` starts the node again
"""

from __future__ import annotations

import re
from pathlib import Path

from support.node_story import StoryNode
from support.reading import ORIGIN
from support.stories import Story

from railscope.exposition import TextFormat, number
from railscope.frame import Event, Frame
from railscope.reading import Absent
from railscope_agent.config import AgentSettings, BurstSettings
from railscope_agent.endpoint.dcgm import DcgmExposition
from railscope_agent.machine_sources import machine_sources
from railscope_agent.sampling.source_reader import ReadOutcome, SourceReader

DCGM_SOURCES = ("gpu", "gpu_health", "gpu_settings", "gpu_activity", "mig", "nvlink", "kernel")
MAX_SHOWN = 9
REASONS = {reason.label for reason in Absent}


class ReadNode:
    """A node, and the sources of an agent on it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._start(StoryNode(1))

    def _start(self, node: StoryNode) -> None:
        self._node = node
        sources = machine_sources(AgentSettings(node="node-1", bursts=BurstSettings(enabled=True)))
        for source in sources:
            source.remember(self._directory, node.host.boot_id)
        self._readers = {source.name: SourceReader(source, node.host, ORIGIN) for source in sources}
        self._frames = dict[str, Frame]()
        self._outcomes = dict[str, ReadOutcome]()
        self._values = dict[str, dict[str, str]]()
        self._before = dict[str, str]()

    def run(self, line: str) -> list[str]:
        word, *words = line.split(" ")
        match word:
            case "node":
                self._start(StoryNode(int(words[0])))
            case "read":
                seconds, count = (
                    float(words[1] if words[1:] else 1),
                    int(words[2] if words[2:] else 1),
                )
                return self._read(words[0], seconds, count)
            case "show":
                pattern = " ".join(words[1:])
                values = self._values.get(words[0], {})
                return [
                    f"{name} {v}" for name, v in values.items() if re.search(pattern, f"{name} {v}")
                ]
            case "facts":
                found = [
                    f"{' '.join([entity.kind.name, *entity.key])} {name}={fact}"
                    for entity in self._frames[words[0]].schema.entities
                    for name, fact in entity.facts.items()
                ]
                return [fact for fact in found if re.search(" ".join(words[1:]), fact)]
            case "findings":
                found = self._outcomes[words[0]].findings
                return [
                    " ".join(
                        filter(
                            None,
                            [
                                f.verdict.name.lower(),
                                f.device,
                                f"{f.detail};",
                                f.remedy and f"fix: {f.remedy}",
                            ],
                        )
                    )
                    for f in found
                ]
            case "dcgm":
                return self._dcgm(words[0], " ".join(words[1:]))
            case "restart":
                self._start(self._node)
            case "boot":
                self._node.host.boot_id = words[0]
                self._start(self._node)
            case _:
                assert self._node.change(line), f"unknown command: {line}"
        return []

    def _read(self, name: str, seconds: float, count: int = 1) -> list[str]:
        before, events, problem = self._values.get(name), list[Event](), ""
        for _ in range(count):
            self._node.host.clock.advance(seconds)
            outcome = self._outcomes[name] = self._readers[name].run()
            problem = outcome.problem
            if outcome.frame is not None:
                self._frames[name] = outcome.frame
                events += outcome.frame.events
        shown = [f"problem: {problem}"] if problem else []
        if name in self._frames:
            now = self._values[name] = _values(self._frames[name])
            shown += [] if before is None else self._changes(before, now)
        return shown + [
            " ".join(
                [
                    "event",
                    e.event_class.name,
                    *e.entity.key,
                    *(f"{n}={v}" for n, v in e.facts.items()),
                ]
            )
            for e in events
        ]

    def _changes(self, before: dict[str, str], now: dict[str, str]) -> list[str]:
        shown = list[str]()
        for device in dict.fromkeys(map(_device, now)):
            own = {name: value for name, value in now.items() if _device(name) == device}
            changed = {
                name: v for name, v in own.items() if _is_shown(name, before.get(name, ""), v)
            }
            self._before |= {
                name: before[name] for name in changed if before.get(name, "")[:1].isdigit()
            }
            new = {name: v for name, v in changed.items() if self._before.get(name) != v}
            if len(changed) > MAX_SHOWN and not any(name in before for name in own):
                shown.append(f"{device} new")
            elif (
                len(changed) > MAX_SHOWN
                and set(changed.values()) <= REASONS
                and len(set(changed.values())) == 1
            ):
                shown.append(f"{device} all {next(iter(changed.values()))}")
            elif len(changed) > MAX_SHOWN and len(new) < len(changed):
                shown += [f"{device} as before", *(f"{name} {v}" for name, v in new.items())]
            else:
                shown += [f"{name} {v}" for name, v in changed.items()]
        left = dict.fromkeys(name.partition(" ")[2] for name in before if name not in now)
        still = {name.partition(" ")[2] for name in now}
        gone = [key for key in left if key not in still]
        if len(gone) > MAX_SHOWN:
            gone = [*dict.fromkeys(key.partition(" ")[0] for key in gone)]
        return shown + [f"{key} none" for key in gone]

    def _dcgm(self, gpu: str, pattern: str) -> list[str]:
        for name in DCGM_SOURCES:
            self._read(name, 0)
        page = DcgmExposition("node-1").render(
            [self._frames[name] for name in DCGM_SOURCES if name in self._frames],
            TextFormat.PROMETHEUS,
        )
        found = re.findall(r'^DCGM_FI_(\w+)\{gpu="(\d+)"(.*)\} (\S+)$', page, re.MULTILINE)
        return [
            " ".join([name, *re.findall(r'GPU_I_\w+="(.*?)"', labels), value])
            for name, index, labels, value in found
            if index == gpu and re.search(f"^(?:{pattern})$", name)
        ]


def _values(frame: Frame) -> dict[str, str]:
    return {
        " ".join([metric.name.removeprefix("railscope_"), *entity.key]): reading.label
        if isinstance(reading, Absent)
        else f"{float(number(metric, reading)):.15g}"
        for metric, entity, reading in frame.readings()
    }


def _device(name: str) -> str:
    return name.split(" ")[1] if " " in name else ""


def _is_shown(name: str, before: str, now: str) -> bool:
    """False for a sum over time, and for an absent reading that was or is unsupported."""
    if (
        re.search("(busy|byte)_seconds_total", name)
        and now not in REASONS
        and before not in REASONS
    ):
        return False
    return before != now and not (
        {before, now} <= REASONS and Absent.UNSUPPORTED.label in {before, now}
    )


def test_story(story: Story, tmp_path: Path) -> None:
    story.play(ReadNode(tmp_path).run)
