"""Readings of a node's network, PCIe, storage and host, as stories: files and answers, and what each source reads.

    set SECTION.NAME=TEXT       a setting of the agent
    host mainline | ofed        a ConnectX NIC with the kernel's driver, or with the vendor's
    many N COMMAND              a command N times, with numbers from 000 on in place of #
    dump DRIVER                 the statistics of a captured `ethtool -S`
    tree ARCHIVE PATTERN        the host is a copied tree from now on
    read SOURCE [PATTERN ...]   metrics that differ from the read before, events, and findings that are not in order;
                                with patterns, only metrics that match; `!` for events and all findings
    facts SOURCE [PATTERN ...]  labels that differ from the last time they were printed
    asked PATTERN               calls since the last `asked`
    once                        all sources start again

All other commands are those of `support.host_words`. `mlx5_0,1: rdma_port_up 1` is railscope_rdma_port_up of port 1 of mlx5_0; an
absent reading is its reason, and several of a device for the same reason are counted; a reading that is no longer reported is `-`.
"""

from __future__ import annotations

from fnmatch import fnmatch
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from textwrap import wrap

import msgspec
import pytest
from support import nics
from support.host_words import StoryHost, change
from support.reading import ORIGIN
from support.shared import capture_path, unpack_capture
from support.stories import Story

from railscope.exposition import number
from railscope.frame import Event
from railscope.reading import Absent
from railscope_agent.config import AgentSettings
from railscope_agent.host import Host
from railscope_agent.host.live_host import LiveHost
from railscope_agent.machine_sources import machine_sources
from railscope_agent.sampling.probe_result import ProbeFinding
from railscope_agent.sampling.source_reader import ReadOutcome, SourceReader

TABLES = Path(__file__).parent / "host_readings" / "tables"
SEVERAL = 2
ABSENT = {"-", *(reason.label for reason in Absent)}
Shown = dict[tuple[str, str], str]
"""Text by entity and metric, or by entity and label."""


class NodeStory:
    """A host, and the sources that read it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._host = StoryHost()
        self._tree: LiveHost | None = None
        self._settings: dict[str, dict[str, object]] = {}
        self._readers: dict[str, SourceReader] = {}
        self._outcomes: dict[str, ReadOutcome] = {}
        self._shown: dict[str, Shown] = {}
        self._findings: dict[str, list[str]] = {}

    def run(self, line: str) -> list[str]:  # noqa: C901 - one case each
        command, *words = line.split()
        match command, words:
            case "read", [source, *patterns]:
                return self._read(source, patterns)
            case "facts", [source, *patterns]:
                return self._facts(source, patterns)
            case "asked", [pattern]:
                counts = {key: n for key, n in self._host.asked.items() if fnmatch(key, pattern)}
                self._host.asked.clear()
                return [f"{n} {key}" for key, n in sorted(counts.items())]
            case "set", [setting]:
                name, _, text = setting.partition("=")
                section, _, key = name.partition(".")
                part = self._settings.setdefault(section, {})
                part[key] = msgspec.json.decode(text)
            case "host", [kind]:
                self._host.__dict__ |= getattr(nics, kind)().__dict__
            case "many", [times, *command_words]:
                for number in range(int(times)):
                    self.run(" ".join(command_words).replace("#", f"{number:03}"))
            case "dump", [driver]:
                self._dump(driver)
            case "tree", [archive, pattern]:
                root = unpack_capture(archive, self._directory, pattern)
                self._tree = LiveHost(root)
            case "once", []:
                self._readers.clear()
                self._shown.clear()
                self._findings.clear()
            case _:
                assert change(self._host, line, TABLES), f"unknown command: {line}"
        return []

    def _dump(self, driver: str) -> None:
        lines = capture_path(f"ethtool/ethq-{driver}.txt").read_text().splitlines()
        counts = [line.rsplit(":", 1) for line in lines if ":" in line]
        self._host.calls["ethtool.statistics(eth0)"] = {
            "names": [name.strip() for name, _ in counts],
            "values": [int(value) for _, value in counts],
        }

    def _outcome(self, source: str) -> ReadOutcome:
        if not self._readers:
            settings = msgspec.convert(self._settings, AgentSettings)
            host: Host = self._tree or self._host
            self._readers = {
                each.name: SourceReader(each, host, ORIGIN) for each in machine_sources(settings)
            }
        self._outcomes[source] = self._readers[source].run()
        return self._outcomes[source]

    def _read(self, source: str, patterns: list[str]) -> list[str]:
        outcome = self._outcome(source)
        now: Shown = {}
        for metric, entity, reading in outcome.frame.readings() if outcome.frame else ():
            key = (",".join(entity.key), metric.name.removeprefix("railscope_"))
            if isinstance(reading, Absent):
                now[key] = reading.label
            elif metric.states and isinstance(reading, int):
                now[key] = metric.states[reading]
            else:
                now[key] = str(number(metric, reading))
        before = self._shown.get(source, {})
        self._shown[source] = now
        changed = _changes(before, now)
        if patterns:
            changed = {key: text for key, text in changed.items() if _fits(key[1], patterns)}
        if patterns and "!" not in patterns:
            return _grouped(changed)
        events = [_event(each) for each in (outcome.frame.events if outcome.frame else ())]
        findings = [_finding(each) for each in outcome.findings]
        known = self._findings.get(source, [])
        self._findings[source] = findings
        new = [each for each in findings if each not in known]
        if "!" not in patterns:
            new = [each for each in new if not each.startswith("supported") or "->" in each]
        return [*_grouped(changed), *events, *new, *([outcome.problem] if outcome.problem else [])]

    def _facts(self, source: str, patterns: list[str]) -> list[str]:
        frame = self._outcomes[source].frame
        assert frame
        now = {
            (f"{entity.kind.name} {','.join(entity.key)}", name): text
            for entity in frame.schema.entities
            for name, text in entity.facts.items()
        }
        before = self._shown.get(f"facts of {source}", {})
        self._shown[f"facts of {source}"] = now
        changed = _changes(before, now)
        return _grouped({k: v for k, v in changed.items() if _fits(k[1], patterns or ["*"])}, "=")


def _fits(name: str, patterns: list[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _changes(before: Shown, now: Shown) -> Shown:
    changed = {key: text for key, text in now.items() if before.get(key) != text}
    return changed | {key: "-" for key in before if key not in now}


def _grouped(shown: Shown, sign: str = " ") -> list[str]:
    """Return a line for each entity, or one for consecutive ones with the same metric or the same values."""
    of_entity: dict[str, dict[str, str]] = {}
    for (entity, name), text in shown.items():
        of_entity.setdefault(entity, {})[name] = text
    found = []
    for names, group in groupby(of_entity.items(), key=lambda each: [*each[1]]):
        entities = list(group)
        if len(entities) > 1 == len(names):
            joined = ", ".join(f"{entity}{sign}{texts[names[0]]}" for entity, texts in entities)
            found += _wrapped(f"{names[0]}: {joined}")
            continue
        for texts, equal in groupby(entities, key=itemgetter(1)):
            head = " ".join(entity for entity, _ in equal)
            first, *others = texts.values()
            if len(others) >= SEVERAL and first in ABSENT and {*others} == {first}:
                found.append(f"{head}: {len(texts)} {first}")
                continue
            joined = ", ".join(f"{name}{sign}{text}" for name, text in texts.items())
            found += _wrapped(f"{head}: {joined}" if head else joined)
    return found


def _wrapped(line: str) -> list[str]:
    return wrap(line, 130, subsequent_indent="  ", break_long_words=False)


def _event(event: Event) -> str:
    facts = " ".join(f"{name}={text!r}" for name, text in event.facts.items())
    return f"event {event.event_class.name} {','.join(event.entity.key)} {facts}"


def _finding(finding: ProbeFinding) -> str:
    remedy = f" -> {finding.remedy}" if finding.remedy else ""
    return f"{finding.verdict} {finding.title}: {finding.detail}{remedy}"


@pytest.mark.filterwarnings("ignore:'sin' and 'sout' swap memory:RuntimeWarning")
def test_host_readings(story: Story, tmp_path: Path) -> None:
    story.play(NodeStory(tmp_path).run)
