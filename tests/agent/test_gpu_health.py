"""Verdicts on the GPUs of a node: stories of driver answers, kernel lines and time in `gpu_health/`.

Commands of `support.node_story`, and:

    step [S] [without SOURCE]   S seconds in six reads, 5 to 30 seconds apart; below it, each verdict that has changed since the last one:
                                GPU, state, actions and reasons (GPUs begin healthy); a source may be left unread
    judge, hang SOURCE          read the verdicts alone; a source does not return
    answer GPU RULE             result of a rule: 0, 1 or the reason for its absence
    events                      events of verdicts since the last time: GPU and facts
    findings                    findings of `agent check` that are not in order
    restart                     the agent starts again, with its state directory and the whole kernel log
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.examples import few_examples
from support.judging import HEALTH, VerdictSources
from support.node_story import StoryNode
from support.reading import readings
from support.stories import Story

from railscope.catalog import gpu_health as h
from railscope.reading import Absent
from railscope_agent.sampling.probe_result import ProbeVerdict

POLL_SECONDS, LONG_SECONDS = 5.0, 30.0
SHOWN = (ProbeVerdict.SUPPORTED, ProbeVerdict.ABSENT)


class JudgedNode:
    """A node, and the agent's verdicts on its GPUs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = list[str]()
        self._start(StoryNode(1))

    def _start(self, node: StoryNode) -> None:
        self._node = node
        self._run = VerdictSources(node.host)
        self._run.verdicts.remember(self._directory, "boot-1")
        self._reported = dict[str, str]()

    def run(self, line: str) -> list[str]:
        word, *words = line.split(" ")
        match word:
            case "node":
                self._start(StoryNode(int(words[0])))
            case "step":
                return self._step(words)
            case "judge":
                self._run.judge()
                return self._changes()
            case "hang":
                self._run.hang(words[0])
            case "answer":
                label = h.GPU_HEALTH_REASON.name, (words[0], words[1])
                found = readings(self._run.frame)[label]
                return [found.label if isinstance(found, Absent) else str(found)]
            case "events":
                events, self._run.events = self._run.events, []
                return [f"{e.entity.key[0]} {' '.join(_facts(e.facts))}" for e in events]
            case "findings":
                found = self._run.read("gpu_verdict").findings
                return [f"{f.device}: {f.detail}" for f in found if f.verdict not in SHOWN]
            case "restart":
                self._node.host.log.waiting = list(self._log)
                self._start(self._node)
            case _:
                assert self._node.change(line), f"unknown command: {line}"
                if word == "log":
                    self._log = [*self._log, *self._node.host.log.waiting[-1:]]
        return []

    def state(self) -> str:
        """Return the state of GPU-0."""
        return self._reported.get("GPU-0", "healthy").split(" ")[0]

    def _step(self, words: list[str]) -> list[str]:
        unread = words.pop() if "without" in words else ""
        seconds = float(words[0]) if words and words[0] != "without" else POLL_SECONDS
        every = min(max(POLL_SECONDS, seconds / 6), LONG_SECONDS)
        while seconds > 0:
            self._run.step(min(seconds, every), silent=[unread])
            seconds -= every
        return self._changes()

    def _changes(self) -> list[str]:
        found, verdicts = readings(self._run.frame), dict[str, str]()
        for (name, (gpu, *_)), state in found.items():
            if name == HEALTH and not isinstance(state, Absent):
                reasons = [
                    key[1]
                    for (other, key), reading in found.items()
                    if other == h.GPU_HEALTH_REASON.name and key[0] == gpu and reading == 1
                ]
                action = found[h.GPU_ACTION.name, (gpu,)]
                named = "-" if isinstance(action, Absent) else h.GPU_ACTION.states[action]
                words = [h.GPU_HEALTH.states[state], *([named] if state != 1 else []), *reasons]
                verdicts[gpu] = " ".join(words)
        before, self._reported = self._reported, verdicts
        changed = [f"{g} {v}" for g, v in verdicts.items() if v != before.get(g, "healthy")]
        return changed + [f"{gpu} not judged" for gpu in before if gpu not in verdicts]


def _facts(facts: dict[str, str]) -> list[str]:
    return [
        f"{name}={value!r}" if " " in value else f"{name}={value}" for name, value in facts.items()
    ]


FAULTS = (
    "nvml RemappedRows(0) [0,0,0,1]", "nvml RemappedRows(0) [0,512,1,0]", "field 0 4 1", "field 0 230 1", "field 0 230 4",
    "nvml MarginTemperature(0) 0", "nvml CurrentClocksEventReasons(0) 64", "field 0 165:1 0", "field 0 83 !16",
    'nvml GpuFabricInfoV(0) {"state":1,"status":0,"healthSummary":0,"healthMask":0}', "nvml nvmlDeviceGetCount() 0",
    "log NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", "fail 0 15",
)  # fmt: skip
MISSING = (
    "nvml RemappedRows(0)", "field 0 4", "field 0 230", "nvml CurrentClocksEventReasons(0)", "nvml CurrPcieLinkWidth(0)", "field 0 165:1",
)  # fmt: skip
BADNESS = ("healthy", "degraded", "unknown", "failed")


def state_after(directory: Path, commands: list[str]) -> str:
    """Return the state of a GPU with two NVLinks a minute after changes of the node."""
    node = JudgedNode(directory)
    for line in ["links 0 2 1", "field 0 138:1 5", "step", *commands, "step 61", "step"]:
        node.run(line)
    return node.state()


@few_examples(20)
@given(faults=st.lists(st.sampled_from(FAULTS), max_size=3), another=st.sampled_from(FAULTS))
def test_one_more_fault_never_makes_a_gpu_better(
    tmp_path_factory: pytest.TempPathFactory, faults: list[str], another: str
) -> None:
    places = [line.split(" ")[:3] for line in (*faults, another)]
    if all(places.count(place) == 1 for place in places):
        before, after = (
            state_after(tmp_path_factory.mktemp("node"), lines)
            for lines in (faults, [*faults, another])
        )
        assert BADNESS.index(after) >= BADNESS.index(before)


@few_examples(20)
@given(missing=st.sampled_from(MISSING), code=st.sampled_from([4, 10, 15]))
def test_a_gpu_without_a_needed_reading_is_never_healthy(
    tmp_path_factory: pytest.TempPathFactory, missing: str, code: int
) -> None:
    assert state_after(tmp_path_factory.mktemp("node"), [f"{missing} !{code}"]) in {
        "unknown",
        "failed",
    }


@pytest.mark.parametrize("content", [b"", b"{", b'{"boot_id": 1, "gpus": {}}', b"\xff"])
def test_a_damaged_file_of_resets_does_no_harm(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gpu-resets.json").write_bytes(content)
    assert state_after(tmp_path, []) == "healthy"


def test_story(story: Story, tmp_path: Path) -> None:
    story.play(JudgedNode(tmp_path).run)
