"""Logs of NCCL Inspector that jobs write on a node with four ranks, and what the agent makes of them.

job NAME                     a directory of a job, as a job of which the directory has the name
log RANK CALLS [K=V]         calls that a rank appends to its log: late=2 (the rank that arrives last), late_us=300, first=1,
                             form=marked, kind=, size=, pid= of the file; `case NAME` are logs of all ranks
raw RANK TEXT                text that a rank appends; \\n begins a line
replace RANK, rotate RANK, remove RANK, link RANK, pipe RANK
process PID RANK [K=V]       a process on a GPU: user=, workload=, owner=; `forget PID`
read [N]                     files and lines by state, in total; `close` reads until all is compared
totals                       calls, bytes, ns and bytes on the bus; of ranks: compared, last, ns and ns late
minute [K=V]                 calls of all ranks for more than a minute, as `log`; `window C=US ...` of communicators
wait SECONDS
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.inspector_logs import (
    COMMUNICATOR,
    InspectorDirectory,
    case_logs,
    collective,
    header,
    marked_lines,
    metadata,
    own_pid,
    straggling,
    text,
    whole_lines,
)
from support.stories import Story

from railscope.catalog import collectives as c

COUNTED = {
    "files": c.INSPECTOR_FILES, "lines": c.INSPECTOR_LINES,
}  # fmt: skip
NUMBERS = {
    "dropped": c.INSPECTOR_DROPPED, "waiting": c.INSPECTOR_WAITING, "replaced": c.INSPECTOR_REPLACED, "skipped": c.INSPECTOR_SKIPPED,
}  # fmt: skip


class Node:
    """A directory of logs, and the sources that read it. A method is a command."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.called = directory, 0
        self.job("")

    def job(self, name: str = "") -> None:
        self.node = InspectorDirectory(self.directory, name)

    def run(self, line: str) -> list[str]:
        word, *words = line.split(" ")
        if not hasattr(self, word):
            pytest.fail(f"unknown command: {line}")
        is_raw = "raw" in line.split(" ")[:3]
        given = {} if is_raw else dict(each.split("=", 1) for each in words if "=" in each)
        plain = words if is_raw else [each for each in words if "=" not in each]
        return getattr(self, word)(*plain, **given) or []

    def _calls(
        self, rank: int, count: int, late: str = "2", first: str = "1", late_us: str = "300"
    ) -> list[dict[str, Any]]:
        return straggling(rank, count, int(late), int(first), int(late_us))

    def log(self, rank: str, count: str, form: str = "whole", pid: str = "", **given: str) -> None:
        write = marked_lines if form == "marked" else whole_lines
        self.node.append(
            int(pid or rank), write(int(rank), self._calls(int(rank), int(count), **given))
        )

    def case(self, name: str) -> None:
        for case, rank, content in case_logs():
            if case == name:
                self.node.append(rank, content)

    def raw(self, rank: str, *words: str) -> None:
        self.node.append(int(rank), " ".join(words).replace("\\n", "\n").encode())

    def many(self, rank: str, count: str) -> None:
        for number in range(int(count)):
            (self.directory / f"{number}-pid{own_pid(int(rank))}.log").touch()

    def replace(self, rank: str) -> None:
        self.node.log(int(rank)).write_bytes(b"")

    def rotate(self, rank: str) -> None:
        self.node.log(int(rank)).rename(self.directory / "old.1")

    def remove(self, rank: str) -> None:
        self.node.log(int(rank)).unlink()

    def link(self, rank: str) -> None:
        (self.directory / "outside").write_bytes(whole_lines(0, straggling(0, 3)))
        self.node.log(int(rank)).symlink_to(self.directory / "outside")

    def pipe(self, rank: str) -> None:
        os.mkfifo(self.node.log(int(rank)))

    def process(self, pid: str, rank: str, **given: str) -> None:
        user = os.geteuid() + int(given.pop("user", "0"))
        facts = {"source": "kubernetes", **given} if given else {}
        self.node.add_process(int(pid), own_pid(int(rank)), user, **facts)

    def forget(self, pid: str) -> None:
        del self.node.places.processes[int(pid)]

    def read(self, times: str = "1") -> list[str]:
        self.node.read(int(times))
        readings = [*self.node.frame.readings()]
        lines = []
        for name, metric in COUNTED.items():
            counts = [f"{int(n)} {e.key[0]}" for m, e, n in readings if m is metric and n]  # type: ignore[arg-type]
            lines += [f"{name}: {', '.join(counts)}"] if counts else []
        lines += [
            f"{name}: {int(n)}"
            for name, metric in NUMBERS.items()
            for m, _, n in readings
            if m is metric and n
        ]  # type: ignore[arg-type]
        lines += self._events()
        return [line.replace(COMMUNICATOR, "C") for line in lines]

    def close(self) -> list[str]:
        return self.read("25")

    def totals(self) -> list[str]:
        found = self.node.totals.items()
        return [
            f"{name}: {' '.join(map(str, numbers))}".replace(COMMUNICATOR, "C")
            for name, numbers in found
        ]

    def minute(self, calls: str = "120", **given: str) -> list[str]:
        part = int(calls) // 12
        for step in range(13):
            for rank in range(4):
                first = str(self.called + step * part + 1)
                self.node.append(
                    rank, whole_lines(rank, self._calls(rank, part, first=first, **given))
                )
            self.node.read()
        self.called += 1000
        return self._events()

    def window(self, **times_us: str) -> list[str]:
        for _ in range(13):
            for communicator, time_us in times_us.items():
                about = {"header": header(0, 4, communicator), "metadata": metadata("v4.0", 100)}
                numbers = range(self.called, self.called + 10)
                made = [collective(n, 8 << 20, int(time_us) + n % 3) for n in numbers]
                self.node.append(0, text(*(about | {"coll_perf": body} for body in made)))
            self.called += 10
            self.node.read()
        return self._events()

    def _events(self) -> list[str]:
        lines = []
        for event in self.node.events:
            facts = ("pid", "gpu_index", "late_percent", "last_arrivals", "percent", "gpus")
            words = [f"{name}={event.facts[name]}" for name in facts if name in event.facts]
            key = " ".join(event.entity.key[2:]).replace(COMMUNICATOR, "C")
            lines.append(" ".join([event.event_class.name, key, *words]))
        self.node.events.clear()
        return lines

    def wait(self, seconds: str) -> None:
        self.node.clock.advance(float(seconds))


def test_story(story: Story, tmp_path: Path) -> None:
    story.play(Node(tmp_path).run)
