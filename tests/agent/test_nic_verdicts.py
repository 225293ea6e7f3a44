"""The verdict on a healthy 400G NIC of a training job, among 7 peers, with changes of its readings.

now METRIC[,PART] VALUE     a reading, or the reason for its absence
rate METRIC[,PART] N        a counter has grown by so much per second, in its stored unit
once METRIC[,PART]          a counter has grown by one, minutes ago
label NAME=TEXT, setting NAME=TEXT
peers N                     the number of peers
all COMMAND                 a change of every peer; `some N COMMAND` of the first N
judge                       the verdict, nothing if healthy; the NIC is healthy again
first                       the verdict if every counter was read only once
"""

from __future__ import annotations

from dataclasses import replace

from support.nic_health import PEERS, Change, alone, labels, now, once, rate, settings
from support.stories import Story

from railscope.catalog import METRICS
from railscope.reading import Absent
from railscope_agent.health import format_verdict, judge
from railscope_agent.health.fact_collector import NIC_RULES
from railscope_agent.health.health_facts import HealthFacts
from railscope_agent.health.rule import HEALTHY

REASONS = {reason.label: reason for reason in Absent}


def change(line: str) -> Change:
    """Return the change that a line specifies."""
    command, what, *values = line.split()
    if command in {"label", "setting"}:
        name, _, text = what.partition("=")
        return (labels if command == "label" else settings)(**{name: text})
    name, *part = what.split(",")
    metric = METRICS[f"railscope_{name}"]
    if command == "once":
        return once(metric, *part)
    (value,) = values
    if command == "rate":
        return rate(metric, float(value), *part)
    assert command == "now", f"unknown command: {line}"
    return now(metric, REASONS.get(value) or int(value), *part)


class Nics:
    """A NIC and its peers."""

    def __init__(self) -> None:
        self._nic, self._peers = alone(), [alone() for _ in range(PEERS)]

    def run(self, line: str) -> list[str]:
        command, _, rest = line.partition(" ")
        match command:
            case "judge":
                return self._judge(self._nic)
            case "first":
                return self._judge(replace(self._nic, changes={}))
            case "peers":
                self._peers = [alone() for _ in range(int(rest))]
            case "all":
                self._peers = [change(rest)(peer) for peer in self._peers]
            case "some":
                number, _, rest = rest.partition(" ")
                changed = [change(rest)(peer) for peer in self._peers[: int(number)]]
                self._peers = changed + self._peers[len(changed) :]
            case _:
                self._nic = change(line)(self._nic)
        return []

    def _judge(self, nic: HealthFacts) -> list[str]:
        facts = replace(nic, peers=tuple(self._peers))
        self._nic, self._peers = alone(), [alone() for _ in range(PEERS)]
        verdict = judge(facts, NIC_RULES)
        return [format_verdict(facts, verdict, NIC_RULES)] if verdict.state != HEALTHY else []


def test_nic_verdicts(story: Story) -> None:
    story.play(Nics().run)
