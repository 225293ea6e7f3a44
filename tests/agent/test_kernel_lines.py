"""The kernel log as stories in `kernel_lines/`: each line, and the events of it.

Below a line of the log: class and key of each event, and the facts that are not words of its end. Other commands:

    record HEAD;TEXT            a record that waits for the next poll
    poll [S]                    S seconds later: events, with the seconds since their time
    flood N TEXT                N records, in which {n} is the number of the record
    log ERRNO, log open         reading fails; the log can be opened again and starts from its oldest record
    counts                      records, lost records, suppressed events, and counted Xids and failed GPUs
    columns                     GPUs and errors with a column
    reports                     what each driver reports of its device, until it reports the opposite
"""

from __future__ import annotations

from collections.abc import Mapping

from support.clock import NS
from support.machine import FakeHost
from support.node_story import answer_of
from support.reading import ORIGIN, readings
from support.stories import Story

from railscope.catalog.kernel import DRIVER_REPORT
from railscope.frame import Event, Frame
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.streams.kernel_log import KernelLogStream

OF_THE_CATALOG = {"name", "meaning", "severity", "action", "nvidia_action"}
COUNTS = (
    "railscope_kernel_log_records_total", "railscope_kernel_log_lost_records_total",
    "railscope_kernel_log_suppressed_events_total", "railscope_kernel_xids_total", "railscope_kernel_gpu_failures_total",
)  # fmt: skip
XIDS = "railscope_gpu_xid_errors_total"
MAX_SHOWN = 8
APART_SECONDS = 61
"""Between two lines: some events are reported once a minute."""


class FollowedLog:
    """A node with a GPU of minor number 3 at 0000:61:00.0, and the agent that follows its log."""

    def __init__(self) -> None:
        self._host = FakeHost()
        self._host.files |= {
            "/sys/bus/pci/devices/0000:61:00.0/vendor": "0x10de",
            "/proc/driver/nvidia/gpus/0000:61:00.0/information": "Device Minor: \t 3\n",
        }
        self._reader = SourceReader(KernelLogStream(), self._host, ORIGIN)
        self._oldest = list[str]()
        self._frame: Frame | None = None
        self._number = 0

    def run(self, line: str) -> list[str]:
        word, _, rest = line.partition(" ")
        match word:
            case "record":
                self._write(rest)
            case "poll":
                self._host.clock.advance(float(rest or 5))
                return self._poll(is_timed=True)
            case "flood":
                count, _, text = rest.partition(" ")
                for n in range(int(count)):
                    self._write(f"3,{self._number + n},{n},-;{text.replace('{n}', f'{n:04x}')}")
            case "log" if rest == "open":
                self._host.log.closed = self._host.log.broken = None
                self._host.log.waiting = list(self._oldest)
            case "log":
                self._host.log.closed = self._host.log.broken = answer_of(rest)
            case "counts":
                found = readings(self._frame)
                return [" ".join(f"{name.split('_', 2)[2]}={found[name, ()]}" for name in COUNTS)]
            case "columns":
                found = readings(self._frame)
                return [
                    f"{' '.join(key)}={value}"
                    for (name, key), value in found.items()
                    if name == XIDS
                ]
            case "reports":
                found = readings(self._frame)
                return [
                    f"{k[0]} {DRIVER_REPORT.states[v]}"
                    for (n, k), v in found.items()
                    if n == DRIVER_REPORT.name
                ]
            case _:
                self._number += 1
                self._host.clock.advance(APART_SECONDS)
                microseconds = self._host.clock.now().boot_ns // 1000
                self._write(f"3,{self._number},{microseconds},-;{line}")
                return self._poll()
        return []

    def _write(self, record: str) -> None:
        self._oldest.append(record)
        self._host.log.waiting.append(record)

    def _poll(self, *, is_timed: bool = False) -> list[str]:
        outcome = self._reader.run()
        self._frame = outcome.frame or self._frame
        events = outcome.frame.events if outcome.frame else ()
        now_ns = self._host.clock.now().boot_ns
        if len(events) > MAX_SHOWN:
            return [f"{len(events)} events"]
        problems = [f"problem: {outcome.problem}"] if outcome.problem else []
        return problems + [
            f"{described(event)}{f' ago={(now_ns - event.boot_ns) / NS:g}' if is_timed else ''}"
            for event in events
        ]


def described(event: Event) -> str:
    facts: Mapping[str, str] = event.facts
    line = facts.get("message", "")
    shown = {name: v for name, v in facts.items() if name not in OF_THE_CATALOG and v != line}
    return " ".join(
        [event.event_class.name, *event.entity.key, *(f"{n}={v}" for n, v in shown.items())]
    )


def test_story(story: Story) -> None:
    story.play(FollowedLog().run)
