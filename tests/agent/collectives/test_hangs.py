"""A Slurm job of four ranks on a node: which of them is late, by its dumps, or NCCL's RAS subsystem.

A moment is a time at which the agent reads the host. A story begins at the first moment, with the recorded answers of a hang; at each
moment answers of the host may change, and those that do not remain as they were.

ask SETTING=VALUE             settings of `collectives`; late_seconds=5
step SECONDS                  time between moments
dumps E0 E1 E2 E3 [K=V]       dumps of the ranks, each with its last collective (`-` is none): completed=4999, age=10 in
                              seconds; kind=nccl:all_gather of those that are not completed, odd=kind or size of rank 3
recorded CASE                 dumps of a job that PyTorch has written, one second after each other
ras R0 R1 ... [name=0xb2]     a communicator in the report of RAS: all-reduces of each rank, `missing` or `dead`, or
                              AllReduce:4999,Broadcast:1; `ras none` removes all
file RANK K=V                 a file of the list: user, bytes, is_regular, modified_ns, job
process RANK K=V              a process: user, rank, jobs, own_pid, started_ns
nccl K=V                      all processes as the RAS client finds them: version, has_same_network, started_ns
fail KEY ERRNO, call KEY JSON an answer of the host; `gone` removes the processes from the GPUs
next [N]                      adds N moments; the commands that follow change the answers at the last one
report                        files, processes and ranks by state; events with `show FACTS`
states                        state of each rank on the metrics endpoint; `asked`: requests to the job
"""

from __future__ import annotations

import copy
import dataclasses
import errno
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import ras_servers as ras
from support.cases import capture_of
from support.flight_recorders import DIRECTORY, SAME_TIME_NS, STEP_NS, USER, dump, entry, pickled
from support.sampling import COLLECTIVE_SOURCES, read_sources
from support.stories import Story

from railscope.capture import Capture, CaptureMoment
from railscope.catalog import collectives as c
from railscope.frame import Event, Frame
from railscope.timestamps import SECOND_NS
from railscope_agent.collectives.flight_recorder import parse_dump
from railscope_agent.collectives.pickled_literals import read_literals
from railscope_agent.collectives.ras_answers import parse_report
from railscope_agent.commands.read_once import CaptureWalk
from railscope_agent.config import AgentSettings
from railscope_agent.host import Json
from railscope_agent.host.job_files import JobFile, JobFileListing, OpenedDump
from railscope_agent.host.nccl_ras import NcclProcess, RasAnswer
from railscope_agent.host.recorded_host import call_key
from railscope_agent.service import Agent

HANG = capture_of("nccl-hang")
CALLS = HANG.moments[0].calls
PIDS = [int(key[18:-1]) for key in CALLS if key.startswith("job_files.process(")]
JOB = "60937"
LIST = f"job_files.list({DIRECTORY})"
STATES = {
    "files": ("flight_recorder", c.FLIGHT_RECORDER_FILES),
    "processes": ("nccl_ras", c.NCCL_PROCESSES),
    "ranks": ("flight_recorder", c.COLLECTIVE_RANKS),
    "ras ranks": ("nccl_ras", c.NCCL_RANKS),
}
SHOWN = [
    "collective",
    "sequence",
    "launched",
    "lag",
    "late_ranks",
    "waiting_ranks",
    "waits_in",
    "detail",
]


def ras_key(function: str, pids: list[int], user: int = USER) -> str:
    return call_key("nccl_ras", function, (28028, 5000, user, *pids))


def changed(value: Any, words: dict[str, str]) -> Any:
    """Return a dictionary with other values, each in JSON or a text."""
    found = dict(value)
    for name, word in words.items():
        try:
            found[name] = json.loads(word)
        except ValueError:
            found[name] = word.replace("+", " ")
    return found


class Job:
    """The node of a capture with changed answers. A method is a command."""

    def __init__(self) -> None:
        self.job()

    def job(self) -> None:
        self.settings: dict[str, Any] = {}
        self.shown, self.step_seconds = SHOWN, 61.0
        self._communicators: list[Any] = []
        self.moments: list[dict[str, Json]] = [copy.deepcopy(CALLS) | {LIST: {}}]
        for number in range(4):
            self.process(str(number), own_pid=str(10 + number))
        self.nccl()
        self.call(
            ras_key("events", PIDS), json.dumps(msgspec.to_builtins(RasAnswer("answered", PIDS[0])))
        )

    @property
    def calls(self) -> dict[str, Json]:
        return self.moments[-1]

    def known(self, key: str) -> Any:
        """Return the answer as of the last moment."""
        return copy.deepcopy(next(each[key] for each in reversed(self.moments) if key in each))

    def run(self, line: str) -> list[str]:
        word, *words = line.split(" ")
        given = dict(each.split("=", 1) for each in words if "=" in each and word != "call")
        plain = words if word == "call" else [each for each in words if "=" not in each]
        if not hasattr(self, word):
            pytest.fail(f"unknown command: {line}")
        return getattr(self, word)(*plain, **given) or []

    def ask(self, **settings: str) -> None:
        self.settings = changed(self.settings, settings)

    def step(self, seconds: str) -> None:
        self.step_seconds = float(seconds)

    def next(self, count: str = "1") -> None:
        self.moments += [{} for _ in range(int(count))]

    def _contents(self, entered: tuple[str, ...], given: dict[str, str]) -> dict[int, Any]:
        written_ns = HANG.about.started_wall_ns - int(given.get("age", "30")) * SECOND_NS
        began_ns = written_ns - SAME_TIME_NS - 5000 * STEP_NS
        completed = int(given.get("completed", "4999"))
        contents = {}
        for rank, number in enumerate(entered):
            if number == "-":
                continue
            changes: dict[str, Any] = {}
            if "kind" in given and int(number) > completed:
                odd = given.get("odd") if rank == 3 else ""
                kind = "nccl:broadcast" if odd == "kind" else given["kind"]
                last = entry(
                    int(number),
                    began_ns,
                    is_completed=False,
                    profiling_name=kind,
                    input_sizes=[[8 + (odd == "size")]],
                )
                changes["entries"] = [last]
            contents[rank] = parse_dump(
                pickled(dump(range(4), int(number), completed, began_ns, **changes))
            )
        return contents

    def _store(self, contents: dict[int, Any], written_ns: list[int]) -> None:
        files = []
        for rank, content in contents.items():
            name = f"nccl_trace_rank_{rank}"
            files.append(
                JobFile(
                    JOB, name, str(rank), USER, 9, written_ns[rank], 400 + rank, is_regular=True
                )
            )
            opened = OpenedDump(USER, written_ns[rank], content)
            self.calls[call_key("job_files", "flight_recorder", (DIRECTORY, JOB, name))] = (
                msgspec.to_builtins(opened)
            )
        self.calls[LIST] = msgspec.to_builtins(JobFileListing(files))

    def dumps(self, *entered: str, **given: str) -> None:
        written_ns = HANG.about.started_wall_ns - int(given.get("age", "30")) * SECOND_NS
        self._store(self._contents(entered, given), [written_ns + rank for rank in range(4)])

    def recorded(self, case: str) -> None:
        paths = [Path(__file__).parent / "dumps" / case / f"rank_{rank}" for rank in range(4)]
        found: list[Any] = [read_literals(path.read_bytes()) for path in paths]
        last_ns = max(each["time_created_ns"] for content in found for each in content["entries"])
        for content in found:
            for each in content["entries"]:
                each["time_created_ns"] += HANG.about.started_wall_ns - last_ns - 10 * SECOND_NS
        contents = {rank: parse_dump(pickled(content)) for rank, content in enumerate(found)}
        self._store(contents, [HANG.about.started_wall_ns] * 4)

    def ras(self, *ranks: str, name: str = "0xa1") -> None:
        self.settings.setdefault("ras", "query")
        listed, absent = [], []
        for number, word in enumerate(ranks):
            if word in {"missing", "dead"}:
                absent.append(ras.missing(number, 10 + number, is_dead=word == "dead"))
            elif word != "none":
                counts, _, status = word.partition("!")
                kinds = (
                    dict(each.split(":") for each in counts.split(","))
                    if ":" in counts
                    else {"AllReduce": counts}
                )
                problem = {status: 6} if status else None
                listed.append(
                    ras.rank(
                        number,
                        10 + number,
                        status=problem,
                        **{kind: int(n) for kind, n in kinds.items()},
                    )
                )
        self._communicators = (
            []
            if ranks == ("none",)
            else [*self._communicators, ras.communicator(listed, absent, name)]
        )
        self._answer(ras.report(*self._communicators))

    def _answer(self, content: bytes) -> None:
        answer = RasAnswer("answered", PIDS[0], parse_report(content))
        self.calls[ras_key("query", PIDS)] = msgspec.to_builtins(answer)

    def file(self, rank: str, **given: str) -> None:
        listing = self.known(LIST)
        listing["files"][int(rank)] = changed(listing["files"][int(rank)], given)
        self.calls[LIST] = listing

    def process(self, number: str, /, **given: str) -> None:
        key = f"job_files.process({PIDS[int(number)]})"
        self.calls[key] = changed(self.known(key), given)

    def nccl(self, **given: str) -> None:
        young = HANG.about.started_boot_ns - 900 * SECOND_NS
        found = changed(
            msgspec.to_builtins(NcclProcess("2.29.3", young, has_same_network=True)), given
        )
        for pid in PIDS:
            self.calls[f"nccl_ras.process({pid})"] = found

    def fail(self, key: str, name: str) -> None:
        kind, _, rank = key.partition("/")
        keys = {
            "dump": call_key("job_files", "flight_recorder", (DIRECTORY, JOB, f"nccl_trace_rank_{rank}")),
            "list": LIST, "nccl": f"nccl_ras.process({PIDS[int(rank or 0)]})",
        }  # fmt: skip
        self.calls[keys[kind]] = {"error": ["os", getattr(errno, name)]}

    def call(self, key: str, *words: str) -> None:
        names = {"query": ras_key("query", PIDS), "events": ras_key("events", PIDS)}
        self.calls[names.get(key, key)] = json.loads(" ".join(words).replace("PID0", str(PIDS[0])))

    def gone(self) -> None:
        self.calls.update({key: [] for key in CALLS if "RunningProcesses" in key})

    def show(self, *facts: str) -> None:
        self.shown = list(facts)

    def _frames(self) -> list[Frame]:
        step_ns = round(self.step_seconds * SECOND_NS)
        first = msgspec.structs.replace(HANG.moments[0], calls=self.moments[0])
        later = [
            CaptureMoment(n * step_ns, calls=each) for n, each in enumerate(self.moments[1:], 1)
        ]
        about = dataclasses.replace(HANG.about, duration_ns=len(later) * step_ns)
        walk = CaptureWalk(Capture(about, (first, *later)))
        agent = self.agent = Agent(
            msgspec.convert({"collectives": self.settings}, AgentSettings), walk.host, about.node
        )
        self.frames: list[Frame] = []
        agent.on_frame = self.frames.append
        read_sources(walk, agent, COLLECTIVE_SOURCES)
        return self.frames

    def report(self) -> list[str]:
        frames, lines = self._frames(), []
        for name, (stream, wanted) in STATES.items():
            last = [
                frame for frame in frames if frame.schema.stream == stream and frame.schema.columns
            ][-1:]
            counts = {
                e.key[0]: value
                for frame in last
                for m, e, value in frame.readings()
                if m is wanted and value
            }
            if counts:
                lines.append(
                    f"{name}: " + ", ".join(f"{count} {state}" for state, count in counts.items())
                )
        events = [
            event for frame in frames if self.agent.is_shipped(frame) for event in frame.events
        ]
        return lines + [
            self._printed(each)
            for each in events
            if each.event_class.name.startswith(("collective_", "nccl_"))
        ]

    def _printed(self, event: Event) -> str:
        words = [f"{name}={event.facts[name]}" for name in self.shown if name in event.facts]
        return " ".join(
            [
                event.event_class.name.replace("_rank_", " ").replace("_", " "),
                "/".join(event.entity.key[2:]),
                *words,
            ]
        )

    def states(self) -> list[str]:
        last = [
            frame
            for frame in self.frames
            if frame.schema.stream in {"collective_rank", "nccl_rank"} and frame.schema.columns
        ][-1]
        names = {c.RANK_STATE: c.RANK_STATES, c.NCCL_STATE: c.NCCL_RANK_STATES}
        found = {e.key[3]: names[m][value] for m, e, value in last.readings() if m in names}  # type: ignore[index]
        return [" ".join(f"{rank}={state}" for rank, state in found.items())]


def test_story(story: Story) -> None:
    story.play(Job().run)
